"""Keeps the cycles of hosted agents running, one worker for each agent."""

from __future__ import annotations

import asyncio
from functools import partial

from mcpregistry.calls.engine import Engine
from mcpregistry.calls.watch.state_watch import StateWatch
from mcpregistry.db import db_call
from subagents.effort import cycle
from subagents.leased.database_retry import retry_while_unavailable
from subagents.leased.driver import Driver
from subagents.leased.leases import Lease
from subagents.models import EFFORT_TOPIC, EffortAgent


class Loops(Driver[bool]):
    """One per worker process, on its event loop. Being switched off cuts the pause between two
    cycles."""

    kind = "effort"

    def __init__(self, engine: Engine, worker: str) -> None:
        super().__init__(StateWatch(engine.feed, EFFORT_TOPIC, _find_disabled), False)
        self._worker = worker

    async def take(self, key: str) -> Lease | None:
        """The lease of the agent's cycles."""
        return await db_call(cycle.take, key, worker=self._worker)

    async def work(self, taken: Lease) -> None:
        """Cycle after cycle, until it is switched off."""
        pause: float | None = 0.0
        while pause is not None:
            await asyncio.sleep(pause)
            pause = await retry_while_unavailable(partial(db_call, cycle.turn, taken))
        await self.release(taken)

    async def renew(self, taken: Lease) -> bool:
        """Whether it was switched off."""
        return await db_call(cycle.renew, taken)

    async def release(self, taken: Lease) -> None:
        """Another worker may go on."""
        await db_call(cycle.AGENTS.release, taken)

    async def fulfil(self, taken: Lease, wish: bool) -> None:
        """It was switched off."""
        await self.release(taken)

    async def handle_crash(self, taken: Lease) -> None:
        """Our own code failed: another try is made when the lease has run out, not at once."""


def _find_disabled(keys: list[str]) -> dict[str, bool]:
    """Which of them are switched off."""
    return {
        key: not on
        for key, on in EffortAgent.objects.filter(pk__in=keys).values_list("pk", "enabled")
    }
