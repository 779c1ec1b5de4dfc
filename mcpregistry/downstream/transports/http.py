"""Streamable HTTP: the SDK's transport for the handshake and the streams, direct posts for
requests.

Both go through the guarded client. A direct post carries what was negotiated: the protocol version,
the legacy session id, the modern ``Mcp-Method``, ``Mcp-Name`` and ``Mcp-Param-*`` headers. The
answer is one JSON body or an event stream, as the server likes (spec 2025-11-25 and 2026-07-28,
transports). A legacy server may end that stream before the answer; what is left of it is asked for
by GET (SEP-1699).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any

import msgspec
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER

from mcpregistry.domain.errors import (
    ConnectionFailed,
    DownstreamError,
    ProtocolError,
    ResourceLimit,
    SessionLost,
    TimedOut,
)
from mcpregistry.domain.offer_kinds import CHANGED
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.downstream.http_client.client import (
    HttpReply,
    Outbound,
    RequestAttempt,
    find_redirect_target,
    make_status_error,
)
from mcpregistry.downstream.http_client.guard import check_url
from mcpregistry.downstream.sdk_client import TransportStreams
from mcpregistry.downstream.transports.eventstream import EventReader
from mcpregistry.downstream.transports.messages import (
    REPAIR_WARNING,
    encode_request,
    is_nameless_error,
    parse_message,
    read_reply,
    report_progress,
    salvage_id,
)
from mcpregistry.downstream.transports.refusals import read_refusal
from mcpregistry.downstream.transports.request_ids import (
    FIRST,
    make_cancelled_error,
    parse_own_id,
    read_cancelled_id,
)
from mcpregistry.downstream.transports.sdk_transport import make_sdk_client
from mcpregistry.downstream.transports.server_request import ServerRequest
from mcpregistry.downstream.transports.standing_stream import (
    LAST_EVENT_HEADER,
    StandingStream,
    compute_stream_pause,
)
from mcpregistry.downstream.transports.wire import (
    LogLineHandler,
    OnNotice,
    ignore_notice,
    make_closed_error,
)

SESSION_HEADER = "Mcp-Session-Id"
NOTICE_SECONDS = 5.0
CLOSE_SECONDS = 5.0
LISTEN_SECONDS = 1.0
# in a row that bring nothing new: some 13 s, and longer where the server asks for that
RESUME_ATTEMPTS = 8
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


class HttpChannel:
    """One streamable HTTP server. Every request of ours is a POST of its own."""

    pid: int | None = None
    logs: LogLineHandler

    def __init__(self, target: ServerTarget) -> None:
        self.lost = asyncio.Event()
        self.error: DownstreamError | None = None
        self.on_tools_changed: Callable[[], None] | None = None
        self.on_notice: OnNotice = ignore_notice
        self._target = target
        self._url = target.url
        self._outbound = Outbound(target)
        self._exit = contextlib.AsyncExitStack()
        self._headers: dict[str, str] = dict(ACCEPT)
        self._modern = False
        self._listening = asyncio.Event()
        self._sequence = FIRST
        self._pause_until = 0.0  # on the monotonic clock
        self._notices: set[asyncio.Task[None]] = set()

    # -- the SDK's Transport ------------------------------------------------------------------

    async def __aenter__(self) -> TransportStreams:
        check_url(self._url)
        await self._exit.enter_async_context(self._outbound)
        client = await self._exit.enter_async_context(
            make_sdk_client(
                self._outbound,
                self._target.limits.message_bytes,
                self._note_session,
                self._open_standing_stream,
            )
        )
        streams = streamable_http_client(
            self._url,
            http_client=client,
            terminate_on_close=False,  # the SDK would wait for the server's answer without end
            max_sse_event_size=self._target.limits.message_bytes,
        )
        return await self._exit.enter_async_context(streams)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        for notice in self._notices:
            notice.cancel()
        try:
            await self._end_session()
        finally:
            try:
                left = await self._exit.__aexit__(kind, value, trace)
            finally:
                self.fail(make_closed_error())
        return left

    async def _end_session(self) -> None:
        """Tell a legacy server that its session is over; it may refuse, and it may keep silent."""
        if SESSION_HEADER not in self._headers or self.error is not None:
            return
        with contextlib.suppress(DownstreamError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                send = self._outbound.send(
                    "DELETE", self._url, headers=self._headers, data=None, attempt=RequestAttempt()
                )
                async with send as reply:
                    await reply.read_body(self._target.limits.message_bytes)

    def _note_session(self, reply: HttpReply) -> None:
        if session := reply.headers.get(SESSION_HEADER):
            self._headers[SESSION_HEADER] = session

    def _open_standing_stream(self, headers: Mapping[str, str]) -> StandingStream:
        """What a legacy server says by itself, for the SDK's session."""
        limit = self._target.limits.message_bytes
        return StandingStream(
            self._outbound,
            self._url,
            headers,
            limit,
            on_answered=self._listening.set,
            on_gap=self._report_gap,
            on_refused=self.fail,
        )

    def _report_gap(self) -> None:
        if self.on_tools_changed is not None:
            self.on_tools_changed()

    def note_protocol_version(self, version: str, *, modern: bool) -> None:
        """Note the protocol version; it goes into every request's headers."""
        self._modern = modern
        self._headers[MCP_PROTOCOL_VERSION_HEADER] = version

    def read_stderr_tail(self) -> bytes:
        """Empty: there is no local process."""
        return b""

    def fail(self, error: DownstreamError) -> None:
        """The connection is lost; the first reason stays."""
        if self.error is None:
            self.error = error
            self.lost.set()

    # -- our requests -------------------------------------------------------------------------

    async def request(self, request: ServerRequest) -> dict[str, Any]:
        """Post and wait for the raw result. Raises DownstreamError; cancelling tells the server."""
        if self.error is not None:
            raise ConnectionFailed(self.error.message, remedy=self.error.remedy)
        self._check_pause()
        request_id = self._sequence
        self._sequence = self._sequence + 1
        attempt = RequestAttempt(request.on_sent)
        try:
            async with asyncio.timeout(request.timeout) as clock:
                _link_clock(clock, request)
                await self._wait_for_stream()
                return await self._post(request_id, request, attempt)
        except TimeoutError:
            self._abandon(request_id, attempt)
            raise TimedOut(
                "The server did not answer in time.",
                remedy="Read the log of the server, or raise “Request timeout” on the page of the server.",
                sent=attempt.sent,
            ) from None
        # The caller left: tell the server, which would otherwise work on for nobody.
        except asyncio.CancelledError:
            self._abandon(request_id, attempt)
            raise

    def _check_pause(self) -> None:
        """Raise ConnectionFailed (nothing sent) while the server wants to be left alone."""
        if (left := self._pause_until - time.monotonic()) > 0:
            raise ConnectionFailed(
                "The server has asked this site to wait before the next request.",
                remedy=f"Try again in {math.ceil(left)} s.",
            )

    async def _wait_for_stream(self) -> None:
        """Before the first request to a legacy server with sessions: its standing stream is there,
        or refused. What it asks or tells there while it works on the request would be lost
        otherwise.
        """
        if self._modern or SESSION_HEADER not in self._headers or self._listening.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_SECONDS):
                await self._listening.wait()
        self._listening.set()  # some servers answer with their first event only

    async def _post(
        self, request_id: int, request: ServerRequest, attempt: RequestAttempt
    ) -> dict[str, Any]:
        data = encode_request(request_id, request)
        headers = {**self._headers, **(request.headers or {})}
        for _ in range(2):
            async with self._outbound.send(
                "POST", self._url, headers=headers, data=data, attempt=attempt
            ) as reply:
                moved = find_redirect_target(self._url, reply)
                if moved is None:
                    return await self._read(request_id, request, reply)
                self._url = moved  # within the origin, method kept: usually a missing slash
        raise ConnectionFailed(
            "The server redirects in a loop.", remedy="Correct the server's URL."
        )

    async def _read(
        self, request_id: int, request: ServerRequest, reply: HttpReply
    ) -> dict[str, Any]:
        if error := await read_refusal(reply, session=SESSION_HEADER in self._headers):
            if reply.status == 401 or isinstance(error, SessionLost):
                self.fail(error)
            self._pause_until = max(self._pause_until, time.monotonic() + error.retry_after)
            raise error
        limit = min(
            self._target.limits.message_bytes,
            request.max_bytes or self._target.limits.message_bytes,
        )
        if reply.is_stream and reply.status == 200:
            return await self._read_stream(request_id, request, reply, limit)
        if reply.content_type != "application/json":
            raise ConnectionFailed(
                f"The server answered HTTP {reply.status} without an MCP message.",
                remedy="Check that the URL is the address at which the server offers MCP.",
                sent=True,
            )
        message = parse_message(await reply.read_body(limit), self._make_repair_warning(request))
        if (
            reply.status < 400
            and parse_own_id(message.get("id")) != request_id
            and not is_nameless_error(message)
        ):
            raise ProtocolError("The server's answer belongs to another request.", sent=True)
        return read_reply(message)

    async def _read_stream(
        self, request_id: int, request: ServerRequest, reply: HttpReply, limit: int
    ) -> dict[str, Any]:
        reader = EventReader(limit)
        try:
            answer = await self._find_answer(reply, reader, request_id, request)
        except ConnectionFailed:
            if self._modern or not reader.last_id:
                raise
            answer = None
        if answer is None and reader.last_id and not self._modern:
            answer = await self._resume_answer(reader, request_id, request)
        if answer is None:
            raise reader.unreadable or ConnectionFailed(
                "The server's answer ended before the result.", sent=True
            )
        return read_reply(answer)

    async def _find_answer(
        self, reply: HttpReply, reader: EventReader, request_id: int, request: ServerRequest
    ) -> dict[str, Any] | None:
        """The answer to this request in a stream; None if the stream ends without it."""
        async for piece in reply.read_pieces(None):
            for event in reader.feed(piece):
                if event.kind != "message":
                    continue
                message = self._parse_event(event.data, reader, request, request_id)
                if message is None:
                    continue
                if read_cancelled_id(message) == request_id:
                    raise make_cancelled_error()
                if "method" in message:
                    self._handle_incoming(message, request)
                elif parse_own_id(message.get("id")) == request_id or is_nameless_error(message):
                    reply.answered = True
                    return message
        return None

    def _parse_event(
        self, data: bytes, reader: EventReader, request: ServerRequest, request_id: int
    ) -> dict[str, Any] | None:
        """The message of an event; None for a heartbeat or the like. Raises DownstreamError for an
        unreadable answer."""
        try:
            return parse_message(data, self._make_repair_warning(request))
        except (ProtocolError, ResourceLimit) as error:
            if salvage_id(data) == request_id:
                raise
            reader.unreadable = error
            return None

    def _make_repair_warning(self, request: ServerRequest) -> Callable[[], None]:
        return lambda: self.logs.handle_line(REPAIR_WARNING, request.on_log)

    async def _resume_answer(
        self, reader: EventReader, request_id: int, request: ServerRequest
    ) -> dict[str, Any] | None:
        """The answer from what the server kept for us (2025-11-25, transports, "Resumability").
        None: not to be had.

        It polls at the pace that the server asks for, until the call's own time is over.
        """
        fruitless = 0
        while fruitless < RESUME_ATTEMPTS:
            known = reader.last_id
            await asyncio.sleep(compute_stream_pause(reader, fruitless))
            reader = reader.make_successor()
            try:
                answer = await self._request_resumption(reader, request_id, request)
            except ConnectionFailed:
                answer = None
            except DownstreamError as error:
                error.sent = True  # whatever became of the asking again
                raise
            if answer is not None or self.error is not None:
                return answer
            fruitless = 0 if reader.last_id != known else fruitless + 1
        return None

    async def _request_resumption(
        self, reader: EventReader, request_id: int, request: ServerRequest
    ) -> dict[str, Any] | None:
        """One GET for what came after the last event. Raises DownstreamError."""
        headers = {
            **self._headers,
            "Accept": "text/event-stream",
            LAST_EVENT_HEADER: reader.last_id,
        }
        del headers["Content-Type"]
        async with self._outbound.send(
            "GET", self._url, headers=headers, data=None, attempt=RequestAttempt()
        ) as reply:
            session = SESSION_HEADER in self._headers
            if make_status_error(reply.status, session=session) and (
                error := await read_refusal(reply, session=session)
            ):
                if isinstance(error, SessionLost):
                    self.fail(error)
                raise error
            # it keeps nothing: asking again would bring the same
            if reply.status != 200 or not reply.is_stream:
                raise ProtocolError(
                    "The server's answer ended before the result and could not be resumed.",
                    sent=True,
                )
            return await self._find_answer(reply, reader, request_id, request)

    def _handle_incoming(self, message: dict[str, Any], request: ServerRequest) -> None:
        method = message["method"]
        params = message.get("params")
        if "id" in message:
            self._keep_task(self._reply(message, request))
        elif method in CHANGED and self.on_tools_changed is not None:
            self.on_tools_changed()
        elif (
            method == "notifications/progress"
            and type(params) is dict
            and request.on_progress is not None
        ):
            report_progress(request.on_progress, params)  # this stream is the request's own
        elif method == "notifications/message":
            self.logs.handle_line(params, request.on_log)
        else:
            self.on_notice(method, params)

    def _abandon(self, request_id: int, attempt: RequestAttempt) -> None:
        """A modern server sees its response stream closed; a legacy one has to be told."""
        if attempt.sent and not self._modern and self.error is None:
            params = {"requestId": request_id, "reason": "cancelled"}
            self._notify({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    async def _reply(self, message: dict[str, Any], request: ServerRequest) -> None:
        """Answer what the server asks; an answer that takes people's time, when there is one."""
        answered = (
            await request.on_question(message) if request.on_question else answer_question(message)
        )
        await self._send_notice(msgspec.json.encode(answered))

    def _notify(self, message: dict[str, Any]) -> None:
        self._keep_task(self._send_notice(msgspec.json.encode(message)))

    def _keep_task(self, work: Coroutine[Any, Any, None]) -> None:
        notice = asyncio.create_task(work)
        self._notices.add(notice)
        notice.add_done_callback(self._notices.discard)

    async def _send_notice(self, data: bytes) -> None:
        with contextlib.suppress(DownstreamError, TimeoutError):
            async with asyncio.timeout(NOTICE_SECONDS):
                send = self._outbound.send(
                    "POST", self._url, headers=self._headers, data=data, attempt=RequestAttempt()
                )
                async with send as reply:
                    await reply.read_body(self._target.limits.message_bytes)


def _link_clock(clock: asyncio.Timeout, request: ServerRequest) -> None:
    """People who are asked meanwhile do not use up the request's time."""
    if request.patience is not None and request.timeout:
        seconds = request.timeout
        now = asyncio.get_running_loop().time

        def due(when: float | None) -> None:
            with contextlib.suppress(RuntimeError):  # the request is over, and its clock with it
                clock.reschedule(when)

        request.patience.pause = lambda: due(None)
        request.patience.resume = lambda: due(now() + seconds)


def answer_question(message: dict[str, Any]) -> dict[str, Any]:
    """Where no host stands behind a request: a ping is answered, every other question of a server
    is declined."""
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "ping":
        return {**answer, "result": {}}
    return {
        **answer,
        "error": {"code": -32601, "message": "This client does not support the method."},
    }
