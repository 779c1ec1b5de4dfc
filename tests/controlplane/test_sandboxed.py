"""Pages and REST are refused to programs in this site's own sandboxes, and to nobody else."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane import asgi
from controlplane.sandbox_guard import refuse_sandboxed
from mcpregistry.domain.servers.target import Sandbox
from mcpregistry.downstream.transports import sandbox_callers
from tests.controlplane.test_connections import answers, serving
from tests.downstream.conftest import Bench
from tests.fakes.targets import SERVERS, stdio_target
from tests.waiting import HANG_LIMIT

pytestmark = pytest.mark.attack
Make = Callable[..., Bench]


async def guarded(scope: Any, receive: Any, send: Any) -> None:
    if not await refuse_sandboxed(scope, send):
        await answers(scope, receive, send)


@pytest.fixture
async def bench() -> AsyncIterator[Make]:
    made: list[Bench] = []

    def make(*targets: Any) -> Bench:
        made.append(Bench(*targets))
        return made[-1]

    yield make
    await asyncio.gather(*(each.pool.close() for each in made))


def caller(tmp_path: Path, **policy: Any) -> Any:
    sandbox = Sandbox(home=str(tmp_path / "home"), read=(str(SERVERS),), **policy)
    return stdio_target("caller", sandbox=sandbox)


async def asked(here: Bench, port: int, way: str = "plainly", path: str = "/") -> str:
    """The status that a server's own request gets."""
    arguments = json.dumps({"port": port, "way": way, "path": path}).encode()
    found = await here.call("call", arguments, timeout=HANG_LIMIT)
    return str(found["content"][0]["text"].split(" ")[1])


async def from_outside(port: int, way: str = "plainly") -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-S",
        str(SERVERS / "caller.py"),
        way,
        str(port),
        "/",
        stdout=asyncio.subprocess.PIPE,
    )
    return (await process.communicate())[0].decode().split(" ")[1]


def is_one_closed() -> bool:
    """Whether a process outside of the sandboxes cannot be looked into, so that it may hold any
    socket."""
    processes = [*sandbox_callers._iterate_processes()]
    return any(
        sandbox_callers._has_socket(pid, set()) is None
        for pid in sandbox_callers._iterate_outside(processes, set())
    )


WAYS = ["plainly", "as_daemon", "in_a_thread", "undumpable", "in_flight"]


@pytest.mark.exhaustive(but=("plainly",))
@pytest.mark.parametrize("way", WAYS)
async def test_confined_server_is_refused_however_it_hides(bench: Make, tmp_path: Path, way: str):
    if way in ("undumpable", "in_flight") and is_one_closed():
        pytest.skip("a process of this user cannot be looked into")
    here = bench(caller(tmp_path))
    async with serving(guarded) as (_, port):
        assert await asked(here, port, way) == "403"
        assert await from_outside(port) == "200"


@pytest.mark.bubblewrap
async def test_strict_server_is_refused_too(bench: Make, tmp_path: Path):
    here = bench(caller(tmp_path, strict=True))
    async with serving(guarded) as (_, port):
        assert await asked(here, port) == "403"


async def test_server_without_a_sandbox_may_use_pages_and_rest(bench: Make, tmp_path: Path):
    here = bench(stdio_target("caller"))
    confined = bench(caller(tmp_path))
    async with serving(guarded) as (_, port):
        assert await asked(confined, port) == "403"
        assert await asked(here, port) == "200"


async def test_header_of_a_proxy_does_not_hide_a_sandbox(bench: Make, tmp_path: Path):
    here = bench(caller(tmp_path))
    async with serving(guarded, forwarded_allow_ips="127.0.0.1") as (_, port):
        arguments = {
            "port": port,
            "way": "plainly",
            "path": "/ HTTP/1.1\r\nX-Forwarded-For: 192.0.2.1\r\nX-Rest: ",
        }
        found = await here.call("call", json.dumps(arguments).encode(), timeout=HANG_LIMIT)
        assert found["content"][0]["text"].split(" ")[1] == "403"


async def test_a_process_that_cannot_be_looked_into_may_be_the_caller(
    bench: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A tunnel of SSH is such a process: it must not be taken for a server that hides."""
    here = bench(caller(tmp_path))
    real = sandbox_callers._has_socket
    own = os.getpid()
    async with serving(guarded) as (_, port):
        assert await asked(here, port) == "403"
        # held by this very process
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        monkeypatch.setattr(
            sandbox_callers,
            "_has_socket",
            lambda pid, held: None if pid == own else real(pid, held),
        )
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b" 200 " in await reader.read()
        writer.close()


async def test_pages_and_rest_are_closed_to_a_sandbox_and_probes_are_open(
    bench: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shell = asgi.Shell()
    monkeypatch.setattr(asgi, "django_app", answers)
    here = bench(caller(tmp_path))
    async with serving(shell) as (_, port):
        assert await asked(here, port, path="/healthz") != "403"
        for path in ("/admin/login/", "/api/v1/servers", "/join/", "/static/x.css"):
            assert await asked(here, port, path=path) == "403"
