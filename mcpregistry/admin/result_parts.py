"""The parts of a result as a page shows them: texts, pictures, links and the rest. What a server
sent is never trusted."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# parts shown; characters of a picture's base64
MOST_PARTS = 50
MOST_PICTURE = 2_000_000
# none that can hold a script
_PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


@dataclass(frozen=True, slots=True)
class ResultPart:
    """One part: ``kind`` as MCP names it, its ``text``, or the ``picture`` as a data address;
    ``about`` says what it is."""

    kind: str
    text: str = ""
    picture: str = ""
    about: str = ""


def parts_of(result: Mapping[str, Any]) -> list[ResultPart]:
    """Of a result of a tool, a prompt or a resource; only the first 50."""
    for key in ("content", "messages", "contents"):
        listed = result.get(key)
        if isinstance(listed, list) and listed:
            return [_part(each) for each in listed[:MOST_PARTS]]
    return []


def _part(said: Any) -> ResultPart:
    if not isinstance(said, Mapping):
        return ResultPart("unknown", text=str(said))
    if "role" in said:  # a message of a prompt
        inner = _part(said.get("content"))
        return ResultPart(
            inner.kind, inner.text, inner.picture, f"{said['role']} {inner.about}".strip()
        )
    held = said.get("resource") if said.get("type") == "resource" else said
    held = held if isinstance(held, Mapping) else {}
    kind = str(said.get("type") or "resource")
    about = str(held.get("uri") or "")
    if isinstance(held.get("text"), str):
        return ResultPart(kind, held["text"], about=about)
    return _data(kind, about, held)


def _data(kind: str, about: str, held: Mapping[str, Any]) -> ResultPart:
    data = held.get("data", held.get("blob"))
    mime = str(held.get("mimeType") or "")
    if not isinstance(data, str):
        return ResultPart(kind, str(held.get("title") or held.get("name") or ""), about=about)
    about = f"{about} {mime or 'bytes'}, about {len(data) * 3 // 4:,} bytes".strip()
    shown = mime in _PICTURES and len(data) <= MOST_PICTURE and _is_base64(data)
    return ResultPart(kind, picture=f"data:{mime};base64,{data}" if shown else "", about=about)


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return False
