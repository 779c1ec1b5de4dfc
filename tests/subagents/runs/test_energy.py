"""Turns of models draw on the pool of the expert tool's agent: once each, useless answers as well."""

from __future__ import annotations

from typing import Any

import pytest

from mcpregistry.db import db_call
from mcpregistry.models import EnergyEntry, EnergyPool
from mcpregistry.services.access import agents
from mcpregistry.services.energy import pools
from subagents.domain.model_errors import ErrorKind, ModelError
from subagents.models import Attempt, ExpertTool, Run, Turn
from tests.subagents.kit import ANSWER, LOOK, Bench
from tests.subagents.runs.test_answers_of_models import Models, said


def pooled(expert: ExpertTool, **fields: Any) -> None:
    """Its agent draws on a pool that does not refill; a call costs nothing there."""
    given = {"slug": "p", "regeneration": 0.0, "per_second": 0.0} | fields
    expert.agent.energy_pool = pools.save_pool(pool=EnergyPool(**given), actor="test")
    agents.save_agent(agent=expert.agent, actor="test")


def drawn(run: Run) -> tuple[list[tuple[str, float]], float]:
    rows = EnergyEntry.objects.filter(kind="turn").order_by("id")
    return [(row.reference.removeprefix(run.pk), row.amount) for row in rows], EnergyPool.objects.get().level


def turns(run: Run) -> list[Any]:
    return list(Turn.objects.filter(run=run).order_by("number"))


async def test_each_turn_costs_by_its_tokens_and_is_charged_once(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        pooled(
            bench.expert(bench.model("m", LOOK, ANSWER), uses=[bench.server()]), per_1000_input=10, per_1000_output=50
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
        (10 * (turn.input_tokens - turn.cached_tokens) + 0.05 * turn.cached_tokens + 50 * turn.output_tokens) / 1000
        for turn in told
    ]
    assert [amount for _, amount in taken] == pytest.approx(by_the_record)
    assert level == pytest.approx(100 - sum(by_the_record))


async def test_an_answer_of_no_use_costs_as_much_and_no_answer_nothing(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        pooled(bench.expert(*(bench.model(name, {"text": "-"}) for name in ("broke", "strict", "frank"))))
        return bench.start()

    away = ModelError(ErrorKind.AUTH, "The key has expired.")
    models = Models(broke=[away], strict=[said("", "policy", output=500)], frank=[said("Forty-two.")])
    started = await db_call(prepare)
    run = await (await worker(complete=models)).drive(started)
    assert run.answer == "Forty-two."
    useless = await db_call(Attempt.objects.get, trouble="content_policy")
    taken, _ = await db_call(drawn, run)
    assert taken == [(f":1:{useless.pk}", pytest.approx(0.05 + 1.0)), (":1", pytest.approx(0.05 + 0.02))]


async def test_without_a_pool_nothing_is_taken(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        bench.expert(bench.model("m", {"text": "Yes."}))
        return bench.start()

    started = await db_call(prepare)
    run = await (await worker()).drive(started)
    assert (run.answer, await db_call(EnergyEntry.objects.count)) == ("Yes.", 0)
