"""A notification as Slack's Block Kit. Foreign text stands only in ``plain_text`` and preformatted
elements.

Those are shown letter by letter: no mention, link, emoji or formatting in a tool's name or argument
takes effect. The one text that Slack parses (the fallback ``text``) is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcpregistry.domain.notifications.events import (
    NotificationEvent,
    compose_title,
    list_fact_lines,
)

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


def build_message(event: NotificationEvent, data: Mapping[str, Any]) -> dict[str, Any]:
    """The body of chat.postMessage or chat.update, without ``channel``."""
    heading = compose_title(event, data)
    blocks: list[Block] = [{"type": "header", "text": build_plain_text(heading, 150)}]
    facts = [
        build_plain_text(f"{label}: {value}", 2_000)
        for label, value in list_fact_lines(event, data)
    ]
    if facts:
        blocks.append({"type": "section", "fields": facts[:10]})
    if data.get("arguments"):
        blocks.append(_build_preformatted_block(data["arguments"]))
    blocks.append(
        {
            "type": "actions",
            "elements": [*_build_buttons(event, data), _build_open_button(data["url"])],
        }
    )
    if event is NotificationEvent.ASKED and (why := explain_page_only(data)):
        blocks.append({"type": "context", "elements": [build_plain_text(why, 2_000)]})
    return {
        "text": escape(heading),
        "blocks": blocks,
        "mrkdwn": False,
        "parse": "none",
        "link_names": False,
        "unfurl_links": False,
        "unfurl_media": False,
    }


def explain_page_only(data: Mapping[str, Any]) -> str:
    """Why this call is not decided in Slack; empty when it may be."""
    if data["risk"] == "high":
        return PAGE_ONLY
    return "" if data["arguments_whole"] else TOO_MUCH


def build_reason_view(value: str, tool: str) -> dict[str, Any]:
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
        "title": build_plain_text("Reject this call", 24),
        "submit": build_plain_text("Reject", 24),
        "close": build_plain_text("Back", 24),
        "blocks": [
            {"type": "section", "text": build_plain_text(tool, 2_000)},
            {
                "type": "input",
                "block_id": REASON,
                "optional": True,
                "element": field,
                "label": build_plain_text("Reason (shown to the agent)", 150),
            },
        ],
    }


def build_plain_text(text: str, limit: int) -> Block:
    """A ``plain_text`` element, cut at ``limit`` characters; Slack refuses an empty one, so it gets
    a space."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return {"type": "plain_text", "text": cut or " ", "emoji": False}


def _build_preformatted_block(text: str) -> Block:
    inside = {"type": "rich_text_preformatted", "elements": [{"type": "text", "text": text}]}
    return {"type": "rich_text", "elements": [inside]}


def _build_buttons(event: NotificationEvent, data: Mapping[str, Any]) -> list[Block]:
    if event is not NotificationEvent.ASKED or explain_page_only(data):
        return []
    value = f"{data['request']}.{data['arguments_hash']}"
    sure = {
        "title": build_plain_text("Approve this call?", 100),
        "text": build_plain_text("The call then runs with exactly these arguments.", 300),
        "confirm": build_plain_text("Approve", 30),
        "deny": build_plain_text("Back", 30),
    }
    return [
        {
            "type": "button",
            "action_id": APPROVE,
            "style": "primary",
            "text": build_plain_text("Approve", 75),
            "value": value,
            "confirm": sure,
        },
        {
            "type": "button",
            "action_id": DENY,
            "style": "danger",
            "text": build_plain_text("Reject…", 75),
            "value": value,
        },
    ]


def _build_open_button(url: str) -> Block:
    return {
        "type": "button",
        "action_id": OPEN,
        "text": build_plain_text("Open the page", 75),
        "url": url,
    }
