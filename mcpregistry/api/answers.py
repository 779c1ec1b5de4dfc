"""How a call's outcome looks over REST: the plain value of a result, its kind, and the sentence of a failure.

Pure functions. The untouched result travels beside the plain value, for callers that want it all.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from mcpregistry.calls.call import CallOutcome
from mcpregistry.domain.lifecycle import State

ContentType = Literal["text", "json", "binary", "none"]


def plain_result(result: dict[str, Any]) -> Any:
    """The first block as a value: text is parsed as JSON where it is JSON; no content is null.

    A server that answers only with structured content gets that.
    """
    first = _first(result)
    if first is None:
        return result.get("structuredContent")
    text = first.get("text") if first.get("type") == "text" else None
    return _parsed(text) if isinstance(text, str) else first


def content_type(result: dict[str, Any] | None) -> ContentType:
    first = _first(result or {})
    if first is None:
        return "json" if (result or {}).get("structuredContent") is not None else "none"
    if first.get("type") != "text":
        return "binary"
    text = first.get("text")
    return "text" if not isinstance(text, str) or _parsed(text) is text else "json"


def failure(outcome: CallOutcome) -> str:
    """One sentence: the tool's own words if it answered, else what went wrong on the way."""
    if outcome.result is not None:
        return _first_text(outcome.result) or "Unknown error"
    if outcome.state is State.NOT_SENT and outcome.error_code in ("CONNECTION_FAILED", "AUTH_FAILED"):
        return f"Server not connected: {outcome.message}"
    return f"Tool execution failed: {outcome.message}"


def _first(result: dict[str, Any]) -> dict[str, Any] | None:
    blocks = result.get("content")
    found = blocks[0] if isinstance(blocks, list) and blocks else None
    return found if isinstance(found, dict) else None


def _first_text(result: dict[str, Any]) -> str:
    blocks = result.get("content")
    texts = (b.get("text") for b in blocks if isinstance(b, dict)) if isinstance(blocks, list) else ()
    return next((text for text in texts if isinstance(text, str) and text), "")


def _parsed(text: str) -> Any:
    """The JSON value in a text, or the very same text when it is none (NaN is none)."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(name: str) -> None:
    raise ValueError(name)
