"""The call of an expert tool as a task: answered by whoever ends the run, whoever has died
meanwhile."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from mcpregistry.calls.call import CallHost, CallOutcome
from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Agent, Endpoint, Invocation
from mcpregistry.services.tasks import host_tasks
from mcpregistry.services.upkeep import reaping
from subagents.domain.lifecycle import RunState
from subagents.models import Run, ToolCall
from subagents.services import runs
from tests.calls.conftest import broken
from tests.subagents.kit import Bench, call, calls, offered, states
from tests.waiting import until

TAKES_TASKS = CallHost(name="host", tasks=True)
LATER = timedelta(minutes=5)  # longer than any process keeps a call without a sign


async def begun(here: Any, **facts: Any) -> CallOutcome:
    outcome = await call(here, host=TAKES_TASKS, **facts)
    assert outcome.state is InvocationState.DISPATCHED
    return outcome


async def shown(outcome: CallOutcome) -> dict[str, Any]:
    """The task as its host sees it."""

    def look() -> dict[str, Any]:
        task = host_tasks.find_task(outcome.task_id, agent="ann", endpoint="default")
        assert task is not None
        return host_tasks.build_task_view(task)

    return await db_call(look)


async def has_status(outcome: CallOutcome, status: str) -> bool:
    return bool((await shown(outcome))["status"] == status)


async def test_the_host_gets_a_handle_and_the_runs_end_is_its_answer(
    bench: Bench, worker: Any
) -> None:
    await db_call(offered, bench)
    here = await worker()
    outcome = await begun(here)
    assert ((await shown(outcome))["status"], (await shown(outcome))["statusMessage"]) == (
        "working",
        "Waiting for a worker.",
    )
    run = await here.drive(await db_call(Run.objects.get))
    assert (run.state, run.call_id) == (RunState.DONE, outcome.invocation_id)
    view = await shown(outcome)
    assert (view["status"], view["result"]["content"][0]["text"]) == ("completed", "It said hello.")
    record = await db_call(Invocation.objects.get, pk=outcome.invocation_id)
    assert (record.state, record.lease_until) == (InvocationState.SUCCEEDED, None)


@pytest.mark.exhaustive
async def test_a_run_that_answers_a_question_of_the_calls_server_does_not_end_the_call(
    bench: Bench, worker: Any
) -> None:
    await db_call(offered, bench)
    here = await worker()
    outcome = await begun(here)
    facts = {"origin": runs.SAMPLING, "caller": "ann", "call_id": outcome.invocation_id}
    arguments = {"text": "A question"}
    asked = await db_call(runs.start, expert="expert", arguments=arguments, **facts)
    assert (await here.drive(asked)).state == RunState.DONE
    assert (await shown(outcome))["status"] == "working"
    await here.drive(await db_call(Run.objects.get, origin="call"))
    assert (await shown(outcome))["status"] == "completed"


@pytest.mark.exhaustive
async def test_the_process_that_took_the_call_may_die_and_a_clock_may_pass(
    bench: Bench, worker: Any
) -> None:
    await db_call(offered, bench)
    outcome = await begun(await worker())
    assert await db_call(reaping.reap_calls, timezone.now() + LATER) == 0
    assert await db_call(runs.find_abandoned_runs) == []
    another = await worker()
    await another.drive(await db_call(Run.objects.get))
    assert (await shown(outcome))["status"] == "completed"


async def test_what_goes_wrong_is_the_tasks_result(bench: Bench, worker: Any) -> None:
    await db_call(offered, bench, {"text": "x", "attempts": [{"status": 401, "message": "no"}]})
    here = await worker()
    outcome = await begun(here)
    await here.drive(await db_call(Run.objects.get))
    view = await shown(outcome)
    assert view["status"] == "completed"
    assert view["result"]["content"][0]["text"].startswith(
        "ToolExecutionError: No model answered. scripts/m: auth (no)."
    )


async def test_cancelling_the_task_cancels_the_run_down_to_the_server(
    bench: Bench, working: Any
) -> None:
    def prepare() -> None:
        server = bench.server("slow", "count")
        expert = bench.expert(
            bench.model("m", calls(("slow__count", {"steps": 1000, "pause": 0.1}))), uses=[server]
        )
        expert.users.add(Agent.objects.get(slug="ann"))
        expert.endpoints.add(Endpoint.objects.get(slug="default"))

    await db_call(prepare)
    outcome = await begun(await working())
    await until(bench.sent)
    assert (await shown(outcome))["statusMessage"] == "Calling slow__count."
    assert await db_call(host_tasks.withdraw_task, task_id=outcome.task_id)
    assert not await db_call(host_tasks.withdraw_task, task_id=outcome.task_id)
    await until(lambda: has_status(outcome, "cancelled"))
    run = await db_call(Run.objects.get)
    assert run.state == RunState.CANCELLED
    await bench.until_told_to_stop()


async def test_a_run_that_an_operator_cancels_is_a_result(bench: Bench, worker: Any) -> None:
    await db_call(offered, bench)
    here = await worker()
    outcome = await begun(here)
    run = await db_call(Run.objects.get)
    await db_call(runs.cancel, run_id=run.pk, actor="ann")
    await here.drive(run)
    view = await shown(outcome)
    assert (view["status"], view["result"]["isError"]) == ("completed", True)
    assert "The run was cancelled." in view["result"]["content"][0]["text"]


@pytest.mark.exhaustive
async def test_a_long_answer_is_kept_whole(bench: Bench, worker: Any) -> None:
    long = "word " * 40_000
    await db_call(offered, bench, {"text": long})
    here = await worker()
    outcome = await begun(here)
    await here.drive(await db_call(Run.objects.get))
    assert (await shown(outcome))["result"]["content"][0]["text"] == long


def nested(bench: Bench) -> None:
    outer = offered(
        bench, calls(("inner", {"text": "deep"})), {"text": "inner said: {{ last.text }}"}
    )
    inner = bench.expert(bench.model("i", {"text": "I am inner."}), name="inner")
    inner.users.add(outer.agent)


async def test_an_expert_that_asks_another_sleeps_and_no_death_loses_the_answer(
    bench: Bench, worker: Any
) -> None:
    await db_call(nested, bench)
    here = await worker()
    await begun(here)
    outer = await here.drive(await db_call(Run.objects.get, parent=None))
    assert (outer.finished_at, outer.lease_until) == (None, None)
    inner = await db_call(Run.objects.get, parent=outer.pk)
    await db_call(reaping.reap_calls, timezone.now() + LATER)
    await here.runs.stop()
    another = await worker()
    assert (await another.drive(inner)).answer == "I am inner."
    assert (await db_call(Run.objects.get, pk=outer.pk)).wake_at is None, (
        "its end has woken who asked"
    )
    assert (await another.drive(outer)).answer == "inner said: I am inner."
    assert await db_call(states, outer) == [("inner", "done")]


async def test_a_run_that_is_cancelled_cancels_those_that_it_has_asked(
    bench: Bench, worker: Any
) -> None:
    await db_call(nested, bench)
    here = await worker()
    await begun(here)
    outer = await here.drive(await db_call(Run.objects.get, parent=None))
    await db_call(runs.cancel, run_id=outer.pk, actor="ann")
    assert (await here.drive(outer)).state == RunState.CANCELLED
    inner = await db_call(Run.objects.get, parent=outer.pk)
    assert (await here.drive(inner)).state == RunState.CANCELLED
    assert not await db_call(Invocation.objects.open().exists)


@pytest.mark.exhaustive
async def test_a_run_whose_waiting_caller_died_is_cancelled(bench: Bench, worker: Any) -> None:
    await db_call(offered, bench)
    here = await worker()
    calling = asyncio.ensure_future(call(here))
    await until(lambda: db_call(Run.objects.exists))
    assert await db_call(runs.find_abandoned_runs) == []
    # As when the process that waits is killed: its lease runs out, and the reaper ends the call.
    assert await db_call(reaping.reap_calls, timezone.now() + LATER) == 1
    run = await db_call(Run.objects.get)
    assert await db_call(runs.find_abandoned_runs) == [run.pk]
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    await until(lambda: db_call(Run.objects.filter(cancel_requested=True).exists))
    assert (await here.drive(run)).state == RunState.CANCELLED
    assert await db_call(ToolCall.objects.count) == 0
    assert await db_call(broken) == []
