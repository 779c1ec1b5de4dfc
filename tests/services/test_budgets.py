"""Budgets: exact books, nothing spent twice, and marks that hold whoever comes at the same time or
dies in between."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from mcpregistry.domain.budgets import Level, Unit
from mcpregistry.domain.errors import ConfigInvalid, NotFound
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.ids import make_ordered_id
from mcpregistry.models import (
    Agent,
    Budget,
    BudgetEntry,
    BudgetReservation,
    Channel,
    Delivery,
    Endpoint,
    Invocation,
)
from mcpregistry.services.access import agents
from mcpregistry.services.budgets import books, rates, spending
from mcpregistry.services.budgets.books import Kind
from mcpregistry.services.budgets.spending import BudgetAnswer, Needs
from mcpregistry.services.upkeep import retention
from mcpregistry.services.upkeep.invariants import budgets as rules


def budget(slug: str = "daily", agent: str = "ann", **fields: Any) -> Budget:
    owner = Agent.objects.filter(slug=agent).first() or agents.save_agent(
        agent=Agent(slug=agent), actor="test"
    )
    given = {"unit": "calls", "period": "day", "hard": Decimal(10)} | fields
    return books.save_budget(budget=Budget(slug=slug, agent=owner, **given), actor="test")


def budget_of_endpoint(slug: str = "door", **fields: Any) -> Budget:
    at = Endpoint.objects.create(slug="team")
    given = {"unit": "calls", "period": "day", "hard": Decimal(10)} | fields
    return books.save_budget(budget=Budget(slug=slug, endpoint=at, **given), actor="test")


def call(state: InvocationState = InvocationState.DISPATCHED, *, ended: bool = False) -> str:
    now = timezone.now()
    return Invocation.objects.create(
        id=make_ordered_id(),
        state=state,
        agent_slug="ann",
        tool_name="t",
        exposed_name="t",
        origin="http",
        writer="w",
        received_at=now,
        dispatched_at=now,
        finished_at=now if ended else None,
    ).pk


def reserve(
    amount: int = 1,
    reference: str | None = None,
    *,
    unit: Unit = Unit.CALLS,
    of: tuple[str, ...] = ("ann",),
    hears=True,
    door: str = "",
) -> BudgetAnswer:
    needs = Needs(of[0], frozenset([*of, door]), {unit: amount}, hears=hears, door=door)
    return spending.reserve(kind=Kind.CALL, reference=reference or call(), needs=needs)


def end(call_id: str, state: InvocationState = InvocationState.SUCCEEDED) -> None:
    Invocation.objects.filter(pk=call_id).update(state=state, finished_at=timezone.now())


def made(count: int) -> None:
    """So many calls, from reservation to end."""
    for _ in range(count):
        one = call()
        assert reserve(reference=one).refusal is None
        end(one)
        spending.settle(call_id=one)


def standing(row: Budget) -> tuple[int, int, Level]:
    found = books.load_standings([row])[row.pk]
    return found.book.spent, found.book.reserved, found.level


@pytest.fixture(autouse=True)
def _books_balance(db: None) -> Any:
    yield
    for _, holds in rules.RULES:
        assert list(holds(timezone.now())) == []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The database's clock, for what is spent."""

    def show(at: str) -> None:
        moment = datetime.fromisoformat(at).replace(tzinfo=UTC)
        for module in (books, spending):
            monkeypatch.setattr(module, "read_database_now", lambda: moment)

    return show


@pytest.mark.parametrize(
    "wrong",
    [
        {"hard": None},
        {"soft": Decimal(11)},
        {"hard": Decimal(-1)},
        {"hard": Decimal("1.5")},
        {"unit": "x"},
        {"period": "x"},
        {"time_zone": "Oslo"},
        {"time_zone": "../etc/passwd"},
        {"hard": Decimal("NaN")},
    ],
)
def test_what_makes_no_budget_is_refused(wrong):
    with pytest.raises(ConfigInvalid):
        budget(**wrong)


def test_calls_pass_up_to_the_hard_mark_and_are_then_refused_with_the_time_when_it_ends():
    row = budget(hard=Decimal(3))
    made(3)
    refusal = reserve().refusal
    assert refusal is not None
    assert (refusal.code, standing(row)) == ("BUDGET_SPENT", (3, 0, Level.SPENT))
    tomorrow = (timezone.now() + timedelta(days=1)).strftime("%Y-%m-%d 00:00 UTC")
    assert str(refusal) == (
        "The budget 'daily' allows 3 calls each day. Spent: 3 calls. "
        f"The budget resets at {tomorrow}. To continue earlier, ask an operator for a higher limit."
    )


def test_what_is_out_holds_its_place_and_what_was_not_sent_gives_it_back():
    row = budget(hard=Decimal(2))
    first = call()
    second = call()
    assert [reserve(reference=each).refusal for each in (first, second, first)] == [None] * 3, (
        "once each"
    )
    assert reserve().refusal is not None
    end(first, InvocationState.NOT_SENT)
    assert reserve().refusal is None, (
        "who lacks room writes down first what has ended without its process"
    )
    end(second)
    assert spending.settle_due() == 1
    assert standing(row) == (1, 1, Level.OK)


@pytest.mark.parametrize(
    ("state", "spent"),
    [
        (InvocationState.SUCCEEDED, 1),
        (InvocationState.TOOL_ERROR, 1),
        (InvocationState.UNKNOWN, 1),
        (InvocationState.NOT_SENT, 0),
        (InvocationState.CANCELLED, 0),
    ],
)
def test_a_call_is_written_down_once_by_what_its_record_says(state, spent):
    row = budget()
    one = call()
    reserve(reference=one)
    if state == InvocationState.CANCELLED:
        Invocation.objects.update(dispatched_at=None)
    end(one, state)
    assert [spending.settle(call_id=one) for _ in range(3)] == [True, False, False]
    assert standing(row)[:2] == (spent, 0)


def test_a_call_without_a_record_keeps_its_place_for_two_minutes_and_not_for_ever():
    row = budget()
    reserve(reference="c" * 32)
    assert (spending.settle_due(), standing(row)[:2]) == (0, (0, 1))
    BudgetReservation.objects.update(
        made_at=timezone.now() - spending.UNRECORDED - timedelta(seconds=1)
    )
    assert (spending.settle_due(), standing(row)[:2]) == (1, (0, 0))


def test_every_agent_that_has_caused_it_pays_and_one_who_cannot_refuses_it_for_all():
    own = budget("own", "expert")
    cause = budget("cause", "ann", hard=Decimal(1))
    budget("other", "bob", hard=Decimal(0))
    one = call()
    assert reserve(reference=one, of=("expert", "ann")).refusal is None
    end(one)
    spending.settle(call_id=one)
    assert [standing(each)[0] for each in (own, cause)] == [1, 1]
    refusal = reserve(of=("expert", "ann")).refusal
    assert "'cause' of the agent 'ann'" in str(refusal)
    assert standing(own)[:2] == (1, 0), "nothing was set aside of what could have paid"


def test_channels_are_told_of_each_mark_once_in_a_period_and_the_agent_of_the_soft_one(
    clock: Any,
) -> None:
    Channel.objects.create(name="all", kind="webhook", enabled=True)
    Channel.objects.create(name="approvals", kind="webhook", enabled=True, events=["asked"])
    budget(soft=Decimal(2), hard=Decimal(3))
    clock("2026-11-02 10:00")
    made(1)
    assert not Delivery.objects.exists()
    one = call()
    assert reserve(reference=one, hears=False).remarks == (), (
        "what has no room for it leaves it to the next"
    )
    second = reserve(reference=one)
    assert [each.said for each in second.remarks] == [
        "Used from the budget 'daily' in the current day: 2 calls of 3 calls. When the limit is reached, calls are refused until 2026-11-03 00:00 UTC."
    ]
    end(one)
    spending.settle(call_id=one)
    one = call()
    assert reserve(reference=one).remarks == (), "it was told"
    end(one)
    spending.settle(call_id=one)
    for _ in range(3):
        assert reserve().refusal is not None
    assert list(Delivery.objects.order_by("id").values_list("event", flat=True)) == [
        "budget_soft",
        "budget_spent",
    ]
    told = json.loads(Delivery.objects.get(event="budget_spent").body)
    assert (told["type"], told["data"]["budget"], told["data"]["spent"], told["data"]["ends"]) == (
        "budget.spent",
        "daily",
        "3 calls",
        "2026-11-03T00:00:00+00:00",
    )
    clock("2026-11-03 00:00")
    made(2)
    assert Delivery.objects.filter(event="budget_soft").count() == 2


def test_an_endpoint_pays_for_all_that_comes_by_it_beside_the_budgets_of_its_agents():
    own = budget(hard=Decimal(5))
    door = budget_of_endpoint(hard=Decimal(2))
    Channel.objects.create(name="all", kind="webhook", enabled=True)
    for agent in ("ann", "eve"):
        one = call()
        assert reserve(reference=one, of=(agent,), door="endpoint:team").refusal is None
        end(one)
        spending.settle(call_id=one)
    refused = reserve(door="endpoint:team").refusal
    assert refused is not None
    assert str(refused).startswith(
        "The budget 'door' of the endpoint 'team' allows 2 calls each day. Spent: 2 calls."
    )
    assert (standing(own)[0], standing(door)) == (1, (2, 0, Level.SPENT))
    assert set(door.entries.values_list("agent_slug", flat=True)) == {"ann", "eve"}
    told = json.loads(Delivery.objects.get(event="budget_spent").body)["data"]
    assert (told["agent"], told["endpoint"]) == ("", "team")
    assert reserve(of=("team",)).refusal is None, "an agent of that name is another"


def test_a_budget_is_of_one_agent_or_one_endpoint_and_stays_so():
    door = budget_of_endpoint()
    owner = Agent.objects.create(slug="ann")
    for wrong in (
        Budget(slug="n", hard=1),
        Budget(slug="b", hard=1, agent=owner, endpoint=door.endpoint),
    ):
        with pytest.raises(ConfigInvalid, match="one agent or to one endpoint"):
            books.save_budget(budget=wrong, actor="test")
    door.endpoint = Endpoint.objects.create(slug="other")
    with pytest.raises(
        ConfigInvalid, match="agent, endpoint and unit of a budget cannot be changed"
    ):
        books.save_budget(budget=door, actor="test")


def test_what_came_to_nothing_before_it_was_told_is_told_with_the_next_answer():
    budget(soft=Decimal(1))
    (first,) = reserve().remarks
    assert reserve().remarks == ()
    spending.restore_remarks([first])
    assert [each.period for each in reserve().remarks] == [first.period]


def test_a_period_begins_at_midnight_where_the_budget_says_also_when_clocks_change(
    clock: Any,
) -> None:
    row = budget(hard=Decimal(1), time_zone="Europe/Oslo")
    clock("2026-10-24 22:00")  # midnight, before a day of 25 hours
    made(1)
    clock("2026-10-25 22:59:59")
    assert "2026-10-25 23:00 UTC" in str(reserve().refusal)
    clock("2026-10-25 23:00")
    assert standing(row) == (0, 0, Level.OK)
    made(1)


def test_a_call_that_is_out_over_midnight_counts_where_it_ends_and_holds_its_place_there(
    clock: Any,
) -> None:
    row = budget(hard=Decimal(1))
    clock("2026-11-02 23:59:59")
    reserve(reference=(one := call()))
    clock("2026-11-03 00:00:01")
    assert reserve().refusal is not None
    end(one)
    spending.settle(call_id=one)
    assert standing(row)[0] == 1
    clock("2026-11-02 23:59:59")
    assert standing(row)[0] == 0


def test_a_clock_that_is_set_back_gives_nothing_anew_and_tells_nothing_again(clock: Any) -> None:
    Channel.objects.create(name="all", kind="webhook", enabled=True)
    budget(hard=Decimal(2))
    for moment in ("2026-11-02 23:59", "2026-11-03 00:01"):
        clock(moment)
        made(2)
        assert reserve().refusal is not None
    for moment in ("2026-11-02 23:58", "2026-11-03 00:02"):
        clock(moment)
        assert reserve().refusal is not None
    assert Delivery.objects.count() == 2


def test_a_budget_that_begins_anew_otherwise_counts_what_was_spent_since_then(clock: Any) -> None:
    row = budget()
    for day in (1, 2, 3):
        clock(f"2026-12-0{day} 12:00")
        made(day)
    row.period = "month"
    books.save_budget(budget=row, actor="test")
    made(1)
    assert standing(row)[0] == 7
    row.period = "day"
    books.save_budget(budget=row, actor="test")
    made(1)
    assert standing(row)[0] == 5, "also the day that it had begun with"
    row.unit = "tokens"
    with pytest.raises(ConfigInvalid, match="add a new one"):
        books.save_budget(budget=row, actor="test")


def test_a_budget_may_be_deleted_or_switched_off_while_calls_are_out():
    row = budget(hard=Decimal(1))
    kept = budget("kept")
    reserve(reference=(one := call()))
    again = Budget.objects.get(pk=row.pk)
    books.delete_budget(budget=row, actor="test")
    with pytest.raises(NotFound):  # by somebody else at the same time
        books.delete_budget(budget=again, actor="test")
    end(one)
    assert spending.settle(call_id=one)
    assert standing(kept)[:2] == (1, 0)
    reserve(reference=(two := call()))
    kept.enabled = False
    books.save_budget(budget=kept, actor="test")
    assert reserve() == BudgetAnswer(), "nobody counts any more"
    end(two)
    spending.settle(call_id=two)
    assert standing(kept)[:2] == (2, 0)


def test_a_turn_spends_what_it_has_cost_and_one_whose_worker_died_the_money_that_was_set_aside():
    money = budget("money", unit="money", hard=Decimal("0.01"))
    tokens = budget("tokens", unit="tokens", hard=Decimal(900))

    def turn(dollars: int, count: int) -> Needs:
        return Needs("ann", frozenset({"ann"}), {Unit.MONEY: dollars, Unit.TOKENS: count})

    assert (
        spending.reserve(kind=Kind.TURN, reference="run", needs=turn(400_000, 500)).refusal is None
    )
    assert "may need 500 tokens" in str(
        spending.reserve(kind=Kind.TURN, reference="other", needs=turn(1, 500)).refusal
    )
    spending.spend_turn(run="run", reference="run:1", needs=turn(123_456, 321))
    assert [standing(each)[:2] for each in (money, tokens)] == [(123_456, 0), (321, 0)]
    spending.reserve(kind=Kind.TURN, reference="run", needs=turn(400_000, 500))
    for _ in range(2):
        spending.lose_turn(run="run", reference="run:lost:2")
    assert [standing(each)[:2] for each in (money, tokens)] == [(523_456, 0), (321, 0)]
    assert "can never cover" in str(
        spending.reserve(kind=Kind.TURN, reference="run", needs=turn(2_000_000, 1)).refusal
    )


def test_entries_outlive_no_record_but_those_of_periods_that_go_on():
    row = budget(period="month")
    made(1)
    BudgetEntry.objects.create(
        budget=row,
        kind=Kind.CALL,
        amount=1,
        agent_slug="ann",
        reference="old",
        at=datetime(2020, 1, 1, tzinfo=UTC),
    )
    assert [
        retention.prune(timezone.now() + timedelta(days=days))["budgets"] for days in (0, 400)
    ] == [1, 1]


def test_books_that_were_changed_by_hand_are_found():
    row = budget()
    made(2)
    row.periods.update(spent=1)
    assert list(rules.find_unbalanced_budgets(timezone.now())) == [
        f"daily: the period since {timezone.now():%Y-%m-%d} 00:00 UTC does not match the entries"
    ]
    row.periods.update(spent=2)


@pytest.mark.usefixtures("live_db")
def test_many_at_once_spend_exactly_what_the_hard_mark_bears():
    """Over connections of their own: nobody passes on a balance that another has taken."""
    row = budget(hard=Decimal(40))
    calls = [call() for _ in range(64)]

    def spend(call_id: str) -> bool:
        passed = reserve(reference=call_id).refusal is None
        if passed:
            end(call_id)
            spending.settle(call_id=call_id)
            spending.settle(call_id=call_id)
        connection.close()
        return passed

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(spend, calls)) == 40
    assert standing(row) == (40, 0, Level.SPENT)
    assert BudgetEntry.objects.count() == 40


@pytest.mark.usefixtures("live_db")
def test_many_processes_take_no_more_calls_out_of_a_bucket_than_it_holds():
    agent = agents.save_agent(agent=Agent(slug="ann"), actor="test")

    def take(_: int) -> int:
        taken = sum(rates.lease_calls(agent_id=agent.pk, limit=100, wanted=5)[0] for _ in range(5))
        connection.close()
        return taken

    began = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        taken = sum(threads.map(take, range(8)))
    refilled = 1 + 100 / 60 * (time.monotonic() - began)
    assert 100 <= taken <= 100 + refilled
    got, wait = rates.lease_calls(agent_id=agent.pk, limit=1, wanted=5)
    assert (got, 0 < wait <= 60) in ((0, True), (1, False))
    rates.give_back(agent_id=agent.pk, limit=100, calls=7)
    assert rates.lease_calls(agent_id=agent.pk, limit=100, wanted=7)[0] == 7
    assert rates.lease_calls(agent_id=0, limit=100, wanted=7) == (7, 0.0)
