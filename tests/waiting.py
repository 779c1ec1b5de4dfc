"""Waiting for a condition instead of for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

T = TypeVar("T")


def eventually(look: Callable[[], T], patience: float = 60.0) -> T:
    """The first true answer of ``look``; fails after ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while not (answer := look()):
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.02)
    return answer


async def until(look: Callable[[], T | Awaitable[T]], patience: float = 60.0) -> T:
    """As ``eventually``, on an event loop; who looks into the database gives back what ``db_call`` returned."""
    deadline = time.monotonic() + patience
    while not (answer := await _answer(look())):
        assert time.monotonic() < deadline, "it never became true"
        await asyncio.sleep(0.01)
    return answer


async def _answer(given: T | Awaitable[T]) -> T:
    return await given if inspect.isawaitable(given) else cast(T, given)
