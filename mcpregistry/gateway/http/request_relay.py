"""Requests of hosts that only another process of the site can answer: it has the call that waits
for the host's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from mcpregistry.domain.errors import QueueFullError
from mcpregistry.downstream.peers.client import relay_request
from mcpregistry.downstream.peers.connections import OwnerGoneError
from mcpregistry.downstream.peers.messages import RelayedRequest, pack_headers, unpack_headers

log = structlog.get_logger(__name__)

Scope = dict[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]
_STATE = b'"requestState"'
_PASSED = "slipsnisse.passed"  # in the scope of a request that another process has passed on


def can_belong_elsewhere(scope: Scope, body: bytes) -> bool:
    """Whether this request brings answers to a question that another process may have asked."""
    return _STATE in body and not scope.get(_PASSED)


class RelayedAnswer:
    """One such request. ``addresses`` gets the process that must answer it while this one handles
    the request."""

    def __init__(self, send: Any) -> None:
        self.addresses: list[str] = []
        self._send = send
        # of our own answer, which holds if the other process has ended
        self._dropped: list[dict[str, Any]] = []

    async def send(self, event: dict[str, Any]) -> None:
        """Send an event of this process's answer, unless another one must answer."""
        if self.addresses:
            self._dropped.append(event)
        else:
            await self._send(event)

    async def finish(self, scope: Scope, body: bytes, receive: Any) -> None:
        """Have the request answered by the process that must."""
        if not self.addresses:
            return
        request = RelayedRequest(
            scope["method"],
            scope["path"],
            scope.get("query_string", b"").decode("latin-1"),
            pack_headers(scope["headers"]),
            body,
        )
        answering = asyncio.ensure_future(relay_request(self.addresses[0], request, self._send))
        leaving = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        except (OwnerGoneError, QueueFullError) as error:
            log.info("request.not_passed_on", error=type(error).__name__)
            for event in self._dropped:
                await self._send(event)
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)


def make_request_handler(app: App) -> Callable[[RelayedRequest, Any, Any], Awaitable[None]]:
    """Return what answers the requests that other processes pass on to this one: the site's own
    door, which authenticates them."""

    async def serve(request: RelayedRequest, receive: Any, send: Any) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": request.method,
            "path": request.path,
            "raw_path": request.path.encode(),
            "root_path": "",
            "query_string": request.query.encode("latin-1"),
            "headers": unpack_headers(request.headers),
            "client": None,
            "server": None,
            "extensions": {},
            _PASSED: True,
        }
        await app(scope, receive, send)

    return serve


async def _wait_for_disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
