"""The middle and the tail of a sample, for every page and interface that shows figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TypeVar

N = TypeVar("N", int, float)


def find_percentile(ordered: Sequence[N], percent: int) -> N | None:
    """The value that ``percent`` of a sorted sample lie below, one of the sample itself; None of an
    empty one."""
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else None


def find_median(values: Iterable[float]) -> float | None:
    """The middle of a sample in any order, between the two middle values where there are two; None
    of an empty one."""
    found = list(values)
    return statistics.median(found) if found else None


def round_up(value: int) -> int:
    """The next of 2, 4, 10, 20, 40, 100, …: where the scale of a chart ends. Its half is whole,
    too."""
    top = 2
    while top < value:
        top = top * 5 // 2 if str(top)[0] == "4" else top * 2
    return top
