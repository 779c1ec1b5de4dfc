"""Sends answers, in one piece or as a stream, for all interfaces.

The text is sent after the end of the run, not while the model writes it: an interrupted stream
looks like a complete answer, and a fallback model cannot retract what was already sent. Until then
the stream is kept alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

import structlog

from subagents.headends.errors import HeadendError
from subagents.headends.http_exchange import Headers, HttpExchange, cancel_and_wait, keep_alive
from subagents.headends.queued_request import ClientLeftError, QueuedRequest, RunReply


class Renderer(Protocol):
    """Formats the answer to one request. ``call`` is the id of the call; the id of the answer
    contains it."""

    waiting_status: ClassVar[int]  # HTTP status of a message about a run that waits for an approval

    def render(self, call: str, reply: RunReply) -> Any:
        """Return the answer in one piece, as a JSON value or bytes."""

    def render_start(self, call: str) -> bytes:
        """Return the first events of a stream."""

    def render_keepalive(self, call: str, status: str) -> bytes:
        """Return what keeps the connection alive. ``status`` describes what the run does now."""

    def render_end(self, call: str, reply: RunReply) -> Iterator[bytes]:
        """Yield the text and the last events."""

    def render_stream_error(self, error: HeadendError, request: str) -> bytes:
        """Return an error event. ``request`` is the id of the request."""


async def serve(
    session: QueuedRequest,
    exchange: HttpExchange,
    renderer: Renderer,
    *,
    stream: bool,
    headers: Headers | None = None,
) -> None:
    """Answer a request. If the client disconnects, its run is cancelled. Raises HeadendError if
    nothing was sent yet."""
    watching = asyncio.ensure_future(exchange.watch())
    try:
        await session.enter()
        named = [(b"x-slipsnisse-call", session.call.encode()), *(headers or [])]
        if stream:
            await exchange.begin(named)
            await exchange.write(renderer.render_start(session.call))
        reply = await _wait_for_answer(session, exchange, renderer, stream=stream)
        # before the answer, because the next request of the client may follow immediately
        await session.leave()
        if stream:
            for part in renderer.render_end(session.call, reply):
                await exchange.write(part)
            await exchange.end()
        else:
            run = [(b"x-slipsnisse-run", reply.run.encode())] if reply.run else []
            status = renderer.waiting_status if reply.finish == "waiting" else 200
            await exchange.answer(status, renderer.render(session.call, reply), [*named, *run])
    except ClientLeftError:
        return
    except HeadendError as error:
        if not exchange.streaming:
            raise
        await session.leave()
        await exchange.end(renderer.render_stream_error(error, get_request_id(exchange)))
    finally:
        await cancel_and_wait(watching)
        await asyncio.shield(session.leave())


async def _wait_for_answer(
    session: QueuedRequest, exchange: HttpExchange, renderer: Renderer, *, stream: bool
) -> RunReply:
    work = asyncio.ensure_future(session.answer(exchange.left))

    async def send_pulse() -> None:
        await exchange.write(renderer.render_keepalive(session.call, session.status))

    try:
        if stream:
            await keep_alive(work, send_pulse)
        return await work
    finally:
        await cancel_and_wait(work)


def get_request_id(exchange: HttpExchange) -> str:
    """Return the id of the request in the log."""
    return str(structlog.contextvars.get_contextvars().get("request_id", ""))
