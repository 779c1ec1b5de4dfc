"""SSE and WebSocket, and the loop in a thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import psutil
import pytest
import uvloop
from websockets.asyncio.server import Server, ServerConnection, serve

from mcpregistry.domain.errors import (
    AuthFailed,
    ConnectionFailed,
    OutboundRefused,
    ResourceLimit,
    TimedOut,
)
from mcpregistry.domain.text.redaction import Redactor
from mcpregistry.downstream.pool.log_lines import LogLines
from mcpregistry.downstream.pool.pool import Pool
from mcpregistry.downstream.pool.server_probe import ProbeProgress, probe_once, send_only
from mcpregistry.downstream.runtime import LoopThread
from mcpregistry.downstream.server_call import ServerCall
from mcpregistry.downstream.transports import wire
from tests.downstream.conftest import Bench
from tests.fakes.http import Always, Behaviour, Echo, Request, event, fake_http, head
from tests.fakes.targets import http_target, stdio_target
from tests.processes import below
from tests.waiting import HANG_LIMIT, until

Make = Callable[..., Bench]


class Sse(Behaviour):
    """Answers on the event stream what is posted to the endpoint it names."""

    def __init__(self, endpoint: str = "/messages") -> None:
        super().__init__()
        self.endpoint = endpoint
        self.echo = Echo(era="legacy")
        self.stream: asyncio.StreamWriter | None = None
        self.status = 202

    async def respond(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        if request.method == "GET":
            self.stream = writer
            first = f"event: endpoint\r\ndata: {self.endpoint}\r\n\r\n".encode()
            writer.write(head(200, content_type="text/event-stream") + first)
            return True
        writer.write(head(self.status, content_length="0"))
        message = request.message
        if self.stream is not None and "id" in message and self.status == 202:
            result = self.echo.result(request, message)
            answer = (
                {"result": result}
                if result is not None
                else {"error": {"code": -32601, "message": "no"}}
            )
            self.stream.write(event({"jsonrpc": "2.0", "id": message["id"], **answer}))
        return True


def sse_target(url: str, **changes):
    return http_target(url, transport="sse", **changes)


async def test_sse_carries_calls(bench: Make):
    async with fake_http(Sse()) as server:
        here = bench(sse_target(server.url))
        results = await asyncio.gather(*(here.call("echo", b'{"n":%d}' % n) for n in range(20)))
        assert [json.loads(r["content"][0]["text"])["arguments"]["n"] for r in results] == list(
            range(20)
        )
        await here.pool.close()


@pytest.mark.attack
async def test_an_sse_server_cannot_send_our_messages_elsewhere(bench: Make):
    async with fake_http(Echo()) as prey, fake_http(Sse(endpoint=prey.url)) as server:
        with pytest.raises(OutboundRefused):
            await bench(sse_target(server.url)).call("echo")
        assert prey.connections == 0


@pytest.mark.fault
async def test_the_end_of_an_event_stream_is_noticed_at_once(bench: Make):
    async with fake_http(Sse()) as server:
        here = bench(sse_target(server.url, connect="manual"))
        await here.pool.connect(1)
        assert server.stream is not None
        server.stream.close()
        assert "event stream" in (await here.event("state", "error")).detail


@pytest.mark.attack
async def test_an_sse_event_beyond_the_limit_ends_the_connection(bench: Make):
    async with fake_http(Sse()) as server:
        here = bench(sse_target(server.url, connect="manual"))
        await here.pool.connect(1)
        assert server.stream is not None
        server.stream.write(b"data: " + b"x" * 5_000_000)
        assert (await here.event("state", "error")).code == "RESOURCE_LIMIT"


async def test_an_sse_message_that_is_refused_ends_its_call(bench: Make):
    async with fake_http(Sse()) as server:
        here = bench(sse_target(server.url))
        await here.call("echo")
        server.status = 401
        with pytest.raises(AuthFailed):
            await here.call("echo")
        await here.pool.close()


async def test_an_sse_server_that_is_none_says_so(bench: Make):
    async with fake_http(
        Always(raw=head(200, content_type="text/html", content_length="0"))
    ) as server:
        with pytest.raises(ConnectionFailed, match="event stream"):
            await bench(sse_target(server.url)).call("echo")


@pytest.mark.fault
async def test_an_sse_call_that_is_left_before_it_was_acknowledged_counts_as_sent(bench: Make):
    class Slow(Sse):
        async def respond(self, request: Request, writer: asyncio.StreamWriter) -> bool:
            if request.method == "POST" and request.message.get("method") == "tools/call":
                await asyncio.sleep(3600)
            return await super().respond(request, writer)

    async with fake_http(Slow()) as server:
        here = bench(sse_target(server.url))
        sent: list[bool] = []
        call = asyncio.create_task(here.call("echo", on_sent=lambda: sent.append(True)))
        await until(lambda: server.calls())
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert sent == [True]
        await here.pool.close()


# -- WebSocket -------------------------------------------------------------------------------------


async def answer(socket: ServerConnection) -> None:
    echo = Echo(era="legacy")
    async for frame in socket:
        message = json.loads(frame)
        if "id" in message and "method" in message:
            result = echo.result(Request("", "", {}, b"", asyncio.StreamReader()), message)
            found = (
                {"result": result}
                if result is not None
                else {"error": {"code": -32601, "message": "no"}}
            )
            await socket.send(json.dumps({"jsonrpc": "2.0", "id": message["id"], **found}))


@asynccontextmanager
async def websocket_server(
    handler: Callable[[ServerConnection], Awaitable[None]] = answer, **options
) -> AsyncIterator[tuple[str, Server]]:
    async with serve(handler, "127.0.0.1", 0, **options) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"ws://127.0.0.1:{port}/mcp", server


def websocket_target(url: str, **changes):
    return http_target(url, transport="websocket", **changes)


async def test_a_websocket_carries_calls_and_headers(bench: Make):
    async with websocket_server() as (url, server):
        here = bench(websocket_target(url, headers={"Authorization": "Bearer t"}))
        result = await here.call("echo", b'{"n":1}')
        assert json.loads(result["content"][0]["text"])["arguments"] == {"n": 1}
        assert {each.request.headers["authorization"] for each in server.connections} == {
            "Bearer t"
        }
        await here.pool.close()


@pytest.mark.attack
async def test_a_websocket_on_an_inner_address_is_refused(bench: Make):
    async with websocket_server() as (url, _):
        with pytest.raises(OutboundRefused):
            await bench(websocket_target(url, allowed_networks=())).call("echo")


@pytest.mark.attack
async def test_a_websocket_frame_beyond_the_limit_ends_the_connection(bench: Make):
    async def flood(socket: ServerConnection) -> None:
        async for _ in socket:
            await socket.send("x" * 5_000_000)

    async with websocket_server(flood) as (url, _):
        before = psutil.Process().memory_info().rss
        with pytest.raises(ResourceLimit):
            await bench(websocket_target(url)).call("echo")
        assert psutil.Process().memory_info().rss - before < 64 * 1024 * 1024


@pytest.mark.fault
async def test_a_websocket_call_that_is_left_while_it_is_written_counts_as_sent(
    bench: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wire, "TELL_SECONDS", 0.1)
    began = asyncio.Event()
    over = asyncio.Event()

    async def stalls(socket: ServerConnection) -> None:
        echo = Echo(era="legacy")
        for _ in range(3):  # initialize, initialized, tools/list
            message = json.loads(await socket.recv())
            if "id" in message:
                result = echo.result(Request("", "", {}, b"", asyncio.StreamReader()), message)
                await socket.send(
                    json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
                )
        socket.transport.pause_reading()
        began.set()
        await over.wait()
        socket.transport.abort()

    async with websocket_server(stalls) as (url, _):
        here = bench(websocket_target(url, protocol="legacy", connect="manual"))
        await here.pool.connect(1)
        await began.wait()
        sent = asyncio.Event()
        large = json.dumps({"text": "x" * 20_000_000}).encode()
        call = asyncio.create_task(here.call("echo", large, on_sent=sent.set))
        async with asyncio.timeout(HANG_LIMIT):
            await sent.wait()
        assert not call.done()
        call.cancel()
        # whoever cancels does not wait until the server reads
        async with asyncio.timeout(HANG_LIMIT):
            with pytest.raises(asyncio.CancelledError):
                await call
        over.set()
        await here.event("state", "error")
        await here.pool.close()


@pytest.mark.fault
async def test_a_closed_websocket_is_noticed_at_once(bench: Make):
    async with websocket_server() as (url, server):
        here = bench(websocket_target(url, connect="manual"))
        await here.pool.connect(1)
        for each in list(server.connections):
            await each.close()
        await here.event("state", "error")


async def test_a_refused_websocket_says_why(bench: Make):
    async with websocket_server(
        process_request=lambda socket, request: socket.respond(401, "no")
    ) as (url, _):
        with pytest.raises(AuthFailed):
            await bench(websocket_target(url)).call("echo")


@pytest.mark.fault
async def test_a_silent_websocket_server_ends_with_the_deadline(bench: Make):
    async def mute(socket: ServerConnection) -> None:
        await socket.wait_closed()

    async with websocket_server(mute) as (url, _):
        with pytest.raises(TimedOut):
            await bench(websocket_target(url, limits={"connect_timeout": 1.0})).call("echo")


# -- loops -----------------------------------------------------------------------------------------


async def echo_target(server_id: int):
    return stdio_target("echo", server_id=server_id)


def test_a_loop_in_a_thread_serves_synchronous_code():
    loop = LoopThread()
    pool = loop.run(make_pool(), HANG_LIMIT)
    assert loop.run(pool.call(ServerCall(1, "echo", b"{}")), HANG_LIMIT)["content"]
    with pytest.raises(TimeoutError):
        loop.run(asyncio.sleep(3600), 0.05)
    loop.run(pool.close(), HANG_LIMIT)
    loop.stop()
    assert loop.loop.is_closed()


def test_stopping_the_loop_ends_the_servers_of_a_pool_that_was_never_closed():
    before = below()
    threads = set(threading.enumerate())
    loop = LoopThread()
    pool = loop.run(make_pool(), HANG_LIMIT)
    loop.run(pool.call(ServerCall(1, "echo", b"{}")), HANG_LIMIT)
    loop.stop()
    assert below() <= before
    left = set(threading.enumerate()) - threads  # of those before, some live longer than this test
    assert not [thread for thread in left if thread.name == "mcp-loop"]


async def make_pool() -> Pool:
    return Pool(echo_target, lambda event: None)


def test_a_pool_works_on_uvloop():
    before = below()
    errors = list[object]()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        pool = await make_pool()
        assert (await pool.call(ServerCall(1, "echo", b"{}")))["content"]
        async with fake_http(Echo()) as server:
            report = await probe_once(
                http_target(server.url), ("echo", b"{}"), ProbeProgress(), send_only
            )
            assert report.ok, report.error
        report = await probe_once(
            stdio_target("hostile"), ("huge_line", b"{}"), ProbeProgress(), send_only
        )
        assert report.error is not None
        assert report.error.code == "RESOURCE_LIMIT"
        await pool.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert errors == []
    assert below() <= before


@pytest.mark.parametrize("name", ["[]", "{}", "null"])
def test_a_notification_whose_method_or_level_is_no_text_harms_no_call(name: str):
    pipe = wire.Wire()
    pipe.logs = LogLines(Redactor([]))
    pipe.receive(b'{"jsonrpc":"2.0","method":%b}' % name.encode())
    assert pipe.garbage == 1
    said = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":%b,"data":"x"}}'
    pipe.receive(said % name.encode())
    assert pipe.error is None
