"""An end that could not be written is the call's end all the same: nobody takes the call for dead while it is kept."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from mcpregistry import tasks
from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import State
from mcpregistry.models import Invocation, Server
from mcpregistry.services.upkeep import reaping
from tests.calls.conftest import Site, journal, site
from tests.calls.test_pipeline import Outage, echo
from tests.fault.agreement import agrees
from tests.fault.database import until

__all__ = ["echo", "journal", "site"]  # fixtures

pytestmark = pytest.mark.fault
Make = Callable[..., Any]
START = datetime(2026, 1, 1, tzinfo=UTC)


def looked(*seconds: float) -> list[bool]:
    """The clock looks so many seconds after a moment."""
    return [reaping.settled(START + timedelta(seconds=each)) for each in seconds]


def test_after_an_outage_the_clock_waits_for_living_processes(db: None) -> None:
    assert looked(0, 10, 20, 30, 40) == [False, False, False, True, True], "the site starts"
    assert looked(60) == [True], "one tick was lost"
    assert looked(100, 110, 120, 130, 140) == [False, False, False, True, True], "the database was away for 40 s"


async def test_a_call_whose_end_is_late_is_not_taken_for_dead_when_the_database_is_back(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Site = await site()
    outage = Outage(monkeypatch)
    outage.on, outage.after = True, 1  # the intent passes, the end does not
    outcome = await here.call("echo__echo", {"n": 1})
    assert (outcome.state, outcome.late) == (State.SUCCEEDED, True)
    over = timezone.now() - timedelta(minutes=1)  # that long ago the lease ran out
    await db_call(Invocation.objects.update, lease_until=over)
    await db_call(tasks.reap)  # the clock comes by before the process has written
    assert await db_call(lambda: Invocation.objects.get().state) == State.DISPATCHED
    outage.on = False
    await until(lambda: Invocation.objects.get().state == State.SUCCEEDED)
    await db_call(agrees, outcome, len(here.sent()))


async def test_nobody_waits_for_ever_for_a_process_that_is_dead(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Site = await site()
    await db_call(looked, 0, 30)  # long ago
    outage = Outage(monkeypatch)
    outage.on, outage.after = True, 1
    await here.call("echo__echo", {"n": 1})
    await db_call(Invocation.objects.update, lease_until=timezone.now() - timedelta(minutes=1))
    now = timezone.now()
    ended = [
        await db_call(lambda at=now + timedelta(seconds=s): reaping.settled(at) and reaping.reap_calls(at))
        for s in (0, 10, 20, 30)
    ]
    assert ended == [False, False, False, 1]
    outage.on = False
    await until(lambda: not here.engine.recorder.late)
    assert await db_call(lambda: Invocation.objects.get().state) == State.UNKNOWN
