"""Hosts' sessions, as they come out."""

from __future__ import annotations

from datetime import datetime

from ninja import Schema
from pydantic import Field

from mcpregistry.models import HostSession
from mcpregistry.queries import host_sessions as queries


class HostSessionOut(Schema):
    """A session of a host that uses MCP 2025-11-25 or earlier, or a WebSocket. Other hosts have no
    sessions."""

    id: str
    agent: str
    endpoint: str
    host_name: str = Field(
        description="Name that the host reports in its handshake. Empty before that."
    )
    host_version: str
    protocol_version: str = Field(description="Negotiated protocol version. Empty for a WebSocket.")
    door: str
    state: str = Field(
        description="State of the session: open, idle (not used for two minutes) or ended."
    )
    own_connections: list[str] = Field(
        description="Servers to which the session has its own connection. The list can be up to half a minute old."
    )
    created_at: datetime
    last_used_at: datetime
    ended_at: datetime | None


def host_session_out(row: HostSession) -> HostSessionOut:
    """One session, of rows that ``queries.host_sessions.with_connections`` gave."""
    return HostSessionOut(
        id=row.pk,
        agent=row.agent_slug,
        endpoint=row.endpoint_slug,
        host_name=row.host_name,
        host_version=row.host_version,
        protocol_version=row.protocol_version,
        door=row.door,
        state=queries.state(row),
        own_connections=queries.servers(row),
        created_at=row.created_at,
        last_used_at=row.seen_at,
        ended_at=row.ended_at,
    )
