"""Changing one table of a TOML file, and nothing else of its text.

A table is found by its header, and ends before the next header; comments right above a header
belong to that one. Tables that are written in other ways (inline, or by dotted keys) are not found;
``entry_file`` sees that, and refuses.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from mcpregistry.domain.formats.notes import FileInvalid

_QUOTED = r"\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'"
_HEADER = re.compile(
    rf"[ \t]*\[\[?(?P<name>(?:{_QUOTED}|[^\[\]\n=\"'])+)\]\]?[ \t]*(?:#[^\n]*)?\r?\n?\Z"
)
_PART = re.compile(
    r"\s*(?:\"(?P<quoted>(?:[^\"\\]|\\.)*)\"|'(?P<literal>[^']*)'|(?P<bare>[A-Za-z0-9_-]+))\s*(?:\.|\Z)"
)
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def parse(text: str, file: str) -> dict[str, Any]:
    """What the text says. Raises ``FileInvalid``, which quotes nothing."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"at line \d+", str(error))
        place = f" {where.group()}" if where else ""
        raise FileInvalid(
            file,
            f"The file is not valid TOML{place}.",
            remedy="Correct the file first. It was not changed.",
        ) from None


def put(text: str, path: Sequence[str], value: dict[str, Any], file: str) -> str:
    """The text with this table in place of the one at ``path``, or at the end."""
    lines = text.splitlines(keepends=True)
    blocks = _find_blocks(lines, path)
    newline = "\r\n" if "\r\n" in text else "\n"
    table = [
        f"[{'.'.join(map(_format_key, path))}]",
        *(f"{_format_key(key)} = {_format_value(item)}" for key, item in value.items()),
    ]
    written = newline.join(table) + newline
    if not blocks:
        apart = newline if text.strip() else ""
        return text.rstrip() + (newline if text.strip() else "") + apart + written
    kept = _remove_table(lines, blocks[1:]) if len(blocks) > 1 else lines
    start, end = blocks[0]
    return "".join(kept[:start]) + written + "".join(kept[end:])


def drop(text: str, path: Sequence[str], file: str) -> str:
    """The text without the table at ``path`` and those below it."""
    lines = text.splitlines(keepends=True)
    blocks = _find_blocks(lines, path)
    while blocks and blocks[-1][1] < len(lines) and not lines[blocks[-1][1]].strip():
        blocks[-1] = (blocks[-1][0], blocks[-1][1] + 1)  # the empty lines behind it go with it
    return "".join(_remove_table(lines, blocks)) if blocks else text


def _remove_table(lines: list[str], blocks: Sequence[tuple[int, int]]) -> list[str]:
    gone = {at for start, end in blocks for at in range(start, end)}
    return [line for at, line in enumerate(lines) if at not in gone]


def _find_blocks(lines: list[str], path: Sequence[str]) -> list[tuple[int, int]]:
    """From where to where the lines of the table and of those below it go, in the file's order."""
    headers: list[tuple[int, tuple[str, ...]]] = [*_find_headers(lines), (len(lines), ())]
    found = []
    for (start, name), (following, _) in pairwise(headers):
        if name[: len(path)] == tuple(path):
            found.append((start, _find_block_end(lines, start, following)))
    return found


def _find_block_end(lines: list[str], start: int, following: int) -> int:
    """Comments and empty lines before the next header are that one's."""
    while following > start + 1 and (
        not (line := lines[following - 1].strip()) or line.startswith("#")
    ):
        following -= 1
    return following


def _find_headers(lines: list[str]) -> list[tuple[int, tuple[str, ...]]]:
    """The line and the name of each header. A line inside a value that goes over several is
    none."""
    found: list[tuple[int, tuple[str, ...]]] = []
    begun = 0
    for at, line in enumerate(lines):
        match = _HEADER.match(line)
        if match and _is_complete("".join(lines[begun:at])):
            found.append((at, _parse_table_name(match["name"])))
            begun = at
    return found


def _is_complete(text: str) -> bool:
    """Whether no value is still open at the end of these lines."""
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _parse_table_name(text: str) -> tuple[str, ...]:
    parts = []
    at = 0
    while at < len(text) and (match := _PART.match(text, at)):
        quoted = match["quoted"]
        parts.append(
            json.loads(f'"{quoted}"')
            if quoted is not None
            else match["literal"] or match["bare"] or ""
        )
        at = match.end()
    return tuple(parts)


def _format_key(key: str) -> str:
    return key if _BARE.match(key) else _format_value(key)


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(
            f"{_format_key(key)} = {_format_value(item)}" for key, item in value.items()
        )
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_format_value, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
