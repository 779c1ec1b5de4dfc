"""Tools and the definitions of them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ninja import Schema

from mcpregistry.api.schemas.basics import Input, capped, decoded
from mcpregistry.models import Definition, Tool

ToolStatus = Literal["approved", "changed", "quarantined", "rejected", "gone"]


class ToolChange(Input):
    enabled: bool | None = None
    idempotent: bool | None = None


class ToolOut(Schema):
    """``name`` is what endpoints of the default naming style call it; ``key`` is server::tool."""

    name: str
    key: str
    kind: Literal["mcp"]
    server_id: str
    server_name: str
    original_name: str
    description: str
    status: ToolStatus
    enabled: bool
    idempotent: bool
    first_seen_at: datetime
    last_seen_at: datetime


class DefinitionOut(Schema):
    """``data`` is what a model would see: name, description, schemas, annotations."""

    id: int
    tool: str
    hash: str
    seen_at: datetime
    decided_at: datetime | None
    approved: bool
    serving: bool
    data: dict[str, Any] | None


class ToolDetail(ToolOut):
    """``input_schema`` is of the approved definition; ``latest`` is what the server says now."""

    input_schema: dict[str, Any] | bool | None
    approved: DefinitionOut | None
    latest: DefinitionOut | None
    connected: bool


def tool_out(tool: Tool, name: str) -> ToolOut:
    return ToolOut(**_facts(tool, name))


def tool_detail(tool: Tool, name: str, *, connected: bool) -> ToolDetail:
    return ToolDetail(
        **_facts(tool, name),
        input_schema=tool.pinned.data.get("inputSchema") if tool.pinned else None,
        approved=definition_out(tool.pinned, tool) if tool.pinned else None,
        latest=definition_out(tool.latest, tool) if tool.latest else None,
        connected=connected,
    )


def definition_out(definition: Definition, tool: Tool) -> DefinitionOut:
    return DefinitionOut(
        id=definition.id, tool=str(tool), hash=definition.hash, seen_at=definition.seen_at,
        decided_at=definition.decided_at, approved=definition.approved,
        serving=tool.pinned_id == definition.id, data=decoded(definition.body),
    )  # fmt: skip


def _facts(tool: Tool, name: str) -> dict[str, Any]:
    shown = tool.pinned or tool.latest
    return {
        "name": name, "key": str(tool), "kind": "mcp", "server_id": tool.server.slug, "server_name": tool.server.title,
        "original_name": tool.name, "description": capped(shown.description) if shown else "", "status": tool.status,
        "enabled": tool.enabled, "idempotent": tool.idempotent, "first_seen_at": tool.first_seen_at,
        "last_seen_at": tool.last_seen_at,
    }  # fmt: skip
