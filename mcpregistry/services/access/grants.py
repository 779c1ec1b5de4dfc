"""Grants: what an agent may use, and what an endpoint lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from simple_history.utils import bulk_create_with_history

from mcpregistry.domain.offer_kinds import TOOL
from mcpregistry.models import Agent, Grant, Server, Tool
from mcpregistry.services.configuration.saving import save_checked, take_current
from mcpregistry.services.records import audit


@transaction.atomic
def save_grant(*, grant: Grant, actor: str, user: User | None = None) -> Grant:
    """Create or change a grant. Raises ConfigInvalid unless it has one holder and one object."""
    kind = "grant.created" if grant._state.adding else "grant.changed"
    take_current(grant)
    grant.created_by = grant.created_by or user
    save_checked(grant)
    audit.record_entry(kind=kind, actor=actor, subject=f"grant:{grant}", **_describe_grant(grant))
    return grant


@transaction.atomic
def save_all(rows: Iterable[Grant], *, actor: str, user: User | None = None) -> int:
    """Save new grants, all or none; returns how many. The page *Who can call what* gives those that
    were ticked."""
    return len([save_grant(grant=row, actor=actor, user=user) for row in rows])


@transaction.atomic
def withdraw_grant(*, grant: Grant, actor: str) -> None:
    """Withdraw a grant; it ends in every process within a second."""
    audit.record_entry(
        kind="grant.withdrawn", actor=actor, subject=f"grant:{grant}", **_describe_grant(grant)
    )
    grant.delete()


def grant_access(
    *, agent: Agent, actor: str, server: Server | None = None, tool: Tool | None = None
) -> Grant:
    """Let an agent use a server's tools, or one tool; the same grant is not made twice."""
    rows = Grant.objects.filter(
        agent=agent, server=server, tool=tool, argument_pins={}, expires_at=None, uri=""
    )
    existing = (rows.filter(kind=TOOL) if server else rows).first()
    return existing or save_grant(grant=Grant(agent=agent, server=server, tool=tool), actor=actor)


@transaction.atomic
def grant_tools(wanted: Iterable[tuple[Agent, Tool, str]]) -> None:
    """Let agents use single tools; each with the actor who says so. In a few queries, however
    many."""
    pairs = {(agent.pk, tool.pk): (agent, tool, actor) for agent, tool, actor in wanted}
    if not pairs:
        return
    there = Grant.objects.filter(
        agent__in={agent for agent, _ in pairs},
        tool__in={tool for _, tool in pairs},
        argument_pins={},
        expires_at=None,
        uri="",
    )
    missing = pairs.keys() - set(there.values_list("agent_id", "tool_id"))
    new = [
        Grant(agent=agent, tool=tool) for key, (agent, tool, _) in pairs.items() if key in missing
    ]
    bulk_create_with_history(new, Grant)
    with audit.collect_entries():
        for row in new:
            actor = pairs[row.agent_id, row.tool_id][2]  # type: ignore[index]  # both are set
            audit.record_entry(
                kind="grant.created", actor=actor, subject=f"grant:{row}", **_describe_grant(row)
            )


def _describe_grant(grant: Grant) -> dict[str, Any]:
    until = grant.expires_at.isoformat() if grant.expires_at else None
    return {"pins": grant.argument_pins, "until": until} | ({"uri": grant.uri} if grant.uri else {})
