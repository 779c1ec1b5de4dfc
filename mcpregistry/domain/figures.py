"""The middle and the tail of a sample, for every page and interface that shows figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TypeVar

N = TypeVar("N", int, float)


def percentile(ordered: Sequence[N], percent: int) -> N | None:
    """The value that ``percent`` of a sorted sample lie below, one of the sample itself; None of an empty one."""
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else None


def median(values: Iterable[float]) -> float | None:
    """The middle of a sample in any order, between the two middle values where there are two; None of an empty one."""
    found = list(values)
    return statistics.median(found) if found else None
