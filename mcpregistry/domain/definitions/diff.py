"""What changed in a definition, word by word, for the person who decides on the newer one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from mcpregistry.domain.definitions.comparison import Sign, format_readable
from mcpregistry.domain.definitions.definition import list_changed_fields

# Comparing words takes quadratic time at worst; of more words than this, only the part that differs
# is shown.
MAX_WORDS = 3_000
# Unchanged words kept on either side of a change.
AROUND = 12

_TOKEN = re.compile(r"\w+|[^\S\n]+|\n|[^\w\s]")

Segment = tuple[Sign, str]


@dataclass(frozen=True, slots=True)
class Rewording:
    """One field that differs. ``segments`` are (sign, text): "-" only in the old, "+" only in the
    new."""

    field: str
    segments: tuple[Segment, ...]

    @property
    def added(self) -> bool:
        """The field was not there before."""
        return all(sign == "+" for sign, _ in self.segments)


def list_rewordings(old: dict[str, Any], new: dict[str, Any]) -> list[Rewording]:
    """Every model-visible field that differs between two definitions."""
    return [
        Rewording(
            name,
            tuple(
                _shorten_unchanged(
                    list(
                        compare_words(
                            format_readable(old.get(name)), format_readable(new.get(name))
                        )
                    )
                )
            ),
        )
        for name in list_changed_fields(old, new)
    ]


def compare_words(old: str, new: str) -> Iterator[Segment]:
    """The two texts as one run of kept, removed and added pieces; joined, each side is complete.

    Invisible characters count: each is a piece of its own, never part of a word.
    """
    before = _TOKEN.findall(old)
    after = _TOKEN.findall(new)
    start = _count_common_tokens(before, after)
    end = _count_common_tokens(before[start:][::-1], after[start:][::-1])
    if start:
        yield " ", "".join(before[:start])
    yield from _compare_tokens(before[start : len(before) - end], after[start : len(after) - end])
    if end:
        yield " ", "".join(before[len(before) - end :])


def _count_common_tokens(one: list[str], other: list[str]) -> int:
    """How many leading pieces are the same."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _compare_tokens(before: list[str], after: list[str]) -> Iterator[Segment]:
    if len(before) + len(after) > MAX_WORDS:
        opcodes = [("replace", 0, len(before), 0, len(after))]
    else:
        opcodes = [*SequenceMatcher(None, before, after, autojunk=False).get_opcodes()]
    for tag, a, b, c, d in opcodes:
        if tag == "equal":
            yield " ", "".join(before[a:b])
            continue
        if a < b:
            yield "-", "".join(before[a:b])
        if c < d:
            yield "+", "".join(after[c:d])


def _shorten_unchanged(segments: list[Segment]) -> Iterator[Segment]:
    """Long unchanged stretches cut down to what stands next to a change."""
    for place, (sign, text) in enumerate(segments):
        pieces = _TOKEN.findall(text) if sign == " " else []
        head = AROUND * 2 if place else 0
        tail = AROUND * 2 if place < len(segments) - 1 else 0
        if len(pieces) > head + tail + AROUND:
            left_out = sum(1 for piece in pieces[head : len(pieces) - tail] if piece.strip())
            end = "".join(pieces[len(pieces) - tail :]) if tail else ""
            yield sign, f"{''.join(pieces[:head])} … ({left_out} unchanged) … {end}"
        else:
            yield sign, text
