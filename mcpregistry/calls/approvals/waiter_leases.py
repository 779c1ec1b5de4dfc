"""The seats of one process's callers: their leases are renewed while they wait, and by nobody once
they do not.

Also the places of requests at headends, which are rows of another table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from mcpregistry.db import db_call
from mcpregistry.services.approvals import waiters

log = structlog.get_logger(__name__)

RENEW = 8.0  # seconds; a lease outlasts three


class WaiterLeases:
    """Those of one process, by the ids of the calls that their callers made. All on the event
    loop."""

    def __init__(self, renew: Callable[[list[str]], None] = waiters.renew) -> None:
        self._renew_all = renew
        self._waiting: set[str] = set()
        self._renewing: asyncio.Task[None] | None = None

    def add_waiter(self, caller: str) -> None:
        """It waits from now on. (Its seat was taken in the database a moment ago.)"""
        self._waiting.add(caller)
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.ensure_future(self._renew())

    def remove_waiter(self, caller: str) -> None:
        """It waits no more. A seat that could not be given back ends with its lease."""
        self._waiting.discard(caller)

    async def close(self) -> None:
        """Nobody waits here any more."""
        self._waiting.clear()
        if self._renewing is not None:
            self._renewing.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewing

    async def _renew(self) -> None:
        """One statement for all, while there are any; nothing is asked of the database while nobody
        waits."""
        while True:
            await asyncio.sleep(RENEW)
            if not self._waiting:
                return
            try:
                await db_call(self._renew_all, list(self._waiting))
            except Exception:  # the database may be away; what it takes for dead is asked once more
                log.exception("approvals.seats_not_renewed", count=len(self._waiting))
