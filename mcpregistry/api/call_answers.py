"""A call's outcome as REST answers it: the plain value of a result, its kind, and the sentence of a
failure.

Pure functions. The untouched result travels beside the plain value, for callers that want it all.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from mcpregistry.calls.call import CallOutcome
from mcpregistry.domain.calls.outcome_texts import NOT_SENT, compose_headline
from mcpregistry.domain.lifecycle import InvocationState

ContentType = Literal["text", "json", "binary"]
MOST_ERROR = 4_000  # characters of a block that is no text, where it stands for an error


def plain_result(result: dict[str, Any]) -> Any:
    """The first block as a value: text is parsed as JSON where it is JSON; no content is null.

    A server that answers only with structured content gets that.
    """
    first = _first(result)
    if first is None:
        return result.get("structuredContent")
    text = first.get("text") if first.get("type") == "text" else None
    return _parse_json(text) if isinstance(text, str) else first


def content_type(result: dict[str, Any] | None) -> ContentType:
    """What kind of content the first block of a result is. A result without one is null, which is
    JSON; where there is no result at all, there is the sentence of the failure, which is text."""
    if result is None:
        return "text"
    first = _first(result)
    if first is None or first.get("type") == "resource_link":
        return "json"
    text = _text_of(first)
    if text is None:
        return "binary"
    return "text" if first.get("type") != "text" or _parse_json(text) is text else "json"


def failure(outcome: CallOutcome) -> str:
    """One sentence: the tool's own words if it answered, else what went wrong on the way."""
    if outcome.result is not None:
        return _first_text(outcome.result) or _block(outcome.result) or "Unknown error"
    if outcome.state is InvocationState.NOT_SENT and outcome.error_code in (
        "CONNECTION_FAILED",
        "AUTH_FAILED",
    ):
        return f"Server not connected: {outcome.message} {NOT_SENT}"
    if outcome.state in (InvocationState.NOT_SENT, InvocationState.UNKNOWN):
        said = f"{outcome.message} {outcome.remedy}".strip()
        return f"Tool execution failed: {compose_headline(outcome.state, '')}: {said}"
    return f"Tool execution failed: {outcome.message}"


def _first(result: dict[str, Any]) -> dict[str, Any] | None:
    blocks = result.get("content")
    found = blocks[0] if isinstance(blocks, list) and blocks else None
    return found if isinstance(found, dict) else None


def _first_text(result: dict[str, Any]) -> str:
    blocks = result.get("content")
    texts = (
        (_text_of(block) for block in blocks if isinstance(block, dict))
        if isinstance(blocks, list)
        else ()
    )
    return next((text for text in texts if text), "")


def _block(result: dict[str, Any]) -> str:
    """The first block itself, as JSON: what a tool says with a picture alone is not kept from the
    reader."""
    first = _first(result)
    whole = json.dumps(first, ensure_ascii=False) if first and first.get("type") != "text" else ""
    return whole if len(whole) <= MOST_ERROR else f"{whole[:MOST_ERROR]}…"


def _text_of(block: dict[str, Any]) -> str | None:
    """The text of a block: its own, or that of the resource embedded in it."""
    holder = block.get("resource") if block.get("type") == "resource" else block
    text = holder.get("text") if isinstance(holder, dict) else None
    return text if isinstance(text, str) else None


def _parse_json(text: str) -> Any:
    """The JSON value in a text, or the very same text when it is none (NaN is none)."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(name: str) -> None:
    raise ValueError(name)
