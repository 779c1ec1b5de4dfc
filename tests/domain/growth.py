"""How processor time grows with the size of what is worked on, by a ratio: the speed of the machine
cancels out."""

from __future__ import annotations

import time
from collections.abc import Callable

FACTOR = 8
MOST = 3.0 * FACTOR  # linear work grows by the factor, quadratic work by its square


def grows_at_most(work: Callable[[int], object], size: int, most: float = MOST) -> bool:
    """Whether ``work(FACTOR * size)`` takes at most ``most`` times the processor time of
    ``work(size)``.

    The best of three runs each is what counts: a neighbour on the machine slows one of them, not
    all.
    """
    small = float("inf")
    large = float("inf")
    for _ in range(3):
        # first, for it also pays what is loaded or compiled once
        large = min(large, _time(work, FACTOR * size))
        small = min(small, _time(work, size))
        if large <= most * small:
            return True
    return False


def _time(work: Callable[[int], object], size: int) -> float:
    """Seconds of this process's processor time."""
    began = time.process_time()
    work(size)
    return time.process_time() - began
