"""Pools and their books: nothing is lost or charged twice, whoever comes at the same time or dies
in between."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from django.utils import timezone

from mcpregistry.db import read_database_now
from mcpregistry.domain.energy import EnergyLevel, EnergyRates
from mcpregistry.domain.errors import ConfigInvalid, Conflict, NotFound
from mcpregistry.domain.lifecycle import SUPPOSED, InvocationState
from mcpregistry.domain.snapshot_specs import ToolSpec
from mcpregistry.ids import make_ordered_id
from mcpregistry.models import (
    Agent,
    EnergyEntry,
    EnergyPool,
    EnergyReservation,
    Invocation,
    Server,
    SiteProcess,
    Tool,
    ToolUsage,
)
from mcpregistry.services.access import agents
from mcpregistry.services.energy import estimates, pools, reservations, usage
from mcpregistry.services.energy.estimates import Work
from mcpregistry.services.records import ending
from mcpregistry.services.upkeep import processes, reaping, retention
from mcpregistry.services.upkeep.invariants import energy as rules


def pool(**fields: Any) -> EnergyPool:
    made = pools.save_pool(
        pool=EnergyPool(**{"slug": "shared", "regeneration": 0.0} | fields), actor="test"
    )
    return EnergyPool.objects.with_reserved().get(pk=made.pk)


def call(state: InvocationState = InvocationState.DISPATCHED, seconds: float | None = None) -> str:
    """A call that was sent; ``seconds`` ago by its own record, if it has ended."""
    now = timezone.now()
    return Invocation.objects.create(
        id=make_ordered_id(),
        state=state,
        agent_slug="ann",
        tool_name="t",
        exposed_name="t",
        origin="http",
        writer="w",
        received_at=now - timedelta(hours=1),
        dispatched_at=now - timedelta(seconds=seconds or 0),
        finished_at=None if seconds is None else now,
    ).pk


def reserve(
    row: EnergyPool, amount: float, call_id: str | None = None
) -> reservations.Shortage | None:
    return reservations.reserve(
        pool_id=row.pk, call_id=call_id or call(), agent="ann", work=work(amount)
    )


def work(energy: float) -> Work:
    """A call that an operator has estimated so."""
    return Work(ToolSpec(0, 0, "t", "", {}, idempotent=False, energy=energy), 2)


def level(row: EnergyPool) -> float:
    return pools.load_pool_standing(EnergyPool.objects.with_reserved().get(pk=row.pk)).level


@pytest.fixture(autouse=True)
def _books_balance(db: None) -> Any:
    yield
    assert list(rules.find_unbalanced_pools(timezone.now())) == []


def test_a_pool_is_full_at_first_and_tells_how_it_stands():
    row = pool(capacity=50.0, regeneration=2.0)
    assert pools.load_pool_standing(row) == pools.PoolStanding(50, 0, EnergyLevel.OK, 0)
    pools.grant(pool_id=row.pk, amount=30, actor="test")
    assert level(row) == 50, "never more than its capacity"
    with pytest.raises(NotFound):
        pools.grant(pool_id=0, amount=1, actor="test")
    with pytest.raises(ConfigInvalid):
        pools.grant(pool_id=row.pk, amount=float("nan"), actor="test")


@pytest.mark.parametrize(
    "wrong",
    [
        {"resume": 5.0},
        {"capacity": 0.0},
        {"regeneration": -1.0},
        {"on_empty": "x"},
        {"max_wait": 60.0},
    ],
)
def test_what_makes_no_pool_is_refused(wrong):
    with pytest.raises(ConfigInvalid):
        pool(**wrong)


def test_a_pool_that_is_changed_keeps_what_it_held_and_goes_on_by_its_new_rate():
    row = pool(capacity=100.0)
    reserve(row, 1, call_id := call(InvocationState.SUCCEEDED, 20))
    reservations.settle(call_id=call_id)
    row.capacity = 50.0
    row.regeneration = 0.0
    pools.save_pool(pool=row, actor="test")
    assert level(row) == 50
    assert [(entry.kind, entry.amount) for entry in EnergyEntry.objects.order_by("id")] == [
        ("call", 40),
        ("setting", 10),
    ]


def test_a_pool_with_agents_stays():
    row = pool()
    agents.save_agent(agent=Agent(slug="ann", energy_pool=row), actor="test")
    with pytest.raises(Conflict, match="ann"):
        pools.delete_pool(pool=row, actor="test")
    Agent.objects.update(energy_pool=None)
    pools.delete_pool(pool=row, actor="test")
    assert not EnergyPool.objects.exists()


def test_calls_cannot_all_pass_on_one_balance():
    row = pool(capacity=10.0, critical=1.0, resume=1.0)
    assert [reserve(row, 4) is None for _ in range(3)] == [True, True, False]
    short = reserve(row, 4)
    assert short is not None
    assert (short.pool, short.needed, short.available) == ("shared", 4, 2)


def test_a_reservation_is_made_once_however_often_it_is_asked():
    row = pool(capacity=10.0)
    call_id = call()
    assert [reserve(row, 6, call_id) for _ in range(3)] == [None] * 3
    assert EnergyReservation.objects.count() == 1


@pytest.mark.parametrize(
    ("state", "seconds", "cost"),
    [
        (InvocationState.SUCCEEDED, 3, 6),
        (InvocationState.TOOL_ERROR, 3, 6),
        (InvocationState.UNKNOWN, 3, 6),
        (InvocationState.NOT_SENT, 3, 0),
        (InvocationState.CANCELLED, 3, 0),
    ],
)
def test_a_call_is_charged_once_by_what_its_record_says(state, seconds, cost):
    row = pool()
    call_id = call(state, seconds)
    if state == InvocationState.CANCELLED:
        Invocation.objects.update(dispatched_at=None)
    reserve(row, 5, call_id)
    assert [reservations.settle(call_id=call_id) for _ in range(3)] == [True, False, False]
    assert level(row) == pytest.approx(100 - cost, abs=1e-3)
    assert not EnergyReservation.objects.exists()


@pytest.mark.parametrize(("after", "cost"), [(95, 5), (1, 2)])
def test_a_call_whose_process_is_not_known_costs_its_estimate_at_most(after: int, cost: int):
    """Its record knows when it was sent and that nobody has ended it since, not when its work
    ended."""
    row = pool()
    call_id = call(InvocationState.UNKNOWN, after)
    Invocation.objects.update(error_code=SUPPOSED)
    reserve(row, 5, call_id)
    assert reservations.settle(call_id=call_id)
    assert level(row) == pytest.approx(100 - cost, abs=1e-3)
    assert [entry.seconds for entry in EnergyEntry.objects.filter(kind="call")] == [None]


def test_a_call_that_its_lease_ended_costs_its_estimate():
    row = pool()
    call_id = call()
    sent = read_database_now() - timedelta(seconds=95)
    Invocation.objects.update(dispatched_at=sent, lease_until=sent + timedelta(seconds=90))
    reserve(row, 5, call_id)
    assert reaping.reap_calls(read_database_now()) == 1
    assert level(row) == pytest.approx(95, abs=1e-3)
    assert reservations.settle_due() == 0


def of_dead_process(sent: float, sign: float) -> tuple[EnergyPool, SiteProcess]:
    """A call with a small estimate, sent so many seconds before its process was last known to be
    alive, ``sign`` seconds ago."""
    row = pool()
    call_id = call()
    now = read_database_now()
    until = now - timedelta(seconds=sign) + processes.LEASE
    process = SiteProcess.objects.create(pk="web:box:7:aaaa", name="web@box:7", lease_until=until)
    Invocation.objects.update(
        writer="web:box:7:aaaa.1",
        dispatched_at=now - timedelta(seconds=sign + sent),
        lease_until=now + timedelta(hours=1),
    )
    reserve(row, 1, call_id)
    return row, process


@pytest.mark.both_databases
def test_call_of_dead_process_is_charged_until_its_last_sign_of_life():
    row, process = of_dead_process(sent=20, sign=15)
    assert reaping.end_calls_of_expired_process(process, read_database_now()) == 1
    assert level(row) == pytest.approx(100 - 40, abs=0.1)


def test_call_sent_after_the_last_sign_of_life_costs_no_time():
    row, process = of_dead_process(sent=-2, sign=15)
    assert reaping.end_calls_of_expired_process(process, read_database_now()) == 1
    assert level(row) == pytest.approx(100, abs=0.1)


@pytest.mark.both_databases
@pytest.mark.parametrize("by_clock", [False, True])
def test_late_end_corrects_what_was_charged_once(by_clock: bool):
    row, process = of_dead_process(sent=20, sign=15)
    reaping.end_calls_of_expired_process(process, read_database_now())
    found = Invocation.objects.get()
    end = ending.build_end_columns(
        InvocationState.SUCCEEDED,
        received_at=found.received_at,
        now=found.dispatched_at + timedelta(seconds=25),
    )
    assert reservations.settle_due() == 0, "nothing is known yet"
    assert ending.write_end(found, end, actor="test")
    settle = reservations.settle_due if by_clock else lambda: reservations.settle(call_id=found.pk)
    assert [settle(), settle()] == [1, 0]
    assert level(row) == pytest.approx(100 - 50, abs=0.1)
    charged = reservations.load_charge(call_id=found.pk, pool_id=row.pk)
    assert charged is not None
    assert charged.amount == pytest.approx(50, abs=0.1)
    shown = Invocation.objects.annotate(cost=EnergyEntry.of_call()).values_list("cost", flat=True)
    assert list(shown) == [pytest.approx(50, abs=0.1)]


def test_a_call_that_is_out_is_not_charged_and_one_without_a_record_is_forgotten():
    row = pool()
    out = call()
    reserve(row, 5, out)
    reserve(row, 5, "gone")
    assert not reservations.settle(call_id=out)
    assert reservations.settle_due() == 1
    assert list(EnergyReservation.objects.values_list("call_id", flat=True)) == [out]


def test_who_lacks_energy_first_charges_what_has_ended_without_its_process():
    """Which had died, so that what it had set aside was too much."""
    row = pool(capacity=10.0, critical=1.0, resume=1.0)
    reserve(row, 9, call(InvocationState.SUCCEEDED, 1))
    assert reserve(row, 5) is None
    assert level(row) == pytest.approx(8, abs=1e-3)


def test_a_shortage_tells_when_there_is_enough():
    row = pool(capacity=10.0, regeneration=0.01, critical=1.0, resume=1.0)
    reserve(row, 8)
    short = reserve(row, 6)
    assert short is not None
    assert short.seconds == pytest.approx(float("inf")), "14 are more than it ever holds"
    EnergyReservation.objects.all().delete()
    began = time.monotonic()
    EnergyPool.objects.update(level=2.0, level_at=read_database_now())
    short = reserve(row, 6)
    assert short is not None
    assert 399 - (time.monotonic() - began) < short.seconds <= 400


def test_a_pool_that_only_counts_refuses_nobody():
    row = pool(capacity=1.0, critical=0.0, resume=0.0, on_empty="allow")
    call_id = call(InvocationState.SUCCEEDED, 30)
    assert reserve(row, 50, call_id) is None
    reservations.settle(call_id=call_id)
    entry = EnergyEntry.objects.get()
    assert (entry.after, round(entry.overdraft)) == (0, 59)


def test_books_that_were_changed_by_hand_are_found():
    row = pool()
    for seconds in (1, 2, 3):
        reserve(row, 1, call_id := call(InvocationState.SUCCEEDED, seconds))
        reservations.settle(call_id=call_id)
    second = EnergyEntry.objects.order_by("id")[1]
    EnergyEntry.objects.filter(pk=second.pk).update(amount=1.0)
    assert list(rules.find_unbalanced_pools(timezone.now())) == [f"shared: entry {second.pk}"]
    EnergyEntry.objects.filter(pk=second.pk).update(amount=4.0)
    EnergyPool.objects.update(level=77.0)
    assert len(list(rules.find_unbalanced_pools(timezone.now()))) == 1
    EnergyPool.objects.update(level=EnergyEntry.objects.latest("id").after)


def test_estimates_are_made_of_what_the_last_calls_of_a_tool_took():
    server = Server.objects.create(slug="s", transport="stdio")
    tool = Tool.objects.create(
        server=server, name="t", first_seen_at=timezone.now(), last_seen_at=timezone.now()
    )
    _, waited = [call(InvocationState.SUCCEEDED, seconds) for seconds in (1.0, 3.0)]
    call(InvocationState.NOT_SENT, 50)
    call(InvocationState.DISPATCHED)
    Invocation.objects.filter(pk=call(InvocationState.UNKNOWN, 90)).update(error_code=SUPPOSED)
    Invocation.objects.update(server_slug="s", arguments="{}", received_at=timezone.now())
    row = pool()
    with transaction.atomic():  # of which two seconds were waiting for energy
        pools.charge_pool(
            pools.lock_pool(row.pk),
            EnergyEntry.Kind.CALL,
            2,
            now=read_database_now(),
            reference=waited,
            seconds=1.0,
        )
    assert usage.count_due(timezone.now()) == 1
    found = ToolUsage.objects.get(tool=tool)
    assert (found.calls, found.seconds) == (2, pytest.approx(1.0))
    spec = ToolSpec(tool.pk, server.pk, "t", "", {}, idempotent=False)
    assert estimates.estimate_work(Work(spec, 2), EnergyRates()) == pytest.approx(
        (2 * 2.0 + 5 * 1.05) / 7
    )
    assert usage.count_due(timezone.now() + timedelta(hours=1)) == 0, "nobody has called it of late"


def test_the_database_itself_refuses_a_second_charge():
    row = pool()
    with transaction.atomic():
        pools.charge_pool(
            pools.lock_pool(row.pk),
            EnergyEntry.Kind.CALL,
            1,
            now=read_database_now(),
            reference="c",
        )
    with pytest.raises(IntegrityError), transaction.atomic():
        pools.charge_pool(
            pools.lock_pool(row.pk),
            EnergyEntry.Kind.CALL,
            1,
            now=read_database_now(),
            reference="c",
        )


def test_entries_go_with_the_records_of_their_time():
    row = pool()
    for _ in range(2):
        pools.grant(pool_id=row.pk, amount=1, actor="test")
    later = timezone.now() + timedelta(days=400)
    assert [retention.prune(later)["energy"] for _ in range(2)] == [1, 0], (
        "the last one tells the level"
    )


@pytest.mark.usefixtures("live_db")
def test_many_who_charge_at_once_take_exactly_what_they_take():
    """Levels, entries and reservations agree, over connections of their own."""
    row = pool(capacity=10_000.0)
    calls = [call(InvocationState.SUCCEEDED, 0.5) for _ in range(120)]

    def spend(call_id: str) -> None:
        assert (
            reservations.reserve(pool_id=row.pk, call_id=call_id, agent="ann", work=work(1)) is None
        )
        reservations.settle(call_id=call_id)
        reservations.settle(call_id=call_id)
        connection.close()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(spend, calls))
    assert EnergyEntry.objects.filter(kind="call").count() == len(calls)
    assert level(row) == pytest.approx(10_000 - len(calls), abs=1e-3)
    assert not EnergyReservation.objects.exists()


def test_a_pool_goes_on_after_a_clock_that_was_far_ahead_for_a_moment():
    row = pool(capacity=10.0, regeneration=1.0, critical=1.0, resume=1.0)
    EnergyPool.objects.update(level=0.0, level_at=read_database_now() + timedelta(days=365))
    short = reserve(row, 6)
    assert short is not None
    assert short.seconds <= 10 + 6, "no longer than a whole pool takes to fill"
    EnergyPool.objects.update(level_at=read_database_now() - timedelta(seconds=7))
    assert reserve(row, 6) is None
    EnergyPool.objects.update(level_at=read_database_now())  # as its last entry says


def test_who_is_told_that_energy_never_suffices_could_not_have_it_from_a_full_and_idle_pool():
    row = pool(capacity=10.0, critical=1.0, resume=1.0)
    reserve(row, 8)
    short = reserve(row, 6)
    too_much = reserve(row, 11)
    assert short is not None
    assert too_much is not None
    assert (short.seconds, short.soonest) == (float("inf"), 0), (
        "as soon as the call that is out has ended"
    )
    assert too_much.soonest == float("inf")


def test_where_the_connection_breaks_in_one_of_several_nobody_is_told_that_something_was_set_aside() -> (
    None
):
    row = pool(capacity=10.0)
    key = call()

    def breaks() -> None:
        connection.set_rollback(True)  # as Django does when it cannot even undo the one that failed
        raise OperationalError("away")

    with transaction.atomic(), pytest.raises(OperationalError):
        reservations.run_in_one_transaction([lambda: reserve(row, 5.0, key), breaks])
    assert not EnergyReservation.objects.exists()
