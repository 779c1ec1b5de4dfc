"""Streamable HTTP: the SDK's transport for the handshake and the streams, direct posts for requests.

Both go through the guarded client. A direct post carries what was negotiated: the protocol version,
the legacy session id, the modern ``Mcp-Method``, ``Mcp-Name`` and ``Mcp-Param-*`` headers. The answer
is one JSON body or an event stream, as the server likes (spec 2025-11-25 and 2026-07-28, transports).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER

from mcpregistry.domain.errors import ConnectionFailed, DownstreamError, ProtocolError, TimedOut
from mcpregistry.domain.targets import Target
from mcpregistry.downstream.eventstream import EventReader
from mcpregistry.downstream.outbound import Attempt, Outbound, Reply, check_url, redirect_target, status_error
from mcpregistry.downstream.wire import Request, encode_request, parse_message, read_reply, report_progress

SESSION_HEADER = "Mcp-Session-Id"
NOTICE_SECONDS = 5.0
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


class HttpChannel:
    """One streamable HTTP server. Every request of ours is a POST of its own."""

    pid: int | None = None

    def __init__(self, target: Target) -> None:
        self.lost = asyncio.Event()
        self.error: DownstreamError | None = None
        self.on_tools_changed: Callable[[], None] | None = None
        self._target = target
        self._url = target.url
        self._outbound = Outbound(target)
        self._exit = contextlib.AsyncExitStack()
        self._headers: dict[str, str] = dict(ACCEPT)
        self._modern = False
        self._sequence = 0
        self._notices: set[asyncio.Task[None]] = set()

    # -- the SDK's Transport ------------------------------------------------------------------

    async def __aenter__(self) -> TransportStreams:
        check_url(self._url)
        await self._exit.enter_async_context(self._outbound)
        client = await self._exit.enter_async_context(self._outbound.sdk_client(self._note_session))
        streams = streamable_http_client(
            self._url, http_client=client, max_sse_event_size=self._target.limits.message_bytes
        )
        return await self._exit.enter_async_context(streams)

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        for notice in self._notices:
            notice.cancel()
        try:
            return await self._exit.__aexit__(kind, value, trace)
        finally:
            self.fail(ConnectionFailed("The connection was closed.", sent=True))

    def _note_session(self, reply: Reply) -> None:
        if session := reply.headers.get(SESSION_HEADER):
            self._headers[SESSION_HEADER] = session

    def negotiated(self, version: str, *, modern: bool) -> None:
        self._modern = modern
        self._headers[MCP_PROTOCOL_VERSION_HEADER] = version

    def stderr_tail(self) -> bytes:
        return b""

    def fail(self, error: DownstreamError) -> None:
        if self.error is None:
            self.error = error
            self.lost.set()

    # -- our requests -------------------------------------------------------------------------

    async def request(self, request: Request) -> dict[str, Any]:
        """Post and wait for the raw result. Raises DownstreamError; cancelling tells the server."""
        if self.error is not None:
            raise ConnectionFailed(self.error.message, remedy=self.error.remedy)
        self._sequence += 1
        request_id = f"f{self._sequence}"
        attempt = Attempt(request.on_sent)
        try:
            async with asyncio.timeout(request.timeout):
                return await self._post(request_id, request, attempt)
        except TimeoutError:
            self._abandon(request_id, attempt)
            raise TimedOut(
                "The server did not answer in time.",
                remedy="Check the server's log, or raise its request timeout.",
                sent=attempt.sent,
            ) from None
        except asyncio.CancelledError:
            self._abandon(request_id, attempt)
            raise

    async def _post(self, request_id: str, request: Request, attempt: Attempt) -> dict[str, Any]:
        data = encode_request(request_id, request)
        headers = {**self._headers, **(request.headers or {})}
        for _ in range(2):
            async with self._outbound.send("POST", self._url, headers=headers, data=data, attempt=attempt) as reply:
                moved = redirect_target(self._url, reply)
                if moved is None:
                    return await self._read(request_id, request, reply)
                self._url = moved  # within the origin, method kept: usually a missing slash
        raise ConnectionFailed("The server redirects in a circle.", remedy="Correct its URL.")

    async def _read(self, request_id: str, request: Request, reply: Reply) -> dict[str, Any]:
        if error := status_error(reply.status, session=SESSION_HEADER in self._headers):
            if reply.status == 404:
                self.fail(error)
            raise error
        limit = min(self._target.limits.message_bytes, request.max_bytes or self._target.limits.message_bytes)
        if reply.is_stream and reply.status == 200:
            return await self._read_stream(request_id, request, reply, limit)
        if reply.content_type != "application/json":
            raise ConnectionFailed(
                f"The server answered HTTP {reply.status} without an MCP message.",
                remedy="Check that its URL is its MCP endpoint.",
                sent=True,
            )
        message = parse_message(await reply.body(limit))
        if reply.status < 400 and message.get("id") != request_id:
            raise ProtocolError("The server answered another request than the one it was sent.", sent=True)
        return read_reply(message)

    async def _read_stream(self, request_id: str, request: Request, reply: Reply, limit: int) -> dict[str, Any]:
        reader = EventReader(limit)
        async for piece in reply.pieces(None):
            for event in reader.feed(piece):
                if event.kind != "message":
                    continue
                message = parse_message(event.data)
                if "method" in message:
                    self._incoming(message, request)
                elif message.get("id") == request_id:
                    return read_reply(message)
        raise ConnectionFailed("The server ended its answer before the result.", sent=True)

    def _incoming(self, message: dict[str, Any], request: Request) -> None:
        method, params = message["method"], message.get("params")
        if "id" in message:
            self._notify(answer_question(message))
        elif method == "notifications/tools/list_changed" and self.on_tools_changed is not None:
            self.on_tools_changed()
        elif method == "notifications/progress" and type(params) is dict and request.on_progress is not None:
            report_progress(request.on_progress, params)  # this stream is the request's own

    def _abandon(self, request_id: str, attempt: Attempt) -> None:
        """A modern server sees its response stream closed; a legacy one has to be told."""
        if attempt.sent and not self._modern and self.error is None:
            params = {"requestId": request_id, "reason": "cancelled"}
            self._notify({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    def _notify(self, message: dict[str, Any]) -> None:
        notice = asyncio.create_task(self._send_notice(msgspec.json.encode(message)))
        self._notices.add(notice)
        notice.add_done_callback(self._notices.discard)

    async def _send_notice(self, data: bytes) -> None:
        with contextlib.suppress(DownstreamError, TimeoutError):
            async with asyncio.timeout(NOTICE_SECONDS):
                send = self._outbound.send("POST", self._url, headers=self._headers, data=data, attempt=Attempt())
                async with send as reply:
                    await reply.body(self._target.limits.message_bytes)


def answer_question(message: dict[str, Any]) -> dict[str, Any]:
    """We offer no client features: a ping is answered, every other question of a server is declined."""
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "ping":
        return {**answer, "result": {}}
    return {**answer, "error": {"code": -32601, "message": "This client offers no such method."}}
