"""Calls per minute, counted by several processes: one bucket for all, of which each takes a small
allotment at a time.

Pure: times are given. ``Bucket`` is what all share, ``Purse`` what one process holds of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_SHARES = 20  # a process takes a twentieth of a minute's calls at a time, at least one
KEPT = 60.0  # seconds; in so long the bucket has refilled what a process holds and does not use


def compute_allotment(limit: int) -> int:
    """Calls that one process takes out of the bucket at once: how far several can go beyond the
    limit, each."""
    return max(1, limit // _SHARES)


@dataclass(frozen=True, slots=True)
class Bucket:
    """What is left for all processes: ``level`` calls ``at`` a time in seconds. It holds a minute's
    calls, refills evenly."""

    level: float
    at: float

    def level_at(self, now: float, limit: int) -> float:
        """Calls at ``now``; a clock that was set back refills nothing, a limit that was lowered
        counts at once."""
        return min(float(limit), self.level + max(0.0, now - self.at) * limit / 60)

    def take_calls(self, wanted: int, now: float, limit: int) -> tuple[Bucket, int]:
        """What is left after as many whole calls as there are, at most ``wanted``, were taken; and
        how many."""
        level = self.level_at(now, limit)
        taken = min(wanted, math.floor(level + 1e-9))
        return Bucket(max(0.0, level - taken), max(self.at, now)), taken

    def wait(self, now: float, limit: int) -> float:
        """Seconds until there is a whole call."""
        return max(0.0, (1 - self.level_at(now, limit)) * 60 / limit)


@dataclass(slots=True)
class Purse:
    """What one process holds for an agent; its own steady clock."""

    left: int = 0
    taken_at: float = -math.inf
    # until when there is nothing in the bucket, as far as is known here
    empty_until: float = -math.inf

    def spend(self, now: float, limit: int) -> bool:
        """One call of what is held. What was held for too long is dropped: the bucket has it back
        by itself."""
        held = min(self.left, compute_allotment(limit)) if now - self.taken_at < KEPT else 0
        self.left = max(0, held - 1)
        return held > 0

    def record_lease(self, calls: int, now: float, wait: float) -> None:
        """What the bucket gave; ``wait`` seconds until it has more, if that was nothing."""
        if calls:
            self.left = self.left + calls
            self.taken_at = now
            self.empty_until = -math.inf
        else:
            self.empty_until = now + wait
