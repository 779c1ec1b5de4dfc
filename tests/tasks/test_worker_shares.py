"""A share works on so many rows at a time, takes the next when one has ended, and survives errors
of work and database."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from django.db import OperationalError

from mcpregistry import worker_shares
from mcpregistry.db import read_database_now
from mcpregistry.domain.installs.reasons import INTERRUPTED
from mcpregistry.models import Install
from mcpregistry.services.installs import install_work, requests
from mcpregistry.worker_shares import Share, Shares
from tests.waiting import HANG_LIMIT, eventually, until


class Rows:
    """Rows that wait, and what is done with them: each is worked on until the test ends it."""

    def __init__(self, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting = list(range(count))
        self.begun: list[int] = []
        self.ends: dict[int, asyncio.Future[None]] = {}
        self.away = False
        monkeypatch.setattr(worker_shares, "db_call", self._call)

    async def _call(self, function: Any, *words: Any) -> Any:
        await asyncio.sleep(0)
        return function(*words)

    def claim(self, room: int) -> list[int]:
        if self.away:
            raise OperationalError
        taken = self.waiting[:room]
        self.waiting = self.waiting[room:]
        return taken

    async def work_on(self, row: int) -> None:
        self.begun.append(row)
        self.ends[row] = asyncio.get_running_loop().create_future()
        await self.ends[row]


async def test_no_more_at_a_time_than_there_are_places(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows(5, monkeypatch)
    share = Share(2, rows.claim, rows.work_on)
    for _ in range(3):
        share.look()
    await until(lambda: rows.begun == [0, 1])
    rows.ends[1].set_result(None)
    await until(lambda: rows.begun == [0, 1, 2])
    assert rows.waiting == [3, 4]


async def test_a_row_that_is_named_twice_is_worked_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows(0, monkeypatch)
    share = Share(2, lambda room: [7, 7], rows.work_on)
    share.look()
    await until(lambda: rows.begun == [7])
    share.look()
    await asyncio.sleep(0.05)
    assert rows.begun == [7]


async def test_work_that_fails_frees_its_place_and_is_not_tried_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = Rows(0, monkeypatch)
    share = Share(1, lambda room: [7], rows.work_on)
    share.look()
    await until(lambda: rows.begun == [7])
    rows.ends[7].set_exception(RuntimeError("a defect"))
    await until(lambda: not share._working)
    assert rows.begun == [7]
    share.look()
    await until(lambda: rows.begun == [7, 7])


async def test_a_database_that_is_away_is_asked_again_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = Rows(1, monkeypatch)
    share = Share(1, rows.claim, rows.work_on)
    rows.away = True
    share.look()
    await until(lambda: share._looking is None)
    rows.away = False
    share.look()
    await until(lambda: rows.begun == [0])


async def test_a_share_that_is_closed_takes_nothing_more_and_ends_with_its_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = Rows(3, monkeypatch)
    share = Share(1, rows.claim, rows.work_on)
    share.look()
    await until(lambda: rows.begun == [0])
    share.close()
    ended = asyncio.ensure_future(share.wait_until_idle())
    rows.ends[0].set_result(None)
    await ended
    share.look()
    await asyncio.sleep(0)
    assert rows.waiting == [1, 2]


def test_worker_that_stops_gives_its_installations_back(
    live_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    ending = threading.Event()

    def resolve(job: install_work.Job) -> dict[str, object]:
        begun.set()
        ending.wait(HANG_LIMIT)
        raise INTERRUPTED

    monkeypatch.setattr(install_work, "_resolve", resolve)
    monkeypatch.setattr(requests, "wake_worker", lambda *_: True)
    install = Install.objects.create(
        ecosystem="npm", package="a", requested_by="test", state_at=read_database_now()
    )
    shares = Shares()
    shares.look_for_installs()
    assert begun.wait(HANG_LIMIT)
    shares.close()
    install.refresh_from_db()
    ending.set()
    eventually(lambda: all(thread.name != "long-db" for thread in threading.enumerate()))
    assert (install.state, install.worker) == ("requested", "")
