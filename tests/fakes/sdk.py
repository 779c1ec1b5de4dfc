"""A server made with the official SDK, over streamable HTTP (both eras) or HTTP+SSE, in a
thread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any, Literal

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp_types import JSONRPCMessage

from tests.waiting import HANG_LIMIT, until


def make_server() -> MCPServer:
    server = MCPServer("sdk", instructions="made with the SDK")

    @server.tool()
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    async def count(steps: int, ctx: Context) -> str:
        """Count with progress."""
        for step in range(steps):
            await ctx.report_progress(step + 1, steps, f"step {step + 1}")
        return f"{steps} steps"

    @server.tool()
    async def grow(ctx: Context) -> str:
        """Add a tool and tell the clients."""
        server.add_tool(lambda: "new", name="grown", description="came later")
        await ctx.notify_tools_changed()
        # legacy clients hear it on their standing stream
        await ctx.session.send_tool_list_changed()
        return "grown"

    return server


@contextlib.contextmanager
def sdk_server(kind: Literal["http", "sse"]) -> Iterator[str]:
    """Yields the URL to connect to."""
    server = make_server()
    app = server.streamable_http_app() if kind == "http" else server.sse_app()
    with serving(app) as address:
        yield f"{address}/{'mcp' if kind == 'http' else 'sse'}"


@contextlib.contextmanager
def listened_to(**options: Any) -> Iterator[tuple[str, list[str]]]:
    """The same over streamable HTTP: its URL, and one entry for each stream on which a client hears
    of changes."""
    app = make_server().streamable_http_app(**options)
    listeners = list[str]()

    async def heard(scope: Any, receive: Any, send: Any) -> None:
        async def passing_on(message: Any) -> None:
            await send(message)
            if opens_stream(scope, message):
                listeners.append(scope["method"])

        await app(scope, receive, passing_on)

    with serving(heard) as address:
        yield f"{address}/mcp", listeners


def opens_stream(scope: Any, message: Any) -> bool:
    """Whether this is the moment from which a client of either era hears of changes."""
    older = (
        scope.get("method") == "GET"
        and message["type"] == "http.response.start"
        and message["status"] == 200
    )
    return older or b"subscriptions/acknowledged" in message.get("body", b"")


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """An ASGI application on loopback, in a thread; yields ``http://host:port``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, ws="none")
        site = uvicorn.Server(config)
        thread = threading.Thread(target=site.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            site.should_exit = True
            thread.join(HANG_LIMIT)


def free_port() -> int:
    """A port of loopback for a program that has to be told one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Events(EventStore):
    """Everything that was said, in memory, so that a client can read on after any of it."""

    def __init__(self) -> None:
        self._said: list[tuple[str, JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        self._said.append((stream_id, message))
        return str(len(self._said))

    async def replay_events_after(
        self, last_event_id: str, send_callback: EventCallback
    ) -> str | None:
        stream, _ = self._said[int(last_event_id) - 1]
        for number, (of, message) in enumerate(self._said, 1):
            if of == stream and number > int(last_event_id) and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream

    def primed(self, stream_id: str) -> str:
        """The id under which this stream was opened."""
        return str(self._said.index((stream_id, None)) + 1)


@contextlib.contextmanager
def resumable_server() -> Iterator[str]:
    """A server with an event store, as 2025-11-25 recommends: it primes its streams and may end
    them early."""
    server = make_server()
    events = Events()
    sent = bytearray()

    @server.tool()
    async def leave_and_answer(a: int, b: int, ctx: Context) -> int:
        """Add two numbers, but let the caller come back for the sum."""
        opening = f"id: {events.primed(str(ctx.request_id))}\r\n".encode()
        # closed sooner, the stream would be lost: its caller knows no id of it
        await until(lambda: opening in sent)
        await ctx.close_sse_stream()
        await asyncio.sleep(0.3)
        return a + b

    @server.tool()
    async def grow_unheard(ctx: Context) -> str:
        """End the stream on which clients hear of changes, then add a tool."""
        await ctx.close_standalone_sse_stream()
        server.add_tool(lambda: "new", name="grown", description="came later")
        await ctx.session.send_tool_list_changed()
        return "grown"

    app = server.streamable_http_app(event_store=events, retry_interval=50)

    async def heard(scope: Any, receive: Any, send: Any) -> None:
        async def passing_on(message: Any) -> None:
            await send(message)
            sent.extend(message.get("body", b""))

        await app(scope, receive, passing_on)

    with serving(heard) as address:
        yield f"{address}/mcp"
