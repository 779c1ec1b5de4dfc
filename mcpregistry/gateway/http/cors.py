"""Hosts that live in web pages: which origins may ask, and what their browsers let them see (Fetch,
"CORS protocol").

A page of an origin that is not listed is refused, preflight or not (MCP 2026-07-28, "Streamable
HTTP", security warning). A preflight carries no token, so it is answered before anybody asks for
one. No cookie counts here, so none is let through ("credentials"): the token is a header.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

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
    "Mcp-Session-Id",
    "MCP-Protocol-Version",
    "Retry-After",
    "WWW-Authenticate",
    "X-Request-Id",
    "Request-Id",
    "X-Should-Retry",
    "X-Slipsnisse-Call",
    "X-Slipsnisse-Run",
)
METHODS = ("GET", "POST", "DELETE", "OPTIONS")
# Headers whose names no list can know: any argument of a tool may be mirrored, and the clients of
# model APIs add their own.
_MIRRORED = re.compile(
    r"(?:mcp-param|x-stainless|anthropic|openai)-[!#$%&'*+.^_`|~0-9a-z-]+|x-api-key|idempotency-key|http-referer|x-title"
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


class AllowedPages(CORSMiddleware):
    """The app for requests of pages whose origin ``read_origin`` has allowed."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            app, allow_methods=METHODS, allow_headers=("*",), expose_headers=EXPOSED, max_age=600
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """As in the base class, but only headers are allowed that a host may send."""
        response = super().preflight_response(request_headers)
        asked = request_headers.get("access-control-request-headers", "").lower()
        allowed = [*ALLOWED, *_MIRRORED.findall(asked)]
        response.headers["Access-Control-Allow-Headers"] = ", ".join(allowed)
        return response

    def is_allowed_origin(self, origin: str) -> bool:
        """Every origin that gets here is allowed."""
        return True
