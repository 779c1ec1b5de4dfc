"""Lets libraries that bring httpx along speak through the guarded client. Only workers load this:
httpx is litellm's.

Invariants:
* A request that is not made within a ``GuardedRoute`` is refused, and so is every synchronous one:
  nothing passes by the guard.
* No redirect is followed: libraries would send keys in headers of their own along.
* What a refused address would have answered was never asked for, so nobody can be shown it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import httpx
import msgspec

from mcpregistry.domain.errors import DownstreamError, OutboundRefused
from mcpregistry.domain.servers.target import MIB, ServerLimits, ServerTarget
from mcpregistry.downstream.http_client.client import HttpReply, Outbound, RequestAttempt
from mcpregistry.downstream.http_client.guard import resolve_name

MOST_BYTES = 64 * MIB  # of one decoded answer
_CONNECT_SECONDS = 30.0
# Of the connection itself, which the guarded client makes; and we ask for no encoding.
_WHOLE = {"application/json", "text/plain", ""}  # types of answers that come as one piece of JSON
_OWN = {"host", "content-length", "accept-encoding", "connection", "transfer-encoding"}


class RedirectedError(OutboundRefused):
    """The answer leads elsewhere, which is not followed."""


class WebPageError(DownstreamError):
    """The answer is a web page, though it says that all went well."""


class NotJsonError(DownstreamError):
    """The answer is not JSON, or only a part of it, though it says that all went well."""


@dataclass
class ObservedRequest:
    """One request and its answer, as they were sent and received. It contains secrets."""

    method: str
    url: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    status: int | None = None  # None: no answer
    answer_headers: list[tuple[str, str]] = field(default_factory=list)
    answer: bytearray = field(default_factory=bytearray)
    seconds: float = 0.0
    error: str = ""  # the class of what ended it early


class GuardedRoute:
    """The way of one conversation: private networks into which it may lead, and why it ended early
    if it did.

    ``repair`` rewrites the body of a JSON answer before the library reads it. ``observed``: a list
    that gets each request.
    """

    def __init__(
        self,
        networks: tuple[str, ...],
        repair: Callable[[bytes], bytes] | None = None,
        observed: list[ObservedRequest] | None = None,
    ) -> None:
        self.networks = networks
        self.repair = repair
        self.observed = observed
        self.error: DownstreamError | None = None
        # of the last answer, which libraries replace by a status of their own
        self.status: int | None = None

    @contextmanager
    def observe_request(self, request: httpx.Request) -> Iterator[ObservedRequest]:
        """Note the request, how long it took and why it failed."""
        noted = ObservedRequest(request.method, str(request.url), request.headers.multi_items())
        if self.observed is not None:
            self.observed.append(noted)
        began = monotonic()
        try:
            yield noted
        except BaseException as error:
            noted.error = type(error).__name__
            raise
        finally:
            noted.seconds = monotonic() - began

    @contextmanager
    def activate_route(self) -> Iterator[None]:
        """Requests of this task go this way."""
        token = _way.set(self)
        try:
            yield
        finally:
            _way.reset(token)

    def make_client(self) -> Outbound:
        """A client of its own for each request: a connection costs a thousandth of an answer's
        time, and none outlives the check of its address, its loop, or the change of a provider's
        networks.
        """
        limits = ServerLimits(connect_timeout=_CONNECT_SECONDS)
        target = ServerTarget(
            server_id=0,
            slug="",
            revision=0,
            transport="http",
            allowed_networks=self.networks,
            limits=limits,
        )
        return Outbound(target, resolve=_resolve)


_way: ContextVar[GuardedRoute | None] = ContextVar("way_out", default=None)


async def _resolve(host: str, port: int) -> list[str]:
    return await resolve_name(host, port)


class GuardedTransport(httpx.AsyncBaseTransport):
    """Serves httpx clients from the guarded one, for whoever takes a ``GuardedRoute``."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """httpx's hook: one request, within the time that its client gives it."""
        way = _way.get()
        if way is None or way.error is not None:
            raise httpx.NetworkError(
                "This request has no guarded client, or its client has ended.", request=request
            )
        try:
            with way.observe_request(request) as noted:
                async with asyncio.timeout(_read_timeout(request)):
                    return await _send_request(way, request, noted)
        except TimeoutError as error:
            raise httpx.ReadTimeout("No answer in time.", request=request) from error
        except DownstreamError as error:
            way.error = error
            # Not a ConnectError, after which some libraries try once more by themselves.
            raise httpx.NetworkError(
                "The guarded client has ended this request.", request=request
            ) from None


def _read_timeout(request: httpx.Request) -> float | None:
    given: dict[str, Any] = request.extensions.get("timeout") or {}
    return given.get("read")


async def _send_request(
    way: GuardedRoute, request: httpx.Request, noted: ObservedRequest
) -> httpx.Response:
    headers = {name: value for name, value in request.headers.items() if name not in _OWN}
    body = await request.aread()
    noted.body = body
    async with AsyncExitStack() as stack:
        outbound = await stack.enter_async_context(way.make_client())
        reply = await stack.enter_async_context(
            outbound.send(
                request.method,
                str(request.url),
                headers=headers,
                data=body,
                attempt=RequestAttempt(),
            )
        )
        way.status = reply.status
        noted.status = reply.status
        noted.answer_headers = list(reply.headers.items())
        if 300 <= reply.status < 400:
            raise RedirectedError(
                "The address redirects to another address. Redirects are not followed.",
                remedy="Enter the address that the redirect leads to.",
            )
        kept = [
            (k, v)
            for k, v in reply.headers.items()
            if k.lower() not in ("content-encoding", "content-length")
        ]
        if way.repair is not None and reply.status == 200 and reply.content_type == "text/html":
            raise WebPageError("The address answered with a web page.")
        if way.repair is not None and reply.status == 200 and reply.content_type in _WHOLE:
            received = await reply.read_body(MOST_BYTES)
            if way.observed is not None:
                noted.answer += received
            _require_json(received)
            return httpx.Response(
                reply.status, headers=kept, content=way.repair(received), request=request
            )
        stream = _Body(way, reply, stack.pop_all(), noted)
        return httpx.Response(reply.status, headers=kept, stream=stream, request=request)


def _require_json(body: bytes) -> None:
    """Raise WebPage or NotJson: libraries report both as an error of the provider, with a status
    that it did not send."""
    if body.lstrip()[:1] == b"<":
        raise WebPageError("The address answered with a web page.")
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotJsonError("The answer is not complete JSON.") from None


class _Body(httpx.AsyncByteStream):
    def __init__(
        self, way: GuardedRoute, reply: HttpReply, stack: AsyncExitStack, noted: ObservedRequest
    ) -> None:
        self._way = way
        self._reply = reply
        self._stack = stack
        self._noted = noted

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._reply.read_pieces(MOST_BYTES):
                if self._way.observed is not None:
                    self._noted.answer += piece
                yield piece
        except DownstreamError as error:
            self._way.error = error
            self._noted.error = type(error).__name__
            raise httpx.ReadError("The answer is incomplete: the connection was lost.") from None

    async def aclose(self) -> None:
        await self._stack.aclose()


class NoTransport(httpx.BaseTransport):
    """Refuses every synchronous request."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """httpx's hook."""
        raise httpx.ConnectError("Only the guarded client can send requests.", request=request)
