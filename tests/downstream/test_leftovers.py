"""Event streams that end after their answer: the next call takes the same connection, and one
without end is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from mcpregistry.domain.errors import ToolRefused
from mcpregistry.downstream.http_client import client, draining_streams
from tests.downstream.conftest import Bench
from tests.fakes.http import Echo, Request, event, fake_http, head
from tests.fakes.sdk import make_server, serving
from tests.fakes.targets import http_target
from tests.waiting import HANG_LIMIT, until

Make = Callable[..., Bench]
CALLS = 50


@dataclass
class Unhurried(Echo):
    """Answers a call in a stream, and goes on in it by ``more`` until ``ending`` is set or its
    caller has left."""

    era: str = "legacy"
    more: bytes = b""
    refuse: bool = False
    ended: int = 0
    open: int = 0
    most: int = 0
    said: int = 0

    def __post_init__(self) -> None:
        self.ending = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await super().serve(reader, writer)
        finally:
            self.open -= 1

    async def answer(
        self, request: Request, message: dict[str, Any], writer: asyncio.StreamWriter
    ) -> bool:
        if message["method"] != "tools/call":
            return await super().answer(request, message, writer)
        reply = {"jsonrpc": "2.0", "id": message["id"]}
        said = (
            {"error": {"code": -32602, "message": "no"}}
            if self.refuse
            else {"result": {"content": []}}
        )
        writer.write(head(200, content_type="text/event-stream", transfer_encoding="chunked"))
        await self._piece(writer, event(reply | said))
        while not self.ending.is_set() and not request.reader.at_eof():
            await self._piece(writer, self.more)
            await asyncio.sleep(0.001)
        if self.ending.is_set():
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            self.ended += 1
        return self.ending.is_set()

    async def _piece(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if data:
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
            self.said += len(data)


@pytest.fixture
def none_left(monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Whether the end of every stream so far has reached us."""
    made: list[draining_streams.DrainingStreams] = []

    def make() -> draining_streams.DrainingStreams:
        made.append(draining_streams.DrainingStreams())
        return made[-1]

    monkeypatch.setattr(client, "DrainingStreams", make)
    # a stream that ends late is not closed on a slow machine
    monkeypatch.setattr(draining_streams, "SECONDS", HANG_LIMIT)
    monkeypatch.setattr(client, "KEEPALIVE_SECONDS", HANG_LIMIT)
    return lambda: not any(each._waiting for each in made)


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("refuse", [False, True])
async def test_a_stream_that_ends_after_its_answer_costs_no_connection(
    bench: Make, none_left: Callable[[], bool], refuse: bool
):
    async with fake_http(Unhurried(refuse=refuse)) as server:
        here = bench(http_target(server.url))
        await here.pool.connect(1)
        before = server.connections
        for number in range(1, CALLS + 1):
            if refuse:
                with pytest.raises(ToolRefused):
                    await here.call("echo")
            else:
                assert await here.call("echo") == {"content": []}
            server.ending.set()  # never before the caller has its answer
            await until(lambda number=number: server.ended == number and none_left())
            server.ending.clear()
        assert server.connections - before <= 1
        await here.pool.close()


@contextmanager
def counted() -> Iterator[tuple[str, set[int], list[str]]]:
    """The SDK's server, whose streams end after their answer: its URL, ports of its callers,
    requests that have ended."""
    callers = set[int]()
    ended = list[str]()
    app = make_server().streamable_http_app()

    async def counting(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            callers.add(scope["client"][1])
        await app(scope, receive, send)
        ended.append(scope.get("method", ""))

    with serving(counting) as address:
        yield f"{address}/mcp", callers, ended


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("protocol", ["legacy", "modern"])
async def test_calls_of_the_sdks_server_share_a_connection(
    bench: Make, none_left: Callable[[], bool], protocol: str
):
    with counted() as (url, callers, ended):
        here = bench(http_target(url, protocol=protocol))
        await here.pool.connect(1)
        before = len(callers)
        for _ in range(CALLS):
            had = ended.count("POST")
            assert await here.call("add", b'{"a":2,"b":3}')
            await until(lambda had=had: ended.count("POST") > had and none_left())
        assert len(callers) - before <= 3
        await here.pool.close()


@pytest.mark.attack
@pytest.mark.parametrize("more", [b"", b": x\n" * 5000], ids=["silent", "talking"])
async def test_a_stream_without_end_is_closed_soon_and_few_are_kept(
    bench: Make, monkeypatch: pytest.MonkeyPatch, more: bytes
):
    monkeypatch.setattr(draining_streams, "SECONDS", 0.3)
    monkeypatch.setattr(draining_streams, "MOST", 4)
    async with fake_http(Unhurried(more=more)) as server:
        here = bench(http_target(server.url))
        await here.pool.connect(1)
        for _ in range(20):
            assert await here.call("echo") == {"content": []}
        await until(lambda: server.open <= 2)  # what the handshake uses
        assert server.most <= 4 + 2 + 3, (
            "kept, of the handshake, and those whose closing is not seen yet"
        )
        await here.pool.close()


@pytest.mark.attack
async def test_of_what_comes_after_an_answer_little_is_taken(
    bench: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(draining_streams, "SECONDS", 0.5)
    async with fake_http(Unhurried(more=b": x\n" * 250_000)) as server:
        here = bench(http_target(server.url))
        await here.pool.connect(1)
        before = server.open
        assert await here.call("echo") == {"content": []}
        await until(lambda: server.open <= before)
        assert server.said < 32 * 1024 * 1024, (
            "what the system's buffers take; read, it would be hundreds of megabytes"
        )
        await here.pool.close()


async def test_nothing_is_kept_of_a_server_that_is_disconnected(bench: Make):
    async with fake_http(Unhurried()) as server:
        here = bench(http_target(server.url))
        assert await here.call("echo") == {"content": []}
        await here.pool.close()
        await until(lambda: server.open == 0)
