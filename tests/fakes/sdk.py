"""A server made with the official SDK, over streamable HTTP (both eras) or HTTP+SSE, in a thread."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any, Literal

import uvicorn
from mcp.server.mcpserver import Context, MCPServer


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
        await ctx.session.send_tool_list_changed()  # legacy clients hear it on their standing stream
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
            thread.join(10)
