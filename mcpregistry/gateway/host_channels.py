"""Hosts of the older era outside of their calls: on their connection, or on the stream of their
session.

There they get log lines that a server sends while no call is out, word that a page is done with,
and questions for their folders. A modern host can only be reached in the answers to its requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary, ref

import structlog
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcpregistry.calls.call import CallHost
from mcpregistry.domain.calls.forwarding import HostUnansweredError
from mcpregistry.gateway.host_log_lines import HostLogLevels, HostLogLines
from mcpregistry.gateway.live_calls import NO_ANSWER
from mcpregistry.gateway.sdk.requests import get_connection

log = structlog.get_logger(__name__)

Context = ServerRequestContext[Any, Any]
# A session's id, a method and its params. The session's stream may be in another process.
Relay = Callable[[str, str, dict[str, Any]], Awaitable[None]]

# A session's id, a method and its params. Returns the host's answer, or None if the stream is not
# in another process.
AskElsewhere = Callable[[str, str, dict[str, Any]], Awaitable[dict[str, Any] | None]]

# for a host to answer outside of its calls; one that holds no stream open never does
ASK_SECONDS = 30.0
MOST_WAITING = 100  # notifications for one host that does not read
COMPLETE = "notifications/elicitation/complete"
MESSAGE = "notifications/message"


class OlderHostChannel:
    """See ``domain.calls.forwarding.HostChannel``. One for each connection of a host."""

    def __init__(
        self,
        connection: Connection,
        levels: HostLogLevels,
        relay: Relay | None,
        ask_elsewhere: AskElsewhere | None = None,
    ) -> None:
        self._ref = ref(connection)
        self._session_id = connection.session_id
        self._levels = levels
        self._relay = relay
        self._ask_elsewhere = ask_elsewhere
        self._lines: dict[str, HostLogLines] = {}
        self._flushing: set[str] = set()  # servers whose lines are on their way
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The host's answer to a question. Raises Unanswered."""
        if self._session_id is not None and self._ask_elsewhere is not None:
            answer = await self._ask_elsewhere(self._session_id, method, dict(params))
            if answer is not None:
                return answer
        connection = self._ref()
        if connection is None:
            raise HostUnansweredError(NO_ANSWER)
        return await ask_connection(connection, method, params)

    def log(self, server: str, line: Mapping[str, Any]) -> None:
        """Send a log line of this server if the host wants its level."""
        if (connection := self._ref()) is None:
            return
        lines = self._lines.setdefault(server, HostLogLines(self._send_line, server))
        lines.level = self._levels.get_level(connection)
        lines(line)
        if server not in self._flushing:
            self._flushing.add(server)
            self._spawn(self._flush(server, lines))

    def complete(self, elicitation_id: str) -> None:
        """Send ``notifications/elicitation/complete``. A host that does not read its stream does
        not get all of them."""
        if len(self._tasks) >= MOST_WAITING:
            log.info("host.does_not_read", method=COMPLETE)
            return
        self._spawn(self._notify(COMPLETE, {"elicitationId": elicitation_id}))

    async def _flush(self, server: str, lines: HostLogLines) -> None:
        try:
            await lines.flush()
        finally:
            self._flushing.discard(server)

    async def _send_line(self, line: dict[str, Any]) -> None:
        await self._notify(MESSAGE, line)

    async def _notify(self, method: str, params: dict[str, Any]) -> None:
        if self._session_id is not None and self._relay is not None:
            await self._relay(self._session_id, method, params)
        elif (connection := self._ref()) is not None:
            await connection.notify(method, params)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def ask_connection(
    connection: Connection, method: str, params: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the host's answer to a question on this connection, or on the stream of its session
    here. Raises Unanswered."""
    try:
        return await connection.send_raw_request(method, dict(params), {"timeout": ASK_SECONDS})
    except MCPError as error:
        raise HostUnansweredError(f"The host did not answer: {error.error.message}"[:500]) from None
    except Exception:
        log.info("question.not_put", method=method, exc_info=True)
        raise HostUnansweredError(NO_ANSWER) from None


class HostChannels:
    """The channels of this process's hosts."""

    def __init__(self, levels: HostLogLevels) -> None:
        self._levels = levels
        self._channels: WeakKeyDictionary[Connection, OlderHostChannel] = WeakKeyDictionary()
        self.relay: Relay | None = None
        self.ask_elsewhere: AskElsewhere | None = None

    def attach_channel(self, ctx: Context, host: CallHost) -> CallHost:
        """The host of this request with its channel, if it is of the older era."""
        if ctx.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return host
        # The SDK offers no public way to the connection; the pinned version is held to this by a
        # test.
        return replace(
            host,
            forwarding=replace(host.forwarding, channel=self.get_channel(get_connection(ctx))),
        )

    def get_channel(self, connection: Connection) -> OlderHostChannel:
        """The channel of the host of the older era on this connection."""
        channel = self._channels.get(connection)
        if channel is None:
            channel = OlderHostChannel(connection, self._levels, self.relay, self.ask_elsewhere)
            self._channels[connection] = channel
        return channel
