"""One duplex message channel, shared by the SDK's session and our own calls.

The SDK speaks the protocol (handshake, listen streams, answers to a server's questions); plain
requests of ours skip its session layers, which cost 175 microseconds a call. Both use one wire: our
requests have ids of their own (``request_ids.py``), their replies resolve a future directly, and
every other message becomes a ``SessionMessage`` for the SDK.

Invariants:
* A reply reaches exactly the request whose id it carries, or nobody.
* What cannot be parsed, batches and stray replies are counted and sampled; too many end the wire.
* Notifications, however many, do not: see ``inbox.py``.
* Once the wire is lost every waiting request fails with a typed error, and ``sent`` tells the
  truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, Self

import anyio
import msgspec
from mcp.shared.message import SessionMessage
from mcp_types import (
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    RequestId,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from mcpregistry.domain.errors import (
    ConnectionFailed,
    DownstreamError,
    ProtocolError,
    ResourceLimit,
    TimedOut,
)
from mcpregistry.domain.offer_kinds import CHANGED
from mcpregistry.domain.text.display import number_of
from mcpregistry.downstream.limits import make_too_large_error
from mcpregistry.downstream.sdk_client import TransportStreams
from mcpregistry.downstream.transports.inbox import (
    CANCELLED,
    MEANT_FOR_SESSION,
    Inbox,
    find_meaning,
)
from mcpregistry.downstream.transports.messages import (
    REPAIR_WARNING,
    encode_request,
    is_nameless_error,
    parse_message,
    read_reply,
    rename_oldest_version,
    report_progress,
    salvage_id,
)
from mcpregistry.downstream.transports.nameless import NamelessErrors
from mcpregistry.downstream.transports.request_ids import (
    FIRST,
    make_cancelled_error,
    parse_own_id,
    read_cancelled_id,
)
from mcpregistry.downstream.transports.server_request import ServerRequest

GARBAGE_LINES = 1000
GARBAGE_SAMPLES = 3
SAMPLE_BYTES = 200
TELL_SECONDS = 2.0  # to tell a server that a call of ours is cancelled


class LogLineHandler(Protocol):
    """Who takes a server's log lines: ``downstream.pool.log_lines.LogLines``."""

    def handle_line(
        self, params: object, own: Callable[[Mapping[str, Any]], None] | None = None
    ) -> None:
        """One notification; ``own``: it came in this request's own stream."""


# a notification's method and params; whether it needs nobody else
OnNotice = Callable[[str, object], bool]


def ignore_notice(_method: str, _params: object) -> bool:
    """Leave every notification to the SDK."""
    return False


class ServerChannel(Protocol):
    """What a connection needs of any transport: an SDK ``Transport`` that also carries our
    requests."""

    lost: asyncio.Event
    error: DownstreamError | None
    pid: int | None
    on_tools_changed: Callable[[], None] | None
    on_notice: OnNotice
    logs: LogLineHandler

    async def __aenter__(self) -> TransportStreams: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None: ...
    def note_protocol_version(self, version: str, *, modern: bool) -> None:
        """The handshake is over; ``version`` is the protocol's, ``modern`` its era."""

    async def request(self, request: ServerRequest) -> dict[str, Any]:
        """Send one request of ours and wait for its raw result. Raises DownstreamError."""

    def fail(self, error: DownstreamError) -> None:
        """The connection is lost for this reason."""

    def read_stderr_tail(self) -> bytes:
        """The end of a local server's log; empty for others."""


class ChannelClosedError(ConnectionFailed):
    """This side has closed the connection, which is never the reason why one fails."""


class EndedUnreadError(ConnectionFailed):
    """The server ended before it read a message, so no message was the reason."""


def make_closed_error() -> ChannelClosedError:
    """The error for what waits for a connection that this side closes."""
    return ChannelClosedError(
        "The connection was closed.", remedy="The next call opens a new connection.", sent=True
    )


class _WireRequest:
    """A request in flight."""

    __slots__ = ("future", "max_bytes", "nameless", "number", "on_progress", "timer")

    def __init__(
        self, request: ServerRequest, future: asyncio.Future[dict[str, Any]], number: int
    ) -> None:
        self.future = future
        self.number = number
        self.on_progress = request.on_progress
        self.max_bytes = request.max_bytes
        self.nameless = ""  # the words of an error without an id that came during this request
        self.timer: asyncio.TimerHandle | None = None

    def stop_clock(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class _Outbox:
    """The SDK's write stream: it writes straight to the wire, without a task or a queue between."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def send(self, item: SessionMessage, /) -> None:
        data = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        self._wire.nameless.count_other()
        self._wire.note_session_message(item.message)
        try:
            await self._wire.transmit(data)
        except DownstreamError as error:
            raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return


class Wire:
    """Routing shared by stdio, SSE and WebSocket. A subclass moves bytes: ``open``, ``close``,
    ``transmit``."""

    pid: int | None = None
    logs: LogLineHandler

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.error: DownstreamError | None = None
        self.on_tools_changed: Callable[[], None] | None = None
        self.on_notice: OnNotice = ignore_notice
        self.garbage = 0
        self.samples: list[str] = []
        self._garbage_in_a_row = 0
        self._closing = False
        self._sequence = FIRST
        self.nameless = NamelessErrors()
        self._waiting: dict[int, _WireRequest] = {}
        # ids of the session's own requests that have no answer yet
        self._asked: set[RequestId] = set()
        self._inbox: Inbox

    # -- the SDK's Transport ------------------------------------------------------------------

    async def __aenter__(self) -> TransportStreams:
        self._inbox = Inbox(self._report_dropped)
        try:
            await self.open()
        except BaseException:
            self._inbox.close()
            raise
        return self._inbox, _Outbox(self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing = True
        try:
            await self.close()
        finally:
            self.fail(make_closed_error())
            self._inbox.close()

    async def open(self) -> None:
        """Open the transport. Raises DownstreamError."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close the transport; to be safe against cancellation."""
        raise NotImplementedError

    async def transmit(self, data: bytes, on_sent: Callable[[], None] | None = None) -> None:
        """Send one message; ``on_sent`` is called before its first byte can leave, since whoever
        waits here may be cancelled at any point. Raises DownstreamError whose ``sent`` says whether
        bytes may have left."""
        raise NotImplementedError

    def read_stderr_tail(self) -> bytes:
        """The end of a local server's log; empty for others."""
        return b""

    def note_protocol_version(self, version: str, *, modern: bool) -> None:
        """Nothing to note here: on a duplex wire the era is in the messages alone."""

    # -- our requests -------------------------------------------------------------------------

    async def request(self, request: ServerRequest) -> dict[str, Any]:
        """Send and wait for the raw result. Raises DownstreamError; cancelling tells the server."""
        if self.error is not None:
            raise ConnectionFailed(self.error.message, remedy=self.error.remedy)
        request_id = self._sequence
        self._sequence = self._sequence + 1
        loop = asyncio.get_running_loop()
        waiting = _WireRequest(request, loop.create_future(), self.nameless.count_request())
        self._waiting[request_id] = waiting
        self._start_clock(request_id, request, waiting)
        try:
            await self.transmit(encode_request(request_id, request), request.on_sent)
            return read_reply(await waiting.future)
        except (asyncio.CancelledError, TimedOut) as error:
            await self._abandon(
                request_id, "cancelled" if isinstance(error, asyncio.CancelledError) else "timeout"
            )
            raise
        finally:
            del self._waiting[request_id]
            waiting.future.cancel()
            waiting.stop_clock()

    def _start_clock(self, request_id: int, request: ServerRequest, waiting: _WireRequest) -> None:
        loop = asyncio.get_running_loop()
        seconds = request.timeout
        if not seconds:
            return

        def start() -> None:
            waiting.stop_clock()
            waiting.timer = loop.call_later(seconds, self._expire, request_id)

        start()
        if request.patience is not None:
            request.patience.pause = waiting.stop_clock
            request.patience.resume = start

    def _expire(self, request_id: int) -> None:
        waiting = self._waiting.get(request_id)
        if waiting is not None and not waiting.future.done():
            words = "The server did not answer in time."
            if waiting.nameless:
                words = (
                    f"{words} It also sent an error without the id of a request: {waiting.nameless}"
                )
            waiting.future.set_exception(
                TimedOut(
                    words,
                    remedy="Read the log of the server, or raise “Request timeout” on the page of the server.",
                    sent=True,
                )
            )

    async def _abandon(self, request_id: int, reason: str) -> None:
        params = {"requestId": request_id, "reason": reason}
        notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        self.nameless.count_other()
        # it cannot be told; the caller learns its own fate anyway
        with suppress(DownstreamError, TimeoutError):
            # whoever cancels does not wait for a server that reads nothing
            async with asyncio.timeout(TELL_SECONDS):
                await self.transmit(msgspec.json.encode(notice))

    # -- what arrives -------------------------------------------------------------------------

    def receive(self, data: bytes | bytearray) -> None:
        """Route one message. Never raises: the peer must not be able to break the loop."""
        if self.error is not None:
            return
        try:
            message = parse_message(data, self._warn_of_repair)
        except (ProtocolError, ResourceLimit) as error:
            self._handle_unreadable(data, error)
            return
        if "method" in message:
            self._handle_incoming(message, data)
            return
        if is_nameless_error(message):
            self.nameless.receive(message, self._waiting.values())
        request_id = parse_own_id(message.get("id"))
        waiting = self._waiting.get(request_id) if request_id is not None else None
        if waiting is not None:
            self._settle(waiting, message, len(data))
        elif request_id is not None:
            self._count_garbage(data)  # late (its call was cancelled), duplicate, or invented
        elif self._take_answered(message.get("id")):
            self._pass_to_session(message, data, is_answer=True)
        elif not is_nameless_error(message):
            self._count_garbage(data)

    def _settle(self, waiting: _WireRequest, message: dict[str, Any], size: int) -> None:
        self._garbage_in_a_row = 0
        self.nameless.note_answer(waiting.number)
        if waiting.future.done():
            return
        if waiting.max_bytes is not None and size > waiting.max_bytes:
            waiting.future.set_exception(make_too_large_error(waiting.max_bytes))
        else:
            waiting.future.set_result(message)

    def _handle_incoming(self, message: dict[str, Any], data: bytes | bytearray) -> None:
        method = message["method"]
        if method == "notifications/progress" and type(params := message.get("params")) is dict:
            token = parse_own_id(params.get("progressToken"))
            waiting = self._waiting.get(token) if token is not None else None
            if waiting is not None and waiting.on_progress is not None:
                report_progress(waiting.on_progress, params)
                return
        if (cancelled := self._waiting.get(read_cancelled_id(message) or 0)) is not None:
            if not cancelled.future.done():
                cancelled.future.set_exception(make_cancelled_error())
        elif method in CHANGED and self.on_tools_changed is not None:
            self.on_tools_changed()
        elif method == "notifications/message":  # not to the session: a flood must cost little
            self.logs.handle_line(message.get("params"))
        elif "id" in message or (
            not self.on_notice(method, message.get("params")) and method in MEANT_FOR_SESSION
        ):
            self._pass_to_session(message, data)

    def note_session_message(self, message: JSONRPCMessage) -> None:
        """The session sends this: a request that will have an answer, or the end of one that will
        not."""
        if isinstance(message, JSONRPCRequest):
            self._asked.add(message.id)
        elif isinstance(message, JSONRPCNotification) and message.method == CANCELLED:
            self._asked.discard((message.params or {}).get("requestId", ""))

    def _take_answered(self, value: object) -> bool:
        """Whether this is the id of a request of the session, which is answered now."""
        if type(value) not in (int, str):
            return False
        for request_id in self._asked:
            if str(request_id) == str(value):  # some servers send a number back as text
                self._asked.discard(request_id)
                return True
        return False

    def _pass_to_session(
        self, message: dict[str, Any], data: bytes | bytearray, *, is_answer: bool = False
    ) -> None:
        try:
            message = rename_oldest_version(message)
            item = SessionMessage(jsonrpc_message_adapter.validate_python(message, by_name=False))
        except (ValidationError, RecursionError):
            self._count_garbage(data)
        else:
            self._inbox.put(item, len(data), find_meaning(message), keep=is_answer)

    def _report_dropped(self, count: int) -> None:
        text = f"{number_of(count, 'message of the server was', 'messages of the server were')} dropped: the server sends messages faster than this site can process them."
        self.logs.handle_line({"level": "warning", "logger": "slipsnisse", "data": text})

    def _warn_of_repair(self) -> None:
        self.logs.handle_line(REPAIR_WARNING)

    def _handle_unreadable(self, data: bytes | bytearray, error: DownstreamError) -> None:
        waiting = self._waiting.get(salvage_id(data) or 0)
        if waiting is not None and not waiting.future.done():
            waiting.future.set_exception(error)
        else:
            self._count_garbage(data)

    def _count_garbage(self, data: bytes | bytearray) -> None:
        self.garbage += 1
        self._garbage_in_a_row += 1
        if len(self.samples) < GARBAGE_SAMPLES:
            self.samples.append(bytes(data[:SAMPLE_BYTES]).decode(errors="replace"))
        if self._garbage_in_a_row >= GARBAGE_LINES:
            self.fail(
                ProtocolError(
                    f"The server sent {GARBAGE_LINES} lines in a row that are not MCP messages.",
                    remedy="The server must write only MCP messages to its standard output, and its log to standard error.",
                    sent=True,
                )
            )

    def fail(self, error: DownstreamError) -> None:
        """The wire is gone. Idempotent: the first reason stays."""
        if self.error is not None:
            return
        error = make_closed_error() if self._closing else error
        self.error = error
        for waiting in list(self._waiting.values()):
            if not waiting.future.done():
                waiting.future.set_exception(
                    type(error)(error.message, remedy=error.remedy, sent=True)
                )
        self._inbox.end()  # the SDK's session sees the end and fails what it waits for
        self.lost.set()
