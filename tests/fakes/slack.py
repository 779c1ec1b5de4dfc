"""Slack, as far as a bot meets it: the Web API with its refusals, and people who press buttons.

Shapes and limits are those of docs.slack.dev: ``{"ok": false, "error": …}`` with HTTP 200, text and
block limits, one-time trigger ids, signed form posts (``payload=…``) to the app's request URL.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.http import HttpResponse
from django.test import Client

from tests.fakes.receiver import Answer, Received, Receiver, listening

TOKEN = "xoxb-canary-1f2e3d4c5b6a"
SIGNING = "8f742231b10e8888abcd99yyyzzz85a5"
ROOM = "C0SLIPS"
TEAM = "T0NISSE"


@dataclass
class Slack(Receiver):
    """``messages``: what stands in the room now, by time stamp."""

    messages: dict[str, dict[str, Any]] = field(default_factory=dict)
    whispers: list[dict[str, Any]] = field(default_factory=list)
    views: list[dict[str, Any]] = field(default_factory=list)
    triggers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.otherwise = self._api

    def _api(self, request: Received) -> Answer:
        method = request.path.removeprefix("/api/")
        payload = json.loads(request.body)
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return said({"ok": False, "error": "invalid_auth"})
        if not request.headers["content-type"].startswith("application/json"):
            return said({"ok": False, "error": "invalid_form_data"})
        known = {
            "chat.postMessage": self._post,
            "chat.update": self._update,
            "chat.postEphemeral": self._whisper,
            "views.open": self._open,
        }
        return said(
            known[method](payload) if method in known else {"ok": False, "error": "unknown_method"}
        )

    def _post(self, payload: dict[str, Any]) -> dict[str, Any]:
        if payload["channel"] != ROOM:
            return {"ok": False, "error": "channel_not_found"}
        if problem := odd_blocks(payload):
            return {"ok": False, "error": "invalid_blocks", "why": problem}
        stamp = f"17000000{len(self.messages):02}.000100"
        self.messages[stamp] = payload
        return {"ok": True, "channel": ROOM, "ts": stamp}

    def _update(self, payload: dict[str, Any]) -> dict[str, Any]:
        if payload["ts"] not in self.messages:
            return {"ok": False, "error": "message_not_found"}
        if problem := odd_blocks(payload):
            return {"ok": False, "error": "invalid_blocks", "why": problem}
        self.messages[payload["ts"]] = payload
        return {"ok": True, "channel": ROOM, "ts": payload["ts"]}

    def _whisper(self, payload: dict[str, Any]) -> dict[str, Any]:
        self.whispers.append(payload)
        return {"ok": True, "message_ts": "1.1"}

    def _open(self, payload: dict[str, Any]) -> dict[str, Any]:
        if payload["trigger_id"] not in self.triggers:
            return {"ok": False, "error": "invalid_trigger_id"}
        self.triggers.discard(payload["trigger_id"])
        self.views.append(payload["view"])
        return {"ok": True, "view": payload["view"]}

    # People

    def press(
        self, address: str, stamp: str, action: str, *, member: str = "U0ANN", **signing: Any
    ) -> HttpResponse:
        """Somebody presses a button of the message."""
        blocks = [block for block in self.messages[stamp]["blocks"] if block["type"] == "actions"]
        elements = [element for block in blocks for element in block["elements"]]
        button = next(element for element in elements if element["action_id"] == action)
        self.triggers.add(trigger := secrets.token_hex(8))
        payload = {
            "type": "block_actions",
            "user": {"id": member, "team_id": TEAM},
            "team": {"id": TEAM},
            "trigger_id": trigger,
            "channel": {"id": ROOM},
            "container": {"channel_id": ROOM, "message_ts": stamp},
            "actions": [{"type": "button", "action_id": action, "value": button.get("value", "")}],
        }
        return post(address, payload, **signing)

    def submit(self, address: str, *, reason: str, member: str = "U0ANN") -> HttpResponse:
        """Somebody fills in the dialog that was opened last."""
        view = self.views.pop()
        state = {
            "values": {"reason": {"reason": {"type": "plain_text_input", "value": reason or None}}}
        }
        payload = {
            "type": "view_submission",
            "user": {"id": member, "team_id": TEAM},
            "team": {"id": TEAM},
            "view": {**view, "state": state},
        }
        return post(address, payload)


def said(value: dict[str, Any]) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def post(
    address: str,
    payload: Any,
    *,
    secret: str = SIGNING,
    at: float | None = None,
    tamper: bytes = b"",
    signature: str | None = None,
) -> HttpResponse:
    """Slack's signed post (docs.slack.dev/authentication/verifying-requests-from-slack), written
    from the docs."""
    seconds = str(int(time.time() if at is None else at))
    body = urlencode({"payload": json.dumps(payload)}).encode()
    digest = hmac.new(
        secret.encode(), b"v0:" + seconds.encode() + b":" + body, hashlib.sha256
    ).hexdigest()
    return Client(enforce_csrf_checks=True).post(
        address,
        body + tamper,
        content_type="application/x-www-form-urlencoded",
        headers={
            "X-Slack-Signature": f"v0={digest}" if signature is None else signature,
            "X-Slack-Request-Timestamp": seconds,
        },
    )


def odd_blocks(payload: dict[str, Any]) -> str:
    """What Slack would refuse about a message; empty when it would take it."""
    if len(payload.get("blocks", [])) > 50 or not payload.get("text"):
        return "blocks or text"
    for block in payload["blocks"]:
        texts = {"header": [(block.get("text"), 150)]}.get(block["type"], [])
        texts += [(text, 2000) for text in block.get("fields", [])]
        texts += [(e["text"], 75) for e in block.get("elements", []) if e.get("type") == "button"]
        texts += [(e, 2000) for e in block.get("elements", []) if e.get("type") == "plain_text"]
        for text, most in texts:
            if text["type"] != "plain_text" or not 1 <= len(text["text"]) <= most:
                return f"{block['type']}: {text}"
        if len(block.get("fields", [])) > 10:
            return "fields"
        if any(len(e.get("value", "")) > 2000 for e in block.get("elements", [])):
            return "value"
    return ""


@contextmanager
def slack() -> Iterator[Slack]:
    with listening(Slack()) as fake:
        fake.url += "/api"
        yield fake
