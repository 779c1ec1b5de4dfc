"""Calls of an agent with budgets: what is refused is refused before anybody is asked, told truly
and recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import InterfaceError
from django.utils import timezone

from mcpregistry.calls.call import Call, CallRequest
from mcpregistry.calls.catalog import DownstreamTools
from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import (
    Agent,
    ApprovalRequest,
    Budget,
    BudgetEntry,
    BudgetReservation,
    Configuration,
    Endpoint,
    Invocation,
    Server,
    Tool,
)
from mcpregistry.services.access import agents, grants
from mcpregistry.services.budgets import books, spending
from mcpregistry.services.records import ending
from tests.calls.conftest import Site, add_server, only_call, tool
from tests.calls.test_approvals import bob, held, vote
from tests.waiting import until

__all__ = ["bob"]
Make = Callable[..., Any]
DOWNSTREAM = DownstreamTools().kind


def limited(journal: Any, **fields: Any) -> None:
    """The agent "ann" has a budget; ``fields`` as they are given."""
    add_server("slow", tool("count"), env={"FAKE_JOURNAL": str(journal)})
    given = {"slug": "b", "unit": "calls", "period": "month", "hard": Decimal(2)} | fields
    books.save_budget(budget=Budget(agent=Agent.objects.get(slug="ann"), **given), actor="test")


def spent() -> tuple[int, int]:
    book = books.load_standings([row := Budget.objects.get()])[row.pk].book
    return book.spent, book.reserved


@pytest.mark.exhaustive
async def test_who_has_no_budget_asks_nobody(
    site: Make, journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await db_call(limited, journal, enabled=False)
    here: Site = await site()
    for name in ("reserve", "settle", "release"):
        monkeypatch.setattr(spending, name, None)
    assert (await here.call("slow__count", {"steps": 1})).state == InvocationState.SUCCEEDED


async def test_calls_at_once_do_not_all_pass_on_one_budget_and_the_rest_is_recorded_as_denied(
    site: Make, journal: Any
) -> None:
    await db_call(limited, journal)
    here: Site = await site()
    outcomes = await asyncio.gather(
        *(here.call("slow__count", {"steps": 1, "pause": 0.2}) for _ in range(5))
    )
    refused = [outcome for outcome in outcomes if outcome.state != InvocationState.SUCCEEDED]
    assert (len(refused), len(here.sent()), await db_call(spent)) == (3, 2, (2, 0))
    rows = await db_call(lambda: list(Invocation.objects.filter(state=InvocationState.DENIED)))
    assert {row.pk for row in rows} == {outcome.invocation_id for outcome in refused}
    for row in rows:
        outcome = next(each for each in refused if each.invocation_id == row.pk)
        assert (row.error_code, row.reason) == (
            "BUDGET_SPENT",
            f"{outcome.message} {outcome.remedy}",
        )
    assert "resets at" in refused[0].remedy


async def test_the_agent_is_told_of_the_soft_mark_once_and_the_record_says_the_same(
    site: Make, journal: Any
) -> None:
    await db_call(limited, journal, soft=Decimal(2), hard=Decimal(9))
    here: Site = await site()
    told = [await here.call("slow__count", {"steps": 1}) for _ in range(3)]
    words = [
        [each["text"] for each in outcome.result["content"] if "budget" in each["text"]]
        for outcome in told
    ]  # type: ignore[index]
    assert [len(each) for each in words] == [0, 1, 0]
    assert words[1][0].startswith(
        "(Used from the budget 'b' in the current month: 2 calls of 9 calls. When the limit is reached, "
        "calls are refused"
    )
    row = await db_call(Invocation.objects.get, pk=told[1].invocation_id)
    assert words[1][0] in row.result


async def test_a_call_that_people_were_asked_about_is_told_of_the_soft_mark_with_its_answer(
    site: Make, journal: Any, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, also where its first caller has left before; and a database that fails then leaves it
    to the next."""
    await db_call(limited, journal, soft=Decimal(1), hard=Decimal(9))
    await db_call(lambda: Configuration.objects.update(default_outcome="ask"))
    here: Site = await site()
    left = asyncio.ensure_future(here.call("slow__count", {"steps": 1}))
    await held()
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    await until(lambda: db_call(lambda: not ApprovalRequest.objects.waiting().exists()))
    real = spending.list_remarks
    failed = []

    def fails_once(needs: Any) -> Any:
        if not failed:
            failed.append(True)
            raise InterfaceError("away")
        return real(needs)

    monkeypatch.setattr(spending, "list_remarks", fails_once)
    words = []
    for steps in (2, 3, 4):
        calling = asyncio.ensure_future(here.call("slow__count", {"steps": steps}))
        await held()
        await vote(bob)
        outcome = await calling
        words.append(
            [each["text"] for each in outcome.result["content"] if "budget 'b'" in each["text"]]
        )
        row = await db_call(Invocation.objects.get, pk=outcome.invocation_id)
        assert all(word in row.result for word in words[-1])
    assert [len(each) for each in words] == [0, 1, 0]


async def test_money_is_spent_by_what_an_operator_says_that_a_call_costs_and_free_calls_pass(
    site: Make, journal: Any
) -> None:
    await db_call(limited, journal, unit="money", hard=Decimal("0.30"))
    await db_call(add_server, "echo", tool("echo"))
    await db_call(Tool.objects.filter(name="count").update, call_cost=Decimal("0.125"))
    here: Site = await site()
    states = [(await here.call("slow__count", {"steps": 1})).state for _ in range(3)]
    assert states == [InvocationState.SUCCEEDED, InvocationState.SUCCEEDED, InvocationState.DENIED]
    assert await db_call(spent) == (25_000_000, 0)
    assert (await here.call("echo__echo")).state == InvocationState.SUCCEEDED
    assert (
        await db_call(lambda: [entry.amount for entry in BudgetEntry.objects.all()])
        == [12_500_000] * 2
    )


async def test_people_are_not_asked_about_a_call_that_cannot_be_paid_and_one_that_waits_keeps_its_place(
    site: Make, journal: Any, bob: User
) -> None:
    await db_call(limited, journal, hard=Decimal(1))
    await db_call(lambda: Configuration.objects.update(default_outcome="ask"))
    here: Site = await site()
    calling = asyncio.ensure_future(here.call("slow__count", {"steps": 1}))
    await held()
    refused = await here.call("slow__count", {"steps": 2})
    assert (refused.state, refused.error_code) == (InvocationState.DENIED, "BUDGET_SPENT")
    assert await db_call(ApprovalRequest.objects.count) == 1
    await vote(bob)
    assert (await calling).state == InvocationState.SUCCEEDED
    assert await db_call(spent) == (1, 0)


async def test_a_call_that_people_reject_and_one_that_joins_another_spend_nothing(
    site: Make, journal: Any, bob: User
) -> None:
    await db_call(limited, journal, hard=Decimal(5))
    await db_call(lambda: Configuration.objects.update(default_outcome="ask"))
    here: Site = await site()
    calling = [asyncio.ensure_future(here.call("slow__count", {"steps": 1})) for _ in range(2)]
    await held()
    await until(lambda: db_call(lambda: BudgetReservation.objects.count() == 2))
    await vote(bob, approve=False)
    assert {(await each).state for each in calling} == {InvocationState.REJECTED}
    await db_call(spending.settle_due)
    assert await db_call(spent) == (0, 0)


async def test_what_a_run_calls_is_borne_by_those_whose_calls_have_led_to_it(
    site: Make, journal: Any
) -> None:
    def prepare() -> None:
        limited(journal, hard=Decimal(1))
        eve = agents.save_agent(agent=Agent(slug="eve"), actor="test")
        grants.grant_access(agent=eve, server=Server.objects.get(), actor="test")

    await db_call(prepare)
    here: Site = await site()
    cause = here.engine.live.current.agents["ann"]
    catalogue = here.engine.get_catalogue("default", "eve")
    request = CallRequest(catalogue, "slow__count", {"steps": 1}, "run", behind=(cause,))
    assert (await here.engine.call(request)).state == InvocationState.SUCCEEDED
    refused = await here.engine.call(request)
    assert (
        refused.error_code,
        "'b' of the agent 'ann' allows 1 call each month" in refused.message,
    ) == (
        "BUDGET_SPENT",
        True,
    )
    assert (await db_call(BudgetEntry.objects.get)).agent_slug == "eve"


async def test_what_comes_by_an_endpoint_spends_of_its_budget_whosever_it_is_and_what_comes_by_another_does_not(
    site: Make, journal: Any
) -> None:
    def prepare() -> None:
        add_server("slow", tool("count"), env={"FAKE_JOURNAL": str(journal)})
        eve = agents.save_agent(agent=Agent(slug="eve"), actor="test")
        grants.grant_access(agent=eve, server=Server.objects.get(), actor="test")
        agents.save_endpoint(endpoint=Endpoint(slug="other"), actor="test")
        door = Endpoint.objects.get(slug="default")
        given = {"unit": "calls", "period": "month", "soft": Decimal(2), "hard": Decimal(2)}
        books.save_budget(budget=Budget(slug="door", endpoint=door, **given), actor="test")

    await db_call(prepare)
    here: Site = await site()
    ends = []
    for endpoint, agent in (
        ("default", "ann"),
        ("other", "ann"),
        ("default", "eve"),
        ("default", "ann"),
        ("other", "eve"),
    ):
        catalogue = here.engine.get_catalogue(endpoint, agent)
        ends.append(
            await here.engine.call(CallRequest(catalogue, "slow__count", {"steps": 1}, "rest"))
        )
    assert [each.error_code for each in ends] == ["", "", "", "BUDGET_SPENT", ""]
    assert ends[3].message.startswith(
        "The budget 'door' of the endpoint 'default' allows 2 calls each month"
    )
    assert "budget 'door' of this endpoint in the current month: 2 calls of 2 calls." in str(
        ends[2].result
    ), "who gets there is told"
    assert await db_call(spent) == (2, 0)


async def test_a_call_that_becomes_a_task_leaves_the_word_of_the_soft_mark_to_the_next(
    site: Make, journal: Any
) -> None:
    await db_call(limited, journal, soft=Decimal(1), hard=Decimal(9))
    here: Site = await site()
    real = here.engine.pipeline.execution.dispatchers[DOWNSTREAM]
    adopted = []

    async def as_a_task(call: Call, *, on_sent: Any) -> dict[str, Any]:
        if adopted:
            return await real(call, on_sent=on_sent)
        adopted.append(call.id)
        on_sent()
        return {"resultType": "task", "taskId": "t"}

    here.engine.pipeline.execution.dispatchers = {
        **here.engine.pipeline.execution.dispatchers,
        DOWNSTREAM: as_a_task,
    }
    task = await here.call("slow__count", {"steps": 1})
    assert (task.state, task.task_id) == (InvocationState.DISPATCHED, "t")
    answer = await here.call("slow__count", {"steps": 1})
    assert "budget 'b' in the current month: 2 calls of 9 calls." in str(answer.result)
    assert "budget 'b'" not in str((await here.call("slow__count", {"steps": 1})).result)
    row = await db_call(Invocation.objects.get, pk=adopted[0])
    ended = ending.build_end_columns(
        InvocationState.SUCCEEDED,
        received_at=row.received_at,
        now=timezone.now(),
        result={"content": []},
    )
    await db_call(ending.write_end, row, ended, actor="test")
    await db_call(spending.settle_due)


@pytest.mark.fault
async def test_what_cannot_be_set_aside_is_not_sent_and_what_cannot_be_written_down_is_by_the_clock(
    site: Make, journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await db_call(limited, journal)
    here: Site = await site()

    faults = iter([InterfaceError("hunter2"), RuntimeError("hunter2")])

    def fails(**_: Any) -> None:
        raise next(faults)

    with monkeypatch.context() as patch:
        patch.setattr(spending, "reserve", fails)
        outcome = await here.call("slow__count", {"steps": 1})
    assert (outcome.state, outcome.error_code, "hunter2" in outcome.message) == (
        InvocationState.DENIED,
        "NOT_RECORDED",
        False,
    )
    assert (here.sent(), (await db_call(only_call)).error_code) == ([], "NOT_RECORDED")
    with monkeypatch.context() as patch:
        patch.setattr(spending, "settle", fails)
        assert (await here.call("slow__count", {"steps": 1})).state == InvocationState.SUCCEEDED
    assert await db_call(spent) == (0, 1)
    assert (await db_call(spending.settle_due), await db_call(spent)) == (1, (1, 0))


@pytest.mark.fault
async def test_a_caller_that_leaves_has_spent_what_was_sent_and_nothing_else(
    site: Make, journal: Any
) -> None:
    await db_call(limited, journal, hard=Decimal(9))
    here: Site = await site()
    calling = asyncio.ensure_future(here.call("slow__count", {"steps": 1000, "pause": 0.05}))
    await here.until_sent()
    calling.cancel()
    await until(
        lambda: db_call(lambda: Invocation.objects.filter(state=InvocationState.UNKNOWN).exists())
    )
    assert (await db_call(spending.settle_due), await db_call(spent)) == (1, (1, 0))
    leaving = asyncio.ensure_future(here.call("slow__count", {"steps": 1000, "pause": 0.05}))
    await until(lambda: db_call(BudgetReservation.objects.exists))
    leaving.cancel()
    await until(lambda: db_call(lambda: Invocation.objects.exclude(finished_at=None).count() == 2))
    await db_call(spending.settle_due)
    assert await db_call(lambda: spent()[1]) == 0


async def test_a_call_that_a_stopping_process_cuts_while_it_is_counted_is_not_said_to_have_been_left(
    site: Make,
) -> None:
    await db_call(add_server, "echo", tool("echo"))
    here: Site = await site()
    pipeline = here.engine.pipeline
    counting = asyncio.Event()

    async def counts(_: Any) -> None:
        counting.set()
        await asyncio.Event().wait()

    pipeline.rates.take = counts  # type: ignore[method-assign]
    calling = asyncio.ensure_future(here.call("echo__echo"))
    await counting.wait()
    here.engine._in_flight.is_cutting = True
    calling.cancel()
    row = await until(lambda: db_call(Invocation.objects.first))
    assert (row.state, "stopped" in row.reason, "disconnected" in row.reason) == (
        InvocationState.CANCELLED,
        True,
        False,
    )
