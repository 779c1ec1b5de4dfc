"""A notification as Slack's Block Kit. Foreign text stands only in ``plain_text`` and preformatted
elements.

Those are shown letter by letter: no mention, link, emoji or formatting in a tool's name or argument
takes effect. The one text that Slack parses (the fallback ``text``) is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcpregistry.domain.notifications.events import Event, lines, title

Block = dict[str, Any]
APPROVE = "approve"
DENY = "deny"
OPEN = "open"
REASON = "reason"
PAGE_ONLY = "High-risk calls can only be decided on the page."
TOO_MUCH = (
    "The arguments are not shown completely here, so this call can only be decided on the page."
)


def escape(text: str) -> str:
    """For text that Slack parses
    (https://docs.slack.dev/messaging/formatting-message-text#escaping)."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def message(event: Event, data: Mapping[str, Any]) -> dict[str, Any]:
    """The body of chat.postMessage or chat.update, without ``channel``."""
    heading = title(event, data)
    blocks: list[Block] = [{"type": "header", "text": plain(heading, 150)}]
    facts = [plain(f"{label}: {value}", 2_000) for label, value in lines(event, data)]
    if facts:
        blocks.append({"type": "section", "fields": facts[:10]})
    if data.get("arguments"):
        blocks.append(_preformatted(data["arguments"]))
    blocks.append({"type": "actions", "elements": [*_buttons(event, data), _open(data["url"])]})
    if event is Event.ASKED and (why := why_page(data)):
        blocks.append({"type": "context", "elements": [plain(why, 2_000)]})
    return {
        "text": escape(heading),
        "blocks": blocks,
        "mrkdwn": False,
        "parse": "none",
        "link_names": False,
        "unfurl_links": False,
        "unfurl_media": False,
    }


def why_page(data: Mapping[str, Any]) -> str:
    """Why this call is not decided in Slack; empty when it may be."""
    if data["risk"] == "high":
        return PAGE_ONLY
    return "" if data["arguments_whole"] else TOO_MUCH


def reason_view(value: str, tool: str) -> dict[str, Any]:
    """The dialog that asks why a call is rejected; ``value`` comes back with the answer."""
    field = {
        "type": "plain_text_input",
        "action_id": REASON,
        "multiline": True,
        "max_length": 2_000,
    }
    return {
        "type": "modal",
        "callback_id": DENY,
        "private_metadata": value,
        "title": plain("Reject this call", 24),
        "submit": plain("Reject", 24),
        "close": plain("Back", 24),
        "blocks": [
            {"type": "section", "text": plain(tool, 2_000)},
            {
                "type": "input",
                "block_id": REASON,
                "optional": True,
                "element": field,
                "label": plain("Reason (shown to the agent)", 150),
            },
        ],
    }


def plain(text: str, limit: int) -> Block:
    """A ``plain_text`` element, cut at ``limit`` characters; Slack refuses an empty one, so it gets
    a space."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return {"type": "plain_text", "text": cut or " ", "emoji": False}


def _preformatted(text: str) -> Block:
    inside = {"type": "rich_text_preformatted", "elements": [{"type": "text", "text": text}]}
    return {"type": "rich_text", "elements": [inside]}


def _buttons(event: Event, data: Mapping[str, Any]) -> list[Block]:
    if event is not Event.ASKED or why_page(data):
        return []
    value = f"{data['request']}.{data['arguments_hash']}"
    sure = {
        "title": plain("Approve this call?", 100),
        "text": plain("The call then runs with exactly these arguments.", 300),
        "confirm": plain("Approve", 30),
        "deny": plain("Back", 30),
    }
    return [
        {
            "type": "button",
            "action_id": APPROVE,
            "style": "primary",
            "text": plain("Approve", 75),
            "value": value,
            "confirm": sure,
        },
        {
            "type": "button",
            "action_id": DENY,
            "style": "danger",
            "text": plain("Reject…", 75),
            "value": value,
        },
    ]


def _open(url: str) -> Block:
    return {"type": "button", "action_id": OPEN, "text": plain("Open the page", 75), "url": url}
