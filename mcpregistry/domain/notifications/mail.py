"""A notification as an e-mail: plain text, simple HTML, one link to the page; nothing in it decides
anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from mcpregistry.domain.notifications.events import (
    NotificationEvent,
    compose_title,
    flatten_text,
    list_fact_lines,
)

_FOOT = "The link only opens the page; you decide there. Slipsnisse never asks for your password by e-mail."


@dataclass(frozen=True, slots=True)
class Mail:
    """``subject`` is one line without control characters, so that no header can be smuggled in."""

    subject: str
    text: str
    html: str


def compose_mail(event: NotificationEvent, data: Mapping[str, Any]) -> Mail:
    """The e-mail about one event; ``data`` is the notification's own."""
    heading = compose_title(event, data)
    facts = list_fact_lines(event, data)
    shown = data.get("arguments", "")
    text = [heading, "", *(f"{label}: {value}" for label, value in facts)]
    text += ["", "Arguments:", shown] if shown else []
    text += ["", data["url"], "", _FOOT, ""]
    return Mail(
        flatten_text(f"[Slipsnisse] {heading}", 200),
        "\n".join(text),
        _render_html(heading, facts, shown, data["url"]),
    )


def _render_html(heading: str, facts: list[tuple[str, str]], shown: str, url: str) -> str:
    rows = "".join(
        f'<tr><th align="left" valign="top">{escape(label)}</th><td>{escape(value)}</td></tr>'
        for label, value in facts
    )
    arguments = f"<pre>{escape(shown)}</pre>" if shown else ""
    return (
        f'<!doctype html><html lang="en"><body><h2>{escape(heading)}</h2><table cellpadding="4">{rows}</table>'
        f'{arguments}<p><a href="{escape(url)}">Open the page</a></p><p><small>{escape(_FOOT)}</small></p></body></html>'
    )
