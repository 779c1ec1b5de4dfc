"""What a request's context knows beside its public fields."""

from __future__ import annotations

from typing import Any

from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext


def get_connection(ctx: ServerRequestContext[Any, Any]) -> Connection:
    """The connection of the host. Its ``session_id`` is the session over Streamable HTTP; None on
    other transports, and without a session."""
    return ctx.session._connection


def get_request_channel(ctx: ServerRequestContext[Any, Any]) -> Any:
    """Sends requests to the host on the stream of this request, as they are: the public way would
    drop what the SDK's models do not know."""
    return ctx.session._request_outbound
