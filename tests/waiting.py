"""Waiting for a condition instead of for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T], patience: float = 60.0) -> T:
    """The first true answer of ``look``; fails after ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while not (answer := look()):
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.02)
    return answer


async def until(look: Callable[[], T], patience: float = 60.0) -> T:
    """As ``eventually``, on an event loop; ``look`` must not touch the database."""
    deadline = time.monotonic() + patience
    while not (answer := look()):
        assert time.monotonic() < deadline, "it never became true"
        await asyncio.sleep(0.01)
    return answer
