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
    """The result as one value. Structured content comes first, because it is complete; SDKs put a
    value that is not an object into its member ``result``. Otherwise, a single block is its value,
    several blocks are the list of their values, and no block is null. Text is parsed as JSON if it
    is JSON.
    """
    structured = result.get("structuredContent")
    if isinstance(structured, dict):
        return structured["result"] if structured.keys() == {"result"} else structured
    values = [_value_of(block) for block in _blocks(result)]
    if not values:
        return None
    return values[0] if len(values) == 1 else values


def _value_of(block: dict[str, Any]) -> Any:
    text = block.get("text") if block.get("type") == "text" else None
    return _parse_json(text) if isinstance(text, str) else block


def content_type(result: dict[str, Any] | None) -> ContentType:
    """What kind of value ``plain_result`` is. Structured content, several blocks and no block are
    JSON; where there is no result at all, there is the sentence of the failure, which is text."""
    if result is None:
        return "text"
    if isinstance(result.get("structuredContent"), dict):
        return "text" if isinstance(plain_result(result), str) else "json"
    blocks = _blocks(result)
    if len(blocks) != 1 or blocks[0].get("type") == "resource_link":
        return "json"
    first = blocks[0]
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


def _blocks(result: dict[str, Any]) -> list[dict[str, Any]]:
    blocks = result.get("content")
    return [each for each in blocks if isinstance(each, dict)] if isinstance(blocks, list) else []


def _first_text(result: dict[str, Any]) -> str:
    return next((text for block in _blocks(result) if (text := _text_of(block))), "")


def _block(result: dict[str, Any]) -> str:
    """The first block itself, as JSON: what a tool says with a picture alone is not kept from the
    reader."""
    first = next(iter(_blocks(result)), None)
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
