"""An end that comes late is the call's end all the same: it replaces what the clock only supposed
of the call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from mcpregistry import tasks
from mcpregistry.db import db_call
from mcpregistry.domain.errors import ConnectionFailed
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import AuditEntry, Invocation, Server
from mcpregistry.services.records import ending
from mcpregistry.services.tasks import long_calls
from mcpregistry.services.upkeep import reaping
from mcpregistry.services.upkeep.invariants import calls as invariants
from tests.calls.conftest import Site, add_server, journal, site, told, tool
from tests.calls.test_approvals import asking, bob, calling, only, vote
from tests.calls.test_pipeline import Outage, begun, echo
from tests.fault.agreement import agrees
from tests.fault.database import elsewhere, failing, until
from tests.services.rows import dispatched

__all__ = ["asking", "bob", "echo", "journal", "site"]  # fixtures

pytestmark = pytest.mark.fault
Make = Callable[..., Any]
START = datetime(2026, 1, 1, tzinfo=UTC)


def looked(*seconds: float) -> list[bool]:
    """The clock looks so many seconds after a moment."""
    return [reaping.note_clock_look(START + timedelta(seconds=each)) for each in seconds]


def test_after_an_outage_the_clock_waits_for_living_processes(db: None) -> None:
    assert looked(0, 10, 20, 30, 40) == [False, False, False, True, True], "the site starts"
    assert looked(60) == [True], "one tick was lost"
    assert looked(100, 110, 120, 130, 140) == [False, False, False, True, True], (
        "the database was away for 40 s"
    )


async def test_a_call_whose_end_is_late_is_not_taken_for_dead_when_the_database_is_back(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await begun(site)
    outage = Outage(monkeypatch)
    # the intent passes, the end does not
    outage.on = True
    outage.after = 1
    outcome = await here.call("echo__echo", {"n": 1})
    assert (outcome.state, outcome.late) == (InvocationState.SUCCEEDED, True)
    over = timezone.now() - timedelta(minutes=1)  # that long ago the lease ran out
    await db_call(Invocation.objects.update, lease_until=over)
    await db_call(tasks.reap)  # the clock comes by before the process has written
    assert await db_call(lambda: Invocation.objects.get().state) == InvocationState.DISPATCHED
    outage.on = False
    await until(lambda: Invocation.objects.get().state == InvocationState.SUCCEEDED)
    await db_call(agrees, outcome, len(here.sent()))


async def test_nobody_waits_for_ever_for_a_process_that_is_dead(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await begun(site)
    await db_call(looked, 0, 30)  # long ago
    outage = Outage(monkeypatch)
    outage.on = True
    outage.after = 1
    outcome = await here.call("echo__echo", {"n": 1})
    await db_call(Invocation.objects.update, lease_until=timezone.now() - timedelta(minutes=1))
    now = timezone.now()
    ended = [
        await db_call(
            lambda at=now + timedelta(seconds=s): (
                reaping.note_clock_look(at) and reaping.reap_calls(at)
            )
        )
        for s in (0, 10, 20, 30)
    ]
    assert ended == [False, False, False, 1]
    assert await db_call(lambda: Invocation.objects.get().state) == InvocationState.UNKNOWN
    outage.on = False  # it was not dead, and knows better than the clock
    await until(lambda: Invocation.objects.get().state != InvocationState.UNKNOWN)
    await db_call(agrees, outcome, len(here.sent()))
    assert await db_call(told, outcome.invocation_id) == [
        "call.dispatched",
        "call.unknown",
        "call.corrected",
    ]


# The process stalls with the answer in its hands, until the clock has given the call up


def given_up() -> int:
    """The clock comes by once every lease has run out; how many calls it ended."""
    open_calls = Invocation.objects.filter(state=InvocationState.DISPATCHED)
    open_calls.update(lease_until=timezone.now() - timedelta(hours=1))
    return reaping.reap_calls(timezone.now())


def stalls(
    here: Site, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object] = given_up
) -> list[object]:
    """The next end is recorded only after ``meanwhile`` has happened elsewhere; what that
    returned."""
    recorder = here.engine.recorder
    seen = list[object]()
    real = recorder.end

    async def end(row: Any, fact: Any) -> None:
        if not seen:
            seen.append(await elsewhere(meanwhile))
        await real(row, fact)

    monkeypatch.setattr(recorder, "end", end)
    return seen


def corrections(call_id: str) -> list[dict[str, Any]]:
    """What the log says of ends that were corrected."""
    rows = AuditEntry.objects.filter(subject=f"call:{call_id}", kind=ending.CORRECTED)
    return [json.loads(body) for body in rows.values_list("body", flat=True)]


async def test_an_answer_that_comes_after_the_clock_gave_the_call_up_is_its_end(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Site = await site()
    seen = stalls(here, monkeypatch)
    outcome = await here.call("echo__echo", {"n": 1})
    assert (seen, outcome.state, outcome.late) == ([1], InvocationState.SUCCEEDED, False)
    await db_call(agrees, outcome, len(here.sent()))
    row = await db_call(Invocation.objects.get)
    assert (row.error_code, row.result_bytes > 0, row.lease_until) == ("", True, None)
    assert "No outcome of this call was recorded" not in row.reason
    (entry,) = await db_call(corrections, row.pk)
    assert (entry["was"], entry["state"], entry["actor"]) == ("unknown", "succeeded", "ann")


async def test_among_calls_that_end_together_only_those_that_were_given_up_are_corrected(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Site = await site()
    gate = asyncio.Event()
    ready = list[str]()
    recorder = here.engine.recorder
    real = recorder.end

    async def end(row: Any, fact: Any) -> None:
        ready.append(row["id"])
        await gate.wait()
        await real(row, fact)

    monkeypatch.setattr(recorder, "end", end)
    calls = [asyncio.ensure_future(here.call("echo__echo", {"n": n})) for n in range(20)]
    await until(lambda: len(ready) == 20)
    assert await elsewhere(given_up) == 20
    later = [asyncio.ensure_future(here.call("echo__echo", {"n": n})) for n in range(20, 40)]
    await until(lambda: len(ready) == 40)
    gate.set()
    outcomes = await asyncio.gather(*calls, *later)
    assert {outcome.state for outcome in outcomes} == {InvocationState.SUCCEEDED}
    corrected = [
        outcome.invocation_id
        for outcome in outcomes
        if await db_call(corrections, outcome.invocation_id)
    ]
    assert sorted(corrected) == sorted(ready[:20])
    for outcome in outcomes:
        await db_call(agrees, outcome, 1)


@pytest.mark.exhaustive
async def test_a_caller_that_leaves_after_the_clock_gave_its_call_up_is_in_the_record(
    site: Make, live_db: None, journal: Path
) -> None:
    await db_call(partial(add_server, "slow", tool("count"), env={"FAKE_JOURNAL": str(journal)}))
    here: Site = await site()
    call = asyncio.ensure_future(here.call("slow__count", {"steps": 100_000, "pause": 0.1}))
    await here.until_sent()
    assert await elsewhere(given_up) == 1
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await until(lambda: Invocation.objects.get().error_code == "CANCELLED")
    row = await db_call(Invocation.objects.get)
    assert (row.state, len(await db_call(corrections, row.pk))) == (InvocationState.UNKNOWN, 1)


async def test_a_call_that_was_not_sent_is_not_called_unknown_for_ever(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Site = await site()

    async def refuses(*_: object, **__: object) -> None:
        raise ConnectionFailed("The server does not start.", remedy="Look at its log.")

    monkeypatch.setattr(here.engine.pool, "call", refuses)
    stalls(here, monkeypatch)
    outcome = await here.call("echo__echo", {"n": 1})
    assert outcome.state == InvocationState.NOT_SENT
    await db_call(agrees, outcome, 0)


@pytest.mark.exhaustive
async def test_a_held_call_that_was_given_up_ends_as_its_server_answered(
    site: Make, asking: Server, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Site = await site()
    stalls(here, monkeypatch)
    caller = calling(here)
    await vote(bob)
    outcome = await caller
    assert outcome.state == InvocationState.SUCCEEDED
    await db_call(agrees, outcome, len(here.sent()))
    request, kinds = await only()
    assert json.loads(request.result) == outcome.result, "whoever comes back gets the whole result"
    assert kinds[-3:] == ["call.unknown", "call.succeeded", "call.corrected"]


@pytest.mark.exhaustive
async def test_an_end_that_cannot_be_corrected_at_once_is_kept_like_any_late_end(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await begun(site)
    stalls(here, monkeypatch)
    outage = Outage(monkeypatch)
    # the intent passes, and the end, which finds nothing to end
    outage.on = True
    outage.after = 2
    outcome = await here.call("echo__echo", {"n": 1})
    assert (outcome.state, outcome.late) == (InvocationState.SUCCEEDED, True)
    assert await db_call(lambda: Invocation.objects.get().state) == InvocationState.UNKNOWN
    outage.on = False
    await until(lambda: Invocation.objects.get().state == InvocationState.SUCCEEDED)
    await db_call(agrees, outcome, len(here.sent()))
    assert len(await db_call(corrections, outcome.invocation_id)) == 1


def by_hand() -> bool:
    """Somebody has ended the call for good."""
    call = Invocation.objects.get()
    ended = ending.build_end_columns(
        InvocationState.UNKNOWN,
        received_at=call.received_at,
        now=timezone.now(),
        reason="Somebody has looked.",
        code="LOOKED",
    )
    return ending.write_end(call, ended, actor=reaping.ACTOR)


async def test_what_is_known_gives_way_to_nobody_and_is_what_the_caller_is_told(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Site = await site()
    seen = stalls(here, monkeypatch, by_hand)
    outcome = await here.call("echo__echo", {"n": 1})
    assert (seen, outcome.state, outcome.error_code) == ([True], InvocationState.UNKNOWN, "LOOKED")
    assert outcome.message == "Somebody has looked."
    assert await db_call(lambda: Invocation.objects.get().error_code) == "LOOKED"


async def test_where_that_cannot_be_read_the_answer_says_that_its_record_may_differ(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: Site = await site()
    stalls(here, monkeypatch, by_hand)
    with failing("recorded_outcomes.load_outcome"):
        outcome = await here.call("echo__echo", {"n": 1})
    assert (outcome.state, outcome.late) == (InvocationState.SUCCEEDED, True)


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.django_db
@pytest.mark.parametrize(
    "state", [InvocationState.SUCCEEDED, InvocationState.TOOL_ERROR, InvocationState.UNKNOWN]
)
def test_work_that_outlives_its_process_ends_its_call_though_the_clock_gave_it_up(
    state: InvocationState,
) -> None:
    call = dispatched()
    assert reaping.reap_calls(timezone.now()) == 1
    assert long_calls.renew_call_lease(call_id=call.pk, fence=0), "who waits for the work waits on"
    known = {"result": {"content": []}} if state is not InvocationState.UNKNOWN else {}
    assert long_calls.end_long_call(
        call_id=call.pk, fence=0, state=state, code="C", reason="It is so.", outcome=known
    )
    call.refresh_from_db()
    assert (call.state, call.error_code, call.reason[:9]) == (state, "C", "It is so.")
    assert not long_calls.renew_call_lease(call_id=call.pk, fence=0)
    assert not long_calls.end_long_call(
        call_id=call.pk,
        fence=0,
        state=InvocationState.SUCCEEDED,
        outcome={"result": {"content": [1]}},
    )
    (entry,) = corrections(call.pk)
    assert (entry["was"], entry["state"]) == ("unknown", state)
    assert [
        each.rule
        for each in invariants.check_invariants(timezone.now(), strict=True)
        if each.violations
    ] == []


@pytest.mark.django_db
def test_only_the_process_that_had_the_call_corrects_it() -> None:
    call = dispatched(fence=3)
    reaping.reap_calls(timezone.now())
    assert not long_calls.renew_call_lease(call_id=call.pk, fence=2)
    assert not long_calls.end_long_call(
        call_id=call.pk,
        fence=2,
        state=InvocationState.SUCCEEDED,
        outcome={"result": {"content": []}},
    )
    call.refresh_from_db()
    assert (call.state, corrections(call.pk)) == (InvocationState.UNKNOWN, [])
