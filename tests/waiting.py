"""Waiting for a condition instead of for a time.

``HANG_LIMIT`` is the only time limit of the tests: whoever waits for something that must happen (a
condition, a process, a page, a socket) waits that long, and takes it for a hang afterwards. It
grows with the slowness of the machine (``tests/speed.py``), so that it never fails a test that is
only slow.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from tests import speed

T = TypeVar("T")

HANG_LIMIT = 60.0 * speed.slowdown()  # seconds


def pauses() -> Iterator[float]:
    """Seconds between two checks, 5 ms to 50 ms: short at first, then longer, because each check
    costs processor time."""
    pause = 0.005
    while True:
        yield pause
        pause = min(pause * 1.2, 0.05)


def eventually(check: Callable[[], T], limit: float = HANG_LIMIT) -> T:
    """Return the first true result of ``check``.

    Raises:
        AssertionError: It did not become true within ``limit`` seconds, a multiple of
        ``HANG_LIMIT`` where the
            product itself takes minutes.
    """
    deadline = time.monotonic() + limit
    pause = pauses()
    while not (result := check()):
        assert time.monotonic() < deadline, f"it did not become true within {limit:.0f} s"
        time.sleep(next(pause))
    return result


async def until(check: Callable[[], T | Awaitable[T]], limit: float = HANG_LIMIT) -> T:
    """As ``eventually``, on an event loop; a check of the database returns what ``db_call``
    returned."""
    deadline = time.monotonic() + limit
    pause = pauses()
    while not (result := await _resolve(check())):
        assert time.monotonic() < deadline, f"it did not become true within {limit:.0f} s"
        await asyncio.sleep(next(pause))
    return result


async def _resolve(given: T | Awaitable[T]) -> T:
    return await given if inspect.isawaitable(given) else given
