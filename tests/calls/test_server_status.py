"""What calls tell of their server: its errors are seen at once, and a dead server's tools leave the
lists."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpRequest
from django.utils import timezone

from mcpregistry.api.schemas.servers import StatusDetail
from mcpregistry.api.status import get_server_status
from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Endpoint
from tests.calls.conftest import add_server, tool
from tests.fakes.targets import SERVERS
from tests.waiting import until as until_true

pytestmark = pytest.mark.fault  # no check runs in these tests: what they see was told by calls


async def status(slug: str = "crash") -> StatusDetail:
    return await db_call(get_server_status, HttpRequest(), slug)


async def until(look: Callable[[StatusDetail], Any]) -> StatusDetail:
    """The status, once ``look`` is true of it."""

    async def seen() -> StatusDetail | None:
        found = await status()
        return found if look(found) else None

    return await until_true(seen)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy of the fake server, so that its program can be taken away."""
    for name in ("crash.py", "rpc.py"):
        shutil.copy(SERVERS / name, tmp_path / name)
    return tmp_path


def crashing(home: Path, **fields: Any) -> None:
    add_server(
        "crash",
        tool("crash"),
        tool("pid"),
        cwd=str(home),
        command=["python3", "-S", "crash.py"],
        **fields,
    )


@pytest.mark.exhaustive
async def test_a_call_that_fails_stands_in_its_servers_status_at_once(site, home: Path):
    await db_call(crashing, home)
    here = await site()
    began = timezone.now()
    assert (await here.call("crash__crash")).state is InvocationState.UNKNOWN
    found = await until(lambda found: found.last_error)
    assert found.last_error_code == "CONNECTION_FAILED"
    assert "closed the connection" in found.last_error
    assert found.last_error_time is not None
    assert found.last_error_time >= began
    assert any("closed the connection" in error for error in found.errors)


@pytest.mark.exhaustive
async def test_the_status_tells_when_it_connected_and_how_often_it_failed(site, home: Path):
    await db_call(crashing, home)
    here = await site()
    await here.call("crash__pid")
    connected = await until(lambda found: found.last_connect_time and found.processes)
    assert connected.processes[0].last_connect_time == connected.last_connect_time
    assert connected.reconnect_attempts == 0
    await here.call("crash__crash")
    (home / "crash.py").unlink()
    await here.call("crash__pid")
    failed = await until(
        lambda found: found.reconnect_attempts >= 2 and found.last_error_time
    )  # two rows, one after the other
    assert failed.last_connect_time == connected.last_connect_time, (
        "of the last connection, not of the last try"
    )
    before = failed.last_error_time
    assert before is not None
    await here.call("crash__pid")
    await until(lambda found: found.last_error_time > before)


async def test_a_dead_servers_tools_leave_the_lists_by_its_failing_calls_alone_and_come_back(
    site, home: Path
):
    await db_call(crashing, home)
    here = await site()
    await here.call("crash__pid")
    await here.call("crash__crash")
    program = (home / "crash.py").read_text()
    (home / "crash.py").unlink()

    async def listed() -> bool:
        await here.call("crash__pid")
        return "crash__pid" in here.engine.get_catalogue("default", "ann").entries

    async def gone() -> bool:
        return not await listed()

    await until_true(gone)
    assert not (await until(lambda found: not found.available)).available
    (home / "crash.py").write_text(program)
    await here.engine.pool.connect(await db_call(server_id))
    await until_true(listed)
    assert (await status()).available


@pytest.mark.exhaustive
async def test_where_unavailable_servers_are_not_hidden_they_stay(site, home: Path):
    await db_call(crashing, home)
    await db_call(lambda: Endpoint.objects.update(hide_unavailable=False))
    here = await site()
    (home / "crash.py").unlink()

    async def fails_long_enough() -> bool:
        await here.call("crash__pid")
        return not (await status()).available

    await until_true(fails_long_enough)
    assert "crash__pid" in here.engine.get_catalogue("default", "ann").entries


def server_id() -> int:
    from mcpregistry.models import Server

    return Server.objects.get().pk


async def test_what_is_left_out_stands_in_the_status(site, home: Path):
    await db_call(crashing, home, max_tools=1)
    here = await site()
    await here.call("crash__crash")
    found = await until(lambda found: found.tools_left_out)
    assert found.tools_left_out[0].startswith("The number of tools exceeds the limit of 1 by 1.")
