"""Hosts on a connection that lasts: HTTP+SSE and WebSocket. One server loop each, in either era, as
on a pipe.

A connection ends when its host leaves, when its token, agent or endpoint is taken away, and when
the site stops: then what is in flight is answered first. Its messages go through the same handlers
as those of the other doors.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import structlog
from mcp import types as t
from mcp.server.runner import serve_dual_era_loop
from mcp.shared.message import ServerMessageMetadata
from starlette.requests import HTTPConnection

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import QueueFullError
from mcpregistry.gateway.caller_identity import LASTING_KEY, SCOPE_KEY, Caller
from mcpregistry.gateway.http.access import REVOKED, Access, Arrival
from mcpregistry.gateway.jsonrpc import encode_message, make_error_reply
from mcpregistry.gateway.message_streams import Say, SendBacklog, open_streams
from mcpregistry.gateway.server import GatewayServer

log = structlog.get_logger(__name__)

Beside = Callable[[], Coroutine[Any, Any, None]]
# at once in a process; each costs some 100 KB
MOST = 1000
MOST_OF_AGENT = 200
STOPPING = f"The site is shutting down. Nothing was done. {error_texts.TRY_AGAIN_SOON}"

# answers of one connection that wait for its host to read
MOST_UNREAD = 100
MOST_UNREAD_BYTES = 4 * 1024 * 1024
FLOOD_BYTES = 64 * 1024 * 1024  # of answers to requests that it had sent before: then it ends
MOST_UNANSWERED = 1_000  # requests of one connection
_TOO_MANY = f"{MOST_UNANSWERED:,} requests of this connection are not answered yet. Wait for answers before you send more."
READ_SECONDS = 5.0  # for which a message that a host has posted waits until there is room
# other reasons for an end are in access.py
LEFT = "left"
STOPPED = "stopped"
UNREAD = "unread"


class DuplexConnection:
    """One such connection. ``say`` sends one message to its host."""

    def __init__(self, server: GatewayServer, arrival: Arrival, say: Say) -> None:
        self.id = secrets.token_urlsafe(24)
        self.caller = arrival.caller
        self.token_hash = arrival.token_hash
        self.ended = ""  # why, once it is
        self._server = server
        self._say = say
        self._request = HTTPConnection(
            arrival.scope | {SCOPE_KEY: self.caller, LASTING_KEY: self.id, "user": self.caller.user}
        )
        self._mail, self._heard = anyio.create_memory_object_stream[bytes](0)
        self._unanswered: Counter[t.RequestId] = Counter()
        self._stopping = False
        self._over = anyio.Event()
        self._backlog = SendBacklog(MOST_UNREAD, MOST_UNREAD_BYTES, FLOOD_BYTES, self._end_flooded)

    @property
    def session(self) -> bytes:
        """It is a session of its own."""
        return self.id.encode()

    async def serve(self, *beside: Beside) -> str:
        """Serve its host until it ends, with these beside; returns why it has ended."""
        metadata = ServerMessageMetadata(request_context=self._request)
        options = self._server.create_initialization_options()
        async with anyio.create_task_group() as tasks, self._mail, self._heard:
            tasks.start_soon(self._cancel_when_over, tasks.cancel_scope)
            for work in beside:
                tasks.start_soon(work)
            pair = open_streams(
                self._heard,
                self._send_message,
                self._encode_message,
                refused=self._refuse_message,
                saying=self._note_sent_message,
                metadata=metadata,
                backlog=self._backlog,
            )
            async with pair as (incoming, outgoing):
                await serve_dual_era_loop(
                    self._server, incoming, outgoing, lifespan_state={}, init_options=options
                )
            tasks.cancel_scope.cancel()
        return self.ended

    async def take_soon(self, data: bytes) -> bool:
        """As ``take``. Raises Busy if the host does not read what it has asked for."""
        with anyio.move_on_after(READ_SECONDS):
            return await self.take(data)
        waiting = self._backlog.messages
        raise QueueFullError(
            f"This host does not read its stream: {waiting} messages are waiting.",
            remedy="Read the waiting messages, then send this message again.",
        )

    def _end_flooded(self) -> None:
        log.warning("host.does_not_read", agent=self.caller.agent, bytes=self._backlog.bytes)
        self.end(UNREAD)

    async def take(self, data: bytes) -> bool:
        """A message of the host; False when it came too late. Waits while too many of its answers
        are unread."""
        try:
            await self._mail.send(data)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return False
        return True

    def end(self, why: str = LEFT) -> None:
        """Now, whatever is in flight."""
        self.ended = self.ended or why
        self._over.set()

    def begin_stop(self) -> None:
        """No new requests; it ends when those in flight are answered."""
        self._stopping = True
        self._end_if_done()

    async def _cancel_when_over(self, whole: anyio.CancelScope) -> None:
        await self._over.wait()
        whole.cancel()

    def _refuse_message(self, message: t.JSONRPCMessage) -> dict[str, Any] | None:
        if isinstance(message, t.JSONRPCRequest):
            if self._stopping:
                return make_error_reply(message.id, t.INTERNAL_ERROR, STOPPING)
            if self._unanswered.total() >= MOST_UNANSWERED:
                return make_error_reply(message.id, t.INTERNAL_ERROR, _TOO_MANY)
            self._unanswered[message.id] += 1
        elif (
            isinstance(message, t.JSONRPCNotification)
            and message.method == "notifications/cancelled"
        ):
            # perhaps it is answered: a moment too early, then
            self._count_answered((message.params or {}).get("requestId"))
        return None

    def _count_answered(self, request_id: Any) -> None:
        if type(request_id) in (int, str) and self._unanswered[request_id] > 0:
            self._unanswered[request_id] -= 1
        self._unanswered += Counter()  # forgets what is at zero

    def _note_sent_message(self, message: t.JSONRPCMessage) -> None:
        if isinstance(message, t.JSONRPCResponse | t.JSONRPCError):
            self._count_answered(message.id)

    def _encode_message(self, message: t.JSONRPCMessage) -> bytes:
        return encode_message(message.model_dump(by_alias=True, exclude_unset=True))

    async def _send_message(self, data: bytes) -> None:
        await self._say(data)
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._stopping and not self._unanswered:
            self.end(STOPPED)


class DuplexConnections:
    """Those of this process, by id; ended one by one when access ends, and together when the site
    stops."""

    def __init__(self, access: Access, server: GatewayServer) -> None:
        self._access = access
        self._server = server
        self._open: dict[str, DuplexConnection] = {}
        self._taken: Counter[str] = Counter()  # by agent

    def make(self, arrival: Arrival, say: Say) -> DuplexConnection:
        """One that is not served yet."""
        return DuplexConnection(self._server, arrival, say)

    @contextmanager
    def reserve_place(self, agent: str) -> Iterator[None]:
        """Around one more connection of this agent. Raises Busy where there is no room for it."""
        if self._taken[agent] >= MOST_OF_AGENT:
            said = f"This agent has {MOST_OF_AGENT} open connections in this process, which is the maximum."
            raise QueueFullError(said, remedy="Close a connection, or use streamable HTTP.")
        if self._taken.total() >= MOST:
            raise QueueFullError(
                "Too many hosts are connected.",
                remedy="Try again in a moment, or use streamable HTTP.",
            )
        self._taken[agent] += 1
        try:
            yield
        finally:
            self._taken[agent] -= 1
            self._taken += Counter()  # forgets who has none

    def find(self, connection_id: str, caller: Caller) -> DuplexConnection | None:
        """The connection, if it is this caller's."""
        found = self._open.get(connection_id)
        mine = found is not None and (found.caller.agent, found.caller.endpoint) == (
            caller.agent,
            caller.endpoint,
        )
        return found if mine else None

    async def deliver_message(self, connection_id: str, message: dict[str, Any]) -> bool:
        """A message of the host that another process was sent; False if its connection is not
        here."""
        found = self._open.get(connection_id)
        if found is None:
            return False
        await found.take(encode_message(message))
        return True

    async def serve(self, connection: DuplexConnection, *beside: Beside) -> str:
        """Serve it until it ends; returns why."""
        self._open[connection.id] = connection
        self._access.add(connection)
        try:
            if not self.is_still_welcome(connection):  # it may have ended while the row was written
                connection.end(REVOKED)
            return await connection.serve(*beside)
        finally:
            self._access.remove(connection)
            del self._open[connection.id]

    def is_still_welcome(self, connection: DuplexConnection) -> bool:
        """Whether its token, agent and endpoint are still what they were when it was opened."""
        return self._access.has_access(connection)

    def begin_stop(self) -> None:
        """As of each."""
        for connection in list(self._open.values()):
            connection.begin_stop()
