"""Small writes that must not be lost while this process lives: tried again until the database takes
them.

A caller's seat that is given up, a permit's use that is given back: nobody waits for these, nobody
else would do them soon, and each may be done twice without harm, because a commit that was not
heard of may have happened all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from django.db import Error

from mcpregistry.domain.errors import SlipsnisseError

log = structlog.get_logger(__name__)

# seconds between attempts
FIRST_PAUSE = 0.25
LONGEST_PAUSE = 5.0
CLOSING_SECONDS = 5.0  # for which what the database does not take is tried when the process ends

Work = Callable[[], Awaitable[None]]


class BackgroundWrites:
    """Those of one process. All on the event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start_write(self, work: Work) -> None:
        """Do it, and again while the database fails. Does not wait."""
        task = asyncio.ensure_future(_retry_until_written(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait_until_done(self) -> None:
        """Once nothing is kept any more."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """The process ends: what is kept still is tried for some seconds more, and then left to
        leases and clocks."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSING_SECONDS)
        for task in list(self._tasks):
            log.error("approvals.background_lost")
            task.cancel()
        await self.wait_until_done()


async def _retry_until_written(work: Work) -> None:
    pause = FIRST_PAUSE
    while True:
        try:
            await work()
            return
        except SlipsnisseError as error:
            log.warning("approvals.background", code=error.code)
            return
        except Error:
            log.exception("approvals.background_failed", again_in=pause)
        except Exception:
            log.exception("approvals.background_failed")
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
