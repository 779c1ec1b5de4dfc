"""The database fails once, at each place where a run of an expert tool needs it: the run goes on,
nothing is made twice.

Told is the run's own record, which people and callers read, and the words to the caller of an
expert tool; the record is that of each call which the run has made, and the server's journal.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.utils import timezone

from mcpregistry.calls.call import CallHost, CallOutcome
from mcpregistry.db import db_call
from mcpregistry.domain.calls.forwarding import AS_TASK
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest, Configuration, Invocation
from mcpregistry.services.approvals import votes
from subagents.domain.lifecycle import CallState, RunState
from subagents.domain.model_errors import ErrorKind, ModelError
from subagents.leased import driver, leases
from subagents.llm.model_values import ModelReply, ModelTarget, TokenUsage, ToolUse
from subagents.models import Run, ToolCall
from subagents.runs import tool_source
from subagents.services import runs
from tests.calls.test_approvals import person
from tests.fault.agreement import contradictions
from tests.fault.database import elsewhere, failing, reached, until
from tests.subagents.kit import Bench, call, offered
from tests.subagents.runs.conftest import Worker, bench, worker, working
from tests.waiting import HANG_LIMIT

__all__ = ["bench", "worker", "working"]  # fixtures

pytestmark = [pytest.mark.fault, pytest.mark.exhaustive(on="postgresql")]


class Model:
    """In place of the door to models, whose import takes longer than all cells: it looks once, and
    answers.

    What it says follows from what it is told, for a step that failed is done again.
    """

    def __init__(self, story: str) -> None:
        self.story = story
        self.thinks = asyncio.Event()
        self.go = asyncio.Event()
        if story not in THINKING:
            self.go.set()

    async def __call__(
        self, target: ModelTarget, messages: list[dict[str, Any]], tools: list[Any], **_: Any
    ) -> ModelReply:
        if self.story == "limited":
            raise ModelError(ErrorKind.RATE_LIMITED, "slowly", retry_after=60.0)
        if self.story == "second_model":
            if target.model == "broke":
                raise ModelError(ErrorKind.AUTH, "no")
            return _says("here")
        if not tools:
            return _says("concluded")
        if len(messages) == 2:
            return ModelReply(
                "",
                tuple(_ASKED.get(self.story, _ASKED[""])),
                TokenUsage(300, 4_000),
                "calls",
                "m",
                None,
            )
        self.thinks.set()
        await self.go.wait()
        return _says("It said hello.")


def _says(text: str) -> ModelReply:
    return ModelReply(text, (), TokenUsage(10, 5), "stop", "m", None)


def _look(text: str) -> ToolUse:
    return ToolUse("c1", "echo__echo", json.dumps({"text": text}))


_ASKED = {
    "": [_look("hello")],
    "narrow": [_look("x y " * 2_000)],
    "stored": [ToolUse("c1", "tool_output", '{"handle": "none", "from_line": "1"}')],
}
THINKING = ("slow", "given_back", "gone")
TOLD = {
    CallState.DONE: InvocationState.SUCCEEDED,
    CallState.UNKNOWN: InvocationState.UNKNOWN,
    CallState.REFUSED: InvocationState.NOT_SENT,
    CallState.CANCELLED: InvocationState.CANCELLED,
}


async def driven(here: Worker, run: Run, *ends: RunState) -> Run:
    """The run once it has ended, as a worker and its clock bring it there: what fails there is
    tried again."""
    wanted = ends or (RunState.DONE, RunState.FAILED, RunState.CANCELLED)
    # the first run of a process imports what counts tokens
    async with asyncio.timeout(2 * HANG_LIMIT):
        while (found := await elsewhere(lambda: Run.objects.get(pk=run.pk))).state not in wanted:
            with suppress(OperationalError):
                await here.runs.drive(run.pk)
            await elsewhere(
                lambda: Run.objects.filter(pk=run.pk, lease_until=None).update(wake_at=None)
            )
    return found


def agree(bench: Bench, run: Run) -> None:
    """Each of its calls: what the model was told, the record of the call, and what reached the
    server."""
    assert len(bench.sent()) <= ToolCall.objects.count(), "made twice"
    for made in ToolCall.objects.filter(run=run, name="echo__echo", state__in=TOLD):
        sent = [each["arguments"] for each in bench.sent()].count(json.loads(made.arguments))
        assert contradictions(TOLD[CallState(made.state)], made.invocation, sent) == []


# Runs that a worker drives


async def answered(bench: Bench, here: Worker) -> Run:
    run = await driven(here, await db_call(bench.start, "hello"))
    assert (run.state, run.answer, len(bench.sent())) == (RunState.DONE, "It said hello.", 1)
    return run


async def held(bench: Bench, here: Worker) -> Run:
    """People are asked about its call, and agree."""
    run = await driven(here, await db_call(bench.start, "hello"), RunState.WAITING)

    def approve() -> None:
        request = ApprovalRequest.objects.get()
        bob = User.objects.get(username="bob")
        votes.vote(request_id=request.pk, user=bob, approve=True, via="web")

    await elsewhere(approve)
    await here.engine.approvals.runner.settle_call(
        await elsewhere(lambda: Invocation.objects.get().pk)
    )
    run = await driven(here, run)
    assert (run.state, run.answer, len(bench.sent())) == (RunState.DONE, "It said hello.", 1)
    return run


async def cancelled(bench: Bench, here: Worker) -> Run:
    run = await db_call(bench.start, "hello")
    await db_call(Run.objects.filter(pk=run.pk).update, cancel_requested=True)
    run = await driven(here, run)
    assert (run.state, bench.sent()) == (RunState.CANCELLED, [])
    return run


async def second_model(bench: Bench, here: Worker) -> Run:
    """The first does not answer."""
    run = await driven(here, await db_call(bench.start, "hello"))
    assert (run.state, run.answer) == (RunState.DONE, "here")
    return run


async def narrow(bench: Bench, here: Worker) -> Run:
    """A result does not fit into the model's window: the run has to conclude."""
    run = await driven(here, await db_call(bench.start))
    assert (run.state, run.answer) == (RunState.DONE, "concluded")
    return run


async def stored(bench: Bench, here: Worker) -> Run:
    """A result is read page by page."""
    run = await driven(here, await db_call(bench.start))
    assert run.state == RunState.DONE
    return run


async def limited(bench: Bench, here: Worker) -> Run:
    """Its only model may be asked again in a minute: it sleeps."""
    run = await db_call(bench.start)

    def slept() -> Run:
        return Run.objects.get(pk=run.pk)

    async with asyncio.timeout(HANG_LIMIT):
        while (await elsewhere(slept)).wake_at is None:
            with suppress(OperationalError):
                await here.runs.drive(run.pk)
    await db_call(runs.cancel, run_id=run.pk, actor="test")
    return await driven(here, run)


async def slow(bench: Bench, here: Worker) -> Run:
    """The lease is renewed while the model thinks."""
    run = await db_call(bench.start, "hello")
    model = here.runs._thinking._complete
    driving = asyncio.ensure_future(driven(here, run))
    await model.thinks.wait()  # type: ignore[attr-defined]
    before = (await elsewhere(lambda: Run.objects.get())).lease_until
    await until(lambda: Run.objects.get().lease_until != before)
    model.go.set()  # type: ignore[attr-defined]
    run = await driving
    assert (run.state, len(bench.sent())) == (RunState.DONE, 1)
    return run


async def given_back(bench: Bench, here: Worker) -> Run:
    """Its worker stops. What is not given back is free when its lease is over."""
    run = await db_call(bench.start, "hello")
    model = here.runs._thinking._complete
    here.runs.wake(run.pk)
    await model.thinks.wait()  # type: ignore[attr-defined]
    await here.runs.stop()
    over = timezone.now() - timedelta(seconds=1)
    await db_call(Run.objects.filter(lease_until__isnull=False).update, lease_until=over)
    model.go.set()  # type: ignore[attr-defined]
    run = await driven(here, run)
    assert (run.state, len(bench.sent())) == (RunState.DONE, 1)
    return run


WORKED: dict[str, Callable[[Bench, Worker], Awaitable[Run]]] = {
    each.__name__: each
    for each in (answered, held, cancelled, second_model, narrow, stored, limited, slow, given_back)
}
THINKING = ("slow", "given_back", "gone")

# Expert tools as their callers meet them


async def asked(bench: Bench, here: Worker) -> CallOutcome:
    return await call(here)


async def asked_as_a_task(bench: Bench, here: Worker) -> CallOutcome:
    return await call(
        here, host=CallHost(name="x", transport="http", tasks=True, forwarding=AS_TASK)
    )


async def gone(bench: Bench, here: Worker) -> CallOutcome:
    """The caller leaves while its run is out. To it that is as good as unknown."""
    calling = asyncio.ensure_future(call(here))
    model = here.runs._thinking._complete
    await model.thinks.wait()  # type: ignore[attr-defined]
    calling.cancel()
    await asyncio.wait({calling})
    # the caller may go before this process has heard that the run was begun, and is cancelled after
    # it
    await reached()
    model.go.set()  # type: ignore[attr-defined]
    return CallOutcome(await elsewhere(lambda: Run.objects.get().call_id), InvocationState.UNKNOWN)


ASKED: dict[str, Callable[[Bench, Worker], Awaitable[CallOutcome]]] = {
    each.__name__: each for each in (asked, asked_as_a_task, gone)
}

POINTS: dict[str, list[str]] = {
    "answered": [
        "lease.take",
        "engine._identity",
        "run_views.view@1",
        "run_views.view@2",
        "model_turn._begin_with_target",
        "records.end_turn",
        "records.start_call",
        "records.end_call",
        "conclusion._money",
        "records.finish",
        "run_ending",
    ],
    "held": [
        "records.move_call",
        "records.sleep",
        "toolbox.find_recorded_end",
        "records.resume_clock",
    ],
    "cancelled": ["tool_calls.has_open_record", "tool_calls.settle_started", "records.finish"],
    "second_model": ["records.record_failed_attempt"],
    "narrow": ["telemetry.guard", "records.must_conclude"],
    "stored": ["records.read_as", "toolbox.read_output"],
    "limited": ["records.sleep"],
    "slow": ["lease.renew", "engine._read_cancel_requests"],
    "given_back": ["lease.release"],
    "asked": [
        "tool_source._begin",
        "runs.find_reusable_run",
        "run_answers.read_progress",
        "long_calls.renew_call_lease",
        "query.QuerySet.get",
    ],
    "asked_as_a_task": ["tool_source._begin", "run_begun"],
    "gone": ["runs.cancel"],
}


def prepare(bench: Bench, story: str) -> None:
    server = bench.server("echo")
    names = ["broke", "m"] if story == "second_model" else ["m"]
    narrow = {"context_window": 7_000, "max_output": 200} if story == "narrow" else {}
    models = [bench.model(name, {"text": "not asked"}, **narrow) for name in names]
    facts = {"max_result_bytes": 1_000_000} if narrow else {}
    bench.expert(*models, uses=[server], **facts)
    if story == "held":
        Configuration.objects.update(default_outcome="ask")
        person("bob")


@pytest.mark.exhaustive(but=("answered-records.start_call",))
@pytest.mark.parametrize(
    ("story", "point"), [(story, point) for story in WORKED for point in POINTS[story]]
)
async def test_a_run_goes_on_and_makes_nothing_twice(
    bench: Bench, worker: Any, monkeypatch: pytest.MonkeyPatch, story: str, point: str
) -> None:
    if point == "lease.renew":
        monkeypatch.setattr(leases, "RENEW_EVERY", 0.05)
        monkeypatch.setattr(driver, "_BEAT", 0.05)
    here = await worker(complete=Model(story))
    await db_call(prepare, bench, story)
    await db_call(here.engine.live.refresh)
    with failing(point):
        run = await WORKED[story](bench, here)
    await db_call(agree, bench, run)


@pytest.mark.exhaustive(one_in=16)
@pytest.mark.parametrize(
    ("story", "point"), [(story, point) for story in ASKED for point in POINTS[story]]
)
async def test_the_caller_of_an_expert_tool_is_told_what_is_recorded(
    bench: Bench, working: Any, monkeypatch: pytest.MonkeyPatch, story: str, point: str
) -> None:
    monkeypatch.setattr(tool_source, "_RENEW_EVERY", 0.05)
    await db_call(offered, bench, cache_seconds=60)
    model = Model(story)
    here = await working(complete=model)
    with failing(point):
        # else the run may end sooner than its caller says that it waits
        if point == "long_calls.renew_call_lease":
            model.go.clear()
        calling = asyncio.ensure_future(ASKED[story](bench, here))
        if not model.go.is_set() and story != "gone":
            await reached()
            model.go.set()
        told = await calling

    def begun() -> int:
        return Run.objects.filter(call_id=told.invocation_id).count()

    if told.state is InvocationState.NOT_SENT:
        assert await db_call(begun) == 0
    await until(lambda: not Run.objects.filter(finished_at=None).exists())
    if told.state is InvocationState.DISPATCHED:  # a task: its end is the call's
        await until(lambda: Invocation.objects.get(pk=told.invocation_id).finished_at)
        return
    if story != "gone":
        assert (
            await db_call(contradictions, told.state, told.invocation_id, await db_call(begun))
            == []
        )
