"""Runs that are taken over: after a death at any point, and while people decide."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.utils import timezone

from mcpregistry import db
from mcpregistry.db import db_call, note_clock
from mcpregistry.domain.calls.requester import Requester
from mcpregistry.domain.errors import Denied
from mcpregistry.models import Agent, ApprovalRequest, Configuration, Invocation, PolicyRule
from mcpregistry.services.access import agents
from mcpregistry.services.approvals import votes
from subagents.domain.lifecycle import CallState, Exit, RunState
from subagents.domain.transcript import UNKNOWN_OUTCOME
from subagents.leased import leases
from subagents.models import Run, ToolCall
from subagents.runs import engine, lease, records
from subagents.services import runs
from tests.subagents.kit import Bench, calls, states
from tests.waiting import until

WRITE = calls(("echo__echo", {"text": "write"}))
TELL = {"text": "{{ last.text }}"}


def prepared(bench: Bench, **fields: Any) -> Run:
    server = bench.server(**fields)
    bench.expert(bench.model("m", WRITE, TELL), uses=[server])
    return bench.start()


async def driven(worker: Any, run: Run) -> Run:
    return await (await worker()).drive(run)


async def test_of_two_workers_one_gets_the_run(bench: Bench) -> None:
    run = await db_call(prepared, bench)
    taken = await asyncio.gather(*(db_call(lease.take, run.pk, worker=f"w{n}") for n in range(8)))
    assert sum(each is not None for each in taken) == 1


async def test_who_lost_the_lease_writes_nothing(bench: Bench, worker: Any) -> None:
    run = await db_call(prepared, bench)
    old = await db_call(lease.take, run.pk, worker="old")
    await db_call(Run.objects.update, lease_until=timezone.now() - timedelta(seconds=1))
    done = await driven(worker, run)
    assert done.state == RunState.DONE
    for write in (
        lambda: records.begin_turn(old, worst=1),  # type: ignore[arg-type]
        lambda: records.finish(old, state=RunState.FAILED, exit=Exit.CRASHED),
        lambda: lease.renew(old),
    ):
        try:
            await db_call(write)
        except leases.LostLease:
            continue
        raise AssertionError("a lost lease must not write")
    assert (await db_call(Run.objects.get, pk=run.pk)).state == RunState.DONE


def died_after_start(run: Run, bench: Bench) -> ToolCall:
    """As a worker leaves it that died after it had written down that it starts the call."""
    held = lease.take(run.pk, worker="dead")
    assert held is not None
    from subagents.domain.finish_reasons import Finish
    from subagents.domain.spec import Prices, TargetSpec
    from subagents.llm.model_values import ModelReply, TokenUsage, ToolUse

    target = TargetSpec(
        run.version.expert.targets.get().pk, "scripts/m", "scripts", 10_000, 100, 10, "", Prices()
    )
    reply = ModelReply(
        "",
        (ToolUse("call_1", "echo__echo", '{"text": "write"}'),),
        TokenUsage(10, 5),
        Finish.CALLS,
        "m",
    )
    records.end_turn(
        held,
        reply,
        target=target,
        number=1,
        final=None,
        note="",
        estimated=10,
        started_at=timezone.now(),
    )
    call = ToolCall.objects.get(run=run)
    records.start_call(held, call.pk)
    Run.objects.filter(pk=run.pk).update(lease_until=timezone.now() - timedelta(seconds=1))
    return ToolCall.objects.get(run=run)


@pytest.mark.exhaustive
async def test_a_call_whose_record_was_never_begun_is_made(bench: Bench, worker: Any) -> None:
    run = await db_call(prepared, bench)
    await db_call(died_after_start, run, bench)
    done = await driven(worker, run)
    assert (done.state, len(bench.sent())) == (RunState.DONE, 1)


def record_of(call: ToolCall, state: str, **fields: Any) -> None:
    now = timezone.now()
    facts = {
        "agent_slug": "expert.expert",
        "server_slug": "echo",
        "tool_name": "echo",
        "exposed_name": "echo__echo",
        "outcome": "allow",
        "origin": "run",
        "received_at": now,
        "writer": "dead",
    }
    from mcpregistry.services.records import audit

    Invocation.objects.create(id=call.invocation, state=state, **facts | fields)
    audit.record_entry(kind="call.dispatched", actor="test", subject=f"call:{call.invocation}")
    if state != "dispatched":
        audit.record_entry(kind=f"call.{state}", actor="test", subject=f"call:{call.invocation}")


async def test_a_call_that_was_sent_is_not_made_again(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        run = prepared(bench)
        call = died_after_start(run, bench)
        record_of(call, "unknown", finished_at=timezone.now(), reason="The process ended.")
        return run

    done = await driven(worker, await db_call(prepare))
    assert bench.sent() == []
    assert (done.state, done.answer) == (RunState.DONE, UNKNOWN_OUTCOME)
    assert await db_call(states, done) == [("echo__echo", CallState.UNKNOWN)]


async def test_a_reading_call_is_made_again(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        run = prepared(bench, read_only=["echo"])
        record_of(died_after_start(run, bench), "unknown", finished_at=timezone.now())
        return run

    done = await driven(worker, await db_call(prepare))
    assert (done.state, len(bench.sent())) == (RunState.DONE, 1)
    assert await db_call(states, done) == [("echo__echo", CallState.DONE)]


async def test_an_end_that_was_recorded_is_taken_from_the_record(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        run = prepared(bench)
        text = '{"content": [{"type": "text", "text": "as it was"}]}'
        record_of(
            died_after_start(run, bench),
            "succeeded",
            finished_at=timezone.now(),
            result=text,
            result_bytes=50,
        )
        return run

    done = await driven(worker, await db_call(prepare))
    assert (bench.sent(), done.answer) == ([], "as it was")


@pytest.mark.exhaustive
@pytest.mark.parametrize("writer", ["worker:box:47:aaaa", "ours"])
async def test_a_call_of_a_worker_that_has_lost_the_run_is_given_up_at_once(
    bench: Bench, worker: Any, writer: str
) -> None:
    """But not one of this process, which may still be calling."""
    here = await worker()
    writer = here.engine.recorder.writer if writer == "ours" else writer

    def prepare() -> Run:
        run = prepared(bench)
        now = timezone.now()
        call = died_after_start(run, bench)
        record_of(
            call,
            "dispatched",
            dispatched_at=now,
            lease_until=now + timedelta(seconds=60),
            writer=writer,
        )
        return run

    run = await db_call(prepare)
    seen = await here.drive(run)
    if writer.startswith("worker:box:47"):
        assert (seen.answer, seen.state) == (UNKNOWN_OUTCOME, RunState.DONE)
        assert await db_call(lambda: Invocation.objects.get().state) == "unknown"
        return
    assert (seen.finished_at, seen.lease_until) == (None, None)
    assert seen.wake_at is not None
    assert seen.wake_at > timezone.now() + timedelta(minutes=30), "it costs nothing meanwhile"
    assert await db_call(runs.wake_decided_runs) == []
    from mcpregistry.services.upkeep.reaping import reap_calls

    await db_call(reap_calls, timezone.now() + timedelta(minutes=5))
    assert await db_call(runs.wake_decided_runs) == [run.pk]
    assert (await here.drive(run)).answer == UNKNOWN_OUTCOME


@pytest.mark.exhaustive
async def test_a_run_that_is_cancelled_right_before_it_sleeps_ends_at_once(
    bench: Bench, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who wakes it then is not heard, for it is under way still."""
    sleeps = records.sleep

    def cancelled_first(held: leases.Lease, **options: Any) -> bool:
        runs.cancel(run_id=held.key, actor="test")
        return sleeps(held, **options)

    def prepare() -> Run:
        run = prepared(bench)
        Configuration.objects.update(default_outcome="ask")
        approver()
        return run

    monkeypatch.setattr(records, "sleep", cancelled_first)
    monkeypatch.setattr(engine, "_read_cancel_requests", lambda keys: dict.fromkeys(keys, False))
    done = await driven(worker, await db_call(prepare))
    assert (done.state, done.exit) == (RunState.CANCELLED, Exit.CANCELLED)


def approver() -> User:
    user = User.objects.create_user("ann")
    user.groups.add(Group.objects.get(name="approver"))
    return user


async def test_a_run_sleeps_while_people_decide(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        run = prepared(bench)
        Configuration.objects.update(default_outcome="ask")
        approver()
        return run

    run = await db_call(prepare)
    here = await worker()
    asleep = await here.drive(run)
    assert (asleep.state, asleep.lease_until, bench.sent()) == (RunState.WAITING, None, [])
    request = await db_call(ApprovalRequest.objects.get)
    user = await db_call(User.objects.get, username="ann")
    await db_call(votes.vote, request_id=request.pk, user=user, approve=True, reason="", via="web")
    assert await here.engine.approvals.runner.settle_call(request.call_id) is not None
    done = await here.until(run, lambda r: r.finished_at is not None)
    assert (done.state, len(bench.sent())) == (RunState.DONE, 1)
    assert done.waited_seconds > 0


@pytest.mark.attack
async def test_who_started_a_run_does_not_approve_what_its_calls_ask_for(
    bench: Bench, worker: Any
) -> None:
    def prepare() -> tuple[User, Run, Run]:
        prepared(bench)
        Run.objects.all().delete()
        Configuration.objects.update(default_outcome="ask")
        ann = approver()
        agents.save_agent(agent=Agent(slug="hers", owner=ann), actor="test")
        as_ann = Requester(ann.pk, "ann")
        mine = runs.start(
            expert="expert", arguments={"text": "why?"}, origin="rest", requester=as_ann
        )
        her_agents = runs.start(
            expert="expert", arguments={"text": "why?"}, origin="rest", caller="hers"
        )
        return ann, mine, her_agents

    ann, *started = await db_call(prepare)
    here = await worker()
    for run in started:
        await here.drive(run)
    for request in await db_call(lambda: list(ApprovalRequest.objects.select_related("call"))):
        assert (request.call.requester, request.call.requester_id) == ("ann", ann.pk)
        with pytest.raises(Denied, match="You requested this call"):
            await db_call(votes.vote, request_id=request.pk, user=ann, approve=True, via="web")
    assert await db_call(ApprovalRequest.objects.count) == 2
    for run in started:
        await db_call(runs.cancel, run_id=run.pk, actor="test")
        assert (await here.drive(run)).state == RunState.CANCELLED


@pytest.mark.exhaustive
async def test_whoever_settled_a_call_of_a_run_does_not_approve_its_next_one(
    bench: Bench, worker: Any
) -> None:
    """The note of a settlement is read by the model, which then makes the call."""

    def prepare() -> tuple[User, Run]:
        run = prepared(bench)
        Configuration.objects.update(default_outcome="ask")
        return approver(), run

    ann, run = await db_call(prepare)
    here = await worker()
    await here.drive(run)
    request = await db_call(ApprovalRequest.objects.select_related("call", "group").get)
    assert await db_call(votes.explain_ineligibility, request, ann) == ""
    unknown = {
        "turn_number": 1,
        "index": 7,
        "name": "echo",
        "arguments": "{}",
        "state": CallState.UNKNOWN,
    }
    call = await db_call(lambda: ToolCall.objects.create(run=run, **unknown))
    await db_call(runs.settle, call_id=call.pk, as_what="done", actor="user:ann", user_id=ann.pk)
    ann.username = "ann-of-another-name"
    await db_call(ann.save)
    with pytest.raises(Denied, match="recorded the outcome of another call"):
        await db_call(votes.vote, request_id=request.pk, user=ann, approve=True, via="web")
    await db_call(runs.cancel, run_id=run.pk, actor="test")
    assert (await here.drive(run)).state == RunState.CANCELLED


async def test_a_worker_whose_clock_is_ahead_takes_no_run_from_another(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "_reading", None)
    # that far is this machine ahead
    note_clock(datetime.now(UTC) - timedelta(minutes=5), time.monotonic())
    run = await db_call(prepared, bench)
    assert await db_call(lease.take, run.pk, worker="another") is not None
    assert await db_call(lease.take, run.pk, worker="me") is None
    # a minute later by the database's clock
    note_clock(datetime.now(UTC) - timedelta(minutes=4), time.monotonic())
    if connection.vendor == "postgresql":  # on SQLite it is this machine's own
        assert await db_call(lease.take, run.pk, worker="me") is not None


@pytest.mark.exhaustive
async def test_a_run_that_waits_for_a_person_is_looked_at_when_that_person_has_decided_and_not_before(
    bench: Bench, worker: Any
) -> None:
    def prepare() -> Run:
        run = prepared(bench)
        Configuration.objects.update(default_outcome="ask")
        approver()
        return run

    run = await db_call(prepare)
    here = await worker()
    here.runs.start()
    asleep = await here.drive(run)
    assert asleep.wake_at is not None
    assert asleep.wake_at > timezone.now() + timedelta(minutes=30)  # no clock wakes it meanwhile
    request = await db_call(ApprovalRequest.objects.get)
    user = await db_call(User.objects.get, username="ann")
    await db_call(
        votes.vote, request_id=request.pk, user=user, approve=False, reason="no", via="web"
    )
    await until(lambda: db_call(Run.objects.exclude(finished_at=None).filter(pk=run.pk).exists))
    done = await db_call(Run.objects.get, pk=run.pk)
    # taken once more, by the decision
    assert (done.state, done.fence) == (RunState.DONE, asleep.fence + 1)


@pytest.mark.exhaustive
async def test_an_approver_may_change_what_a_run_calls_with(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        run = prepared(bench)
        PolicyRule.objects.create(name="mine", outcome="ask", expert="expert")
        approver()
        return run

    def edit() -> ApprovalRequest:
        request = ApprovalRequest.objects.get()
        user = User.objects.get(username="ann")
        edited = {"text": "softer"}
        votes.vote(request_id=request.pk, user=user, approve=True, arguments=edited, via="web")
        return request

    run = await db_call(prepare)
    here = await worker()
    await here.drive(run)
    request = await db_call(edit)
    assert await here.engine.approvals.runner.settle_call(request.call_id) is not None
    done = await here.until(run, lambda r: r.finished_at is not None)
    assert [each["arguments"] for each in bench.sent()] == [{"text": "softer"}]
    assert "softer" in done.answer


async def test_a_rejection_reaches_the_model_with_its_reason(bench: Bench, worker: Any) -> None:
    def prepare() -> Run:
        run = prepared(bench)
        Configuration.objects.update(default_outcome="ask")
        approver()
        return run

    run = await db_call(prepare)
    here = await worker()
    await here.drive(run)
    request = await db_call(ApprovalRequest.objects.get)
    user = await db_call(User.objects.get, username="ann")
    await db_call(
        votes.vote,
        request_id=request.pk,
        user=user,
        approve=False,
        reason="not on Friday",
        via="web",
    )
    done = await here.until(run, lambda r: r.finished_at is not None)
    assert "not on Friday" in done.answer
    assert bench.sent() == []
    assert await db_call(states, done) == [("echo__echo", CallState.REFUSED)]


async def test_an_operator_settles_an_unknown_call(bench: Bench, worker: Any) -> None:
    def prepare() -> tuple[Run, ToolCall]:
        run = prepared(bench)
        call = died_after_start(run, bench)
        ToolCall.objects.filter(pk=call.pk).update(state=CallState.UNKNOWN)
        return run, call

    run, call = await db_call(prepare)
    await db_call(runs.settle, call_id=call.pk, as_what="done", actor="ann", note="seen in the log")
    assert "seen in the log" in (await driven(worker, run)).answer
