"""A database that fails for a moment: what work wants of it is tried again, and goes on.

A failover of PostgreSQL takes seconds, and its new sessions may be read-only at first; a busy
SQLite answers "locked". None of this is a fault of the work. How long it may last is not decided
here alone: the driver's pulse ends work whose lease can no longer be kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from mcpregistry.database_errors import fault_facts, is_passing

log = structlog.get_logger(__name__)
R = TypeVar("R")

_LONGEST = 20.0  # seconds for one thing, although the lease is kept: then it is not a moment
_PAUSE = 0.1
_LONGEST_PAUSE = 1.0


async def retry_while_unavailable(work: Callable[[], Awaitable[R]]) -> R:
    """Do ``work``, again while the database is away. Work must bear being begun again. Raises what
    it raised last."""
    began = time.monotonic()
    pause = _PAUSE
    while True:
        try:
            return await work()
        except Exception as error:
            if not is_passing(error) or time.monotonic() - began > _LONGEST:
                raise
            log.warning("work.database_away", **fault_facts(error))
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
