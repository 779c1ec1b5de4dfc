"""Answers whose text is a list of parts, as some reasoning models and gateways send it, in the form
that litellm reads."""

from __future__ import annotations

import json
from typing import Any

_TEXTS = ("text", "output_text")


def join_parts(body: bytes) -> bytes:
    """A chat completion with one text for each message; anything else as it is."""
    if b'"choices"' not in body:
        return body
    try:
        answer = json.loads(body)
        messages = [
            choice["message"]
            for choice in answer["choices"]
            if isinstance(choice["message"]["content"], list)
        ]
    except (ValueError, RecursionError, LookupError, TypeError):
        return body
    if not messages:
        return body
    for message in messages:
        _join(message)
    return json.dumps(answer).encode()


def _join(message: dict[str, Any]) -> None:
    parts = message["content"]
    message["content"] = "".join(_text(part) for part in parts) or None
    thinking = "".join(_thought(part) for part in parts)
    if thinking and not message.get("reasoning_content"):
        message["reasoning_content"] = thinking


def _text(part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or part.get("type", "text") not in _TEXTS:
        return ""
    text = part.get("text")
    if isinstance(text, dict):  # the older form of assistants
        text = text.get("value")
    return text if isinstance(text, str) else ""


def _thought(part: object) -> str:
    """The text of a part that is reasoning; Mistral puts a list of texts there."""
    if not isinstance(part, dict) or part.get("type") not in ("thinking", "reasoning"):
        return ""
    held = next((part[key] for key in ("thinking", "reasoning", "text") if key in part), "")
    parts = held if isinstance(held, list) else [held]
    return "".join(map(_text, parts))
