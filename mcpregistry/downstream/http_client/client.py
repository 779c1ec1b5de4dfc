"""The one way out to HTTP: every request to a server, a registry or an authorisation server goes
here.

Invariants:
* A name is resolved once per connection, *all* its addresses are checked, and the connection goes
  to one of the checked ones; the socket is checked once more as it is made, whatever was parsed
  before.
* Private, link-local, metadata and special addresses are refused unless the target names the
  network.
* No proxies, netrc or certificates-off from the environment, no cookies, no redirect off the
  origin.
* Decoded bytes are counted while they are decoded: a bomb costs its limit, not its size.

aiohttp carries it, also beneath the SDK's httpx2 transports (``sdk_transport``), for two reasons:
its resolver and socket factory are public seams for the checks, where httpx2 needs a private
attribute; and a call costs 166 microseconds of CPU instead of 614 (or 1,052 through the SDK).
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from types import SimpleNamespace
from urllib.parse import urljoin

import aiohttp
from yarl import URL

from mcpregistry.domain.errors import (
    AuthFailed,
    ConnectionFailed,
    DownstreamError,
    OutboundRefused,
    ProtocolError,
    SessionLost,
    TimedOut,
)
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.downstream.http_client.draining_streams import DrainingStreams
from mcpregistry.downstream.http_client.guard import (
    CheckedResolver,
    Guard,
    Resolve,
    check_url,
    get_origin,
    resolve_name,
)
from mcpregistry.downstream.limits import make_too_large_error

# Below the 5 seconds after which uvicorn and Node close an idle connection: a request must not be
# written into a connection that its peer has just closed, because its fate would be unknown.
KEEPALIVE_SECONDS = 4.0
PIECE_BYTES = 64 * 1024
YIELD_BYTES = 1024 * 1024


class RequestAttempt:
    """What is known about one request: whether its bytes may have left."""

    __slots__ = ("on_sent", "sent")

    def __init__(self, on_sent: Callable[[], None] | None = None) -> None:
        self.sent = False
        self.on_sent = on_sent

    def mark_sent(self) -> None:
        """The first byte may leave now."""
        if not self.sent:
            self.sent = True
            if self.on_sent is not None:
                self.on_sent()


@lru_cache(maxsize=1024)
def _parse_request_url(url: str) -> URL:
    """Checked and parsed once: a server's URL is the same for every call."""
    return URL(check_url(url), encoded=True)


class HttpReply:
    """The start of a response; its body comes decoded and capped."""

    def __init__(self, response: aiohttp.ClientResponse, attempt: RequestAttempt) -> None:
        self._response = response
        self._attempt = attempt
        self.status = response.status
        self.headers = response.headers
        self.content_type = (
            response.headers.get("content-type", "").partition(";")[0].strip().lower()
        )
        # set by whoever has read all that matters; the end of the body may come later
        self.answered = False

    @property
    def is_stream(self) -> bool:
        return self.content_type == "text/event-stream"

    async def read_body(self, limit: int) -> bytes:
        """The whole decoded body. Raises ResourceLimit beyond ``limit`` bytes."""
        return b"".join([piece async for piece in self.read_pieces(limit)])

    async def read_pieces(self, limit: int | None) -> AsyncIterator[bytes]:
        """Decoded bytes as they come; ``limit`` None is for event streams, bounded per event."""
        decode = make_decoder(self.headers.get("content-encoding", ""))
        total = 0
        unyielded = 0
        with ErrorTranslation(self._attempt):
            async for chunk in self._response.content.iter_any():
                for piece in decode(chunk):
                    total += len(piece)
                    if limit is not None and total > limit:
                        raise make_too_large_error(limit)
                    unyielded += len(piece)
                    if unyielded > YIELD_BYTES:  # inflating must not starve other servers' calls
                        unyielded = 0
                        await asyncio.sleep(0)
                    yield piece


def make_decoder(encoding: str) -> Callable[[bytes], Iterator[bytes]]:
    """Inflates in small pieces. We ask for identity; gzip and deflate are understood all the
    same."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return lambda data: iter((data,))
    if name not in ("gzip", "x-gzip", "deflate"):
        raise ProtocolError(
            "The server answered in a content encoding that was not requested.", sent=True
        )
    inflater = zlib.decompressobj(wbits=47)

    def inflate(data: bytes) -> Iterator[bytes]:
        while data:
            try:
                piece = inflater.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise ProtocolError(
                    "The server's compressed answer is corrupt.", sent=True
                ) from error
            data = inflater.unconsumed_tail
            if piece:
                yield piece

    return inflate


class ErrorTranslation:
    """Turns aiohttp's errors into ours; ``sent`` tells whether bytes of the request may have
    left."""

    def __init__(self, attempt: RequestAttempt) -> None:
        self._attempt = attempt

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if isinstance(error, aiohttp.ClientError | OSError) and not isinstance(
            error, DownstreamError
        ):
            raise translate_http_error(error, sent=self._attempt.sent) from error


def translate_http_error(error: Exception, *, sent: bool) -> DownstreamError:
    """aiohttp's error as one of ours."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
        return ConnectionFailed(
            "The server's TLS certificate is not trusted.",
            remedy="Install a valid certificate at the server, from an authority that this machine trusts.",
        )
    if isinstance(error, aiohttp.InvalidURL | aiohttp.InvalidUrlClientError):
        return OutboundRefused(
            "The URL is not valid. It must be an http or https address without a user name, password or spaces.",
            remedy="Correct the URL.",
        )
    if isinstance(error, aiohttp.ClientConnectorError):
        return ConnectionFailed(
            "The server cannot be reached.", remedy="Check the URL, and that the server is running."
        )
    if isinstance(error, TimeoutError):
        return TimedOut(
            "The server did not accept the connection in time.",
            remedy="Check the URL, and that the server is running.",
            sent=sent,
        )
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.ClientPayloadError):
        return ConnectionFailed(
            "The server's HTTP answer is invalid or incomplete.",
            remedy="Check the server, and each proxy between this site and the server.",
            sent=sent,
        )
    return ConnectionFailed(
        "The connection to the server was lost.",
        remedy="Check that the server is running.",
        sent=sent,
    )


def make_status_error(status: int, *, session: bool = False) -> DownstreamError | None:
    """What an HTTP status alone means for a request; None where MCP gives the status a meaning."""
    if status in (401, 403):
        return AuthFailed(
            f"The server rejected the credential (HTTP {status}).",
            remedy="Check the credential in “Headers” on the page of the server.",
        )
    if status == 404 and session:
        return SessionLost(
            "The server no longer knows this session (HTTP 404).",
            remedy="Press “Reconnect server” on the page of the server.",
        )
    if status == 429 or status >= 500:
        return ConnectionFailed(
            f"The server answered HTTP {status}.", remedy="Read the log of the server.", sent=True
        )
    return None


class Outbound:
    """A guarded HTTP client for one target. Use it as an async context manager, within one loop."""

    def __init__(
        self,
        target: ServerTarget,
        *,
        resolve: Resolve = resolve_name,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._target = target
        self.guard = Guard(target.allowed_networks, resolve)
        self._tls = tls
        self._leftovers = DrainingStreams()
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Outbound:
        connector = aiohttp.TCPConnector(
            resolver=CheckedResolver(self.guard),
            use_dns_cache=False,
            socket_factory=self.guard.make_socket,
            ssl=self._tls if self._tls is not None else True,
            limit=0,
            keepalive_timeout=KEEPALIVE_SECONDS,
        )
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(_mark_sent)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None, connect=self._target.limits.connect_timeout),
            trace_configs=[trace],
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leftovers.close()
        await self._session.close()

    @asynccontextmanager
    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        data: bytes | None,
        attempt: RequestAttempt,
    ) -> AsyncIterator[HttpReply]:
        """One request, no redirect followed. Leaving the context early closes the connection,
        unless the reply was marked as ``answered``: then it is kept for a moment, and serves again
        if the body ends."""
        merged = {
            "Accept-Encoding": "identity",
            "User-Agent": "slipsnisse",
            **headers,
            **self._target.headers,
        }
        with ErrorTranslation(attempt):
            response = await self._session.request(
                method,
                _parse_request_url(url),
                headers=merged,
                data=data,
                allow_redirects=False,
                trace_request_ctx=attempt,
            )
            reply = HttpReply(response, attempt)
            try:
                yield reply
            finally:
                if reply.answered and not response.closed:
                    self._leftovers.add_stream(response)
                else:
                    response.release()  # closes the connection, where the body has not ended
                    await response.wait_for_close()


async def _mark_sent(
    session: aiohttp.ClientSession, context: SimpleNamespace, params: object
) -> None:
    attempt: RequestAttempt = context.trace_request_ctx
    attempt.mark_sent()


def find_redirect_target(url: str, reply: HttpReply) -> str | None:
    """Where a 307 or 308 within the origin leads. Raises OutboundRefused for every other
    redirect."""
    if not 300 <= reply.status < 400 or "location" not in reply.headers:
        return None
    location = urljoin(url, reply.headers["location"])
    if get_origin(location) != get_origin(url) or reply.status not in (307, 308):
        raise OutboundRefused(
            "The server redirects to another address. Such redirects are not followed.",
            remedy="If the other address is correct, enter it as the URL on the page of the server.",
        )
    return location
