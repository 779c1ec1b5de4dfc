"""A pool over plain targets, which records its events and must leave nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.downstream.pool.events import ConnectionEvent
from mcpregistry.downstream.pool.pool import Pool
from mcpregistry.downstream.server_call import ServerCall
from tests.processes import below, runs
from tests.waiting import HANG_LIMIT, until

# Seconds until a call runs out. They are more on a slow machine, which has to send the call within
# them.
SENDING = HANG_LIMIT / 40


class Bench:
    """A pool, the targets it serves (replace them as the operator would), and what it told."""

    def __init__(self, *targets: ServerTarget) -> None:
        self.targets = {target.server_id: target for target in targets}
        self.events: list[ConnectionEvent] = []
        self._news = asyncio.Event()
        self.pool = Pool(self._target, self._note)

    async def _target(self, server_id: int) -> ServerTarget:
        return self.targets[server_id]

    def _note(self, event: ConnectionEvent) -> None:
        self.events.append(event)
        self._news.set()

    async def event(
        self, kind: str, state: str | None = None, *, after: int = 0
    ) -> ConnectionEvent:
        """The first such event at or after position ``after``; waits for it."""
        async with asyncio.timeout(HANG_LIMIT):
            while True:
                for event in self.events[after:]:
                    if event.kind == kind and state in (None, event.state):
                        return event
                self._news.clear()
                await self._news.wait()

    async def call(self, tool: str, arguments: bytes = b"{}", **options: Any) -> dict[str, Any]:
        return await self.pool.call(
            ServerCall(next(iter(self.targets)), tool, arguments, **options)
        )


async def gone(pid: int) -> None:
    """Wait until a process has ended."""
    await until(lambda: not runs(pid))


def offspring() -> set[int]:
    return {child.pid for child in below()}


@pytest.fixture
async def bench() -> AsyncIterator[Callable[..., Bench]]:
    """``bench(target, ...)`` makes a Bench; at the end every process it started must be gone."""
    before = offspring()
    made: list[Bench] = []

    def make(*targets: ServerTarget) -> Bench:
        made.append(Bench(*targets))
        return made[-1]

    yield make
    await asyncio.gather(*(each.pool.close() for each in made))
    assert offspring() <= before
