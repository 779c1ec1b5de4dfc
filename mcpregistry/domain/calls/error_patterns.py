"""Errors of calls that are alike, grouped: the same tool, the same code, and texts of the same shape."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

_LONGEST = 200
# What differs from one occurrence to the next: what stands in quotes, identifiers, numbers; the longest first.
_VARIES = (
    (re.compile(r"'[^']{1,200}'|\"[^\"]{1,200}\"|`[^`]{1,200}`"), "'…'"),
    (re.compile(r"\b[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\b|\b(?=[a-f]*\d)[0-9a-f]{8,}\b", re.IGNORECASE), "#"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "#"),
)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One call that failed."""

    tool: str
    code: str
    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class ErrorPattern:
    """Failures that are alike: ``shape`` is their text without what varies."""

    tool: str
    code: str
    shape: str
    count: int
    first: datetime
    last: datetime


def shape(text: str) -> str:
    """The text without what differs from one occurrence to the next."""
    line = " ".join(text[: 10 * _LONGEST].split())
    for varies, sign in _VARIES:
        line = varies.sub(sign, line)
    return line[:_LONGEST]


def grouped(failed: Iterable[Occurrence], most: int = 20) -> list[ErrorPattern]:
    """The patterns, the most frequent first, of these the newest."""
    found: dict[tuple[str, str, str], list[datetime]] = {}
    for each in failed:
        found.setdefault((each.tool, each.code, shape(each.text)), []).append(each.at)
    patterns = [ErrorPattern(*key, len(times), min(times), max(times)) for key, times in found.items()]
    return sorted(patterns, key=lambda each: (each.count, each.last), reverse=True)[:most]
