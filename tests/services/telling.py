"""Channels to fakes, calls that wait for people, and the outbox emptied as a worker does it."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.text.canonical import encode_canonical_json
from mcpregistry.models import ApprovalRequest, Channel, Delivery, Invocation
from mcpregistry.services.notifications import outbox
from mcpregistry.services.notifications.delivery import Deliverer
from mcpregistry.services.records import audit
from tests.fakes import slack
from tests.waiting import HANG_LIMIT

LOOPBACK = ["127.0.0.1/32"]
SIGNING = "whsec_" + base64.b64encode(b"canary-signing-key-0123456789abc").decode()


def webhook(
    url: str, name: str = "hook", *, access: dict[str, str] | None = None, **fields: Any
) -> Channel:
    channel = Channel(name=name, kind="webhook", **({"allowed_networks": LOOPBACK} | fields))
    given = {"url": url, "signing": SIGNING} | (access or {})
    return outbox.save_channel(channel=channel, actor="test", access=given)


def email(*addresses: str, name: str = "mail", **fields: Any) -> Channel:
    channel = Channel(
        name=name, kind="email", addresses=list(addresses or ("ann@example.org",)), **fields
    )
    return outbox.save_channel(channel=channel, actor="test")


def slack_room(url: str, name: str = "slack", **fields: Any) -> Channel:
    channel = Channel(
        name=name, kind="slack", room=slack.ROOM, **({"allowed_networks": LOOPBACK} | fields)
    )
    access = {"url": url, "token": slack.TOKEN, "signing": slack.SIGNING}
    return outbox.save_channel(channel=channel, actor="test", access=access)


def held(
    risk: str = "low", arguments: Any = None, *, call: dict[str, Any] | None = None, **fields: Any
) -> ApprovalRequest:
    """A call that waits for people, as the pipeline leaves it."""
    now = timezone.now()
    call_id = secrets.token_hex(16)
    values: dict[str, Any] = {
        "id": call_id,
        "state": InvocationState.PENDING,
        "agent_slug": "robot",
        "endpoint_slug": "default",
        "server_slug": "files",
        "tool_name": "delete_file",
        "exposed_name": "files__delete_file",
        "definition_hash": "d" * 64,
        "binding": "b" * 64,
        "outcome": "ask",
        "arguments": encode_canonical_json({"path": "a.txt"} if arguments is None else arguments),
        "origin": "http",
        "writer": "web:box:1:a",
        "received_at": now,
        "lease_until": now + timedelta(hours=1),
    }
    audit.record_entry(kind="call.pending", actor="robot", subject=f"call:{call_id}")
    rank = {"low": 1, "medium": 2, "high": 3}[risk]
    more = {
        "rule_name": "Ask before writing",
        "rule_fingerprint": "f" * 64,
        "decide_by": now + timedelta(minutes=15),
    }
    return ApprovalRequest.objects.create(
        id=secrets.token_hex(16),
        call=Invocation.objects.create(**(values | (call or {}))),
        risk=risk,
        risk_rank=rank,
        asked_at=now,
        **(more | fields),
    )


def tell(event: str, request: ApprovalRequest) -> list[Delivery]:
    with transaction.atomic():
        outbox.enqueue(event, request)
    return list(Delivery.objects.filter(request=request, event=event).order_by("id"))


class WaitedDeliverer(Deliverer):
    """A worker's deliverer that a test can wait for."""

    def run_until_idle(self, timeout: float = HANG_LIMIT) -> None:
        """Look, and wait until everything that was due has been tried."""
        self._loop.run(self._finish(), timeout)

    async def _finish(self) -> None:
        await self._look()
        while self._serving:
            await asyncio.wait(self._serving.values())


@contextmanager
def working() -> Iterator[WaitedDeliverer]:
    """A worker's deliverer; call ``run_until_idle``."""
    deliverer = WaitedDeliverer()
    try:
        yield deliverer
    finally:
        deliverer.close()


def deliver() -> None:
    with working() as deliverer:
        deliverer.run_until_idle()


def due_again() -> None:
    """As if the pause before the next try had passed."""
    Delivery.objects.open().update(next_at=timezone.now() - timedelta(minutes=1))


def only() -> Delivery:
    return Delivery.objects.get()


def everything_stored() -> str:
    """Every text of the outbox, the channels, their histories and the audit log."""
    from mcpregistry.models import AuditEntry

    tables = (Channel, Channel.history.model, Delivery, AuditEntry)
    return json.dumps([list(table._default_manager.values()) for table in tables], default=str)
