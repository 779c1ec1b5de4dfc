"""Refuses pages and REST to programs in this site's own sandboxes: a confined server could guess
passwords, or use tokens.

MCP, headends and health probes are not concerned.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import structlog
from asgiref.typing import ASGISendCallable, HTTPScope

from mcpregistry.downstream.transports.sandbox_callers import Address, is_from_sandbox

log = structlog.get_logger(__name__)

_KEY = "connection"  # in the ``state`` of a request
_REFUSAL = {
    "code": "DENIED",
    "message": "Programs in a sandbox of this site cannot use its pages or its REST API.",
    "remedy": "Call tools over MCP, or run the program outside of the sandbox.",
}


@dataclass(slots=True)
class ClientConnection:
    """One TCP connection to a web process. Who has opened it is found out once, at its first
    request."""

    client: Address
    server: Address
    _sandboxed: bool | None = None

    async def is_sandboxed(self) -> bool:
        """Whether a program in one of the site's sandboxes has opened it."""
        if self._sandboxed is None:
            self._sandboxed = await asyncio.to_thread(is_from_sandbox, self.client, self.server)
        return self._sandboxed


def attach(scope: Any, connection: ClientConnection) -> None:
    """Tell the application of the connection itself: ``client`` may be what a proxy has written
    into a header."""
    scope["state"][_KEY] = connection


async def refuse_sandboxed(scope: HTTPScope, send: ASGISendCallable) -> bool:
    """Answer with 403 and return True if the request comes out of a sandbox."""
    connection = _connection(scope)
    if connection is None or not await connection.is_sandboxed():
        return False
    log.warning("site.refused_sandboxed", path=scope["path"])
    headers = [(b"content-type", b"application/json")]
    await send(
        {"type": "http.response.start", "status": 403, "headers": headers, "trailers": False}
    )
    await send(
        {"type": "http.response.body", "body": json.dumps(_REFUSAL).encode(), "more_body": False}
    )
    return True


def _connection(scope: HTTPScope) -> ClientConnection | None:
    """With another ASGI server, what the scope says. None for a Unix socket, which no sandbox
    reaches."""
    found = scope.get("state", {}).get(_KEY)
    if isinstance(found, ClientConnection):
        return found
    client = scope.get("client")
    server = scope.get("server")
    if not client or not server or not client[1] or server[1] is None:
        return None
    return ClientConnection((client[0], client[1]), (server[0], server[1]))
