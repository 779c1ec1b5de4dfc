"""Log lines of servers on their way to the host that has the call: by level, with the server's
name, in order, bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

import structlog
from mcp import types as t
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp_types import LOG_LEVEL_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcpregistry.domain.calls.loglines import LEVELS, USUAL, is_level_requested
from mcpregistry.gateway.sdk.requests import get_connection

log = structlog.get_logger(__name__)

Context = ServerRequestContext[Any, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_BACKLOG = 200  # lines for a host that reads slowly; beyond it they are left out, and that is said


class HostLogLevels:
    """Which lines each host wants: of the older era by session, of the modern one by request."""

    def __init__(self) -> None:
        self._levels: WeakKeyDictionary[Connection, str] = WeakKeyDictionary()
        # Of a session that any process serves, all of them must know it: its id, and the level.
        self.keep: Callable[[str, str], Awaitable[None]] | None = None

    async def set_level(self, ctx: Context, params: t.SetLevelRequestParams) -> t.EmptyResult:
        """The handler of ``logging/setLevel``."""
        # The SDK offers no public way to the connection; the pinned version is held to this by a
        # test.
        connection = get_connection(ctx)
        if connection.session_id is not None and self.keep is not None:
            await self.keep(connection.session_id, params.level)
        self.remember(connection, params.level)
        return t.EmptyResult()

    def remember(self, connection: Connection, level: str) -> None:
        """What was set on another connection, or in another process, for the session of this one;
        empty: the usual."""
        self._levels[connection] = level or USUAL

    def get_level(self, connection: Connection) -> str:
        """The lowest level that a host of the older era wants to hear."""
        return self._levels.get(connection, USUAL)

    def find_wanted_level(self, ctx: Context) -> str:
        """The lowest level that this request's host wants to hear; empty: none."""
        if ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            return self.get_level(get_connection(ctx))
        asked = (ctx.meta or {}).get(LOG_LEVEL_META_KEY)
        return asked if asked in LEVELS else ""


class HostLogLines:
    """Call it with a line (``line_of``) from the event loop's thread."""

    def __init__(self, send: Send, server: str, level: str = USUAL) -> None:
        self._send = send
        self._server = server
        self.level = level
        self._waiting: deque[dict[str, Any]] = deque()
        self._left_out = 0
        self._news = asyncio.Event()
        self._sending = asyncio.Lock()

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Note a line; it is sent as soon as the host's connection takes it."""
        if not is_level_requested(line["level"], self.level):
            return
        if len(self._waiting) >= _BACKLOG:
            self._left_out += 1
            return
        logger = f"{self._server}.{line['logger']}" if line["logger"] else self._server
        self._waiting.append({"level": line["level"], "logger": logger, "data": line["data"]})
        self._news.set()

    async def flush(self) -> None:
        """Send what was said and not sent yet."""
        async with self._sending:
            self._news.clear()
            while self._waiting:
                await self._send_line(self._waiting.popleft())
            if self._left_out:
                said = f"{self._left_out:,} log lines were left out, because this host did not read them in time."
                self._left_out = 0
                await self._send_line({"level": "warning", "logger": self._server, "data": said})

    async def _send_line(self, line: dict[str, Any]) -> None:
        try:
            await self._send(line)
        except Exception:  # a line that does not arrive must not cost the call its answer
            log.debug("log_line.not_sent", exc_info=True)

    async def run(self) -> None:
        """Send what is said until it is cancelled."""
        while True:
            await self._news.wait()
            await self.flush()


@asynccontextmanager
async def pass_lines(ctx: Context, level: str, server: str) -> AsyncIterator[HostLogLines]:
    """What was said inside has been sent when the block ends well, in the stream of the request's
    own answer."""

    async def send(line: dict[str, Any]) -> None:
        note = t.LoggingMessageNotification(params=t.LoggingMessageNotificationParams(**line))
        await ctx.session.send_notification(note, related_request_id=ctx.request_id)

    lines = HostLogLines(send, server, level)
    running = asyncio.ensure_future(lines.run())
    try:
        yield lines
        await lines.flush()
    finally:
        running.cancel()
