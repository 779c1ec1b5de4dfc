"""What an operator says of a call whose outcome nobody knows: "make it again" is made or refused,
never lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mcpregistry.db import db_call
from mcpregistry.domain.errors import Conflict
from subagents.domain.lifecycle import CallState, RunState
from subagents.domain.transcript import UNKNOWN_OUTCOME
from subagents.llm.model_values import ModelReply, ModelTarget, TokenUsage, ToolUse
from subagents.models import Run, ToolCall
from subagents.services import runs
from tests.subagents.kit import Bench
from tests.waiting import until

WRITE = ToolUse("c1", "echo__echo", '{"text": "write"}')


class Slow:
    """A model that asks for a call, and thinks about its next answer until it is let."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.seen: list[list[dict[str, Any]]] = []

    async def __call__(
        self, target: ModelTarget, messages: list[dict[str, Any]], tools: list[Any], **_: Any
    ) -> ModelReply:
        self.seen.append(messages)
        if len(messages) == 2:
            return ModelReply("", (WRITE,), TokenUsage(10, 5), "calls", "m", None)
        self.asked.set()
        await self.go.wait()
        return ModelReply(messages[-1]["content"], (), TokenUsage(10, 5), "stop", "m", None)


def unknown(bench: Bench) -> ToolCall:
    call = ToolCall.objects.get(turn_number=1)
    ToolCall.objects.filter(pk=call.pk).update(state=CallState.UNKNOWN, result=UNKNOWN_OUTCOME)
    return call


def prepared(bench: Bench) -> Run:
    bench.expert(bench.model("m", {"text": "not asked"}), uses=[bench.server()])
    return bench.start()


async def thinking(bench: Bench, worker: Any) -> tuple[Run, ToolCall, Slow, Any]:
    """A run whose only call is unknown, while its model is asked what to do now."""
    run = await db_call(prepared, bench)
    model = Slow()
    here = await worker(complete=model)
    here.runs.wake(run.pk)
    await until(model.asked.is_set)
    return run, await db_call(unknown, bench), model, here


async def ended(run: Run) -> Run:
    await until(lambda: db_call(Run.objects.exclude(finished_at=None).filter(pk=run.pk).exists))
    return await db_call(Run.objects.get, pk=run.pk)


@pytest.mark.exhaustive
async def test_a_call_is_made_again_although_the_model_is_asked_already(
    bench: Bench, worker: Any
) -> None:
    run, call, model, _ = await thinking(bench, worker)
    settled = await db_call(runs.settle, call_id=call.pk, as_what="repeat", actor="ann")
    assert (settled.state, settled.result) == (CallState.PLANNED, UNKNOWN_OUTCOME), (
        "still what the model was told"
    )
    await until(lambda: len(model.seen) >= 3)
    model.go.set()
    done = await ended(run)
    assert done.state == RunState.DONE
    assert len(bench.sent()) == 2
    assert '"write"' in done.answer, "and the model reads what came of it"
    assert [m["content"] for m in model.seen[-1] if m["role"] == "tool"] == [done.answer]


async def test_where_other_calls_are_out_they_are_not_cut_off(bench: Bench, worker: Any) -> None:
    run, call, model, _ = await thinking(bench, worker)

    def settle() -> tuple[int, int]:
        facts = {"run": run, "turn_number": 1, "name": "echo__echo", "arguments": "{}"}
        other = ToolCall.objects.create(index=1, provider_id="c2", state=CallState.STARTED, **facts)
        before = Run.objects.get().fence
        runs.settle(call_id=call.pk, as_what="repeat", actor="ann")
        after = Run.objects.get().fence
        other.delete()
        return before, after

    before, after = await db_call(settle)
    assert before == after
    model.go.set()


async def test_a_run_that_concludes_makes_nothing_again(bench: Bench, worker: Any) -> None:
    run, call, model, _ = await thinking(bench, worker)
    await db_call(Run.objects.update, final_reason="EXIT-TIME-LIMIT")
    with pytest.raises(Conflict, match="final answer"):
        await db_call(runs.settle, call_id=call.pk, as_what="repeat", actor="ann")
    model.go.set()
    assert (await ended(run)).state == RunState.DONE
    assert len(bench.sent()) == 1


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("how", ["cancel", "conclude"])
async def test_what_is_not_made_any_more_keeps_what_was_told(
    bench: Bench, worker: Any, how: str
) -> None:
    run, call, model, here = await thinking(bench, worker)
    await here.runs.stop()

    def settle() -> None:
        runs.settle(call_id=call.pk, as_what="repeat", actor="ann")
        if how == "cancel":
            runs.cancel(run_id=run.pk, actor="ann")
        else:
            Run.objects.update(final_reason="EXIT-TIME-LIMIT")

    await db_call(settle)
    model.go.set()
    await here.drive(run)
    await ended(run)
    kept = await db_call(ToolCall.objects.get, pk=call.pk)
    assert (kept.state, kept.result, kept.settled_by) == (CallState.UNKNOWN, UNKNOWN_OUTCOME, "ann")
