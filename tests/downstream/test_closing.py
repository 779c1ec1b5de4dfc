"""Closing is bounded: a server that does not say goodbye holds up nobody, least of all other
servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from mcpregistry.downstream.pool import owner_tasks
from mcpregistry.downstream.pool.pool import Pool
from mcpregistry.downstream.server_call import ServerCall
from mcpregistry.downstream.transports import http
from tests.downstream.conftest import Bench
from tests.fakes.http import Echo, Request, fake_http
from tests.fakes.targets import http_target
from tests.waiting import HANG_LIMIT, until

Make = Callable[..., Bench]
pytestmark = pytest.mark.fault


@dataclass
class NoGoodbye(Echo):
    """Works, but never answers the DELETE that ends a session."""

    era: str = "legacy"
    # nobody sets it, but for one test
    goodbye: asyncio.Event = field(default_factory=asyncio.Event)

    async def respond(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        if request.method == "DELETE":
            await self.goodbye.wait()
        return await super().respond(request, writer)

    @property
    def left(self) -> bool:
        return any(request.method == "DELETE" for request in self.requests)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CLOSE_SECONDS", 0.5)


async def told(server: NoGoodbye) -> None:
    await until(lambda: server.left)


async def test_a_session_is_ended_at_the_server(bench: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http, "CLOSE_SECONDS", HANG_LIMIT)
    async with fake_http(Echo(era="legacy")) as server:
        here = bench(http_target(server.url))
        await here.call("echo")
        await here.pool.close()
        (goodbye,) = [request for request in server.requests if request.method == "DELETE"]
        assert goodbye.headers["mcp-session-id"] == server.session
        assert goodbye.headers["mcp-protocol-version"] == "2025-11-25"


async def test_a_server_without_a_goodbye_does_not_stop_the_shutdown(bench: Make):
    async with fake_http(NoGoodbye()) as server:
        here = bench(http_target(server.url))
        await here.pool.connect(1)
        async with asyncio.timeout(HANG_LIMIT):
            await here.pool.close()
        assert server.left


async def test_after_its_idle_time_such_a_server_serves_again(bench: Make):
    async with fake_http(NoGoodbye()) as server:
        here = bench(http_target(server.url, limits={"idle_timeout": 0.1}))
        await here.call("echo")
        await told(server)
        assert (await here.call("echo", timeout=HANG_LIMIT))["content"]
        await here.pool.close()


async def test_at_the_limit_such_a_server_stops_no_other_from_connecting(
    bench: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(http, "CLOSE_SECONDS", 3600.0)
    monkeypatch.setattr(owner_tasks, "CLOSE_SECONDS", 3600.0)
    async with fake_http(NoGoodbye()) as bad, fake_http(Echo()) as good:
        here = bench(
            http_target(bad.url, server_id=1),
            *(http_target(good.url, server_id=number) for number in (2, 3, 4)),
        )
        here.pool = Pool(here._target, here._note, most=2)
        await here.pool.call(ServerCall(1, "echo", b"{}"))
        await here.pool.call(ServerCall(2, "echo", b"{}"))
        held_up = asyncio.create_task(here.pool.call(ServerCall(3, "echo", b"{}")))
        await told(bad)
        assert (await here.pool.call(ServerCall(4, "echo", b"{}")))["content"]
        assert not held_up.done()
        bad.goodbye.set()
        assert (await held_up)["content"]
        await here.pool.close()


async def test_an_owner_that_will_not_end_is_cancelled(
    bench: Make, monkeypatch: pytest.MonkeyPatch
):
    """Whatever a transport does in closing: the pool has its own patience, and cancels."""
    monkeypatch.setattr(http, "CLOSE_SECONDS", 3600.0)
    monkeypatch.setattr(owner_tasks, "CLOSE_SECONDS", 0.3)
    async with fake_http(NoGoodbye()) as server:
        here = bench(http_target(server.url))
        await here.pool.connect(1)
        started = time.monotonic()
        async with asyncio.timeout(HANG_LIMIT):
            await here.pool.disconnect(1)
        assert server.left
        assert time.monotonic() - started >= 0.3
        assert (await here.event("state", "disconnected")).state == "disconnected"
        assert (await here.call("echo"))["content"]
        await here.pool.close()
