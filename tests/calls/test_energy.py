"""Calls of an agent with an energy pool: set aside before they go out, charged by their records
when they have ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError, transaction

from mcpregistry.db import db_call
from mcpregistry.domain.errors import QueueFullError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import (
    Agent,
    Configuration,
    Endpoint,
    EnergyEntry,
    EnergyPool,
    EnergyReservation,
    Invocation,
    Tool,
)
from mcpregistry.services.access import agents
from mcpregistry.services.energy import pools, reservations
from tests.calls.conftest import Site, add_server, tool
from tests.calls.test_approvals import bob, held, vote
from tests.waiting import until

pytestmark = pytest.mark.exhaustive(on="postgresql")

__all__ = ["bob"]
Make = Callable[..., Any]


def pooled(journal: Any, **fields: Any) -> None:
    """The agent "ann" draws on a pool that does not refill, unless ``fields`` say otherwise; a call
    may cost 4."""
    add_server("slow", tool("count"), env={"FAKE_JOURNAL": str(journal)})
    pool = pools.save_pool(
        pool=EnergyPool(**{"slug": "p", "regeneration": 0.0} | fields), actor="test"
    )
    ann = Agent.objects.get(slug="ann")
    ann.energy_pool = pool
    agents.save_agent(agent=ann, actor="test")
    Tool.objects.update(call_energy=4.0)


@transaction.atomic
def drain(regeneration: float) -> None:
    """Nothing is left, and this is what comes back each second from now on."""
    pool = EnergyPool.objects.get()
    pool.regeneration = regeneration
    pool = pools.lock_pool(pools.save_pool(pool=pool, actor="test").pk)
    pools.charge_pool(pool, EnergyEntry.Kind.MAINTENANCE, pool.level, now=pool.level_at)


def books() -> dict[str, float]:
    """What each call has cost; each is charged once."""
    entries = list(EnergyEntry.objects.filter(kind="call").values_list("reference", "amount"))
    assert len(entries) == len(dict(entries))
    return dict(entries)


def by_the_record() -> dict[str, Any]:
    """Two units for each second from sending to the end."""
    calls = Invocation.objects.exclude(dispatched_at=None).exclude(state=InvocationState.NOT_SENT)
    return {
        call.pk: pytest.approx(
            2 * max(0.0, (call.finished_at - call.dispatched_at).total_seconds())
        )
        for call in calls
        if call.finished_at and call.dispatched_at
    }


async def test_a_call_costs_by_its_time_whether_it_succeeds_or_fails(
    site: Make, journal: Any
) -> None:
    await db_call(pooled, journal)
    here: Site = await site()
    ended = [await here.call("slow__count", {"steps": 1, "pause": pause}) for pause in (0.01, 0.4)]
    ended.append(await here.call("slow__count", {"steps": 1, "pause": 0.2, "refuse": True}))
    assert [outcome.state for outcome in ended] == [
        InvocationState.SUCCEEDED,
        InvocationState.SUCCEEDED,
        InvocationState.TOOL_ERROR,
    ]
    entries = await db_call(books)
    assert entries == await db_call(by_the_record)
    assert entries[ended[1].invocation_id] >= 0.8, "it took 0.4 seconds at least"
    left = await db_call(lambda: EnergyPool.objects.get().level)
    assert left == pytest.approx(100 - sum(entries.values()), abs=1e-6)


@pytest.mark.exhaustive
async def test_who_has_no_pool_asks_nobody(
    site: Make, journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await db_call(add_server, "slow", tool("count"))
    here: Site = await site()
    for name in ("reserve", "settle"):
        monkeypatch.setattr(reservations, name, None)
    assert (await here.call("slow__count", {"steps": 1})).state == InvocationState.SUCCEEDED


@pytest.mark.both_databases
async def test_calls_at_once_do_not_all_pass_on_one_balance(site: Make, journal: Any) -> None:
    await db_call(lambda: pooled(journal, capacity=9.0, critical=1.0, resume=1.0))
    here: Site = await site()
    outcomes = await asyncio.gather(
        *(here.call("slow__count", {"steps": 1, "pause": 0.3}) for _ in range(4))
    )
    refused = [outcome for outcome in outcomes if outcome.state == InvocationState.NOT_SENT]
    assert (len(refused), len(here.sent())) == (2, 2)
    assert {outcome.error_code for outcome in refused} == {"INSUFFICIENT_ENERGY"}
    assert "estimated to cost 4.0 units" in refused[0].message
    assert "when the calls in progress have ended" in refused[0].remedy, (
        "nothing comes back by itself, but what was set aside"
    )
    assert len(await db_call(books)) == 2


async def test_a_call_waits_for_energy_where_that_is_wished_and_is_told_for_how_long_where_not(
    site: Make, journal: Any
) -> None:
    await db_call(
        lambda: pooled(journal, regeneration=8.0, on_empty="wait", capacity=10.0, resume=10.0)
    )
    await db_call(drain, 8.0)
    here: Site = await site()
    assert (await here.call("slow__count", {"steps": 1})).state == InvocationState.SUCCEEDED
    await db_call(drain, 0.05)
    refused = await here.call("slow__count", {"steps": 1})
    assert (refused.state, refused.remedy.startswith("Call again in ")) == (
        InvocationState.NOT_SENT,
        True,
    )
    assert len(here.sent()) == 1


async def test_time_in_which_people_are_asked_costs_nothing_and_holds_nothing(
    site: Make, journal: Any, bob: User
) -> None:
    await db_call(pooled, journal)
    await db_call(lambda: Configuration.objects.update(default_outcome="ask"))
    here: Site = await site()
    calling = asyncio.ensure_future(here.call("slow__count", {"steps": 1}))
    await held()
    assert not await db_call(EnergyReservation.objects.exists)
    await vote(bob)
    assert (await calling).state == InvocationState.SUCCEEDED
    await until(lambda: db_call(EnergyEntry.objects.exists))
    assert await db_call(books) == await db_call(by_the_record)


@pytest.mark.both_databases
@pytest.mark.fault
async def test_what_cannot_be_set_aside_is_not_sent_and_what_cannot_be_charged_is_charged_by_the_clock(
    site: Make, journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await db_call(pooled, journal)
    here: Site = await site()

    def fails(**_: Any) -> None:
        raise OperationalError("hunter2")

    with monkeypatch.context() as patch:
        patch.setattr(reservations, "reserve", fails)
        outcome = await here.call("slow__count", {"steps": 1})
    assert (outcome.state, outcome.error_code, "hunter2" in outcome.message) == (
        InvocationState.NOT_SENT,
        "NOT_RECORDED",
        False,
    )
    assert here.sent() == []
    with monkeypatch.context() as patch:
        patch.setattr(reservations, "settle", fails)
        assert (await here.call("slow__count", {"steps": 1})).state == InvocationState.SUCCEEDED
    assert await db_call(books) == {}
    assert await db_call(reservations.settle_due) == 1
    assert await db_call(books) == await db_call(by_the_record)


@pytest.mark.fault
async def test_a_caller_that_leaves_is_charged_for_what_was_done_and_for_nothing_else(
    site: Make, journal: Any
) -> None:
    await db_call(lambda: pooled(journal, on_empty="wait", max_wait=45.0))
    here: Site = await site()
    calling = asyncio.ensure_future(here.call("slow__count", {"steps": 1000, "pause": 0.05}))
    await here.until_sent()
    calling.cancel()
    await until(
        lambda: db_call(lambda: Invocation.objects.filter(state=InvocationState.UNKNOWN).exists())
    )
    assert await db_call(reservations.settle_due) == 1
    (cost,) = (await db_call(books)).values()
    assert cost > 0
    await db_call(drain, 0.1)  # enough in forty seconds
    waiting = asyncio.ensure_future(here.call("slow__count", {"steps": 1}))
    await until(
        lambda: db_call(
            lambda: Invocation.objects.filter(state=InvocationState.DISPATCHED).exists()
        )
    )
    waiting.cancel()
    await until(
        lambda: db_call(lambda: Invocation.objects.filter(state=InvocationState.NOT_SENT).exists())
    )
    await db_call(reservations.settle_due)
    assert not await db_call(EnergyReservation.objects.exists)
    assert len(here.sent()) == 1


@pytest.mark.exhaustive
async def test_time_in_which_a_call_waits_for_energy_costs_nothing(
    site: Make, journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await db_call(
        lambda: pooled(journal, on_empty="wait", capacity=10.0, resume=10.0, max_wait=45.0)
    )
    here: Site = await site()
    await db_call(drain, 0.1)  # enough in forty seconds, unless somebody gives more
    asked = []
    real = reservations.reserve

    def reserve(**facts: Any) -> Any:
        asked.append(facts["call_id"])
        return real(**facts)

    monkeypatch.setattr(reservations, "reserve", reserve)
    calling = asyncio.ensure_future(here.call("slow__count", {"steps": 1}))
    await until(lambda: asked)
    began = time.monotonic()
    await asyncio.sleep(0.6)
    waited = time.monotonic() - began
    await db_call(
        lambda: pools.grant(pool_id=EnergyPool.objects.get().pk, amount=10.0, actor="test")
    )
    ended = await calling
    assert ended.state == InvocationState.SUCCEEDED
    (charged,) = (await db_call(books)).values()
    assert charged < 2 * (ended.duration_ms / 1000 - waited), (
        "two units for each second, but of work alone"
    )


@pytest.mark.both_databases
async def test_a_call_waits_for_what_others_have_set_aside_and_gives_back(
    site: Make, journal: Any
) -> None:
    """Together they are estimated at more than the pool ever holds; each alone is not."""
    await db_call(
        lambda: pooled(
            journal, on_empty="wait", capacity=5.0, critical=1.0, resume=1.0, per_second=0.1
        )
    )
    here: Site = await site()
    ended = await asyncio.gather(
        *(here.call("slow__count", {"steps": 1, "pause": 0.1}) for _ in range(3))
    )
    assert {outcome.state for outcome in ended} == {InvocationState.SUCCEEDED}, [
        outcome.message for outcome in ended
    ]


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.both_databases
@pytest.mark.fault
@pytest.mark.parametrize(
    "error", [InterfaceError("hunter2"), QueueFullError("Full."), RuntimeError("hunter2")]
)
async def test_whatever_fails_around_a_call_it_is_told_as_it_is_recorded(
    site: Make, journal: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    await db_call(pooled, journal)
    here: Site = await site()

    def fails(**_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(reservations, "reserve", fails)
        outcome = await here.call("slow__count", {"steps": 1})
    assert (outcome.state, "hunter2" in outcome.message) == (InvocationState.NOT_SENT, False)
    assert (await db_call(Invocation.objects.get)).state == InvocationState.NOT_SENT
    with monkeypatch.context() as patch:
        patch.setattr(reservations, "settle", fails)
        assert (await here.call("slow__count", {"steps": 1})).state == InvocationState.SUCCEEDED
    assert await db_call(reservations.settle_due) == 1


async def test_where_the_endpoint_wants_it_each_result_says_what_the_books_say(
    site: Make, journal: Any
) -> None:
    await db_call(pooled, journal)
    await db_call(Endpoint.objects.update, tell_energy=True)
    here: Site = await site()
    ended = [
        await here.call("slow__count", {"steps": 1, "refuse": refuse}) for refuse in (False, True)
    ]
    entries = await db_call(lambda: list(EnergyEntry.objects.filter(kind="call").order_by("id")))
    told = [(each.invocation_id, each.energy.amount, each.energy.level) for each in ended]
    assert told == [(entry.reference, entry.amount, entry.after) for entry in entries]
    refused = await here.call("slow__nothing", {})
    assert (refused.state, refused.energy.amount) == (InvocationState.DENIED, 0.0)
    assert refused.energy.level == pytest.approx(entries[-1].after)
    await db_call(Endpoint.objects.update, tell_energy=False)
    assert (await (await site()).call("slow__count", {"steps": 1})).energy is None


@pytest.mark.fault
async def test_what_is_not_in_the_books_yet_is_not_told(
    site: Make, journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await db_call(pooled, journal)
    await db_call(Endpoint.objects.update, tell_energy=True)
    here: Site = await site()

    def fails(**_: Any) -> None:
        raise OperationalError("away")

    for name in ("settle", "load_charge"):
        monkeypatch.setattr(reservations, name, fails)
    outcome = await here.call("slow__count", {"steps": 1})
    assert (outcome.state, outcome.energy) == (InvocationState.SUCCEEDED, None)


@pytest.mark.both_databases
async def test_what_calls_of_a_pool_want_at_the_same_time_is_one_commit_and_one_fault_is_one_calls(
    site: Make, journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await db_call(lambda: pooled(journal, capacity=1000.0))
    here: Site = await site()
    await here.call("slow__count", {"steps": 1})
    commits: list[int] = []
    together = reservations.run_in_one_transaction
    reserve = reservations.reserve
    broken: list[str] = []

    def counted(acts: Any) -> Any:
        commits.append(len(acts))
        return together(acts)

    def breaks(**facts: Any) -> Any:
        if not broken:
            broken.append(facts["call_id"])
            raise OperationalError("hunter2")
        return reserve(**facts)

    monkeypatch.setattr(reservations, "run_in_one_transaction", counted)
    outcomes = await asyncio.gather(*(here.call("slow__count", {"steps": 1}) for _ in range(20)))
    assert {outcome.state for outcome in outcomes} == {InvocationState.SUCCEEDED}
    assert (sum(commits), len(commits) < 40) == (40, True), "20 set aside, 20 charged"
    assert len(await db_call(books)) == 21
    monkeypatch.setattr(reservations, "reserve", breaks)
    outcomes = await asyncio.gather(*(here.call("slow__count", {"steps": 1}) for _ in range(5)))
    ended = {outcome.invocation_id: outcome.state for outcome in outcomes}
    assert [ended.pop(call) for call in broken] == [InvocationState.NOT_SENT]
    assert set(ended.values()) == {InvocationState.SUCCEEDED}
