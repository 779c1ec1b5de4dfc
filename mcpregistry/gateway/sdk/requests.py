"""What a request's context knows beside its public fields."""

from __future__ import annotations

from typing import Any

from mcp.server.context import ServerRequestContext


def get_session_id(ctx: ServerRequestContext[Any, Any]) -> str | None:
    """The id of the session over Streamable HTTP; None on other transports, and without a
    session."""
    found: str | None = ctx.session._connection.session_id
    return found


def get_request_channel(ctx: ServerRequestContext[Any, Any]) -> Any:
    """Sends requests to the host on the stream of this request, as they are: the public way would
    drop what the SDK's models do not know."""
    return ctx.session._request_outbound
