"""Works on leased rows, each in a task of its own on the worker's event loop, with its lease kept
alive beside it."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

import structlog
from django.db import OperationalError

from mcpregistry.calls.watch.state_watch import StateWatch
from mcpregistry.database_errors import is_passing
from mcpregistry.domain.errors import QueueFullError
from subagents.leased import leases
from subagents.leased.database_retry import retry_while_unavailable
from subagents.leased.leases import Lease, LostLease

log = structlog.get_logger(__name__)
W = TypeVar("W")

_BEAT = 0.5  # seconds until a database that is away is asked again
_PARTING = 2.0  # seconds to give a row back


class Driver(ABC, Generic[W]):
    """One per worker process and kind of row. ``wake`` may be called as often as one likes.

    ``W`` is what people can wish of work that is under way, such as that it stops; ``nothing`` is
    no wish.
    """

    kind = "work"  # in the log

    def __init__(self, wishes: StateWatch[W], nothing: W) -> None:
        self._wishes = wishes
        self._nothing = nothing
        self._driving: dict[str, asyncio.Task[bool]] = {}

    # What a kind of row says of itself

    @abstractmethod
    async def take(self, key: str) -> Lease | None:
        """The lease of the row; None: it has ended, is worked on, or is not due."""

    @abstractmethod
    async def work(self, taken: Lease) -> None:
        """All that there is to do now. Each step bears being begun again. Raises LostLease."""

    @abstractmethod
    async def renew(self, taken: Lease) -> W:
        """Keep the lease; returns what people wish by now. Raises LostLease."""

    @abstractmethod
    async def release(self, taken: Lease) -> None:
        """Give the row back; of no effect where it is no longer ours."""

    @abstractmethod
    async def fulfil(self, taken: Lease, wish: W) -> None:
        """Somebody wished this while we worked; the work has been cut."""

    @abstractmethod
    async def handle_crash(self, taken: Lease) -> None:
        """Our own code failed at it: end the row, for it would do so again."""

    # The driving

    def wake(self, key: str) -> None:
        """Look at the row soon. Call it on the loop's thread."""
        if key in self._driving:
            return
        task = asyncio.ensure_future(self.drive(key))
        self._driving[key] = task
        task.add_done_callback(partial(self._finish_task, key))

    def _finish_task(self, key: str, task: asyncio.Task[bool]) -> None:
        self._driving.pop(key, None)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            # the clock finds it again
            log.warning(f"{self.kind}.given_back", key=key, exc_info=error)
        elif task.result():
            self.wake(key)  # taken from us, perhaps for us: what we were told meanwhile is not lost

    async def stop(self) -> None:
        """Give up what is being worked on; other workers go on when the leases end."""
        tasks = list(self._driving.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def drive(self, key: str) -> bool:
        """Work until the row has ended, sleeps, or belongs to somebody else. True: it was taken
        from us."""
        taken = await self.take(key)
        if taken is None:
            return False
        try:
            await self._work_with_lease(taken)
        except LostLease:
            log.info(f"{self.kind}.lost", key=key)
            await self._give_back(taken)  # of no effect unless it is ours still
            return True
        except (asyncio.CancelledError, QueueFullError):
            await self._give_back(taken)
            raise
        except Exception as error:
            if is_passing(error):
                await self._give_back(taken)
                raise
            log.exception(f"{self.kind}.crashed", key=key)
            with suppress(LostLease):
                await self.handle_crash(taken)
        return False

    async def _work_with_lease(self, taken: Lease) -> None:
        """The work, with the lease kept alive beside it; a wish cuts it, down to what is out at a
        server."""
        work = asyncio.ensure_future(self.work(taken))
        pulse = asyncio.ensure_future(self._keep_lease(taken))
        try:
            await asyncio.wait({work, pulse}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            wish = pulse.result()  # raises LostLease, or what kept it from being renewed
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await retry_while_unavailable(partial(self.fulfil, taken, wish))
        finally:
            for task in (work, pulse):
                task.cancel()
            await asyncio.gather(work, pulse, return_exceptions=True)

    async def _keep_lease(self, taken: Lease) -> W:
        """Keep the lease; returns when somebody wishes something. Raises LostLease.

        Nothing is asked between renewals: the feed tells of a wish. A database that is away is
        asked again, until the lease would soon be somebody else's: then raises what it said.
        """
        safe = (leases.LEASE - leases.AT_RISK).total_seconds()
        renewed = time.monotonic()
        pause = self.renew_every()
        while (
            wish := await self._wishes.wait_for_change(taken.key, self._nothing, pause)
        ) == self._nothing:
            now = time.monotonic()
            try:
                async with asyncio.timeout(renewed + safe - now):
                    wish = await self.renew(taken)
            except Exception as error:
                if not isinstance(error, TimeoutError) and not is_passing(error):
                    raise
                if time.monotonic() < renewed + safe:
                    pause = _BEAT
                    continue
                raise OperationalError("The lease could not be renewed.") from error
            renewed = now
            pause = self.renew_every()
            if wish != self._nothing:
                break
        return wish

    def renew_every(self) -> float:
        """Seconds between renewals."""
        return leases.RENEW_EVERY

    async def _give_back(self, taken: Lease) -> None:
        """At worst the lease runs out by itself: the process ends, or the database is away."""
        with suppress(Exception):
            async with asyncio.timeout(_PARTING):
                await asyncio.shield(self.release(taken))
