"""Connections that send nothing, or of which there are too many, hold no web process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from websockets.asyncio.client import connect

from controlplane import connection_limits, web
from tests.waiting import HANG_LIMIT, until

pytestmark = pytest.mark.attack
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def answers(scope: Any, receive: Any, send: Any) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serving(app: Any = answers, **more: Any) -> AsyncIterator[tuple[str, int]]:
    """A server with our bounds, on a loopback socket."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, http=connection_limits.BoundedProtocol, lifespan="off", log_config=None, **more
    )
    server = uvicorn.Server(config)
    # they are the tests'
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    running = asyncio.create_task(server._serve([listener]))
    try:
        yield listener.getsockname()
    finally:
        server.should_exit = True
        await running


async def read(reader: asyncio.StreamReader) -> bytes:
    """What comes next; nothing when the connection is closed, in either way."""
    async with asyncio.timeout(HANG_LIMIT):
        with suppress(ConnectionError):
            return await reader.read(1000)
    return b""


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "HEAD_SECONDS", 0.2)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nHo", b"\r\n"], ids=["nothing", "half a head", "empty lines"]
)
async def test_a_head_that_does_not_come_ends_the_connection(sent: bytes):
    async with serving() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(sent)
        assert (await read(reader)).startswith(b"HTTP/1.1 408 ")
        assert await read(reader) == b""
        writer.close()


async def test_so_does_a_second_one_on_a_kept_connection_and_a_whole_one_is_answered(
    request: pytest.FixtureRequest,
):
    async with serving(timeout_keep_alive=round(HANG_LIMIT)) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(REQUEST)
        assert (await read(reader)).startswith(b"HTTP/1.1 200 ")
        request.getfixturevalue("hurried")
        writer.write(REQUEST[:20])
        assert (await read(reader)).startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_an_address_has_so_many_connections_and_no_more(
    monkeypatch: pytest.MonkeyPatch, settings: Any
):
    settings.CONNECTIONS_PER_ADDRESS = 2
    monkeypatch.setattr(connection_limits, "_stands_for_many", lambda peer, proxies: False)
    async with serving() as address:
        kept = [await asyncio.open_connection(*address) for _ in range(2)]
        for reader, writer in kept:
            writer.write(REQUEST)
            assert (await read(reader)).startswith(b"HTTP/1.1 200 ")
        reader, writer = await asyncio.open_connection(*address)
        writer.write(REQUEST)
        assert await read(reader) == b""
        kept[0][1].close()
        await until(lambda: connection_limits._open["127.0.0.1"] == 1)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(REQUEST)
        assert (await read(reader)).startswith(b"HTTP/1.1 200 ")
        for _, each in [*kept, (reader, writer)]:
            each.close()
    assert not connection_limits._open


async def test_a_websocket_counts_for_its_address_until_it_is_closed(
    monkeypatch: pytest.MonkeyPatch, settings: Any
):
    settings.CONNECTIONS_PER_ADDRESS = 1
    monkeypatch.setattr(connection_limits, "_stands_for_many", lambda peer, proxies: False)
    async with serving(app=converses, ws=connection_limits.PatientWebSocket) as (host, port):
        async with connect(f"ws://{host}:{port}", proxy=None, open_timeout=HANG_LIMIT) as socket:
            await socket.send("x")
            assert await socket.recv() == "x"
            reader, writer = await asyncio.open_connection(host, port)
            assert await read(reader) == b"", "the one place is taken"
            writer.close()
        await until(lambda: not connection_limits._open)
        async with connect(f"ws://{host}:{port}", proxy=None, open_timeout=HANG_LIMIT):
            pass
        await until(lambda: not connection_limits._open)


async def converses(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (event := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": event["text"]})


@pytest.mark.parametrize(
    ("peer", "proxies", "many"),
    [
        ("127.0.0.1", None, True),
        ("::1", "", True),
        ("10.1.2.3", "127.0.0.1", False),
        ("10.1.2.3", "10.0.0.0/8, 1.1.1.1", True),
        ("10.1.2.3", ["10.1.2.3"], True),
        ("10.1.2.3", "*", True),
        ("10.1.2.3", "proxy.example.org", False),
    ],
)
def test_this_machine_and_trusted_proxies_stand_for_many(peer: str, proxies: Any, many: bool):
    assert connection_limits._stands_for_many(peer, proxies) is many


def test_the_sites_web_process_has_these_bounds(monkeypatch: pytest.MonkeyPatch):
    made: list[uvicorn.Config] = []
    monkeypatch.setattr("sys.argv", ["web", "--fd", "0"])
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: made.append(self.config))
    monkeypatch.setattr("controlplane.web.socket.socket", lambda fileno: None)
    web.main()
    assert made[0].http is connection_limits.BoundedProtocol
    assert made[0].ws is connection_limits.PatientWebSocket
    assert (made[0].ws_max_size, made[0].ws_per_message_deflate) == (4 * 1024 * 1024, False)
    assert made[0].timeout_keep_alive > 60, "clients and proxies close what they do not use first"
