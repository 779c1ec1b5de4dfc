"""The recorder: durable before it returns, in groups, closed when the database fails, provable
afterwards."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import IntegrityError, OperationalError, connection, connections

from mcpregistry.calls.recording import ledger
from mcpregistry.calls.recording import recorder as module
from mcpregistry.calls.recording.errors import EndedOtherwiseError, NotRecordedError
from mcpregistry.calls.recording.recorder import Recorder
from mcpregistry.db import db_call
from mcpregistry.domain.errors import QueueFullError
from mcpregistry.models import AuditEntry, Invocation
from mcpregistry.services.records import audit, chains, sql
from mcpregistry.services.records.audit import AuditFact
from tests import forkserver
from tests.logs import logged
from tests.waiting import HANG_LIMIT

Make = Callable[[], Recorder]
POSTGRES = "postgresql"


def intent(number: int, **facts: Any) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {
        "id": f"{number:032x}",
        "state": "dispatched",
        "agent_slug": "ann",
        "tool_name": "echo",
        "exposed_name": "s__echo",
        "outcome": "allow",
        "origin": "http",
        "arguments": "{}",
        "received_at": now,
        "dispatched_at": now,
        "lease_until": now + timedelta(seconds=60),
    } | facts


def end(number: int, **facts: Any) -> dict[str, Any]:
    return {
        "id": f"{number:032x}",
        "before": "dispatched",
        "fence": 0,
        "keep": False,
        "state": "succeeded",
        "reason": "",
        "error_code": "",
        "result": {"content": []},
        "warning": "",
        "finished_at": datetime.now(UTC),
        "duration_ms": 1.0,
    } | facts


def fact(number: int, kind: str, **facts: Any) -> AuditFact:
    return AuditFact(kind, "ann", f"call:{number:032x}", facts)


async def begin(recorder: Recorder, number: int, **facts: Any) -> None:
    await recorder.begin(intent(number, **facts), fact(number, "call.dispatched", n=number))


async def finish(recorder: Recorder, number: int, **facts: Any) -> None:
    await recorder.end(end(number, **facts), fact(number, "call.succeeded", n=number))


@pytest.fixture
async def recorder(live_db: None) -> AsyncIterator[Make]:
    made: list[Recorder] = []

    def make() -> Recorder:
        made.append(Recorder("web"))
        made[-1].start(asyncio.get_running_loop())
        return made[-1]

    yield make
    for each in made:
        await asyncio.get_running_loop().run_in_executor(None, each.close)


@contextmanager
def outside() -> Iterator[Any]:
    """A database connection that has nothing to do with Django's; ``execute(sql)`` gives rows."""
    facts = connections["default"].settings_dict
    if connection.vendor == POSTGRES:
        raw: Any = psycopg.connect(
            host=facts["HOST"], port=facts["PORT"], user=facts["USER"], dbname=facts["NAME"]
        )
    else:
        raw = sqlite3.connect(facts["NAME"], isolation_level=None)
    try:
        yield raw
    finally:
        raw.close()


def states() -> dict[str, str]:
    with outside() as raw:
        return dict(raw.execute("SELECT id, state FROM mcpregistry_invocation").fetchall())


def verified() -> bool:
    return list(chains.verify_chains()) == []


def writers() -> list[str]:
    return list(AuditEntry.objects.order_by("writer").values_list("writer", flat=True).distinct())


@contextmanager
def transactions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of rows in each commit."""
    sizes: list[int] = []
    real = ledger.BACKENDS[connection.vendor]

    def counting(work: ledger.Work) -> ledger.Changed:
        changed = real(work)
        sizes.append(sum(len(rows) for _, rows in work))
        return changed

    monkeypatch.setitem(ledger.BACKENDS, connection.vendor, counting)
    yield sizes


# -- durable ---------------------------------------------------------------------------------------


async def test_the_intent_is_visible_to_others_before_begin_returns_and_so_is_the_end(
    recorder: Make,
):
    here = recorder()
    await begin(here, 1)
    assert list(states().values()) == ["dispatched"]
    await finish(here, 1)
    assert list(states().values()) == ["succeeded"]


async def test_recorder_commits_are_on_disk_before_they_return(
    recorder: Make, monkeypatch: pytest.MonkeyPatch
):
    """SQLite needs ``synchronous=FULL`` on the recorder's connection; on PostgreSQL the operator's
    setting holds."""
    seen: list[Any] = []
    real = ledger.BACKENDS[connection.vendor]

    def look(work: ledger.Work) -> ledger.Changed:
        changed = real(work)
        question = "PRAGMA synchronous"
        if connection.vendor == POSTGRES:
            question = "SELECT source FROM pg_settings WHERE name = 'synchronous_commit'"
        seen.append(connection.connection.execute(question).fetchone()[0])
        return changed

    monkeypatch.setitem(ledger.BACKENDS, connection.vendor, look)
    await begin(recorder(), 1)
    assert seen
    if connection.vendor == POSTGRES:
        assert "session" not in seen, "the recorder overrides what the operator has set"
    else:
        assert set(seen) == {2}


async def test_calls_that_come_together_share_commits(
    recorder: Make, monkeypatch: pytest.MonkeyPatch
):
    here = recorder()
    with transactions(monkeypatch) as sizes:
        await asyncio.gather(*(begin(here, number) for number in range(400)))
        await asyncio.gather(*(finish(here, number) for number in range(400)))
    assert set(states().values()) == {"succeeded"}
    assert len(sizes) < 80
    assert await db_call(verified)


async def test_the_record_of_a_lone_call_waits_for_no_one(
    recorder: Make, monkeypatch: pytest.MonkeyPatch
):
    here = recorder()
    with transactions(monkeypatch) as sizes:
        for number in range(3):
            await begin(here, number)
    assert sizes[-3:] == [2, 2, 2]


async def test_every_column_that_is_given_is_stored(recorder: Make):
    given = intent(
        7,
        endpoint_slug="e",
        server_slug="s",
        server_revision=3,
        definition_hash="d" * 64,
        binding="b" * 64,
        reason="why",
        host_name="h",
        request_id="r",
    )
    here = recorder()
    await here.begin(given, fact(7, "call.dispatched"))
    row = await db_call(Invocation.objects.get)
    assert {name: getattr(row, name) for name in given} == given
    assert row.writer == here.writer
    last = end(7, reason="done", error_code="X", duration_ms=2.5)
    await here.end(last, fact(7, "call.succeeded"))
    row = await db_call(Invocation.objects.get)
    assert (row.reason, row.error_code, row.duration_ms, row.lease_until) == (
        "done",
        "X",
        2.5,
        None,
    )
    assert row.finished_at == last["finished_at"]
    assert (row.result, row.result_bytes) == ('{"content":[]}', 14)


async def test_an_end_counts_only_for_a_call_that_is_out_and_for_its_own_fence(recorder: Make):
    here = recorder()
    await begin(here, 1, state="denied", finished_at=datetime.now(UTC))
    await begin(here, 2, fence=5)
    with pytest.raises(EndedOtherwiseError):
        await finish(here, 1)
    with pytest.raises(EndedOtherwiseError):
        await finish(here, 2, fence=4)
    assert sorted(states().values()) == ["denied", "dispatched"]
    await finish(here, 2, fence=5)
    assert sorted(states().values()) == ["denied", "succeeded"]


@pytest.mark.attack
@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        "a\x00b",
        "\ud800",
        10**400,
        10**5000,
        [[[float("inf")]]],
        b"raw",
        {"k": object()},
    ],
    ids=lambda value: type(value).__name__,
)
async def test_no_result_and_no_fact_is_too_odd_to_be_recorded(recorder: Make, value: Any):
    here = recorder()
    await here.begin(intent(1), fact(1, "call.dispatched", v=value))
    await here.end(end(1, result={"v": value}), fact(1, "call.succeeded", v=value))
    assert list(states().values()) == ["succeeded"]
    assert await db_call(verified)


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.fault
@pytest.mark.parametrize(
    "bad", [{"tool_name": "\ud800"}, {"fence": 2**80}, {"id": f"{3:032x}"}, {"state": None}]
)
async def test_a_bad_row_stands_alone(recorder: Make, bad: dict[str, Any]):
    here = recorder()
    await begin(here, 3)
    good = [begin(here, number) for number in range(10, 40)]
    outcomes = await asyncio.gather(
        *good[:15], begin(here, 99, **bad), *good[15:], return_exceptions=True
    )
    failed = [outcome for outcome in outcomes if outcome is not None]
    assert [type(outcome) for outcome in failed] == [NotRecordedError]
    assert len(states()) == 31
    await begin(here, 100)
    assert await db_call(verified)


@pytest.mark.fault
async def test_a_database_that_fails_closes_the_gate_and_opens_it_again(
    recorder: Make, monkeypatch: pytest.MonkeyPatch
):
    here = recorder()
    await begin(here, 1)
    real = ledger.BACKENDS[connection.vendor]
    tries = []
    come = threading.Event()

    def gone(work: ledger.Work) -> None:
        come.wait(HANG_LIMIT)  # or a busy machine may bring them one by one
        tries.append(1)
        raise connection.Database.OperationalError("the server closed the connection")

    monkeypatch.setitem(ledger.BACKENDS, connection.vendor, gone)
    begun = [asyncio.ensure_future(begin(here, number)) for number in range(10, 60)]
    await asyncio.sleep(0)
    come.set()
    outcomes = await asyncio.gather(*begun, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {NotRecordedError}
    assert len(tries) <= 3  # once for each batch, not once for each row
    monkeypatch.setitem(ledger.BACKENDS, connection.vendor, real)
    await begin(here, 2)
    assert len(states()) == 2
    assert len(await db_call(writers)) == 2  # nobody knew what had been written: a new chain
    assert await db_call(verified)


@pytest.mark.fault
async def test_a_lost_connection_is_replaced(recorder: Make, monkeypatch: pytest.MonkeyPatch):
    """PostgreSQL ends the recorder's session; on SQLite the handle is closed underneath it."""
    here = recorder()
    real = ledger.BACKENDS[connection.vendor]
    raws = []

    def looking(work: ledger.Work) -> ledger.Changed:
        changed = real(work)
        raws.append(connection.connection)
        return changed

    monkeypatch.setitem(ledger.BACKENDS, connection.vendor, looking)
    await begin(here, 1)
    if connection.vendor == POSTGRES:
        with outside() as raw:
            raw.execute("SELECT pg_terminate_backend(%s)", [raws[-1].info.backend_pid]).fetchall()
    else:
        monkeypatch.setitem(
            ledger.BACKENDS,
            connection.vendor,
            lambda work: (connection.connection.close(), real(work)),
        )
        await asyncio.gather(begin(here, 2), return_exceptions=True)
        monkeypatch.setitem(ledger.BACKENDS, connection.vendor, real)
    for number in range(3, 20):
        if (await asyncio.gather(begin(here, number), return_exceptions=True)) == [None]:
            break
    await finish(here, number)
    assert states()[f"{number:032x}"] == "succeeded"
    assert await db_call(verified)


@pytest.mark.fault
async def test_a_locked_database_is_waited_for_and_then_refused(
    recorder: Make, monkeypatch: pytest.MonkeyPatch
):
    """SQLite: another process holds the write lock. PostgreSQL: a table lock, until it lets go."""
    monkeypatch.setattr(ledger, "_LOCK_WAIT", 0.3)
    here = recorder()
    await begin(here, 1)
    with outside() as holder, logged(module) as entries:
        if connection.vendor == POSTGRES:
            holder.execute("LOCK TABLE mcpregistry_invocation IN EXCLUSIVE MODE")
        else:
            holder.execute("BEGIN EXCLUSIVE")
        waiting = [asyncio.create_task(begin(here, number)) for number in range(2, 6)]
        if connection.vendor == "sqlite":
            outcomes = await asyncio.wait_for(
                asyncio.gather(*waiting, return_exceptions=True), HANG_LIMIT
            )
            assert {type(outcome) for outcome in outcomes} == {NotRecordedError}
            assert {entry["code"] for entry in entries if entry["event"] == "recorder.failed"} == {
                "SQLITE_BUSY"
            }
        else:
            await asyncio.sleep(0.3)
            assert not any(task.done() for task in waiting)
        holder.rollback()
    await asyncio.gather(*waiting, return_exceptions=True)
    await begin(here, 9)
    assert len(states()) == (2 if connection.vendor == "sqlite" else 6)


def give_back_free_pages() -> None:
    """Pages that earlier tests have freed would take new rows although the file may not grow."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM")


@pytest.mark.fault
async def test_a_full_disk_means_not_recorded_and_space_means_recorded_again(
    recorder: Make, monkeypatch: pytest.MonkeyPatch
):
    """SQLite is told to grow no further; PostgreSQL says DiskFull where its own disk would."""
    here = recorder()
    real = ledger.BACKENDS[connection.vendor]
    await begin(here, 1)
    if connection.vendor != POSTGRES:
        await db_call(give_back_free_pages)
    full = True

    def limited(work: ledger.Work) -> ledger.Changed:
        if connection.vendor == POSTGRES:
            if full:
                raise psycopg.errors.DiskFull("could not extend file: No space left on device")
            return real(work)
        connection.ensure_connection()
        raw = connection.connection
        pages = raw.execute("PRAGMA page_count").fetchone()[0]
        raw.execute(f"PRAGMA max_page_count = {pages if full else 1_000_000}")
        return real(work)

    monkeypatch.setitem(ledger.BACKENDS, connection.vendor, limited)
    big = "x" * 200_000
    outcomes = await asyncio.gather(
        *(begin(here, n, arguments=big) for n in range(10, 20)), return_exceptions=True
    )
    assert {type(outcome) for outcome in outcomes} == {NotRecordedError}
    full = False
    await begin(here, 2, arguments=big)
    assert len(states()) == 2
    assert await db_call(verified)


async def test_a_full_queue_answers_busy_at_once_but_takes_every_end(
    recorder: Make, monkeypatch: pytest.MonkeyPatch
):
    here = recorder()
    await begin(here, 1)
    gate = threading.Event()
    real = ledger.BACKENDS[connection.vendor]

    def slow(work: ledger.Work) -> ledger.Changed:
        gate.wait(HANG_LIMIT)
        return real(work)

    monkeypatch.setattr(module, "MAX_WAITING", 5)
    monkeypatch.setitem(ledger.BACKENDS, connection.vendor, slow)
    tasks = [asyncio.create_task(begin(here, number)) for number in range(10, 30)]
    await asyncio.sleep(0)
    ending = asyncio.create_task(finish(here, 1))
    await asyncio.sleep(0)
    gate.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    await ending
    assert {type(outcome) for outcome in outcomes} == {type(None), QueueFullError}
    assert len(states()) == 1 + outcomes.count(None)
    assert states()[f"{1:032x}"] == "succeeded"


# -- leaving and closing ---------------------------------------------------------------------------


async def test_what_was_put_before_close_is_written_and_what_comes_after_is_refused(recorder: Make):
    here = recorder()
    tasks = [asyncio.create_task(begin(here, number)) for number in range(200)]
    await asyncio.sleep(0)
    await asyncio.get_running_loop().run_in_executor(None, here.close)
    await asyncio.gather(*tasks)
    assert len(states()) == 200
    with pytest.raises(NotRecordedError, match="shutting down"):
        await begin(here, 999)
    kinds = await db_call(
        lambda: list(AuditEntry.objects.order_by("seq").values_list("kind", flat=True))
    )
    assert (kinds[0], kinds[-1]) == ("writer.started", "writer.stopped")


async def test_nobody_waits_for_ever_when_calls_and_close_race(live_db: None):
    for turn in range(30):
        here = Recorder("web")
        here.start(asyncio.get_running_loop())
        closing = asyncio.get_running_loop().run_in_executor(None, here.close)
        kept = 0
        async with asyncio.timeout(HANG_LIMIT):
            for number in range(20):
                try:
                    await begin(here, turn * 100 + number)
                    kept += 1
                except NotRecordedError:
                    break
            await closing
        assert sum(key.startswith(f"{turn:03}") for key in map(_short, states())) == kept


def _short(key: str) -> str:
    return f"{int(key, 16) // 100:03}"


async def test_a_caller_that_leaves_while_its_intent_is_written_can_still_end_it(recorder: Make):
    here = recorder()
    caller = asyncio.create_task(begin(here, 1))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    here.end_soon(end(1, state="not_sent", result=None), fact(1, "call.not_sent"))
    await begin(here, 2)  # in order: this one is written last
    assert states()[f"{1:032x}"] == "not_sent"


@pytest.mark.fault
@pytest.mark.parametrize("together", [False, True], ids=["one after the other", "in one commit"])
async def test_the_end_of_a_call_whose_beginning_failed_is_not_in_the_audit_log(
    recorder: Make, monkeypatch: pytest.MonkeyPatch, together: bool
):
    """A caller left while its call's beginning was written, and that failed. So there is no record
    for the end."""
    here = recorder()
    real = ledger.BACKENDS[connection.vendor]
    await begin(here, 9)
    let_go = threading.Event()
    took = threading.Event()

    def failing(work: ledger.Work, *claims: Any) -> ledger.Changed:
        if together and not let_go.is_set():  # the next ones come in one commit
            took.set()
            let_go.wait(HANG_LIMIT)
        inserted = [rows for sql, rows in work if sql == ledger.INSERT]
        if any(f"{1:032x}" in row for rows in inserted for row in rows):
            took.set()
            let_go.wait(HANG_LIMIT)
            raise IntegrityError("bad row") if together else OperationalError("database is locked")
        return real(work, *claims)

    monkeypatch.setitem(ledger.BACKENDS, connection.vendor, failing)
    others = [asyncio.create_task(begin(here, 2))] if together else []
    if together:
        await asyncio.to_thread(took.wait, HANG_LIMIT)
    caller = asyncio.create_task(begin(here, 1))
    await asyncio.sleep(0)
    if not together:
        await asyncio.to_thread(took.wait, HANG_LIMIT)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    here.end_soon(end(1, state="not_sent", result=None), fact(1, "call.not_sent"))
    let_go.set()
    await asyncio.gather(*others, begin(here, 3))
    assert f"{1:032x}" not in states()
    assert await db_call(verified)

    monkeypatch.setitem(ledger.BACKENDS, connection.vendor, real)
    await begin(here, 1)  # the same call, made again
    await finish(here, 1)
    assert states()[f"{1:032x}"] == "succeeded"
    kinds = (
        AuditEntry.objects.filter(subject=f"call:{1:032x}")
        .order_by("id")
        .values_list("kind", flat=True)
    )
    assert await db_call(list, kinds) == ["call.dispatched", "call.succeeded"]


# -- several writers -------------------------------------------------------------------------------

_CHILD = """
import asyncio, sys, django; django.setup()
from mcpregistry.calls.recording.recorder import Recorder
from tests.calls.test_recorder import begin, finish


async def main(first, count):
    recorder = Recorder("web")
    recorder.start(asyncio.get_running_loop())
    async def one(number):
        await begin(recorder, number)
        print(number, flush=True)
        await finish(recorder, number)
    for start in range(first, first + count, 10):
        await asyncio.gather(*(one(number) for number in range(start, start + 10)))
    await asyncio.get_running_loop().run_in_executor(None, recorder.close)

asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
"""


def child(env: dict[str, str], first: int, count: int) -> forkserver.Process:
    return forkserver.popen(["-c", _CHILD, str(first), str(count)], env=env, stdout=subprocess.PIPE)


@pytest.mark.exhaustive(on="postgresql")
@pytest.mark.fault
def test_two_processes_write_to_one_database_each_with_its_own_chain(site_env: dict[str, str]):
    children = [child(site_env, first, 300) for first in (0, 1_000)]
    for each in children:
        each.communicate(timeout=HANG_LIMIT)
        assert each.returncode == 0
    assert list(states().values()) == ["succeeded"] * 600
    assert verified()
    assert len(writers()) == 2


@pytest.mark.fault
def test_a_process_killed_in_the_middle_leaves_whole_chains_and_everything_it_acknowledged(
    site_env: dict[str, str],
):
    victim = child(site_env, 0, 100_000)
    assert victim.stdout is not None
    acknowledged = [int(victim.stdout.readline()) for _ in range(50)]
    victim.send_signal(signal.SIGKILL)
    acknowledged += [
        int(line) for line in victim.communicate(timeout=HANG_LIMIT)[0].splitlines() if line.strip()
    ]
    assert {f"{number:032x}" for number in acknowledged} <= set(states())
    assert verified()
    survivor = child(site_env, 200_000, 10)
    survivor.communicate(timeout=HANG_LIMIT)
    assert survivor.returncode == 0
    assert verified()


def test_the_statements_write_every_column_of_the_models():
    assert set(ledger.INSERT_COLUMNS) == {f.column for f in Invocation._meta.local_concrete_fields}
    assert {*audit.AuditRow._fields, "id"} == {
        f.column for f in AuditEntry._meta.local_concrete_fields
    }


@pytest.mark.parametrize(
    "at", [datetime(2026, 11, 22, 9, 5, 7, tzinfo=UTC), datetime(2026, 1, 2, 3, 4, 5, 6, UTC), None]
)
def test_moments_are_written_as_django_writes_them(db: None, at: datetime | None) -> None:
    assert sql.adapt_moment(at) == connection.ops.adapt_datetimefield_value(at)
