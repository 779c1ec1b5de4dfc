"""Tool results on their way into a conversation: flattened to text, and paged when they are
large."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.domain.text.display import number_of

PAGE = 8_000  # characters that one page of a stored output holds at most
_LINE = 1_000  # characters of one line
_MOST_LINKS = 20  # of one result
_LINK_FIELDS = {"uri": 2_000, "name": 200, "mimeType": 100}  # characters


def flatten_result(result: Mapping[str, Any]) -> str:
    """The text of a result: text parts joined by line breaks, others as tags: ``[image: image/png,
    512 bytes]``.

    Structured content follows as compact JSON, unless a text of the result is the same JSON, as the
    protocol recommends.
    """
    texts = [_part(part) for part in result.get("content") or [] if isinstance(part, dict)]
    structured = result.get("structuredContent")
    if structured is not None and not any(_is_json_of(text, structured) for text in texts):
        texts = [*filter(None, texts), msgspec.json.encode(structured).decode()]
    return "\n".join(texts)


def _is_json_of(text: str, value: Any) -> bool:
    try:
        return bool(text.lstrip()[:1] in ("{", "[") and msgspec.json.decode(text.encode()) == value)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False


def _part(part: Mapping[str, Any]) -> str:
    kind = part.get("type")
    if kind == "text":
        return str(part.get("text") or "")
    if kind == "resource_link":
        return f"[resource_link: {part.get('uri')}]"
    if kind == "resource":
        resource = part.get("resource") if isinstance(part.get("resource"), dict) else {}
        assert resource is not None
        return str(resource["text"]) if "text" in resource else f"[resource: {resource.get('uri')}]"
    data = part.get("data")
    if isinstance(data, str):  # base64, which has four characters for three bytes
        return f"[{kind}: {part.get('mimeType')}, {len(data) * 3 // 4 - data.count('=')} bytes]"
    return f"[{kind}]"


def find_links(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the resource links of a result, as they are shown to people: uri, name and mimeType,
    cut if they are long."""
    parts = [part for part in result.get("content") or [] if isinstance(part, dict)]
    return [
        {
            field: clean_text(str(part.get(field) or ""), limit)
            for field, limit in _LINK_FIELDS.items()
        }
        for part in parts
        if part.get("type") == "resource_link"
    ][:_MOST_LINKS]


def handle_of(run: str, place: str) -> str:
    """A short name for a stored output; the same for the same place, so that repeating stores
    nothing twice."""
    return hashlib.sha256(f"{run}/{place}".encode()).hexdigest()[:12]


def preview(handle: str, text: str, *, limit: int) -> str:
    """What the model sees instead of a large result: how large it is, its beginning, and how to
    read on."""
    shown = text[: max(200, limit // 4)]
    return (
        f"The result is too large to show: {len(text.encode(errors='surrogatepass'))} bytes, {len(lines_of(text))} lines. "
        f'It is stored with the handle "{handle}". Read it with tool_output, for example '
        f'{{"handle": "{handle}", "from_line": 1}} or {{"handle": "{handle}", "find": "word"}}.\n'
        f"The beginning:\n{shown}"
    )


def lines_of(text: str) -> list[str]:
    """The lines of a stored output, at least one.

    A very long line (JSON often is nothing but one) counts as several, so that all of it can be
    read.
    """
    cut = (
        line[at : at + _LINE]
        for line in text.splitlines()
        for at in range(0, max(1, len(line)), _LINE)
    )
    return list(cut) or [""]


@dataclass(frozen=True, slots=True)
class OutputPage:
    """One page of a stored output: its text, first and last line (from 1), and how many lines there
    are."""

    text: str
    first: int
    last: int
    of: int


def page(text: str, *, from_line: int = 1, lines: int = 200, limit: int = PAGE) -> OutputPage:
    """Lines from ``from_line`` (from 1), at most ``lines`` and ``limit`` characters, but at least
    one line."""
    every = lines_of(text)
    start = min(max(1, from_line), len(every))
    taken: list[str] = []
    room = limit
    for line in every[start - 1 : start - 1 + max(1, lines)]:
        if taken and len(line) + 1 > room:
            break
        taken.append(line)
        room -= len(line) + 1
    return OutputPage("\n".join(taken), start, start + len(taken) - 1, len(every))


def find_lines(text: str, word: str, *, around: int = 2, limit: int = PAGE) -> str:
    """Every line with the word (any case), numbered, with the lines around it."""
    every = lines_of(text)
    hits = [i for i, line in enumerate(every) if word.lower() in line.lower()]
    near = sorted(
        {j for i in hits for j in range(max(0, i - around), min(len(every), i + around + 1))}
    )
    shown = "\n".join(f"{i + 1}: {every[i]}" for i in near)
    head = f"{number_of(len(hits), 'line contains', 'lines contain')} {word!r}.\n"
    return head + (
        shown
        if len(shown) <= limit
        else shown[:limit] + "\n… (There are more lines. Search for a longer text.)"
    )


TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "tool_output",
        "description": "Reads a large tool result that was stored, page by page, or finds lines in it. "
        f"A line of more than {_LINE} characters counts as several.",
        "parameters": {
            "type": "object",
            "properties": {
                "handle": {
                    "type": "string",
                    "description": "Handle that was returned instead of the result.",
                },
                "from_line": {
                    "type": "integer",
                    "minimum": 1,
                    "description": "First line to read. Default 1.",
                },
                "lines": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 1000,
                    "description": "Number of lines to read. Default 200.",
                },
                "find": {
                    "type": "string",
                    "minLength": 1,
                    "description": "Show only lines with this text.",
                },
            },
            "required": ["handle"],
            "additionalProperties": False,
        },
    },
}
