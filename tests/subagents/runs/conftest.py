"""A bench, and a worker: an engine for calls with an engine for runs on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import OperationalError
from django.utils import timezone

from mcpregistry.calls.engine import Engine
from mcpregistry.db import db_call
from subagents.leased import leases
from subagents.llm.client import ready
from subagents.llm.scripted.app import ScriptedModels
from subagents.llm.scripted.local_server import run_server
from subagents.llm.scripted.script import Script
from subagents.models import Run
from subagents.runs.engine import RunEngine
from subagents.services import runs
from tests.calls.conftest import broken
from tests.subagents.kit import Bench
from tests.waiting import HANG_LIMIT, until


@pytest.fixture
def bench(live_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    # no broker: tests drive by hand
    monkeypatch.setattr("subagents.services.runs.wake", lambda run_id: None)
    journal = (
        settings.VAR_DIR / "journal"
    )  # the same name in every test: it is part of a server's row, which is remembered
    journal.unlink(missing_ok=True)
    models = ScriptedModels(Script())
    with run_server(models) as base:
        yield Bench(base, models, journal)


class Worker:
    def __init__(self, engine: Engine, runs: RunEngine) -> None:
        self.engine = engine
        self.runs = runs

    async def drive(self, run: Run) -> Run:
        """Work on it until it has ended or sleeps."""
        await self.runs.drive(run.pk)
        return await db_call(Run.objects.get, pk=run.pk)

    async def until(self, run: Run, done: Callable[[Run], bool]) -> Run:
        async def drive() -> Run | None:
            if done(found := await self.drive(run)):
                return found
            await db_call(Run.objects.filter(pk=run.pk).update, wake_at=None)
            return None

        found = await until(drive)
        assert found is not None
        return found


@pytest.fixture
async def worker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., Any]]:
    """``await worker()`` starts one. All stop at the end, and every invariant must hold."""
    # a busy machine may renew none in ten seconds
    monkeypatch.setattr(leases, "LEASE", timedelta(seconds=HANG_LIMIT))
    made: list[Worker] = []

    async def make(**options: Any) -> Worker:
        await ready()  # seconds of the processor, half a minute of a busy one: no run waits for it
        engine = Engine("worker")
        await engine.start()
        made.append(Worker(engine, RunEngine(engine, f"worker-{len(made)}", **options)))
        return made[-1]

    yield make
    for each in made:
        await each.runs.stop()
        await each.engine.stop()
    assert await db_call(broken) == []


@pytest.fixture
async def working(
    worker: Any, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., Any]]:
    """``await working()`` starts a worker that is woken as runs are started, and by a clock."""
    clocks: list[asyncio.Task[None]] = []

    async def clock(here: Any) -> None:
        """As the site's: a busy database may have made a worker give a run back."""
        while True:
            await asyncio.sleep(1)
            with suppress(OperationalError):  # still busy: the next tick looks again
                for run_id in [
                    *await db_call(runs.list_due_runs, timezone.now()),
                    *await db_call(runs.wake_decided_runs),
                ]:
                    here.runs.wake(run_id)

    async def make(**options: Any) -> Any:
        here = await worker(**options)
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(
            "subagents.services.runs.wake",
            lambda run: loop.call_soon_threadsafe(here.runs.wake, run),
        )
        clocks.append(asyncio.ensure_future(clock(here)))
        return here

    yield make
    for each in clocks:
        each.cancel()
    ends = await asyncio.gather(*clocks, return_exceptions=True)
    assert [end for end in ends if not isinstance(end, asyncio.CancelledError)] == []
