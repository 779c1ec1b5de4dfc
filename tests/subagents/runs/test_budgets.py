"""Turns of models spend the budgets of all who have led to them: exactly once, and never past a
hard limit."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction

from mcpregistry.db import db_call, read_database_now
from mcpregistry.domain.budgets import Unit, convert_dollars
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.snapshot_specs import RUNS
from mcpregistry.models import Agent, Budget, BudgetEntry, BudgetReservation, Endpoint
from mcpregistry.services.budgets import books
from subagents.domain.lifecycle import Exit, RunState
from subagents.domain.model_errors import ErrorKind, ModelError
from subagents.llm.model_values import ToolUse
from subagents.models import Run, Turn
from subagents.runs import lease, model_turn
from subagents.runs.run_answers import answer_of
from subagents.services import runs
from tests.subagents.kit import ANSWER, LOOK, Bench, call, offered
from tests.subagents.runs.test_answers_of_models import Models, said
from tests.waiting import until


def budget(slug: str, agent: str, unit: Unit, hard: Any) -> None:
    row = Budget(
        slug=slug,
        agent=Agent.objects.get(slug=agent),
        unit=unit.value,
        period="month",
        hard=Decimal(hard),
    )
    books.save_budget(budget=row, actor="test")


def spent() -> dict[str, tuple[int, int]]:
    rows = list(Budget.objects.all())
    return {
        row.slug: (each.book.spent, each.book.reserved)
        for row in rows
        for each in [books.load_standings([row])[row.pk]]
    }


async def test_a_call_of_an_expert_tool_spends_of_its_caller_and_of_its_own_agent(
    bench: Bench, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare() -> None:
        own = offered(bench).agent.slug
        for agent, tag in ((own, "own"), ("ann", "callers")):
            for unit in Unit:
                budget(f"{tag}-{unit.value}", agent, unit, 1_000_000)
        for unit in Unit:
            door = Endpoint.objects.get(slug="default")
            row = Budget(
                slug=f"doors-{unit.value}",
                endpoint=door,
                unit=unit.value,
                period="month",
                hard=Decimal(1_000_000),
            )
            books.save_budget(budget=row, actor="test")

    await db_call(prepare)
    here = await worker()
    calling = asyncio.ensure_future(call(here))

    async def begun() -> Run | None:
        assert not calling.done(), calling
        return await db_call(Run.objects.first)

    run = await here.until(await until(begun), lambda each: each.finished_at is not None)
    assert (await calling).state == InvocationState.SUCCEEDED
    assert (run.state, run.payers) == (RunState.DONE, "ann endpoint:default")
    money = convert_dollars(run.cost or Decimal(0))
    tokens = run.input_tokens + run.output_tokens
    assert money > 0
    assert await db_call(spent) == {
        "own-money": (money, 0),
        "own-tokens": (tokens, 0),
        "own-calls": (1, 0),
        "callers-money": (money, 0),
        "callers-tokens": (tokens, 0),
        "callers-calls": (2, 0),
        "doors-money": (money, 0),
        "doors-tokens": (tokens, 0),
        "doors-calls": (2, 0),
    }
    turns = await db_call(lambda: Turn.objects.filter(run=run).count())
    entries = BudgetEntry.objects.filter(budget__slug="own-money").order_by("id")
    assert await db_call(lambda: [each.reference for each in entries]) == [
        f"{run.pk}:{n + 1}" for n in range(turns)
    ]


async def test_a_spent_budget_refuses_the_call_of_an_expert_tool_before_a_run_begins(
    bench: Bench, worker: Any
) -> None:
    def prepare() -> None:
        offered(bench)
        budget("money", "ann", Unit.MONEY, 0)

    await db_call(prepare)
    outcome = await call(await worker())
    assert (outcome.state, outcome.error_code) == (InvocationState.DENIED, "BUDGET_SPENT")
    assert outcome.message == "The budget 'money' allows $0.00 each month. Spent: $0.00."
    assert not await db_call(Run.objects.exists)


@pytest.mark.exhaustive
async def test_runs_at_once_do_not_all_pass_on_one_budget_and_who_is_refused_says_why(
    bench: Bench, worker: Any
) -> None:
    """The worst that a turn of this model may cost is set aside until its end: one fits, two do
    not."""

    def prepare() -> list[Run]:
        own = bench.expert(bench.model("m", {"text": "-"}, max_output=1_000)).agent.slug
        budget("money", own, Unit.MONEY, "0.009")
        return [bench.start() for _ in range(3)]

    started = await db_call(prepare)
    go = asyncio.Event()
    asked = []

    async def complete(*given: Any, **_: Any) -> Any:
        asked.append(given)
        await go.wait()
        return said("Forty-two.")

    here = await worker(complete=complete)
    driving = [asyncio.ensure_future(here.drive(run)) for run in started]
    await until(lambda: sum(each.done() for each in driving) == 2)
    go.set()
    ended = [await each for each in driving]
    assert sorted(run.state for run in ended) == [RunState.DONE, RunState.FAILED, RunState.FAILED]
    assert len(asked) == 1
    for run in ended:
        if run.state == RunState.FAILED:
            assert run.exit == Exit.BUDGET
            assert (
                "The budget 'money' allows $0.0090 each month. Spent: $0.00. Reserved for calls in progress: $0.005"
                in run.error
            )
            assert "The budget resets at" in run.error
    assert (await db_call(spent))["money"] == (
        convert_dollars(sum(run.cost or Decimal(0) for run in ended)),
        0,
    )


async def concluding(bench: Bench, worker: Any, *, others: int) -> tuple[Run, list[Any]]:
    """A run whose tokens bear two turns, where after the first one ``others`` spend as much; and
    the tools it was offered."""
    offered_tools: list[Any] = []

    def prepare() -> Run:
        own = bench.expert(
            bench.model("m", {"text": "-"}, max_output=1_000), uses=[bench.server()]
        ).agent.slug
        budget("tokens", own, Unit.TOKENS, 3_500)
        return bench.start("hello")

    def spend() -> None:
        rows = books.lock_budgets(frozenset([Budget.objects.get().agent.slug]), [Unit.TOKENS])
        books.spend(
            rows[0], books.Kind.TURN, others, agent="x", reference="x", now=read_database_now()
        )

    async def complete(target: Any, messages: Any, tools: list[Any], **_: Any) -> Any:
        offered_tools.append(len(tools))
        if len(offered_tools) > 1:
            return said("It said hello.")
        await db_call(transaction.atomic(spend))
        return said("I look.", "tool_calls", ToolUse("1", "echo__echo", '{"text": "hello"}'))

    started = await db_call(prepare)
    return await (await worker(complete=complete)).drive(started), offered_tools


async def test_a_run_keeps_enough_of_its_budgets_for_a_last_word(bench: Bench, worker: Any) -> None:
    run, tools = await concluding(bench, worker, others=1_500)
    assert (run.state, run.exit, run.answer) == (RunState.DONE, Exit.BUDGET, "It said hello.")
    assert (tools[0] > 0, tools[1:]) == (True, [0]), "the last turn has no tools"


@pytest.mark.exhaustive
async def test_where_others_have_spent_even_that_the_caller_hears_what_was_done_and_when_there_is_more(
    bench: Bench, worker: Any
) -> None:
    run, tools = await concluding(bench, worker, others=3_000)
    assert (run.state, run.exit, len(tools)) == (RunState.FAILED, Exit.BUDGET, 1)
    told = answer_of(run)
    assert told["isError"]
    assert "The budget 'tokens' allows 3,500 tokens each month" in told["content"][0]["text"]
    assert "The budget resets at" in told["content"][0]["text"]
    assert (
        told["content"][1]["text"]
        == "Calls so far: echo__echo (done).\nLast message of the model: I look."
    )
    assert told["structuredContent"]["so_far"] == told["content"][1]["text"]


@pytest.mark.exhaustive
async def test_a_turn_whose_worker_died_in_it_spends_what_its_run_says(
    bench: Bench, worker: Any
) -> None:
    def prepare() -> Run:
        own = bench.expert(bench.model("m", {"text": "Yes."})).agent.slug
        budget("money", own, Unit.MONEY, 100)
        budget("tokens", own, Unit.TOKENS, 1_000_000)
        run = bench.start()
        taken = lease.take(run.pk, worker="dead")
        assert taken is not None
        spec = run_view(run)
        plan = model_turn.Plan(spec, 100, Decimal("0.25"), 50)
        model_turn._begin_with_target(taken, plan, _Seen(), 60.0, None)  # type: ignore[arg-type]
        assert spent() == {"money": (0, 25_000_000), "tokens": (0, 150)}
        lease.free("dead")
        return run

    started = await db_call(prepare)
    run = await (await worker()).drive(started)
    found = await db_call(spent)
    assert run.cost is not None
    assert run.cost > Decimal("0.25")
    assert found == {
        "money": (convert_dollars(run.cost), 0),
        "tokens": (run.input_tokens + run.output_tokens, 0),
    }
    lost = await db_call(BudgetEntry.objects.get, kind="lost")
    assert lost.amount == 25_000_000


class _Seen:
    """Of a run's view what the beginning of a turn asks."""

    class spec:
        temperature = 0.0
        model_options: dict[str, Any] = {}


def run_view(run: Run) -> Any:
    from mcpregistry.db import estimate_database_now
    from subagents.runs.run_views import view

    return view(run.pk, now=estimate_database_now(), read_only=frozenset()).spec.targets[0]


@pytest.mark.exhaustive
async def test_a_failed_request_spends_nothing_an_answer_of_no_use_does_and_a_model_without_prices_is_not_asked(
    bench: Bench, worker: Any
) -> None:
    def prepare() -> Run:
        own = bench.expert(
            *(bench.model(name, {"text": "-"}) for name in ("broke", "strict", "frank"))
        ).agent.slug
        budget("money", own, Unit.MONEY, 100)
        return bench.start()

    started = await db_call(prepare)
    away = ModelError(ErrorKind.AUTH, "The key has expired.")
    models = Models(
        broke=[away], strict=[said("", "policy", output=500)], frank=[said("Forty-two.")]
    )
    run = await (await worker(complete=models)).drive(started)
    assert run.answer == "Forty-two."
    assert (await db_call(spent))["money"] == (convert_dollars(run.cost or Decimal(0)), 0)

    def unpriced() -> Run:
        bench.expert(bench.model("m", {"text": "-"}, input_price=None), name="free")
        Budget.objects.update(agent=Agent.objects.get(expert__name="free"))
        return bench.start(expert="free")

    asked = Models()
    run = await (await worker(complete=asked)).drive(await db_call(unpriced))
    assert (
        run.exit,
        'has no prices, so it cannot be used with the money budget "money"' in run.error,
    ) == (
        Exit.BUDGET,
        True,
    )
    assert asked.asked == []


@pytest.mark.exhaustive
async def test_a_run_that_sleeps_after_a_failed_request_has_lost_nothing(
    bench: Bench, worker: Any
) -> None:
    def prepare() -> Run:
        own = bench.expert(bench.model("m", {"text": "-"})).agent.slug
        budget("money", own, Unit.MONEY, 100)
        return bench.start()

    busy = ModelError(ErrorKind.RATE_LIMITED, "Too many requests.", retry_after=60)
    run = await (await worker(complete=Models(m=[busy]))).drive(await db_call(prepare))
    assert (run.finished_at, run.lease_until) == (None, None), "it sleeps"
    assert await db_call(spent) == {"money": (0, 0)}
    await db_call(lambda: Run.objects.update(wake_at=None))
    assert await db_call(lease.take, run.pk, worker="next")
    assert await db_call(spent) == {"money": (0, 0)}, "nor does whoever goes on find anything lost"


@pytest.mark.exhaustive
async def test_a_budget_that_is_deleted_or_made_while_a_turn_is_out_does_no_harm(
    bench: Bench, worker: Any
) -> None:
    def prepare() -> Run:
        own = bench.expert(bench.model("m", LOOK, ANSWER), uses=[bench.server()]).agent.slug
        budget("gone", own, Unit.TOKENS, 1_000_000)
        return bench.start("hello")

    started = await db_call(prepare)

    async def complete(*_: Any, **__: Any) -> Any:
        def swap() -> None:
            row = Budget.objects.get()
            budget("new", row.agent.slug, Unit.TOKENS, 1_000_000)
            books.delete_budget(budget=row, actor="test")

        await db_call(swap)
        return said("Yes.")

    run = await (await worker(complete=complete)).drive(started)
    assert run.answer == "Yes."
    assert await db_call(spent) == {"new": (run.input_tokens + run.output_tokens, 0)}
    assert not await db_call(BudgetReservation.objects.exists)


async def test_who_has_led_to_a_run_of_a_run_pays_for_it_as_well(bench: Bench, worker: Any) -> None:
    def prepare() -> tuple[str, str]:
        bench.expert(bench.model("m", {"text": "-"}))
        first = runs.start(
            expert="expert", arguments={"text": "a"}, origin="call", caller="ann", endpoint="team"
        )
        bench.expert(bench.model("n", {"text": "-"}), name="inner")
        inner = runs.start(
            expert="inner",
            arguments={"text": "a"},
            origin="call",
            caller=first.version.expert.agent.slug,
            parent=first.pk,
            endpoint=RUNS.slug,
        )
        by_hand = runs.start(expert="inner", arguments={"text": "a"}, origin="replay", caller="ann")
        return inner.payers, by_hand.payers

    inner, by_hand = await db_call(prepare)
    assert (inner.split()[:2], len(inner.split()), by_hand) == (["ann", "endpoint:team"], 3, "")
