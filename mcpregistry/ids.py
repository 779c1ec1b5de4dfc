"""Ids that nobody guesses.

Random bytes are fetched in stock: every request needs some, and asking the kernel each time hands
the interpreter's lock to whichever thread waits for it.
"""

from __future__ import annotations

import os
import time

# bytes of an id, ids fetched at once
_SIZE = 16
_STOCK = 256
_stock: list[str] = []
os.register_at_fork(after_in_child=_stock.clear)  # or parent and child would give out the same


def make_random_id() -> str:
    """128 random bits, in hex."""
    while True:
        try:
            return _stock.pop()
        except IndexError:  # also when another thread has just taken the last
            fetched = os.urandom(_SIZE * _STOCK).hex()
            _stock.extend(fetched[at : at + 2 * _SIZE] for at in range(0, len(fetched), 2 * _SIZE))


def make_ordered_id() -> str:
    """32 characters of hex: milliseconds since 1970, then 80 random bits.

    What is made together sorts together, so its rows and index entries share pages: a commit writes
    half as many.
    """
    return f"{time.time_ns() // 1_000_000:012x}{make_random_id()[:20]}"
