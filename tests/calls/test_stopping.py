"""A process that is told to stop: held calls hear "pending" at once, what had to be cut is recorded
as what it was."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mcpregistry.db import db_call
from mcpregistry.domain.errors import DownstreamError, QueueFullError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Configuration
from tests.calls.conftest import Site, add_server, only_call, tool
from tests.calls.test_approvals import Make, held, person, vote
from tests.waiting import HANG_LIMIT


def prepare(journal: Path, outcome: str) -> None:
    add_server("slow", tool("count"), env={"FAKE_JOURNAL": str(journal)})
    Configuration.objects.update(default_outcome=outcome)


async def test_a_held_call_is_told_pending_at_once_and_its_request_lives_on(
    site: Make, live_db: None, journal: Path
):
    await db_call(prepare, journal, "ask")
    here: Site = await site()
    call = asyncio.ensure_future(here.call("slow__count", {"steps": 1}))
    await held()
    here.engine.begin_stop(10_000)  # the grace of the others
    assert (await call).state is InvocationState.PENDING
    assert len(await held()) == 1
    with pytest.raises(QueueFullError):
        await here.call("slow__count", {"steps": 1})
    await vote(await db_call(person, "bob"), False)  # it could be decided still


async def test_a_call_in_flight_may_end(site: Make, live_db: None, journal: Path):
    await db_call(prepare, journal, "allow")
    here: Site = await site()
    call = asyncio.ensure_future(here.call("slow__count", {"steps": 10, "pause": 0.1}))
    await here.until_sent()
    here.engine.begin_stop(HANG_LIMIT)
    assert (await call).state is InvocationState.SUCCEEDED


async def test_one_that_had_to_be_cut_is_not_said_to_be_cancelled_by_its_caller(
    site: Make, live_db: None, journal: Path
):
    await db_call(prepare, journal, "allow")
    here: Site = await site()
    call = asyncio.ensure_future(here.call("slow__count", {"steps": 1000, "pause": 0.1}))
    await here.until_sent()
    here.engine.begin_stop(0.2)
    with pytest.raises(DownstreamError, match="stopped before the answer arrived"):
        await call
    await here.engine.stop()
    record = await db_call(only_call)
    assert record.state == InvocationState.UNKNOWN
    assert "this process was stopped" in record.reason
    assert "caller" not in record.reason
