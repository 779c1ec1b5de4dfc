"""Turns of models draw on the pool of the expert tool's agent: once each, useless answers as
well."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from mcpregistry.db import db_call
from mcpregistry.models import EnergyEntry, EnergyPool, EnergyReservation
from mcpregistry.services.access import agents
from mcpregistry.services.energy import pools
from subagents.domain.model_errors import ErrorKind, ModelError
from subagents.models import Attempt, ExpertTool, Run, Turn
from subagents.runs.run_answers import describe_activity
from subagents.services import runs
from tests.subagents.kit import ANSWER, LOOK, Bench
from tests.subagents.runs.test_answers_of_models import Models, said


def pooled(expert: ExpertTool, **fields: Any) -> None:
    """Its agent draws on a pool that does not refill; a call costs nothing there."""
    given = {"slug": "p", "regeneration": 0.0, "per_second": 0.0} | fields
    expert.agent.energy_pool = pools.save_pool(pool=EnergyPool(**given), actor="test")
    agents.save_agent(agent=expert.agent, actor="test")


def drawn(run: Run) -> tuple[list[tuple[str, float]], float]:
    rows = EnergyEntry.objects.filter(kind="turn").order_by("id")
    return [
        (row.reference.removeprefix(run.pk), row.amount) for row in rows
    ], EnergyPool.objects.get().level


def turns(run: Run) -> list[Any]:
    return list(Turn.objects.filter(run=run).order_by("number"))


async def test_each_turn_costs_by_its_tokens_and_is_charged_once(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        pooled(
            bench.expert(bench.model("m", LOOK, ANSWER), uses=[bench.server()]),
            per_1000_input=10,
            per_1000_output=50,
        )
        return bench.start("hello")

    started = await db_call(prepare)
    run = await (await worker()).drive(started)
    assert run.answer == "It said hello."
    told = await db_call(turns, run)
    taken, level = await db_call(drawn, run)
    assert [reference for reference, _ in taken] == [f":{turn.number}" for turn in told]
    # Of what the provider had in its cache, 0.05.
    by_the_record = [
        (
            10 * (turn.input_tokens - turn.cached_tokens)
            + 0.05 * turn.cached_tokens
            + 50 * turn.output_tokens
        )
        / 1000
        for turn in told
    ]
    assert [amount for _, amount in taken] == pytest.approx(by_the_record)
    assert level == pytest.approx(100 - sum(by_the_record))


@pytest.mark.exhaustive
async def test_an_answer_of_no_use_costs_as_much_and_no_answer_nothing(
    bench: Bench, worker: Any
) -> None:
    def prepare() -> Run:
        pooled(
            bench.expert(
                *(bench.model(name, {"text": "-"}) for name in ("broke", "strict", "frank"))
            )
        )
        return bench.start()

    away = ModelError(ErrorKind.AUTH, "The key has expired.")
    models = Models(
        broke=[away], strict=[said("", "policy", output=500)], frank=[said("Forty-two.")]
    )
    started = await db_call(prepare)
    run = await (await worker(complete=models)).drive(started)
    assert run.answer == "Forty-two."
    useless = await db_call(Attempt.objects.get, trouble="content_policy")
    taken, _ = await db_call(drawn, run)
    assert taken == [
        (f":1:{useless.pk}", pytest.approx(0.05 + 1.0)),
        (":1", pytest.approx(0.05 + 0.02)),
    ]


@pytest.mark.exhaustive
async def test_without_a_pool_nothing_is_taken(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        bench.expert(bench.model("m", {"text": "Yes."}))
        return bench.start()

    started = await db_call(prepare)
    run = await (await worker()).drive(started)
    assert (run.answer, await db_call(EnergyEntry.objects.count)) == ("Yes.", 0)


@transaction.atomic
def drain(left: float = 0.0, regeneration: float = 0.0) -> None:
    """Only ``left`` units are in the pool, and this is what comes back each second from now on."""
    pool = EnergyPool.objects.get()
    pool.regeneration = regeneration
    pool = pools.lock_pool(pools.save_pool(pool=pool, actor="test").pk)
    pools.charge_pool(pool, EnergyEntry.Kind.MAINTENANCE, pool.level - left, now=pool.level_at)


def started(bench: Bench, left: float = 0.0, regeneration: float = 0.0, **fields: Any) -> Run:
    pooled(bench.expert(bench.model("m", {"text": "Yes."})), **fields)
    drain(left, regeneration)
    return bench.start()


async def test_without_energy_no_model_is_asked_and_the_run_ends_saying_so(
    bench: Bench, worker: Any
) -> None:
    models = Models(m=[said("Yes.")])
    run = await db_call(started, bench, 0.1)
    run = await (await worker(complete=models)).drive(run)
    assert (run.state, run.exit, models.asked) == ("failed", "EXIT-ENERGY", [])
    assert "is estimated to cost 1." in run.error, (
        "500 tokens of an answer are a unit, and its question is small"
    )
    assert '0.1 are left in the pool "p"' in run.error
    assert "Ask an operator" in run.error
    assert not await db_call(EnergyReservation.objects.exists)


async def test_what_is_left_for_one_turn_is_the_last_word(bench: Bench, worker: Any) -> None:
    models = Models(m=[said("I have seen nothing.")])
    run = await db_call(started, bench, 1.5)
    run = await (await worker(complete=models)).drive(run)
    assert (run.state, run.exit, run.answer) == ("done", "EXIT-ENERGY", "I have seen nothing.")
    assert (
        "the energy is used up. You cannot use tools any more" in models.requests[0][-1]["content"]
    )


async def test_where_the_pool_lets_work_wait_the_run_sleeps_and_goes_on_by_itself(
    bench: Bench, worker: Any
) -> None:
    models = Models(m=[said("Yes.")])
    run = await db_call(started, bench, 0.0, 0.02, on_empty="wait")
    here = await worker(complete=models)
    asleep = await here.drive(run)
    assert (asleep.state, asleep.lease_until, models.asked) == ("running", None, []), (
        "nobody holds it"
    )
    assert asleep.wake_at is not None
    told = await db_call(describe_activity, asleep)
    assert re.fullmatch(
        r"waiting for energy: 0\.\d of about 1\.0 units are left in the pool \"p\"", told
    )
    due = [
        await db_call(runs.list_due_runs, at)
        for at in (asleep.wake_at - timedelta(seconds=1), asleep.wake_at)
    ]
    assert due == [[], [run.pk]], "the clock wakes it then, and not before"
    await db_call(drain, 50.0)
    await db_call(Run.objects.filter(pk=run.pk).update, wake_at=None)
    run = await here.drive(run)
    assert (run.answer, run.sleeps_for) == ("Yes.", "")
    assert not await db_call(EnergyReservation.objects.exists)


@pytest.mark.exhaustive
async def test_a_run_does_not_wait_for_what_will_not_come_in_its_time(
    bench: Bench, worker: Any
) -> None:
    run = await db_call(started, bench, 0.0, 1e-6, on_empty="wait")
    run = await (await worker(complete=Models(m=[]))).drive(run)
    assert (run.exit, "Call again in " in run.error) == ("EXIT-ENERGY", True)


@pytest.mark.exhaustive
async def test_while_a_model_thinks_others_cannot_have_what_its_turn_will_cost(
    bench: Bench, worker: Any
) -> None:
    """And a run that is taken over, cancelled or failed leaves nothing set aside."""
    held: list[float] = []

    async def slow(*args: Any, **kwargs: Any) -> Any:
        held.extend(
            await db_call(lambda: list(EnergyReservation.objects.values_list("amount", flat=True)))
        )
        raise ModelError(ErrorKind.AUTH, "No.")

    run = await db_call(started, bench, 50.0)
    run = await (await worker(complete=slow)).drive(run)
    assert run.exit == "EXIT-AUTH-FAILURE"
    assert held == [pytest.approx(1.0, abs=0.3)]
    assert not await db_call(EnergyReservation.objects.exists)


@pytest.mark.exhaustive
async def test_a_pool_that_only_counts_lets_every_turn_pass(bench: Bench, worker: Any) -> None:
    run = await db_call(started, bench, 0.0, 0.0, on_empty="allow")
    run = await (await worker()).drive(run)
    assert run.answer == "Yes."
