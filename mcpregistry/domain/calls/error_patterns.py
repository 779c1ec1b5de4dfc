"""Errors of calls that are alike, grouped: the same tool, the same code, and texts of the same
shape."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from mcpregistry.domain.text.canonical import clean_text

_LONGEST = 200
# What differs from one occurrence to the next: what stands in quotes, identifiers, numbers; the
# longest first.
_VARIES = (
    (re.compile(r"'[^']{1,200}'|\"[^\"]{1,200}\"|`[^`]{1,200}`"), "'…'"),
    (
        re.compile(
            r"\b[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\b|\b(?=[a-f]*\d)[0-9a-f]{8,}\b",
            re.IGNORECASE,
        ),
        "#",
    ),
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
    """Failures that are alike: ``normalize_error_text`` is their text without what varies."""

    tool: str
    code: str
    shape: str
    count: int
    first: datetime
    last: datetime


def normalize_error_text(text: str) -> str:
    """The text without what differs from one occurrence to the next, fit to be stored: whoever
    fails chooses its words."""
    line = " ".join(text[: 10 * _LONGEST].split())
    for varies, sign in _VARIES:
        line = varies.sub(sign, line)
    return clean_text(line[:_LONGEST])


def group_errors(failed: Iterable[Occurrence], most: int = 20) -> list[ErrorPattern]:
    """The patterns, the most frequent first, of these the newest."""
    found: dict[tuple[str, str, str], list[datetime]] = {}
    for each in failed:
        found.setdefault((each.tool, each.code, normalize_error_text(each.text)), []).append(
            each.at
        )
    patterns = [
        ErrorPattern(*key, len(times), min(times), max(times)) for key, times in found.items()
    ]
    return sorted(patterns, key=lambda each: (each.count, each.last), reverse=True)[:most]


@dataclass(frozen=True, slots=True)
class Failure:
    """One call that failed, with the beginning of its result: the words of a tool's failure stand
    there."""

    call: str
    server: str
    tool: str
    code: str
    reason: str
    result: str
    at: datetime

    @property
    def text(self) -> str:
        """What the tool said, else why it ended so."""
        return _extract_first_text(self.result) or self.reason or self.code


_TEXT = re.compile(r'"text"\s*:\s*("(?:[^"\\]|\\.)*)')


def _extract_first_text(result: str) -> str:
    """The first text of a result of which only the beginning is there, so that it is no JSON."""
    found = _TEXT.search(result)
    if found is None:
        return ""
    for less in range(6):  # it may have been cut within an escape
        with suppress(ValueError):
            return str(json.loads(found[1][: len(found[1]) - less] + '"'))
    return ""
