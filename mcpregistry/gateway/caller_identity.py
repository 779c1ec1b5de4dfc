"""Who is calling: a bearer token becomes an agent; on stdio the command line says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcpregistry.domain.errors import ArgumentsInvalid
from mcpregistry.domain.servers.sessions import STDIO, name_implicit_session, name_mcp_session
from mcpregistry.gateway.sdk.requests import get_connection

SCOPE_KEY = "slipsnisse.caller"
LASTING_KEY = "slipsnisse.lasting"  # the id of a connection that lasts
LEFT_KEY = "slipsnisse.left"  # in an HTTP scope: an asyncio.Event, set when the connection is gone


ELSEWHERE_KEY = (
    # in an HTTP scope: a list for the address of the process that must answer the request
    "slipsnisse.elsewhere"
)
SESSION_KEY = "slipsnisse/session"  # in ``_meta``, beside the header
SESSION_HEADER = b"slipsnisse-session"
_LONGEST_SESSION = 200


@dataclass(frozen=True, slots=True)
class Caller:
    """An agent on an endpoint. What it sees and may do follows from these two alone; a conversation
    can only narrow it."""

    agent: str
    endpoint: str
    origin: str  # "http" or "stdio"
    # the id that the request's header, or the command line of ``runmcp``, names
    conversation: str = ""
    # what the request's header calls the session of a host that has none by its protocol
    session: str = ""

    @property
    def user(self) -> AuthenticatedUser:
        """For the SDK, which lets a legacy session be used only by the principal that opened it."""
        return AuthenticatedUser(
            AccessToken(token="", client_id=f"{self.agent}@{self.endpoint}", scopes=[])
        )


def read_bearer_token(headers: list[tuple[bytes, bytes]]) -> str | None:
    """The bearer token of a request, or None. Two Authorization headers are none: which one
    counts?"""
    found = [value for name, value in headers if name == b"authorization"]
    if len(found) != 1 or found[0][:7].lower() != b"bearer ":
        return None
    return found[0][7:].decode("latin-1").strip()


def find_caller(ctx: ServerRequestContext[Any, Any], default: Caller | None) -> Caller:
    """The caller of an MCP request: put into the scope by the HTTP door, or fixed for stdio."""
    scope: Mapping[str, Any] = ctx.request.scope if ctx.request is not None else {}
    caller = scope.get(SCOPE_KEY) or default
    assert caller is not None, "a request reached the server without passing a door"
    return caller


def redirect_to_process(ctx: ServerRequestContext[Any, Any], address: str) -> None:
    """Tell the HTTP door that another process must answer this request. What this process answers
    is then dropped."""
    elsewhere: list[str] | None = (
        ctx.request.scope.get(ELSEWHERE_KEY) if ctx.request is not None else None
    )
    if elsewhere is not None and address:
        elsewhere.append(address)


def find_mcp_session(ctx: ServerRequestContext[Any, Any]) -> str | None:
    """The id of the MCP session in which the request came; None where the protocol has none.

    Over HTTP+SSE and WebSocket the connection is the session.
    """
    if ctx.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
        return None
    lasting: str | None = ctx.request.scope.get(LASTING_KEY) if ctx.request is not None else None
    return lasting or get_connection(ctx).session_id


def name_session(
    caller: Caller, meta: Mapping[str, Any], conversation: str = "", own: str | None = None
) -> str:
    """What the host's session is called among those of its agent. Raises ArgumentsInvalid for what
    is no name.

    ``own``: the id of its MCP session, which only the older era has over HTTP. A host without one
    may name its session, in a header or ``_meta``; else the conversation is its session, or else
    all its requests to the endpoint are. Over stdio the process is the session.
    """
    if caller.origin == "stdio":
        return STDIO
    if own is not None:
        return name_mcp_session(own)
    named = meta.get(SESSION_KEY, caller.session)
    if not isinstance(named, str) or len(named) > _LONGEST_SESSION:
        raise ArgumentsInvalid(
            f"_meta['{SESSION_KEY}'] must be a text of at most {_LONGEST_SESSION} characters.",
            remedy="Leave the key out, or shorten its value.",
        )
    if caller.session not in ("", named):
        raise ArgumentsInvalid(
            "The request names two different sessions.",
            remedy=f"Leave out _meta['{SESSION_KEY}'], or set it to the same session as the header.",
        )
    return name_implicit_session(caller.endpoint, named, conversation)
