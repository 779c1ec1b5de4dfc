"""Around every HTTP request, whoever answers it: host check, request id, access log, security
headers.

Outside Django on purpose, since its middleware never sees ``/mcp``. Query strings and headers are
not logged: they may carry tokens.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from functools import lru_cache

import structlog
from asgiref.typing import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ASGISendEvent,
    HTTPScope,
    Scope,
    WebSocketScope,
)
from django.conf import settings
from django.http.request import split_domain_port, validate_host

from controlplane.health import PROBES
from mcpregistry.ids import make_random_id

log = structlog.get_logger(__name__)

# from the first look at a body until all of it is there; 4 MiB take a modem that long
BODY_SECONDS = 60.0
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
# No page has an inline script, nor needs eval: the admin's Alpine is the build without it.
POLICY = (
    b"default-src 'self'; script-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; object-src 'none'; "
    b"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_SECURITY = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
]


class Guarded:
    """ASGI middleware around the whole site: refuses foreign host names, logs, adds headers."""

    def __init__(self, app: ASGI3Application) -> None:
        self._app = app

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """One ASGI connection; the lifespan passes through."""
        if scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = _Request(scope, send)
        with structlog.contextvars.bound_contextvars(request_id=request.id):
            try:
                await self._answer(scope, receive, request)
            finally:
                request.log()

    async def _serve_websocket(
        self, scope: WebSocketScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """A WebSocket, from its handshake to its end."""
        began = time.perf_counter()
        with structlog.contextvars.bound_contextvars(request_id=make_random_id()):
            try:
                if _host_is_ours(scope):
                    await self._app(scope, receive, send)
                else:
                    await receive()
                    # before the handshake: 403
                    await send({"type": "websocket.close", "code": 1008, "reason": ""})
            except Exception:
                log.exception("A WebSocket failed unexpectedly", path=scope["path"])
                raise
            finally:
                log.info(
                    "WEBSOCKET",
                    path=scope["path"],
                    ms=round((time.perf_counter() - began) * 1000, 1),
                )

    async def _answer(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, request: _Request
    ) -> None:
        if scope["path"] not in PROBES and not _host_is_ours(scope):
            await request.refuse(
                "This host name is not allowed. To allow it, add it to SLIPSNISSE_HOSTS.\n"
            )
            return
        try:
            await self._app(scope, _limit_receive_time(receive), request.send)
        except _TooSlow:
            if request.status:
                raise  # as below
            await request.refuse(
                f"The body of the request did not arrive within {BODY_SECONDS:g} s.\n", status=408
            )
        except Exception:
            log.exception("A request failed unexpectedly", path=scope["path"])
            if request.status:
                raise  # the answer has begun: only cutting the connection can tell the client
            await request.refuse(
                "The request failed because of an internal error. See the log of the site for details.\n",
                status=500,
            )


class _TooSlow(Exception):
    """The client keeps a request open without sending it."""


def _limit_receive_time(receive: ASGIReceiveCallable) -> ASGIReceiveCallable:
    """The same, but a body that is not whole in time raises ``_TooSlow``; afterwards it waits for
    ever, as it must."""
    deadline = 0.0
    whole = False

    async def receive_in_time() -> ASGIReceiveEvent:
        nonlocal deadline, whole
        if whole:
            return await receive()
        now = asyncio.get_running_loop().time()
        deadline = deadline or now + BODY_SECONDS
        try:
            async with asyncio.timeout(max(0.0, deadline - now)):
                event = await receive()
        except TimeoutError as error:
            raise _TooSlow from error
        whole = event["type"] != "http.request" or not event.get("more_body", False)
        return event

    return receive_in_time


class _Request:
    """One request's id, status and timing; adds our headers when the response starts."""

    def __init__(self, scope: HTTPScope, send: ASGISendCallable) -> None:
        given = _header(scope["headers"], b"x-request-id")
        self.id = given if _REQUEST_ID.fullmatch(given) else make_random_id()
        self.status = 0
        self._scope = scope
        self._send = send
        self._began = time.perf_counter()

    async def send(self, event: ASGISendEvent) -> None:
        if event["type"] == "http.response.start":
            self.status = event["status"]
            event["headers"] = [*event["headers"], *self._headers(event["headers"])]
        await self._send(event)

    async def refuse(self, text: str, status: int = 400) -> None:
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        await self.send(
            {"type": "http.response.start", "status": status, "headers": headers, "trailers": False}
        )
        await self.send({"type": "http.response.body", "body": text.encode(), "more_body": False})

    def log(self) -> None:
        write = log.debug if self._scope["path"] in PROBES else log.info
        milliseconds = round((time.perf_counter() - self._began) * 1000, 1)
        # No status: the client went away before the first byte of an answer.
        write(
            self._scope["method"],
            path=self._scope["path"],
            status=self.status or None,
            ms=milliseconds,
        )

    def _headers(self, present: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        ours = [
            (b"x-request-id", self.id.encode()),
            (b"content-security-policy", POLICY),
            *_SECURITY,
        ]
        there = {name.lower() for name, _ in present}
        return [pair for pair in ours if pair[0] not in there]


def _host_is_ours(scope: HTTPScope | WebSocketScope) -> bool:
    return _is_allowed(_header(scope["headers"], b"host"), tuple(settings.ALLOWED_HOSTS))


@lru_cache(maxsize=256)
def _is_allowed(host: str, allowed: tuple[str, ...]) -> bool:
    domain, _ = split_domain_port(host)
    return bool(domain) and validate_host(domain, allowed)


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in headers if key.lower() == name), "")
