"""Waiting for a condition instead of for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def pauses() -> Iterator[float]:
    """Seconds between two looks, 5 ms to 50 ms: soon at first, then seldom, as each look is work for the processor."""
    pause = 0.005
    while True:
        yield pause
        pause = min(pause * 1.2, 0.05)


def eventually(look: Callable[[], T], patience: float = 60.0) -> T:
    """The first true answer of ``look``; fails after ``patience`` seconds."""
    deadline, pause = time.monotonic() + patience, pauses()
    while not (answer := look()):
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(next(pause))
    return answer


async def until(look: Callable[[], T | Awaitable[T]], patience: float = 60.0) -> T:
    """As ``eventually``, on an event loop; who looks into the database gives back what ``db_call`` returned."""
    deadline, pause = time.monotonic() + patience, pauses()
    while not (answer := await _answer(look())):
        assert time.monotonic() < deadline, "it never became true"
        await asyncio.sleep(next(pause))
    return answer


async def _answer(given: T | Awaitable[T]) -> T:
    return await given if inspect.isawaitable(given) else given
