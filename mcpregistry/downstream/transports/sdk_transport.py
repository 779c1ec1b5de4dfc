"""Lets the official SDK's transports speak through the guarded client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx2
import msgspec

from mcpregistry.domain.errors import ProtocolError, ResourceLimit
from mcpregistry.downstream.http_client.client import (
    HttpReply,
    Outbound,
    RequestAttempt,
    find_redirect_target,
    make_status_error,
)
from mcpregistry.downstream.transports.eventstream import MessageStream
from mcpregistry.downstream.transports.messages import parse_message, rename_oldest_version
from mcpregistry.downstream.transports.refusals import read_refusal

Standing = Callable[[Mapping[str, str]], httpx2.AsyncByteStream]


class SdkTransport(httpx2.AsyncBaseTransport):
    """Serves the SDK's httpx2 client from the guarded one.

    A status that ends a conversation is raised as a typed error: the SDK itself would turn it into
    a nameless one. JSON bodies are capped here, event streams by the SDK's own limit per event.
    What it asks for by GET, a legacy server's standing stream, comes from ``standing``.
    """

    def __init__(
        self,
        outbound: Outbound,
        limit: int,
        on_reply: Callable[[HttpReply], None],
        standing: Standing,
    ) -> None:
        self._outbound = outbound
        self._limit = limit
        self._on_reply = on_reply
        self._standing = standing

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """httpx2's hook: one request, sent by the guarded client."""
        own = {
            "host",
            "content-length",
            "accept-encoding",
            "connection",
            "user-agent",
            "transfer-encoding",
        }
        headers = {name: value for name, value in request.headers.items() if name not in own}
        if request.method == "GET":
            return httpx2.Response(
                200, headers={"content-type": "text/event-stream"}, stream=self._standing(headers)
            )
        context = self._outbound.send(
            request.method,
            str(request.url),
            headers=headers,
            data=await request.aread(),
            attempt=RequestAttempt(),
        )
        reply = await context.__aenter__()
        try:
            self._on_reply(reply)
            find_redirect_target(str(request.url), reply)
            if make_status_error(reply.status) and (error := await read_refusal(reply)):
                raise error
        except BaseException:
            await context.__aexit__(None, None, None)
            raise
        kept = [
            (k, v)
            for k, v in reply.headers.items()
            if k.lower() not in ("content-encoding", "content-length")
        ]
        return httpx2.Response(
            reply.status, headers=kept, stream=_Messages(reply, context, self._limit)
        )


class _Messages(httpx2.AsyncByteStream):
    """The messages of a reply, without heartbeats and in valid JSON."""

    def __init__(self, reply: HttpReply, context: Any, limit: int) -> None:
        self._reply = reply
        self._context = context
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if not self._reply.is_stream:
            body = await self._reply.read_body(self._limit)
            yield _repair_message(body) or body
            return
        stream = MessageStream(self._limit, _repair_message)
        async for piece in self._reply.read_pieces(None):
            if data := stream.feed(piece):
                yield data

    async def aclose(self) -> None:
        await self._context.__aexit__(None, None, None)


def _repair_message(data: bytes) -> bytes | None:
    try:
        return msgspec.json.encode(rename_oldest_version(parse_message(data)))
    except (ProtocolError, ResourceLimit):
        return None


def make_sdk_client(
    outbound: Outbound, limit: int, on_reply: Callable[[HttpReply], None], standing: Standing
) -> httpx2.AsyncClient:
    """An httpx2 client for the SDK's transports whose every byte goes through this guarded client.

    ``limit``: the most decoded bytes of a JSON body. ``on_reply`` sees the start of every response
    to a POST. ``standing`` makes what a GET with these headers is answered with.
    """
    transport = SdkTransport(outbound, limit, on_reply, standing)
    return httpx2.AsyncClient(transport=transport, trust_env=False, timeout=None)
