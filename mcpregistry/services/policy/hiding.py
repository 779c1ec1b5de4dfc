"""Take tools out of what an agent is granted, or an endpoint lists: the rest of a server stays,
tool by tool."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q, QuerySet

from mcpregistry.domain.errors import Conflict
from mcpregistry.domain.offer_kinds import TOOL
from mcpregistry.models import Agent, Endpoint, Grant, Tool
from mcpregistry.services.access import grants

MOST = 200  # grants that one server's becomes


@transaction.atomic
def hide_tools(
    holder: Agent | Endpoint, tools: Collection[Tool], *, actor: str, user: User | None = None
) -> tuple[int, int]:
    """The holder's grants without these tools; returns how many were withdrawn and how many were
    made in their place. The context bill's page calls it. Raises Conflict where a server offers too
    many, or a grant is of everything."""
    rows, made = _exchange_grants(
        _select_granting(holder, tools).select_for_update(of=("self",)), tools
    )
    grants.save_all(made, actor=actor, user=user)
    for row in rows:
        grants.withdraw_grant(grant=row, actor=actor)
    return len(rows), len(made)


def count_grant_changes(holder: Agent | Endpoint, tools: Collection[Tool]) -> int:
    """How many grants would be withdrawn or made. Raises Conflict where ``hide_tools`` would."""
    rows, made = _exchange_grants(_select_granting(holder, tools), tools)
    return len(rows) + len(made)


def _select_granting(holder: Agent | Endpoint, tools: Collection[Tool]) -> QuerySet[Grant]:
    wanted = Q(tool__in=tools) | Q(
        server__in={tool.server_id for tool in tools}, kind__in=(TOOL, "")
    )
    return holder.grants.filter(wanted).select_related("server", "agent", "endpoint").order_by("pk")


def _exchange_grants(
    granting: QuerySet[Grant], tools: Collection[Tool]
) -> tuple[list[Grant], list[Grant]]:
    """The grants that go, and unsaved ones in their place."""
    rows = list(granting)
    keys = {tool.pk for tool in tools}
    of_servers = [row for row in rows if row.server_id]
    return rows, [new for row in of_servers for new in _make_remaining_grants(row, keys)]


def _make_remaining_grants(row: Grant, hidden: Collection[int]) -> Iterable[Grant]:
    """Single grants for what else serves of the server; what is neither hidden nor a tool stays
    granted as a kind."""
    if not row.kind:
        raise Conflict(
            f"Tools cannot be hidden, because the grant {row} covers everything that the server offers.",
            remedy="First replace this grant with separate grants for the tools, the prompts and the resources of the server.",
        )
    offered = list(
        Tool.offers.filter_approved()
        .filter(server=row.server, kind=TOOL)
        .exclude(pk__in=hidden)[: MOST + 1]
    )
    if len(offered) > MOST:
        raise Conflict(
            f"The grant of the whole server {row.server} would have to be replaced by more than {MOST} grants, one for each of the other tools.",
            remedy="Revoke this grant, then add grants only for the tools that the agent needs.",
        )
    same = {
        name: getattr(row, name)
        for name in ("agent", "endpoint", "argument_pins", "expires_at", "note")
    }
    return [Grant(tool=tool, kind=TOOL, **same) for tool in offered]
