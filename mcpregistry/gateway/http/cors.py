"""Hosts that live in web pages: which origins may ask, and what their browsers let them see (Fetch,
"CORS protocol").

A page of an origin that is not listed is refused, preflight or not. A preflight carries no token,
so it is answered before anybody asks for one. No cookie counts here, so none is let through
("credentials"): the token is a header.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from functools import lru_cache
from typing import Any

Scope = dict[str, Any]
Headers = list[tuple[bytes, bytes]]

ALLOWED = (
    "Accept",
    "Authorization",
    "Content-Type",
    "Last-Event-ID",
    "Mcp-Method",
    "Mcp-Name",
    "MCP-Protocol-Version",
    "Mcp-Session-Id",
    "Slipsnisse-Conversation",
    "Slipsnisse-Session",
)
EXPOSED = (
    "Mcp-Session-Id, MCP-Protocol-Version, Retry-After, WWW-Authenticate, X-Request-Id, Request-Id, X-Should-Retry, "
    "X-Slipsnisse-Call, X-Slipsnisse-Run"
)
METHODS = b"GET, POST, DELETE, OPTIONS"
REMEMBERED = b"600"  # seconds for which a browser need not ask again
_ALLOWED = ", ".join(ALLOWED).encode()
# Headers whose names no list can know: any argument of a tool may be mirrored, and the clients of
# model APIs add their own.
_MIRRORED = re.compile(
    rb"(?:mcp-param|x-stainless|anthropic|openai)-[!#$%&'*+.^_`|~0-9a-z-]+|x-api-key|idempotency-key|http-referer|x-title"
)
VARY = (b"vary", b"Origin")


class ForeignOriginError(Exception):
    """The request is of a web page that may not ask."""


def read_origin(headers: Iterable[tuple[bytes, bytes]], allowed: Container[str]) -> bytes | None:
    """The origin of the page that asks; None for a program. Raises Foreign for a page that is not
    ``allowed``, and for one that names several origins."""
    found = [value for name, value in headers if name == b"origin"]
    if not found:
        return None
    if len(found) > 1 or found[0].decode("latin-1") not in allowed:
        raise ForeignOriginError
    return found[0]


def is_preflight(scope: Scope) -> bool:
    """Whether a browser asks if its page may ask."""
    return scope["method"] == "OPTIONS" and any(
        name == b"access-control-request-method" for name, _ in scope["headers"]
    )


async def answer_preflight(origin: bytes, scope: Scope, send: Any) -> None:
    """Yes, to what a host may send us; the browser compares."""
    asked = next(
        (value for name, value in scope["headers"] if name == b"access-control-request-headers"),
        b"",
    )
    mirrored = _MIRRORED.findall(asked.lower())
    headers = [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", b", ".join([_ALLOWED, *mirrored])),
        (b"access-control-max-age", REMEMBERED),
        VARY,
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def expose_answers(origin: bytes, send: Any) -> Any:
    """A ``send`` whose answers that page may read."""
    ours = _build_headers(origin)

    async def send_with_headers(event: dict[str, Any]) -> None:
        if event["type"] == "http.response.start":
            event = event | {"headers": [*event["headers"], *ours]}
        await send(event)

    return send_with_headers


@lru_cache(maxsize=64)
def _build_headers(origin: bytes) -> Headers:
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", EXPOSED.encode()),
        VARY,
    ]
