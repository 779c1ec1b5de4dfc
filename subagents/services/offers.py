"""Which expert tools are offered to whom: read with the rest of the live configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.domain.text.canonical import encode_lossy_json
from mcpregistry.queries.own_definitions import OwnDefinition
from subagents.models import ExpertTool
from subagents.services.experts import schema_of

SECTION = "experts"  # of the snapshot
SERVER = "expert"  # in the place of a server, in the record of a call to an expert tool


@dataclass(frozen=True, slots=True)
class Offered:
    """One expert tool as hosts may see it. ``agent`` is the identity of its runs; slugs
    throughout."""

    id: int
    name: str
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    agent: str
    users: frozenset[str]
    endpoints: frozenset[str]
    max_seconds: float
    version: str
    cache_seconds: int
    speaks: bool  # whether its agent answers in conversations
    # kinds of requests to the background sub-agent that its model works on
    maintains: tuple[str, ...]


def load_offered_experts() -> tuple[Offered, ...]:
    """Every expert tool that is switched on, in a fixed number of queries; a section of the
    snapshot."""
    rows = (
        ExpertTool.objects.filter(enabled=True)
        .with_newest()
        .select_related("agent", "effort_agent")
    )
    return tuple(_make_offered(expert) for expert in rows.prefetch_related("users", "endpoints"))


def _make_offered(expert: ExpertTool) -> Offered:
    return Offered(
        id=expert.pk,
        name=expert.name,
        description=expert.description,
        input_schema=schema_of(expert),
        output_schema=expert.output_schema,
        agent=expert.agent.slug,
        users=frozenset(agent.slug for agent in expert.users.all()),
        endpoints=frozenset(endpoint.slug for endpoint in expert.endpoints.all()),
        max_seconds=float(expert.max_seconds),
        version=expert.newest_hash or "",
        cache_seconds=expert.cache_seconds,
        speaks=hasattr(expert, "effort_agent") and expert.effort_agent.enabled,
        maintains=tuple(expert.maintains),
    )


def list_definitions(snapshot: Snapshot) -> Iterator[OwnDefinition]:
    """What each expert tool's definition takes, and who is shown it. A tool's hints are short and
    not counted."""
    for expert in snapshot.sections.get(SECTION, ()):
        said = {
            "name": expert.name,
            "description": expert.description,
            "inputSchema": dict(expert.input_schema),
        }
        if expert.output_schema is not None:
            said["outputSchema"] = dict(expert.output_schema)
        yield OwnDefinition(
            expert.name, len(encode_lossy_json(said)), expert.users, expert.endpoints
        )


def speaks(snapshot: Snapshot, agent: str) -> bool:
    """Whether this is the agent of an expert tool that answers in conversations."""
    return any(each.speaks and each.agent == agent for each in snapshot.sections.get(SECTION, ()))
