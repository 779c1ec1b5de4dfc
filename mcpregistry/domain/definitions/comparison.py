"""Line-by-line comparison of two texts, and values as text that people can read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any, Literal

# Comparing lines takes quadratic time at worst; a schema of more lines than this is shown whole.
MAX_LINES = 1_000

Sign = Literal[" ", "-", "+"]


def format_readable(value: Any) -> str:
    """A text as it is, anything else as indented JSON; nothing for what is absent."""
    if value is None:
        return ""
    return (
        value
        if isinstance(value, str)
        else json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
    )


def compare_lines(old: str, new: str) -> Iterator[tuple[Sign, str]]:
    """Both texts line by line: (" ", kept), ("-", only in the old), ("+", only in the new)."""
    before = old.split("\n") if old else []
    after = new.split("\n") if new else []
    if max(len(before), len(after)) > MAX_LINES:
        yield from (("-", line) for line in before)
        yield from (("+", line) for line in after)
        return
    for tag, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from ((" ", line) for line in before[a:b])
        else:
            yield from (("-", line) for line in before[a:b])
            yield from (("+", line) for line in after[c:d])
