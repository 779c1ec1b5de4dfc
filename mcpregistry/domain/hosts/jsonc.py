"""Changing one member of a JSON file, and nothing else of its text: order, comments, spaces and
commas stay.

A host's settings are somebody's own file, often written by hand. So text is cut and put in at the
one place; what comes out is read again by ``entry_file`` and compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mcpregistry.domain.formats.notes import FileInvalid, make_pointer
from mcpregistry.domain.formats.text import strip_comments

Json = Any

# Atomic and possessive, so that the scan is linear whatever stands in the file.
_TOKEN = re.compile(
    r'"(?>[^"\\]+|\\.)*+"|//[^\n]*|/\*.*?\*/|[{}\[\]:,]|[^\s{}\[\]:,"/]+', re.DOTALL
)


class _Member(NamedTuple):
    """``start`` is where its key begins, ``value`` and ``end`` are where its value lies; ``comma``
    behind it, or -1."""

    key: str
    start: int
    value: int
    end: int
    comma: int = -1


class _Object(NamedTuple):
    opening: int
    members: list[_Member]
    closing: int

    def member(self, key: str) -> _Member | None:
        """The last one of this name, which is the one that counts."""
        return next((member for member in reversed(self.members) if member.key == key), None)


def parse(text: str, file: str) -> dict[str, Json]:
    """The object that the text says; an empty file is an empty object. Raises ``FileInvalid``,
    which quotes nothing."""
    try:
        data = json.loads(strip_comments(text)) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        where = (
            f"see line {error.lineno}"
            if isinstance(error, json.JSONDecodeError)
            else "a number is too long, or its values are nested too deeply"
        )
        raise FileInvalid(
            file,
            f"The file is not valid JSON: {where}.",
            remedy="Correct the file first. It was not changed.",
        ) from None
    if not isinstance(data, dict):
        raise FileInvalid(
            file,
            "The root of the file is not an object.",
            remedy="Correct the file first. It was not changed.",
        )
    return data


def put(text: str, path: Sequence[str], value: Json, file: str) -> str:
    """The text with this value at the end of ``path``, whose objects are made where they are not
    there yet."""
    text = text if text.strip() else "{}\n"
    parent = _parse_object(text, text.index("{", _find_root(text)))
    for depth, key in enumerate(path):
        member = parent.member(key)
        rest = path[depth + 1 :]
        if member is None:
            return _insert_member(text, parent, key, _nest_value(rest, value))
        if not rest:
            written = _write_value(value, _find_margin(text, member.start), text)
            return text[: member.value] + written + text[member.end :]
        parent = _find_inner_object(text, member, path[: depth + 1], file)
    return text


def drop(text: str, path: Sequence[str], file: str) -> str:
    """The text without the member at the end of ``path``; as it was where there is none."""
    if not text.strip():
        return text
    parent = _parse_object(text, text.index("{", _find_root(text)))
    for depth, key in enumerate(path):
        member = parent.member(key)
        if member is None:
            return text
        if depth + 1 < len(path):
            parent = _find_inner_object(text, member, path[: depth + 1], file)
            continue
        return _cut_member(text, parent, member)
    return text


def _find_inner_object(text: str, member: _Member, path: Sequence[str], file: str) -> _Object:
    if text[member.value] != "{":
        raise FileInvalid(
            file,
            "This value is not an object.",
            at=make_pointer(*path),
            remedy="Replace it with {}, or remove it.",
        )
    return _parse_object(text, member.value)


def _find_root(text: str) -> int:
    """Where the root begins; comments may stand before it."""
    return next(_iterate_tokens(text, 0))[1]


def _iterate_tokens(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """What is neither space nor comment, with where it begins and ends."""
    for match in _TOKEN.finditer(text, at):
        if not match.group().startswith(("//", "/*")):
            yield match.group(), match.start(), match.end()


def _parse_object(text: str, opening: int) -> _Object:
    """The members of the object that begins here. The text was parsed before, so its syntax is
    right."""
    members: list[_Member] = []
    depth = 0
    key = None
    value = -1
    for piece, start, end in _iterate_tokens(text, opening):
        closes = piece in ("}", "]")
        if piece in ("{", "["):
            depth += 1
        elif closes:
            depth -= 1
        if depth == 0:
            return _Object(opening, members, start)
        if start == opening or (depth > 1 and value >= 0):
            continue
        if key is None and piece == ",":
            members[-1] = members[-1]._replace(comma=start)
        elif key is None:
            key = (json.loads(piece), start)
        elif piece != ":":
            value = start if value < 0 else value
            if depth == 1:
                members.append(_Member(*key, value, end))
                key = None
                value = -1
    raise ValueError("the object has no end")


def _nest_value(path: Sequence[str], value: Json) -> Json:
    for key in reversed(path):
        value = {key: value}
    return value


def _insert_member(text: str, parent: _Object, key: str, value: Json) -> str:
    """As the last member; comments behind the last one so far stay with that."""
    outer = _find_margin(text, parent.opening)
    newline = _find_newline(text)
    first = parent.members[0].start if parent.members else -1
    alone = first >= 0 and not text[_find_line_start(text, first) : first].strip()
    margin = _find_margin(text, first) if alone else outer + _find_indent_step(text)
    last = len(text[: parent.closing].rstrip())
    behind = text[last : parent.closing]
    end = parent.members[-1].end if parent.members else last
    trailing = bool(parent.members) and parent.members[-1].comma >= 0
    comma = "," if parent.members and not trailing else ""
    closing = behind if "\n" in behind else newline + outer
    member = f"{newline}{margin}{json.dumps(key, ensure_ascii=False)}: {_write_value(value, margin, text)}"
    return (
        text[:end]
        + comma
        + text[end:last]
        + member
        + (trailing * ",")
        + closing
        + text[parent.closing :]
    )


def _cut_member(text: str, parent: _Object, member: _Member) -> str:
    """Without the member, its comma, and its lines where nothing else stands on them."""
    end = member.comma + 1 if member.comma >= 0 else member.end
    start = member.start
    line_end = text.find("\n", end) + 1
    if (
        line_end
        and not text[end:line_end].strip()
        and not text[_find_line_start(text, start) : start].strip()
    ):
        start = _find_line_start(text, start)
        end = line_end
    at = parent.members.index(member)
    if member.comma >= 0 or at == 0:
        return text[:start] + text[end:]
    before = parent.members[at - 1].comma
    return text[:before] + text[before + 1 : start] + text[end:]


def _write_value(value: Json, margin: str, text: str) -> str:
    lines = json.dumps(value, indent=_find_indent_step(text), ensure_ascii=False).split("\n")
    return (_find_newline(text) + margin).join(lines)


def _find_line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _find_margin(text: str, at: int) -> str:
    """What the line of this place begins with."""
    line = text[_find_line_start(text, at) : at]
    return line[: len(line) - len(line.lstrip())]


def _find_indent_step(text: str) -> str:
    """By how much the file goes in with each level: as its first line that does."""
    found = re.search(r"\n([ \t]+)\S", text)
    return found.group(1) if found else "  "


def _find_newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
