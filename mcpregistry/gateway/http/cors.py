"""Hosts that live in web pages: which origins may ask, and what their browsers let them see (Fetch,
"CORS protocol").

A page of an origin that is not listed is refused, preflight or not (MCP 2026-07-28, "Streamable
HTTP", security warning). A preflight carries no token, so it is answered before anybody asks for
one. No cookie counts here, so none is let through ("credentials"): the token is a header.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

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
        # A page may send any header: arguments of tools are mirrored in headers whose names no
        # list can know, and the clients of model APIs add their own.
        super().__init__(
            app, allow_methods=METHODS, allow_headers=("*",), expose_headers=EXPOSED, max_age=600
        )

    def is_allowed_origin(self, origin: str) -> bool:
        """Every origin that gets here is allowed."""
        return True
