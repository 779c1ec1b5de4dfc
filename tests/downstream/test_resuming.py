"""Answers that a legacy HTTP server gives in pieces: priming events, streams that end early,
polling (SEP-1699)."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from mcpregistry.domain.errors import ConnectionFailed, DownstreamError, ResourceLimit, TimedOut
from mcpregistry.downstream.transports import http
from tests.downstream.conftest import SENDING, Bench
from tests.externals import node_program, npm_module
from tests.fakes.http import Echo, Request, event, fake_http, head
from tests.fakes.sdk import free_port, resumable_server
from tests.fakes.targets import http_target
from tests.waiting import until

Make = Callable[..., Bench]
PRIMING = b"id: 0\r\nretry: 20\r\ndata: \r\n\r\n"
STREAM = {"content_type": "text/event-stream"}


@dataclass
class Resumable(Echo):
    """Primes the answer of a call, ends it at once, and gives the rest piece by piece to whoever
    asks by GET.

    ``pieces`` are the bodies of the GETs in order (the last one again for further ones);
    ``{answer}`` is the answer.
    """

    era: str = "legacy"
    priming: bytes = PRIMING
    pieces: list[bytes] = field(default_factory=lambda: [b"{answer}"])
    status: int = 200
    asked: list[str] = field(default_factory=list)
    answer_bytes: bytes = b""

    async def respond(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        if request.method == "GET" and "last-event-id" in request.headers:
            self.asked.append(request.headers["last-event-id"])
            assert request.headers["mcp-session-id"] == self.session
            piece = self.pieces[min(len(self.asked), len(self.pieces)) - 1]
            writer.write(
                head(self.status, **STREAM) + piece.replace(b"{answer}", self.answer_bytes)
            )
            return False
        return await super().respond(request, writer)

    async def answer(
        self, request: Request, message: dict[str, Any], writer: asyncio.StreamWriter
    ) -> bool:
        if message["method"] != "tools/call":
            return await super().answer(request, message, writer)
        reply = {"jsonrpc": "2.0", "id": message["id"], "result": self.result(request, message)}
        self.answer_bytes = event(reply)
        writer.write(head(200, **STREAM) + self.priming)
        return False


def cancelled(server: Resumable) -> list[dict[str, Any]]:
    return [
        found
        for request in server.requests
        if "cancelled" in (found := request.message).get("method", "")
    ]


async def test_an_answer_that_ends_early_is_read_on_from_its_last_event(bench: Make):
    more = b"id: 1\r\ndata:\r\n\r\n"
    async with fake_http(Resumable(pieces=[more, b"", b"{answer}"])) as server:
        here = bench(http_target(server.url))
        assert (await here.call("echo"))["content"]
        assert server.asked == ["0", "1", "1"]
        assert len(server.calls()) == 1, "never sent twice"
        await here.pool.close()


async def test_the_pause_that_a_server_asks_for_is_kept(bench: Make):
    async with fake_http(Resumable(priming=b"id: 0\r\nretry: 600\r\ndata:\r\n\r\n")) as server:
        here = bench(http_target(server.url))
        await here.pool.connect(1)
        started = time.monotonic()
        assert await here.call("echo")
        assert time.monotonic() - started >= 0.6
        await here.pool.close()


@pytest.mark.fault
async def test_a_server_that_keeps_nothing_is_not_asked_for_ever(
    bench: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(http, "RESUME_ATTEMPTS", 4)
    async with fake_http(Resumable(pieces=[b""])) as server:
        here = bench(http_target(server.url))
        with pytest.raises(ConnectionFailed, match="before the result") as caught:
            await here.call("echo")
        assert caught.value.sent
        assert len(server.asked) == 4
        await here.pool.close()


@pytest.mark.fault
@pytest.mark.parametrize("status", [401, 404, 405, 500])
async def test_a_refused_resumption_says_that_the_call_was_sent(
    bench: Make, status: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(http, "RESUME_ATTEMPTS", 2)
    async with fake_http(Resumable(status=status)) as server:
        here = bench(http_target(server.url))
        with pytest.raises(DownstreamError) as caught:
            await here.call("echo")
        assert caught.value.sent
        assert len(server.calls()) == 1
        assert len(server.asked) == (2 if status == 500 else 1), (
            "a plain no is no reason to ask again"
        )
        await here.pool.close()


@pytest.mark.exhaustive
@pytest.mark.fault
async def test_polling_ends_with_the_calls_own_time_and_tells_the_server(bench: Make):
    endless = [b"id: %d\r\ndata:\r\n\r\n" % number for number in range(1000)]
    async with fake_http(Resumable(pieces=endless)) as server:
        here = bench(http_target(server.url))
        await here.pool.connect(1)
        with pytest.raises(TimedOut) as caught:
            await here.call("echo", timeout=SENDING)
        assert caught.value.sent
        await until(lambda: cancelled(server))
        await here.pool.close()


async def test_a_caller_that_leaves_while_polling_tells_the_server(bench: Make):
    async with fake_http(Resumable(priming=b"id: 0\r\nretry: 60000\r\ndata:\r\n\r\n")) as server:
        here = bench(http_target(server.url))
        call = asyncio.create_task(here.call("echo"))
        await until(lambda: server.answer_bytes)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: cancelled(server))
        await here.pool.close()


@pytest.mark.attack
async def test_a_resumed_answer_has_the_same_bounds(bench: Make):
    async with fake_http(Resumable(pieces=[b"data: " + b"x" * 5_000_000])) as server:
        here = bench(http_target(server.url))
        with pytest.raises(ResourceLimit) as caught:
            await here.call("echo")
        assert caught.value.sent
        await here.pool.close()


# -- what a server says by itself ------------------------------------------------------------------


@dataclass
class Standing(Echo):
    """Tells on its standing stream one piece per GET, and ends it; the last is kept open. ``None``
    breaks it unseen.

    ``status`` is that of the stream after these pieces.
    """

    era: str = "legacy"
    told: list[bytes | None] = field(default_factory=list)
    heard: list[str | None] = field(default_factory=list)
    status: int = 200

    def result(self, request: Request, message: dict[str, Any]) -> dict[str, Any] | None:
        found = super().result(request, message)
        return (
            found | {"capabilities": {"tools": {"listChanged": True}}}
            if message["method"] == "initialize"
            else found
        )

    async def respond(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        if request.method != "GET":
            return await super().respond(request, writer)
        self.heard.append(request.headers.get("last-event-id"))
        piece = (
            self.told[len(self.heard) - 1]
            if len(self.heard) <= len(self.told)
            else b": nothing\n\n"
        )
        if piece is None:
            return False
        known = len(self.heard) <= len(self.told)
        writer.write(head(200 if known else self.status, **STREAM) + piece)
        await writer.drain()
        if len(self.heard) > len(self.told):
            await request.reader.read()
        return False


CHANGED = event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})


def grown(server: Standing) -> None:
    server.tools = [*server.tools, {"name": "grown", "inputSchema": {"type": "object"}}]


async def test_the_standing_stream_is_read_on_from_its_last_event(bench: Make):
    quick = b"retry: 20\n"
    told = [
        b"id: 7\n" + quick + b"data:\n\n",
        None,
        None,
        b"id: 8\n" + CHANGED + b"id: 9\ndata: half",
    ]
    async with fake_http(Standing(told=told)) as server:
        here = bench(http_target(server.url))
        await here.pool.connect(1)
        grown(server)
        await until(lambda: len(server.heard) >= 5)
        assert server.heard[:5] == [None, "7", "7", "7", "8"], "half an event is none"
        found = await here.event("tools_changed")
        assert found.discovery is not None
        assert "grown" in {tool["name"] for tool in found.discovery.tools}
        await here.pool.close()


async def test_what_may_have_been_missed_on_a_stream_without_ids_is_looked_up(bench: Make):
    async with fake_http(Standing(told=[b"retry: 20\n\n"])) as server:
        here = bench(http_target(server.url))
        await here.pool.connect(1)
        grown(server)
        await here.event("tools_changed")
        assert server.heard[:2] == [None, None]
        await here.pool.close()


@pytest.mark.fault
@pytest.mark.parametrize(("status", "code"), [(404, "CONNECTION_FAILED"), (401, "AUTH_FAILED")])
async def test_a_session_that_the_server_has_forgotten_is_noticed_at_once(
    bench: Make, status: int, code: str
):
    async with fake_http(Standing(told=[b"retry: 20\n\n"], status=status)) as server:
        here = bench(http_target(server.url, connect="manual"))
        with contextlib.suppress(DownstreamError):  # by then it may have been noticed
            await here.pool.connect(1)
        assert (await here.event("state", "error")).code == code
        await here.pool.close()


@pytest.mark.parametrize("status", [405, 404, 401])
async def test_a_server_without_a_standing_stream_is_asked_once_and_serves(
    bench: Make, status: int
):
    """Many servers have no route for GET, or one that wants another credential: that says nothing
    of the session."""
    async with fake_http(Standing(status=status)) as server:
        here = bench(http_target(server.url))
        for _ in range(3):
            assert await here.call("echo")
        await here.pool.close()
        assert server.heard == [None]


# -- real servers ----------------------------------------------------------------------------------


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("tool", ["add", "leave_and_answer"])
async def test_the_sdks_server_with_an_event_store_serves(bench: Make, tool: str):
    with resumable_server() as url:
        here = bench(http_target(url, protocol="legacy"))
        assert (await here.call(tool, b'{"a":2,"b":3}'))["content"][0]["text"] == "5"
        found = await here.pool.discover(1)
        assert found.era == "legacy"
        await here.pool.close()


async def test_changes_are_heard_though_the_sdks_server_ends_the_standing_stream(bench: Make):
    with resumable_server() as url:
        here = bench(http_target(url, protocol="legacy"))
        await here.pool.connect(1)
        assert await here.call("grow_unheard")
        found = await here.event("tools_changed")
        assert found.discovery is not None
        assert "grown" in {tool["name"] for tool in found.discovery.tools}
        await here.pool.close()


@contextmanager
def everything_over_http() -> Iterator[str]:
    """The npm server-everything (TypeScript SDK, with an event store) on a port of its own; yields
    its URL."""
    argv = [
        node_program(),
        npm_module("@modelcontextprotocol/server-everything/dist/index.js"),
        "streamableHttp",
    ]
    for _ in range(10):
        port = free_port()
        process = psutil.Popen(
            argv, env={"PORT": str(port)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            if any(b"listening" in line for line in process.stderr):
                yield f"http://127.0.0.1:{port}/mcp"
                return
        finally:
            process.kill()
            process.communicate()
    raise AssertionError("it listens on no port, though others can hardly have taken all of these")


@pytest.mark.exhaustive
@pytest.mark.node
async def test_server_everything_over_http_serves(bench: Make):
    with everything_over_http() as url:
        here = bench(http_target(url))
        found = await here.pool.discover(1)
        assert "echo" in {tool["name"] for tool in found.tools}
        answer = await here.call("echo", b'{"message":"hello"}')
        assert answer["content"][0]["text"] == "Echo: hello"
        await here.pool.close()
