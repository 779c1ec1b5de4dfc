"""The standing stream of a legacy HTTP server (2025-11-25, transports, "Listening for Messages from
the Server").

The SDK asks for it once and gives up after the second failure, deaf from then on. What it gets from
here never ends: whenever the server ends the stream or it breaks, it is asked for again with the id
of the last event, at the server's own pace (``retry``), more and more slowly while nothing comes. A
half event at the end of a broken stream is not passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import NoReturn

import httpx2

from mcpregistry.domain.errors import AuthFailed, DownstreamError
from mcpregistry.downstream.http_client.client import (
    HttpReply,
    Outbound,
    RequestAttempt,
    find_redirect_target,
    make_status_error,
)
from mcpregistry.downstream.transports.eventstream import EventReader, StreamEvent

LAST_EVENT_HEADER = "Last-Event-ID"
PAUSE_LEAST = 0.05  # seconds, whatever a server's ``retry`` says; doubled while nothing comes
PAUSE_MOST = 30.0  # unless the server asks for more


def compute_stream_pause(reader: EventReader, fruitless: int) -> float:
    """Seconds to wait before a stream is asked for again, after so many attempts in a row that
    brought nothing."""
    return max(reader.retry, min(PAUSE_LEAST * 2 ** min(fruitless, 16), PAUSE_MOST))


class StandingStream(httpx2.AsyncByteStream):
    """Whole events as the server tells them, for as long as it is read. ``on_answered`` hears that
    the server listens, or does not; ``on_gap`` hears that something may have been missed,
    ``on_refused`` that the server, which had this stream, knows neither our session nor our
    credential any more."""

    def __init__(
        self,
        outbound: Outbound,
        url: str,
        headers: Mapping[str, str],
        limit: int,
        *,
        on_answered: Callable[[], None],
        on_gap: Callable[[], None],
        on_refused: Callable[[DownstreamError], None],
    ) -> None:
        self._outbound = outbound
        self._url = url
        self._headers = headers
        self._reader = EventReader(limit)
        self._on_answered = on_answered
        self._on_gap = on_gap
        self._on_refused = on_refused
        self._told: AsyncGenerator[bytes] | None = None
        self._opened = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._told = self._stream_events()
        return self._told

    async def aclose(self) -> None:
        """Whoever has read leaves."""
        if self._told is not None:
            await self._told.aclose()

    async def _stream_events(self) -> AsyncGenerator[bytes]:
        fruitless = 0
        again = False
        while True:
            events = 0
            try:
                async with aclosing(self._read_once(again=again)) as told:
                    async for event in told:
                        events += 1
                        yield _encode_event(event)
            except DownstreamError as error:
                self._on_answered()
                if isinstance(error, AuthFailed):
                    if self._opened:
                        self._on_refused(error)
                    await _wait_forever()
            fruitless = 0 if events else fruitless + 1
            again = True
            await asyncio.sleep(compute_stream_pause(self._reader, fruitless))
            self._reader = self._reader.make_successor()

    async def _read_once(self, *, again: bool) -> AsyncGenerator[StreamEvent]:
        """One GET: its events until it ends. Raises DownstreamError."""
        last = {LAST_EVENT_HEADER: self._reader.last_id} if self._reader.last_id else {}
        headers = {**self._headers, **last, "Accept": "text/event-stream"}
        async with self._outbound.send(
            "GET", self._url, headers=headers, data=None, attempt=RequestAttempt()
        ) as reply:
            if moved := find_redirect_target(self._url, reply):
                self._url = moved
                return
            self._on_answered()
            if reply.status != 200 or not reply.is_stream:
                await self._handle_refusal(reply)
            self._opened = True
            if again and not last:
                self._on_gap()  # what was told meanwhile is told to nobody
            async for piece in reply.read_pieces(None):
                for event in self._reader.feed(piece):
                    yield event

    async def _handle_refusal(self, reply: HttpReply) -> None:
        """Raises what may be over in a while; otherwise never comes back: the server has no such
        stream.

        Of a stream that never was, 404 says just that: many servers have no route for GET. The
        session may well be known.
        """
        error = make_status_error(reply.status, session=True)
        if error is not None and reply.status != 404:
            raise error
        if error is not None and self._opened:
            self._on_refused(error)
        await _wait_forever()


async def _wait_forever() -> NoReturn:
    """Until whoever reads leaves: an end would let the SDK ask again, once a second for ever."""
    while True:
        await asyncio.Event().wait()


def _encode_event(event: StreamEvent) -> bytes:
    lines = b"".join(b"data: %b\n" % line for line in event.data.split(b"\n"))
    return b"event: %b\n%b\n" % (event.kind.encode(), lines)
