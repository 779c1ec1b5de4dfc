"""Who is calling: a bearer token becomes an agent; on stdio the command line says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext

SCOPE_KEY = "slipsnisse.caller"
LEFT_KEY = "slipsnisse.left"  # in an HTTP scope: an asyncio.Event, set when the connection is gone


@dataclass(frozen=True, slots=True)
class Caller:
    """An agent on an endpoint. What it sees and may do follows from these two alone; a conversation can only narrow it."""

    agent: str
    endpoint: str
    origin: str  # "http" or "stdio"
    conversation: str = ""  # the id that the request's header, or the command line of ``runmcp``, names

    @property
    def user(self) -> AuthenticatedUser:
        """For the SDK, which lets a legacy session be used only by the principal that opened it."""
        return AuthenticatedUser(AccessToken(token="", client_id=f"{self.agent}@{self.endpoint}", scopes=[]))


def bearer(headers: list[tuple[bytes, bytes]]) -> str | None:
    """The bearer token of a request, or None. Two Authorization headers are none: which one counts?"""
    found = [value for name, value in headers if name == b"authorization"]
    if len(found) != 1 or found[0][:7].lower() != b"bearer ":
        return None
    return found[0][7:].decode("latin-1").strip()


def caller_of(ctx: ServerRequestContext[Any, Any], default: Caller | None) -> Caller:
    """The caller of an MCP request: put into the scope by the HTTP door, or fixed for stdio."""
    scope: Mapping[str, Any] = ctx.request.scope if ctx.request is not None else {}
    caller = scope.get(SCOPE_KEY) or default
    assert caller is not None, "a request reached the server without passing a door"
    return caller
