"""The lane for modern calls that cannot say anything before their result: one JSON answer, no stream.

The SDK's JSON mode does without a task group and a stream per call, a third of its cost. It cannot
carry progress or keep a long silence alive, so a call comes here only if the host asked for no
progress and the server must answer within a minute. The SDK does not watch for a host that leaves
in this mode, so we do; leaving is cancelling (MCP 2026-07-28, streamable HTTP).
"""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.gateway.body import read_small, replayed
from mcpregistry.gateway.identity import Caller
from mcpregistry.gateway.server import Gateway

LONGEST = 60.0  # seconds of silence that every host and proxy was seen to bear
_WATCH_AFTER = 0.1  # seconds; most calls are over by then and cost no watcher


class QuietLane:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.manager = StreamableHTTPSessionManager(gateway.server, json_response=True)

    def takes(self, caller: Caller, scope: dict[str, Any]) -> bool:
        """A cheap look at the headers, which the SDK later compares with the body."""
        headers = dict(scope["headers"])
        if scope["method"] != "POST" or headers.get(b"mcp-method") != b"tools/call":
            return False
        if headers.get(b"mcp-protocol-version", b"").decode("latin-1") not in MODERN_PROTOCOL_VERSIONS:
            return False  # older sessions live in the other manager
        try:
            entry = self._gateway.catalogue(caller).find(headers.get(b"mcp-name", b"").decode("latin-1"))
        except SlipsnisseError:
            return False
        return entry is not None and 0 < entry.offer.server.request_timeout <= LONGEST

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        """Answer and return None, or return a ``receive`` for whoever serves it instead."""
        body, whole = await read_small(receive)
        again = replayed(body, whole, receive)
        if not whole or b"progressToken" in body or b"logLevel" in body:
            return again
        watch = _Watch(receive)
        try:
            await self.manager.handle_request(scope, again, send)
        except asyncio.CancelledError:
            if not watch.left:
                raise
        finally:
            watch.stop()
        return None


class _Watch:
    """Cancels the current task when the host leaves; begins to look after a moment."""

    def __init__(self, receive: Any) -> None:
        self.left = False
        self._receive, self._serving = receive, asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER, self._begin)

    def stop(self) -> None:
        self._timer.cancel()
        if self._watcher:
            self._watcher.cancel()

    def _begin(self) -> None:
        self._watcher = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left = True
        if self._serving:
            self._serving.cancel()
