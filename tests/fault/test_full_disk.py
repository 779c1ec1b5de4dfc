"""A row of docs/faults.md with a real file system that takes no more: a limit of the kernel's on
the size of files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from django.db import connections

from tests.fakes.stage import Web
from tests.fault.load import Load, disagreements, served
from tests.fault.test_database_errors import tidy
from tests.waiting import eventually

pytestmark = [pytest.mark.fault, pytest.mark.e2e, pytest.mark.one_database]
ONE_PAGE = 4096  # bytes: no frame of SQLite's log fits


@contextmanager
def full(site: Web) -> Iterator[None]:
    """The web process can make no file longer: what SQLite writes is refused, for whatever user."""
    (process,) = map(psutil.Process, (each.pid for each in site.processes))
    before = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (ONE_PAGE, before[1]))
    try:
        yield
    finally:
        process.rlimit(psutil.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("live_db")
def test_a_full_file_system_refuses_calls_and_room_lets_them_through(tmp_path: Path) -> None:
    async def filled() -> None:
        async with load.running():
            await load.until_told(200)
            with full(site):
                await load.until_told(503)
            await load.until_told(200)

    with served(tmp_path / "journal") as (site, token):
        load = Load(site, token)
        connections.close_all()
        asyncio.run(filled())
        # what ended meanwhile is written soon
        eventually(lambda: not disagreements(load, tmp_path / "journal"))
    codes = {body["code"] for _, status, body in load.told if status == 503}
    assert codes == {"NOT_RECORDED"}
    tidy()
