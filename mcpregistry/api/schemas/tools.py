"""Tools and the definitions of them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, cast

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.basics import OfferKind, StrictInput, Text, cap_text, decode_json
from mcpregistry.domain.definitions.definition import list_changed_fields
from mcpregistry.domain.definitions.diff import list_rewordings
from mcpregistry.domain.definitions.findings import Severity
from mcpregistry.domain.energy import EnergyRates
from mcpregistry.domain.offer_kinds import build_arguments_schema
from mcpregistry.models import Definition, Tool
from mcpregistry.services.energy import estimates

ToolStatus = Literal["approved", "changed", "quarantined", "rejected", "gone"]

Level = Literal["clean", "note", "suspicious", "danger"]


class ToolChange(StrictInput):
    """Changes of a tool. You can leave out any key."""

    enabled: bool | None = None
    idempotent: bool | None = None
    call_energy: float | None = Field(
        None, ge=0, description="Your estimate of the energy units of one call."
    )
    call_cost: float | None = Field(
        None, ge=0, le=9999, description="Your estimate of the price of one call in US dollars."
    )
    own_name: Text | None = Field(
        None,
        max_length=64,
        description="Name that hosts see instead of the server's name. If empty, hosts see the server's name.",
    )
    own_description: Text | None = Field(
        None,
        max_length=10_000,
        description="Description that hosts see instead of the approved one. If empty, hosts see the approved one.",
    )


class ToolOut(Schema):
    """``name`` is the name on endpoints with the default naming style; ``key`` is server::tool
    (server::prompt:name)."""

    name: str
    key: str
    kind: Literal["mcp"]
    offers: OfferKind
    server_id: str
    server_name: str
    original_name: str
    description: str
    status: ToolStatus
    enabled: bool
    idempotent: bool
    call_energy: float | None
    call_cost: float | None
    own_name: str
    own_description: str
    estimated_energy_cost: float | None = Field(
        description="Estimated energy units of a call. For an agent, calculated with its own pool. Null if the "
        "tool has no definition yet."
    )
    first_seen_at: datetime
    last_seen_at: datetime


class DefinitionOut(Schema):
    """``data`` is what a model would see: name, description, schemas and annotations."""

    id: int
    tool: str
    hash: str
    seen_at: datetime
    decided_at: datetime | None
    approved: bool
    serving: bool
    data: dict[str, Any] | None


class FindingOut(Schema):
    """A finding of the scanner: a hint for the approver, not a decision. ``where`` is a JSON
    pointer into ``data``."""

    kind: str
    severity: Level
    where: str
    excerpt: str
    why: str


class SegmentOut(Schema):
    """A piece of text: kept, removed (only in the approved definition) or added."""

    sign: Literal[" ", "-", "+"]
    text: str


class RewordingOut(Schema):
    """One field that differs from the approved definition, in pieces."""

    field: str
    segments: list[SegmentOut]


class DefinitionDetail(DefinitionOut):
    """``changes`` compares with the approved definition, word by word. It is empty for a new tool
    and for the approved definition.
    """

    findings: list[FindingOut]
    changes: list[RewordingOut]


class DriftOut(Schema):
    """A tool that no agent sees, because its current definition is not approved."""

    tool: str
    server: str
    status: ToolStatus
    fields: list[str]
    severity: Level
    last_seen_at: datetime
    approved: int | None
    latest: int | None


class ToolDetail(ToolOut):
    """``input_schema`` (of a prompt: the schema of its arguments) belongs to the approved
    definition; ``latest`` is the current definition.
    """

    input_schema: dict[str, Any] | bool | None
    approved: DefinitionOut | None
    latest: DefinitionOut | None
    connected: bool


def tool_out(tool: Tool, name: str, rates: EnergyRates | None = None) -> ToolOut:
    """The row as its answer; ``name`` is its exposed name in the default style, ``rates`` those of
    who asks."""
    return ToolOut(**_facts(tool, name, rates))


def tool_detail(
    tool: Tool, name: str, *, connected: bool, rates: EnergyRates | None = None
) -> ToolDetail:
    """The row as its answer, with schemas; ``connected``: some process holds a connection to its
    server."""
    return ToolDetail(
        **_facts(tool, name, rates),
        input_schema=build_arguments_schema(tool.kind, tool.pinned.data) if tool.pinned else None,  # type: ignore[arg-type]
        approved=definition_out(tool.pinned, tool) if tool.pinned else None,
        latest=definition_out(tool.latest, tool) if tool.latest else None,
        connected=connected,
    )


def definition_out(definition: Definition, tool: Tool) -> DefinitionOut:
    """The row as its answer."""
    return DefinitionOut(
        id=definition.id,
        tool=str(tool),
        hash=definition.hash,
        seen_at=definition.seen_at,
        decided_at=definition.decided_at,
        approved=definition.approved,
        serving=tool.status == "approved" and tool.pinned_id == definition.id,
        data=decode_json(definition.body),
    )


_SEVERITIES: dict[int, Level] = {
    Severity.CLEAN: "clean",
    Severity.NOTE: "note",
    Severity.ALARM: "suspicious",
    Severity.DANGER: "danger",
}


def definition_detail(definition: Definition, tool: Tool) -> DefinitionDetail:
    """The row as its answer, with findings and what differs from the approved definition."""
    compared = tool.pinned is not None and tool.pinned.pk != definition.pk
    found = [
        FindingOut(
            kind=f.kind,
            severity=_SEVERITIES[f.severity],
            where=f.where,
            excerpt=f.excerpt,
            why=f.why,
        )
        for f in definition.findings
    ]
    changes = list_rewordings(tool.pinned.data, definition.data) if compared and tool.pinned else []
    return DefinitionDetail(
        **definition_out(definition, tool).dict(),
        findings=found,
        changes=[
            RewordingOut(
                field=c.field,
                segments=[SegmentOut(sign=s, text=cap_text(text)) for s, text in c.segments],
            )
            for c in changes
        ],
    )


def drift_out(tool: Tool) -> DriftOut:
    """A tool that no agent sees, with the reason."""
    old = tool.pinned
    new = tool.latest
    fields = list_changed_fields(old.data, new.data) if old and new and old.pk != new.pk else []
    return DriftOut(
        tool=str(tool),
        server=tool.server.slug,
        status=cast(ToolStatus, tool.status),
        fields=fields,
        severity=_SEVERITIES[new.severity if new else 0],
        last_seen_at=tool.last_seen_at,
        approved=tool.pinned_id,
        latest=tool.latest_id,
    )


def _facts(tool: Tool, name: str, rates: EnergyRates | None) -> dict[str, Any]:
    shown = tool.pinned or tool.latest
    cost = estimates.estimate_tool(tool, rates)
    return {
        "name": name,
        "key": str(tool),
        "kind": "mcp",
        "offers": tool.kind,
        "server_id": tool.server.slug,
        "server_name": tool.server.title,
        "original_name": tool.name,
        "description": cap_text(shown.description) if shown else "",
        "status": tool.status,
        "enabled": tool.enabled,
        "own_name": tool.own_name,
        "own_description": tool.own_description,
        "idempotent": tool.idempotent,
        "call_energy": tool.call_energy,
        "call_cost": None if tool.call_cost is None else float(tool.call_cost),
        "first_seen_at": tool.first_seen_at,
        "estimated_energy_cost": None if cost is None else round(cost.units, 2),
        "last_seen_at": tool.last_seen_at,
    }
