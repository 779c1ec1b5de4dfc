"""A database that is away for a moment: what work wants of it is tried again, and goes on.

A fail-over of PostgreSQL takes seconds, a busy SQLite answers "locked". Neither is a fault of the work. How long it may
last is not decided here alone: the driver's pulse ends work whose lease can no longer be kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from django.db import InterfaceError, OperationalError

log = structlog.get_logger(__name__)
R = TypeVar("R")

AWAY = (OperationalError, InterfaceError)
_LONGEST = 20.0  # seconds for one thing, although the lease is kept: then it is not a moment
_PAUSE, _LONGEST_PAUSE = 0.1, 1.0


async def patiently(work: Callable[[], Awaitable[R]]) -> R:
    """Do ``work``, again while the database is away. Work must bear being begun again. Raises what it raised last."""
    began, pause = time.monotonic(), _PAUSE
    while True:
        try:
            return await work()
        except AWAY as error:
            if time.monotonic() - began > _LONGEST:
                raise
            log.warning("work.database_away", cause=str(error))
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
