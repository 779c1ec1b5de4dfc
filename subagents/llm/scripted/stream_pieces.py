"""What the wire formats share: pieces of a stream, ids that repeat for the same request."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

from subagents.llm.scripted.script import ScriptedRequest

_PIECE = re.compile(r"\s*\S{1,24}\s*")


def event(data: dict[str, Any], name: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def pieces(text: str) -> Iterator[str]:
    """The text in parts of about a word, which together are the text."""
    if text.strip():
        return iter(_PIECE.findall(text))
    return iter([text] if text else [])


def identifier(prefix: str, ask: ScriptedRequest, index: int = 0) -> str:
    """An id that is the same for the same request, so that a request sent again gets the same
    ids."""
    seed = f"{ask.model}\0{ask.user}\0{ask.answered}\0{index}"
    return f"{prefix}_{hashlib.sha256(seed.encode()).hexdigest()[:20]}"


def text_of(content: Any) -> str:
    """A message's content, which is a text, a list of parts, or nothing."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return str(content or "")


def as_object(arguments: str) -> dict[str, Any]:
    """For wires that carry arguments as an object; broken ones travel as they are, in one
    member."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return {"__broken__": arguments}
    return value if isinstance(value, dict) else {"__broken__": arguments}
