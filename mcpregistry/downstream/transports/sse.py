"""HTTP+SSE (spec 2024-11-05): one event stream in, one POST per message out, through the guarded
client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import urljoin

import anyio

from mcpregistry.domain.errors import (
    ConnectionFailed,
    DownstreamError,
    OutboundRefused,
    ProtocolError,
    TimedOut,
)
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.downstream.http_client.client import (
    HttpReply,
    Outbound,
    RequestAttempt,
    find_redirect_target,
)
from mcpregistry.downstream.http_client.guard import check_url, get_origin
from mcpregistry.downstream.transports.eventstream import EventReader, StreamEvent
from mcpregistry.downstream.transports.refusals import read_refusal
from mcpregistry.downstream.transports.wire import Wire

SEND_SECONDS = 30.0


class SseChannel(Wire):
    """The two halves of an SSE server as one wire."""

    def __init__(self, target: ServerTarget) -> None:
        super().__init__()
        self._target = target
        self._outbound = Outbound(target)
        self._endpoint: asyncio.Future[str]
        self._reader_task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the event stream and wait for the address to post to."""
        check_url(self._target.url)
        self._endpoint = asyncio.get_running_loop().create_future()
        await self._outbound.__aenter__()
        self._reader_task = asyncio.create_task(self._read())
        try:
            await self._endpoint
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the stream; shielded, so that a cancelled owner leaves nothing open."""
        with anyio.CancelScope(shield=True):
            if self._reader_task is not None:
                self._reader_task.cancel()
                await asyncio.wait([self._reader_task])
            await self._outbound.__aexit__()

    async def _read(self) -> None:
        error: DownstreamError = ConnectionFailed("The server closed its event stream.", sent=True)
        try:
            await self._read_events(self._target.url)
        except DownstreamError as failure:
            error = failure
        if not self._endpoint.done():
            self._endpoint.set_exception(error)
        self.fail(error)

    async def _read_events(self, url: str) -> None:
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        send = self._outbound.send("GET", url, headers=headers, data=None, attempt=RequestAttempt())
        async with send as reply:
            if moved := find_redirect_target(url, reply):
                url = moved
            else:
                await self._read_reply(url, reply)
                return
        await self._read_again(url, headers)

    async def _read_again(self, url: str, headers: dict[str, str]) -> None:
        async with self._outbound.send(
            "GET", url, headers=headers, data=None, attempt=RequestAttempt()
        ) as reply:
            await self._read_reply(url, reply)

    async def _read_reply(self, url: str, reply: HttpReply) -> None:
        if error := await read_refusal(reply):
            raise error
        if reply.status != 200 or not reply.is_stream:
            raise ConnectionFailed(
                f"The server answered HTTP {reply.status} without an event stream.",
                remedy="Check the URL on the page of the server.",
            )
        reader = EventReader(self._target.limits.message_bytes)
        async for piece in reply.read_pieces(None):
            for event in reader.feed(piece):
                self._handle_event(url, event)

    def _handle_event(self, url: str, event: StreamEvent) -> None:
        if event.kind == "message":
            self.receive(event.data)
        elif event.kind == "endpoint" and not self._endpoint.done():
            endpoint = urljoin(url, event.data.decode(errors="replace"))
            if get_origin(endpoint) != get_origin(url):
                raise OutboundRefused(
                    "The server's address for messages differs from its URL in scheme, host or port.",
                    remedy="Correct the public address in the server's own settings.",
                )
            self._endpoint.set_result(endpoint)

    async def transmit(self, data: bytes, on_sent: Callable[[], None] | None = None) -> None:
        """Post one message."""
        if self.error is not None:
            raise ConnectionFailed(self.error.message, remedy=self.error.remedy)
        attempt = RequestAttempt(on_sent)
        headers = {"Content-Type": "application/json"}
        url = self._endpoint.result()
        try:
            async with asyncio.timeout(SEND_SECONDS):
                send = self._outbound.send("POST", url, headers=headers, data=data, attempt=attempt)
                async with send as reply:
                    find_redirect_target(url, reply)
                    await self._check_accepted(reply)
        except TimeoutError:
            raise TimedOut(
                "The server did not accept the message in time.", sent=attempt.sent
            ) from None

    async def _check_accepted(self, reply: HttpReply) -> None:
        if error := await read_refusal(reply, session=True):
            if reply.status in (401, 403, 404) or reply.status >= 500:
                self.fail(error)
            raise error
        if reply.status >= 300:
            raise ProtocolError(
                f"The server answered a message with HTTP {reply.status}.",
                remedy="Read the log of the server.",
                sent=True,
            )
