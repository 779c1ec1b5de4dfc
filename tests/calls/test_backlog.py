"""Ends that come late: bounded work, the one that is to blame found by halving, and a recorder that
cannot die unseen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
from django.db import connection

from mcpregistry.calls.recording import backlog, late_ends, ledger
from mcpregistry.calls.recording.backlog import EndBacklog
from mcpregistry.calls.recording.errors import NotRecordedError
from mcpregistry.calls.recording.late_ends import LateEnd
from mcpregistry.calls.recording.recorder import Recorder
from tests.calls.test_recorder import begin, finish, recorder, states
from tests.waiting import until

__all__ = ["recorder"]  # fixture

pytestmark = pytest.mark.fault
Make = Callable[[], Recorder]
READ_ONLY = psycopg.errors.ReadOnlySqlTransaction(
    "cannot execute UPDATE in a read-only transaction"
)


def late(number: int) -> LateEnd:
    return LateEnd(
        cast(Any, {"id": number}),
        cast(Any, SimpleNamespace(subject=f"call:{number}")),
        datetime.now(UTC),
    )


class Database:
    """Takes groups of ends, but for bad ones; refuses everything while ``refusing``."""

    def __init__(self, *bad: int) -> None:
        self.bad = set(bad)
        self.refusing = False
        self.tries: list[int] = []
        self.written: list[int] = []

    def commit(self, group: list[LateEnd]) -> None:
        self.tries.append(len(group))
        numbers = [cast(int, each.end["id"]) for each in group]
        if self.refusing:
            raise READ_ONLY
        if self.bad & set(numbers):
            raise ValueError("a bad row")
        self.written += numbers


def test_late_ends_are_written_together() -> None:
    waiting = EndBacklog()
    database = Database()
    waiting.add(map(late, range(1_200)))
    waiting.write(database.commit)
    assert (database.tries, len(waiting)) == ([500, 500, 200], 0)
    assert database.written == list(range(1_200))


def test_while_the_database_refuses_one_try_is_made_and_everything_is_kept() -> None:
    waiting = EndBacklog()
    database = Database()
    database.refusing = True
    for _ in range(50):
        waiting.add([late(0)])
        waiting.write(database.commit)
    assert len(database.tries) == len(waiting) == 50
    database.refusing = False
    waiting.write(database.commit)
    assert (len(database.written), len(waiting)) == (50, 0)


def test_the_bad_end_among_many_is_found_by_halving() -> None:
    waiting = EndBacklog()
    database = Database(321)
    waiting.add(map(late, range(500)))
    rounds = 0
    while len(waiting):
        before = len(database.tries)
        waiting.write(database.commit)
        assert len(database.tries) - before <= backlog._TRIES
        rounds += 1
    assert sorted(database.written) == [n for n in range(500) if n != 321]
    assert len(database.tries) <= 20
    assert rounds <= 2


def test_where_every_end_is_bad_all_are_given_up_in_the_end() -> None:
    waiting = EndBacklog()
    database = Database(*range(500))
    waiting.add(map(late, range(500)))
    for _ in range(1_000):
        waiting.write(database.commit)
    assert (len(waiting), database.written, len(database.tries)) == (0, [], 999)


def test_a_refusal_in_the_middle_of_the_search_gives_nothing_up() -> None:
    waiting = EndBacklog()
    database = Database(3)
    waiting.add(map(late, range(8)))
    tries = iter([False, False, True])

    def commit(group: list[LateEnd]) -> None:
        database.refusing = next(tries, False)
        database.commit(group)

    waiting.write(commit)
    assert len(waiting) == 8
    waiting.write(commit)
    assert sorted(database.written) == [n for n in range(8) if n != 3]


# With a recorder


def refuse(monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[int]:
    """Returns a list that gets an entry with each try."""
    tries: list[int] = []

    def commit(*_: object) -> None:
        tries.append(1)
        raise error

    monkeypatch.setitem(ledger.BACKENDS, connection.vendor, commit)
    return tries


async def test_ends_that_a_read_only_database_refuses_are_written_when_it_accepts_them(
    recorder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = recorder()
    real = ledger.BACKENDS[connection.vendor]
    for number in range(4):
        await begin(here, number)
    tries = refuse(
        monkeypatch,
        connection.Database.OperationalError("x") if connection.vendor == "sqlite" else READ_ONLY,
    )
    told = await asyncio.gather(
        *(finish(here, number) for number in range(4)), return_exceptions=True
    )
    assert {type(each) for each in told} == {NotRecordedError}
    assert here.late == 4
    before = len(tries)
    await until(lambda: len(tries) >= before + 3)
    assert (here.late, here.running) == (4, True)
    monkeypatch.setitem(ledger.BACKENDS, connection.vendor, real)
    await until(lambda: here.late == 0)
    assert set(states().values()) == {"succeeded"}
    await begin(here, 9)


async def test_an_end_that_can_never_be_written_keeps_no_other_from_it(
    recorder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = recorder()
    real = ledger.BACKENDS[connection.vendor]
    write = late_ends.write
    for number in range(4):
        await begin(here, number)
    refuse(monkeypatch, connection.Database.OperationalError("gone"))
    await asyncio.gather(*(finish(here, number) for number in range(4)), return_exceptions=True)

    def choosy(ends: list[LateEnd], chain: Any) -> Any:
        if any(each.end["id"] == f"{2:032x}" for each in ends):
            raise ValueError("a bad row")
        return write(ends, chain)

    monkeypatch.setattr(late_ends, "write", choosy)
    monkeypatch.setitem(ledger.BACKENDS, connection.vendor, real)
    await until(lambda: here.late == 0)
    assert sorted(states().values()) == ["dispatched", "succeeded", "succeeded", "succeeded"]
    await begin(here, 9)


async def test_an_unexpected_error_of_the_recorder_is_told_and_ends_nothing(
    recorder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = recorder()
    await begin(here, 1)
    with monkeypatch.context() as patch:

        def fails(*_: object) -> None:
            raise ZeroDivisionError

        patch.setattr(here, "_commit_all", fails)
        for told in await asyncio.gather(finish(here, 1), begin(here, 2), return_exceptions=True):
            assert isinstance(told, NotRecordedError)
    await until(lambda: here.late == 0)
    assert states()[f"{1:032x}"] == "succeeded"
    await begin(here, 3)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_when_the_recorders_thread_has_ended_calls_are_refused_and_nobody_waits(
    recorder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = recorder()
    await begin(here, 1)
    assert here.running

    def ends(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(here, "_commit_all", ends)
    with pytest.raises(NotRecordedError, match="recorder of this process has stopped"):
        await begin(here, 2)
    assert not here.running
    with pytest.raises(NotRecordedError, match="recorder of this process has stopped"):
        await begin(here, 3)
