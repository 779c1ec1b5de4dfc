"""Two versions of a tool's definition, side by side, for the person who decides on the newer one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Literal

from mcpregistry.domain.definitions import differences

# Comparing lines takes quadratic time at worst; a schema of more lines than this is shown whole.
MAX_LINES = 1_000

Sign = Literal[" ", "-", "+"]


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field that differs. ``lines`` are (sign, text): "-" only in the old, "+" only in the new."""

    name: str
    lines: tuple[tuple[Sign, str], ...]


def compare(old: dict[str, Any], new: dict[str, Any]) -> list[FieldChange]:
    """Every model-visible field that differs, as readable lines."""
    return [
        FieldChange(name, tuple(lines(readable(old.get(name)), readable(new.get(name)))))
        for name in differences(old, new)
    ]


def readable(value: Any) -> str:
    """A text as it is, anything else as indented JSON; nothing for what is absent."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)


def lines(old: str, new: str) -> Iterator[tuple[Sign, str]]:
    """Both texts line by line: (" ", kept), ("-", only in the old), ("+", only in the new)."""
    before, after = old.split("\n") if old else [], new.split("\n") if new else []
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
