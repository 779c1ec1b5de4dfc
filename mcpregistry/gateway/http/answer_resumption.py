"""An answer that takes a while gets an event id, and can be read on with it: by a GET that names
``Last-Event-ID``.

Only hosts of 2025-11-25 understand the event without data that carries the id. What is over within
a moment, as most calls are, costs nothing; a host that loses that answer asks again. Progress is
not repeated, the answer is.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import structlog
from django.core.exceptions import ObjectDoesNotExist
from django.db import Error
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR

from mcpregistry.calls import recorded_outcomes
from mcpregistry.calls.call import CallOutcome
from mcpregistry.calls.watch.changes import Feed
from mcpregistry.calls.watch.state_watch import StateWatch
from mcpregistry.db import db_call
from mcpregistry.domain import error_texts
from mcpregistry.domain.calls.outcome_texts import LOOK_FIRST
from mcpregistry.domain.errors import QueueFullError
from mcpregistry.gateway.host_answers import (
    build_prompt_result,
    build_resource_result,
    build_tool_result,
)
from mcpregistry.gateway.http.session_cache import HostSessionState
from mcpregistry.gateway.jsonrpc import make_error_reply
from mcpregistry.models import HostStream
from mcpregistry.models.feed import CALLS, STREAMS
from mcpregistry.services import host_streams

log = structlog.get_logger(__name__)

# seconds; what is answered sooner is not kept: under load most calls take a tenth, and each would
# cost two commits
AFTER = 1.0
_RETRY_MS = 1_000
_PING_SECONDS = 15.0
_FIRST = "2025-11-25"
_HEAD = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]


class ResumableAnswer:
    """The answer to one request of a session. ``call_id`` is set by whoever makes a call of it."""

    def __init__(
        self, session: HostSessionState, request_id: int | str, method: str, uri: str = ""
    ) -> None:
        self._session = session
        self._request = json.dumps({"id": request_id, "method": method, "uri": uri})
        self.call_id = ""
        self._stream = ""
        self._beginning: asyncio.Task[bytes] | None = None

    def set_call_id(self, call_id: str) -> None:
        """A call is made of the request."""
        self.call_id = call_id

    @property
    def begun(self) -> bool:
        """Whether it is kept, or about to be."""
        return self._beginning is not None

    def begin(self) -> asyncio.Task[bytes]:
        """Keep it from now on. The task gives the event that tells the host its id; empty where it
        cannot be kept."""
        if self._beginning is None:
            self._beginning = asyncio.ensure_future(self._begin())
        return self._beginning

    async def store_answer(self, message: bytes) -> bytes:
        """The last message is there. Returns the line with its event's id, to stand before it."""
        if self._beginning is not None:
            await self._beginning
        if not self._stream:
            return b""
        try:
            await db_call(host_streams.store_answer, self._stream, message.decode())
        except Error:  # it is sent all the same, and the record of a call has it
            log.warning("stream.answer_not_kept", exc_info=True)
        return f"id: {self._stream}.1\r\n".encode()

    async def _begin(self) -> bytes:
        if self._session.version < _FIRST:
            return b""
        try:
            self._stream = await db_call(
                host_streams.begin_stream,
                session_id=self._session.id,
                request=self._request,
                call_id=self.call_id,
            )
        except Error:
            log.warning("stream.not_kept", exc_info=True)
        return (
            f"id: {self._stream}.0\r\nretry: {_RETRY_MS}\r\ndata: \r\n\r\n".encode()
            if self._stream
            else b""
        )


class KeptSend:
    """A ``send`` for the SDK's streams: tells the host the id once an answer takes a while, and
    keeps the answer."""

    def __init__(self, kept: ResumableAnswer, send: Any) -> None:
        self._kept = kept
        self._send = send
        self._timer = asyncio.get_running_loop().call_later(AFTER, self._begin)
        self._telling: asyncio.Task[None] | None = None
        self._over = False

    async def __call__(self, event: Any) -> None:
        """One event of ASGI."""
        body: bytes = event.get("body", b"")
        if event["type"] == "http.response.start":
            self._over = (b"content-type", b"text/event-stream") not in _list_content_types(event)
        elif not self._over and (message := find_answer(body)):
            self._over = True
            if line := await self._kept.store_answer(message):
                event = event | {"body": line + body}
        await self._send(event)

    def close(self) -> None:
        """The request is over."""
        self._over = True
        self._timer.cancel()

    def _begin(self) -> None:
        if not self._over:
            self._telling = asyncio.ensure_future(self._send_event_id())

    async def _send_event_id(self) -> None:
        event = await self._kept.begin()
        if event and not self._over:
            await self._send({"type": "http.response.body", "body": event, "more_body": True})


def _list_content_types(event: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value.partition(b";")[0]) for name, value in event["headers"]]


def find_answer(chunk: bytes) -> bytes:
    """The message in a stream's chunk, if it is the one that ends it."""
    for line in chunk.split(b"\r\n"):
        if line.startswith(b"data: {"):
            message = msgspec.json.decode(line[6:])
            return (
                line[6:] if "result" in message or ("error" in message and "id" in message) else b""
            )
    return b""


class Resumption:
    """Serves hosts that read on. One per web process."""

    def __init__(self, feed: Feed) -> None:
        self._watch = StateWatch(feed, STREAMS, host_streams.load_stream_states, also=(CALLS,))

    def stop(self) -> None:
        """Let every host go; it reads on elsewhere."""
        self._watch.stop()

    async def find_stream(self, session: HostSessionState, event_id: str) -> HostStream | None:
        """The stream that the host wants to read on; None for what never was, or was forgotten.
        Raises Busy."""
        try:
            return await db_call(host_streams.find_stream_by_event, session.id, event_id)
        except Error:
            raise QueueFullError(
                error_texts.DATABASE_UNAVAILABLE, remedy=error_texts.TRY_AGAIN_SOON
            ) from None

    async def serve(
        self, session: HostSessionState, stream: HostStream, receive: Any, send: Any
    ) -> None:
        """Answer the GET: with the answer, as soon as there is one."""
        head = [*_HEAD, (b"mcp-session-id", session.id.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        left = asyncio.ensure_future(_wait_for_disconnect(receive))
        waiting = asyncio.ensure_future(self._wait(stream.pk, send))
        try:
            await asyncio.wait({left, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not left.done() and (message := waiting.result()):
                body = f"id: {stream.pk}.1\r\nevent: message\r\ndata: {message}\r\n\r\n".encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            left.cancel()
            waiting.cancel()

    async def _wait(self, stream_id: str, send: Any) -> str:
        """The answer; empty when this process stops before it comes."""
        while not self._watch.stopping:
            if await self._watch.wait_for_change(stream_id, "", _PING_SECONDS):
                try:
                    return await db_call(load_answer, stream_id)
                except (Error, ObjectDoesNotExist):  # the stream ends, and the host reads on again
                    return ""
            await send({"type": "http.response.body", "body": b": ping\r\n\r\n", "more_body": True})
        return ""


async def _wait_for_disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def load_answer(stream_id: str) -> str:
    """The JSON-RPC message that was kept, else what the record of the call says, else that nobody
    knows."""
    stream = HostStream.objects.get(pk=stream_id)
    if message := host_streams.read_kept_answer(stream):
        return message
    request = json.loads(stream.request)
    outcome = recorded_outcomes.load_outcome(stream.call_id) if stream.call_id else None
    try:
        if outcome is not None:
            return json.dumps(
                {"jsonrpc": "2.0", "id": request["id"], "result": _build_result(request, outcome)}
            )
    except MCPError as error:
        return json.dumps(make_error_reply(request["id"], error.error.code, error.error.message))
    return json.dumps(
        make_error_reply(request["id"], INTERNAL_ERROR, f"The answer was not stored. {LOOK_FIRST}")
    )


def _build_result(request: dict[str, Any], outcome: CallOutcome) -> dict[str, Any]:
    if request["method"] == "prompts/get":
        return build_prompt_result(outcome, legacy=True)
    if request["method"] == "resources/read":
        return build_resource_result(outcome, request["uri"], legacy=True)
    return build_tool_result(outcome, legacy=True)
