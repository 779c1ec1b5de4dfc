"""A worker dies, or its database is away for a moment: the run goes on soon, and the gap is not its
time."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from types import ModuleType, SimpleNamespace
from typing import Any

import psycopg
import pytest
from celery.concurrency import get_implementation
from django.db import InterfaceError, InternalError, OperationalError, ProgrammingError
from django.utils import timezone
from pytest_django import Settings

from mcpregistry.db import db_call, read_database_now
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Invocation
from mcpregistry.services.records import audit
from mcpregistry.services.servers.connections import make_process_name
from mcpregistry.services.tasks import long_calls
from mcpregistry.services.upkeep import reaping
from subagents import tasks
from subagents.domain.lifecycle import Exit, RunState
from subagents.leased import database_retry, driver, leases
from subagents.llm import client
from subagents.models import Run, ToolCall, Turn
from subagents.runs import engine, lease, records, run_answers, tool_calls
from subagents.runs.run_views import view
from subagents.services import runs
from tests.subagents.kit import ANSWER, LOOK, Bench, calls
from tests.waiting import HANG_LIMIT, eventually, until

pytestmark = pytest.mark.exhaustive(on="postgresql")

SLOW = calls(("slow__count", {"steps": 20, "pause": 0.1}))


def slow_run(bench: Bench) -> Run:
    bench.expert(bench.model("m", SLOW, {"text": "counted"}), uses=[bench.server("slow", "count")])
    return bench.start()


def failing(
    real: Callable[..., Any],
    times: int,
    error: type[Exception] = OperationalError,
    *,
    after: int = 1,
) -> Callable[..., Any]:
    """``real``, but after some calls so many fail."""
    asked = itertools.count()

    def function(*args: Any, **kwargs: Any) -> Any:
        if after <= next(asked) < after + times:
            raise error("the database system is shutting down")
        return real(*args, **kwargs)

    return function


async def finished(bench: Bench, worker: Any, prepare: Callable[[Bench], Run]) -> Run:
    run = await db_call(prepare, bench)
    return await (await worker()).drive(run)


@pytest.mark.exhaustive
@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
async def test_a_pulse_that_misses_a_beat_ends_no_run(
    bench: Bench, worker: Any, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    monkeypatch.setattr(lease, "look", failing(lease.look, 2, error))
    monkeypatch.setattr(lease, "renew", failing(lease.renew, 2, error))
    done = await finished(bench, worker, slow_run)
    assert (done.state, done.exit, done.answer) == (RunState.DONE, Exit.ANSWER, "counted")
    assert len(bench.sent()) == 1


@pytest.mark.both_databases
@pytest.mark.exhaustive(one_in=6)
@pytest.mark.parametrize("place", ["view", "start_call", "end_call", "end_turn", "finish"])
async def test_a_step_is_done_when_the_database_is_back(
    bench: Bench, worker: Any, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def prepare(bench: Bench) -> Run:
        bench.expert(bench.model("m", LOOK, LOOK, ANSWER), uses=[bench.server()])
        return bench.start("hello")

    where: Any = engine if place == "view" else records
    from_call = 0 if place == "finish" else 1  # it comes once
    flaky = failing(getattr(where, place), 3, after=from_call)
    monkeypatch.setattr(where, place, flaky)
    done = await finished(bench, worker, prepare)
    assert (done.state, done.exit, done.answer) == (RunState.DONE, Exit.ANSWER, "It said hello.")
    assert (len(bench.sent()), len(bench.models.journal)) == (2, 3), (
        "what is paid for is not asked for again"
    )


@pytest.mark.both_databases
async def test_an_answer_whose_commit_was_not_heard_of_is_taken_once(
    bench: Bench, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = records.end_turn
    asked = iter(range(1))

    def committed_and_lost(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        if next(asked, None) is not None:
            raise OperationalError("server closed the connection unexpectedly")

    def prepare(bench: Bench) -> Run:
        bench.expert(bench.model("m", LOOK, ANSWER), uses=[bench.server()])
        return bench.start("hello")

    monkeypatch.setattr(records, "end_turn", committed_and_lost)
    done = await finished(bench, worker, prepare)
    assert (done.state, await db_call(Turn.objects.count)) == (RunState.DONE, 2)


@pytest.mark.exhaustive
@pytest.mark.both_databases
async def test_before_its_lease_is_anybodys_a_run_is_given_back(
    bench: Bench, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a busy machine may need more to give it back
    monkeypatch.setattr(driver, "_PARTING", HANG_LIMIT)
    run = await db_call(slow_run, bench)
    here = await worker()
    real = lease.renew

    ahead = 0.0

    def fail_once_the_call_is_sent(*args: Any, **kwargs: Any) -> Any:
        nonlocal ahead
        if bench.sent():
            ahead = leases.LEASE.total_seconds()  # it would soon be another worker's
            raise OperationalError("the database system is shutting down")
        return real(*args, **kwargs)

    with monkeypatch.context() as away:
        away.setattr(driver, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead))
        away.setattr(leases, "RENEW_EVERY", 0.2)
        away.setattr(lease, "renew", fail_once_the_call_is_sent)
        with pytest.raises(OperationalError):
            await here.drive(run)
    given = await db_call(Run.objects.get, pk=run.pk)
    assert (given.finished_at, given.lease_until, given.worker) == (None, None, "")
    done = await here.until(run, lambda r: r.finished_at is not None)
    assert (done.state, len(bench.sent())) == (RunState.DONE, 1), "made once, and then looked up"


async def test_a_lease_is_kept_and_servers_start_while_litellm_is_loaded(
    bench: Bench, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes seconds, once per worker: on the event loop nothing would be kept meanwhile."""
    loading = threading.Event()
    go_on = threading.Event()
    real = client.load_litellm

    @lru_cache(maxsize=1)
    def slow() -> ModuleType:
        loading.set()
        assert go_on.wait(4 * HANG_LIMIT)
        return real()

    # first: a worker that has not heard of its agent connects nothing ahead
    run = await db_call(slow_run, bench)
    here = await worker()  # loads it for real
    monkeypatch.setattr(client, "load_litellm", slow)
    monkeypatch.setattr(leases, "RENEW_EVERY", 0.05)
    here.runs.wake(run.pk)
    try:
        assert await asyncio.to_thread(loading.wait, HANG_LIMIT)
        held_until = (await db_call(Run.objects.get)).lease_until
        await until(lambda: db_call(Run.objects.exclude(lease_until=held_until).exists))
        await until(
            lambda: (
                [state.state for state in here.engine.pool.list_states().values()] == ["connected"]
            )
        )
    finally:
        go_on.set()
    await here.runs.stop()


def test_a_worker_loads_what_a_first_run_needs_once_there_is_an_expert_tool(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(tasks, "_warming", threading.Lock())
    monkeypatch.setattr(tasks, "_load", lambda: begun.append("loading"))
    tasks.advance_due()
    assert not tasks._warming.locked()
    bench.expert(bench.model("m", {"text": "because"}))
    tasks.advance_due()
    tasks.advance_due()
    eventually(lambda: begun == ["loading"])


@pytest.mark.parametrize(("pool", "loads"), [("threads", True), ("prefork", False)])
def test_a_worker_that_is_not_forked_loads_while_it_still_starts(
    pool: str, loads: bool, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(tasks, "_warming", threading.Lock())
    monkeypatch.setattr(tasks, "_load", lambda: begun.append("loading"))
    bench.expert(bench.model("m", {"text": "because"}))
    before = set(threading.enumerate())
    tasks.load_early(sender=SimpleNamespace(pool_cls=get_implementation(pool)))
    if loads:
        eventually(lambda: begun == ["loading"])
    looking = ("early-look", "warm-up")  # no join: one that is just being started cannot be joined
    eventually(
        lambda: not any(each.name in looking for each in set(threading.enumerate()) - before)
    )
    assert bool(begun) is loads


@pytest.mark.both_databases
def test_what_was_given_back_is_not_renewed(bench: Bench) -> None:
    run = held_by(bench, "leaving")
    lease.release(leases.Lease(run.pk, 1))
    with pytest.raises(leases.LostLease):
        lease.renew(leases.Lease(run.pk, 1))
    assert lease.take(run.pk, worker="next") is not None


async def test_a_fault_of_ours_ends_the_run_and_says_so(
    bench: Bench, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*args: Any) -> bool:
        raise KeyError("ours")

    monkeypatch.setattr(tool_calls, "make", broken)
    done = await finished(bench, worker, slow_run)
    assert (done.state, done.exit) == (RunState.FAILED, Exit.CRASHED)


async def test_a_database_that_is_read_only_for_a_moment_is_asked_again() -> None:
    errors = iter(
        [
            psycopg.errors.ReadOnlySqlTransaction("x"),
            psycopg.errors.IdleInTransactionSessionTimeout("x"),
        ]
    )

    async def work() -> str:
        if error := next(errors, None):
            raise InternalError(str(error)) from error
        return "done"

    assert await database_retry.retry_while_unavailable(work) == "done"


async def test_an_error_of_ours_is_not_tried_again() -> None:
    asked: list[None] = []

    async def work() -> None:
        asked.append(None)
        raise ProgrammingError("no such column")

    with pytest.raises(ProgrammingError):
        await database_retry.retry_while_unavailable(work)
    assert len(asked) == 1


async def test_a_database_that_stays_away_is_not_asked_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[None] = []

    async def away() -> None:
        asked.append(None)
        if len(asked) == 3:
            monkeypatch.setattr(database_retry, "_LONGEST", 0.0)  # it has lasted too long by now
        raise OperationalError("no such column")

    with pytest.raises(OperationalError):
        await database_retry.retry_while_unavailable(away)
    assert len(asked) == 3


def held_by(bench: Bench, worker: str) -> Run:
    bench.expert(bench.model("m", {"text": "because"}))
    run = bench.start()
    assert lease.take(run.pk, worker=worker) is not None
    return run


def thirty_seconds(run: Run, since: float) -> bool:
    """Whether its time is that; and what this machine has taken ``since`` then, by its steady
    clock."""
    return 28 < view(run.pk, now=timezone.now()).spent.seconds < 32 + time.monotonic() - since


def test_a_gap_is_not_the_runs_time(bench: Bench) -> None:
    run = held_by(bench, "dead")
    now = timezone.now()
    since = time.monotonic()
    Run.objects.update(
        started_at=now - timedelta(seconds=90), lease_until=now - timedelta(seconds=50)
    )
    assert lease.take(run.pk, worker="next") is not None  # last heard of 60 seconds ago
    assert thirty_seconds(run, since)
    assert lease.take(run.pk, worker="third") is None


def test_nor_is_the_time_after_it_was_given_back(bench: Bench) -> None:
    run = held_by(bench, "leaving")
    now = timezone.now()
    since = time.monotonic()
    lease.release(leases.Lease(run.pk, 1))
    Run.objects.update(
        started_at=now - timedelta(seconds=90), idle_since=now - timedelta(seconds=60)
    )
    assert lease.take(run.pk, worker="next") is not None
    assert thirty_seconds(run, since)
    assert Run.objects.get().idle_since is None


def test_waiting_for_people_is_not_taken_off_twice(bench: Bench) -> None:
    run = held_by(bench, "dead")
    now = timezone.now()
    since = time.monotonic()
    Run.objects.update(
        started_at=now - timedelta(seconds=90),
        lease_until=now - timedelta(seconds=20),
        waiting_since=now - timedelta(seconds=60),
    )
    assert lease.take(run.pk, worker="next") is not None
    assert thirty_seconds(run, since)


@pytest.mark.both_databases
def test_runs_of_a_worker_that_is_dead_are_anybodys_at_once(bench: Bench) -> None:
    run = held_by(bench, "dead")
    assert lease.take(run.pk, worker="next") is None
    assert lease.free("dead") == [run.pk]
    assert lease.free("dead") == []
    assert lease.take(run.pk, worker="next") is not None
    assert lease.free("dead") == []


@pytest.mark.both_databases
def test_a_worker_that_is_silent_for_ten_seconds_has_lost_its_runs(bench: Bench) -> None:
    """Whether anybody has seen its death or not; a living one is heard three times in that time."""
    before = read_database_now()
    run = held_by(bench, "silent")
    until = Run.objects.get(pk=run.pk).lease_until
    assert until is not None
    assert before + leases.LEASE <= until <= read_database_now() + leases.LEASE
    assert 3 * leases.RENEW_EVERY < leases.LEASE.total_seconds() <= 10


@pytest.mark.both_databases
def test_a_worker_frees_the_runs_of_the_one_that_it_replaces(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "box")
    settings.PREDECESSOR = 47
    run = held_by(bench, make_process_name("worker", 47))
    tasks._free_predecessors()
    assert lease.take(run.pk, worker=make_process_name("worker", 48)) is not None
    tasks._free_predecessors()
    assert lease.take(run.pk, worker="third") is None, "the successor's stays"


def out_at(writer: str, call: str, **fields: Any) -> None:
    now = timezone.now()
    facts = {
        "agent_slug": "a",
        "server_slug": "echo",
        "tool_name": "echo",
        "exposed_name": "echo__echo",
        "outcome": "allow",
        "origin": "run",
        "received_at": now,
        "dispatched_at": now,
        "lease_until": now + timedelta(seconds=90),
    }
    Invocation.objects.create(id=call, state="dispatched", writer=writer, **facts | fields)
    audit.record_entry(kind="call.dispatched", actor="test", subject=f"call:{call}")


@pytest.mark.both_databases
def test_calls_of_a_process_that_is_dead_end_at_once(
    live_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "box")
    out_at("worker:box:47:aaaa", "1" * 32)
    out_at("worker:box:471:bbbb", "2" * 32)
    out_at("worker:elsewhere:47:cccc", "3" * 32)
    out_at("web:box:47:dddd", "4" * 32)
    assert reaping.end_calls_of_dead_process("worker", 47, timezone.now()) == 1
    assert list(Invocation.objects.exclude(state="dispatched").values_list("id", "state")) == [
        ("1" * 32, "unknown")
    ]


@pytest.mark.both_databases
def test_a_call_that_ends_with_its_run_outlives_its_process(
    live_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "box")
    call = "5" * 32
    out_at("web:box:47:eeee", call)
    task = long_calls.hand_over_call(
        call_id=call, fence=0, agent="a", endpoint="e", ttl_ms=60_000, poll_ms=1_000
    )
    assert task is not None
    run = Run(
        expert_name="digest",
        origin=runs.CALL,
        call_id=call,
        state=RunState.DONE,
        exit=Exit.ANSWER,
        answer="It is so.",
    )
    assert reaping.end_calls_of_dead_process("web", 47, timezone.now()) == 0
    assert Invocation.objects.get().state == InvocationState.DISPATCHED
    run_answers.tell_caller(run)
    assert Invocation.objects.get().state == InvocationState.SUCCEEDED


@pytest.mark.exhaustive
async def test_a_run_given_to_nobody_in_the_middle_is_taken_again_by_itself(
    bench: Bench, worker: Any
) -> None:
    def without_end() -> Run:
        asked = calls(("slow__count", {"steps": 10_000, "pause": 0.1}))
        bench.expert(
            bench.model("m", asked, {"text": "counted"}), uses=[bench.server("slow", "count")]
        )
        return bench.start()

    run = await db_call(without_end)
    here = await worker()
    here.runs.wake(run.pk)
    await until(lambda: db_call(ToolCall.objects.filter(state="started").exists))
    await db_call(Run.objects.update, fence=99, lease_until=None)
    await until(lambda: db_call(Run.objects.exclude(fence=99).exists))
    await here.runs.stop()
