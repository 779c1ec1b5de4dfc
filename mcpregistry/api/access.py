"""Who can call what: agents by tools on an endpoint; and the access analyzer, which proposes
narrower grants."""

from __future__ import annotations

from typing import Annotated

from django.http import HttpRequest
from django.utils import timezone
from ninja import Query, Status

from mcpregistry.api import lookup
from mcpregistry.api.auth import actor, person
from mcpregistry.api.idempotent_operations import once
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.access_table import (
    AccessRow,
    Applied,
    Apply,
    GrantProposalOut,
    RiskWord,
    proposal_out,
    row_out,
)
from mcpregistry.api.schemas.basics import OfferKind, Page, Problem, Slug, Text
from mcpregistry.domain.errors import ArgumentsInvalid
from mcpregistry.models import Agent
from mcpregistry.services.policy.analyzer import (
    DAYS,
    analyse_whole,
    apply_grant_proposal,
    select_candidates,
)
from mcpregistry.services.policy.findings import PERIODS, Findings, load_findings
from mcpregistry.services.policy.table import AccessTable, TableFilter, select_tools

router = PermissionRouter(tags=["policy"])

# in one answer
_AGENTS = 50
_CELLS = 2_500


@router.get("/access", response={200: Page[AccessRow], 404: Problem})
def list_access(
    request: HttpRequest,
    *,
    endpoint: Slug = "default",
    agent: Slug | None = None,
    after_agent: Annotated[
        Slug | None,
        Query(description="Only agents whose slug comes after this one alphabetically."),
    ] = None,
    server: Slug | None = None,
    risk: RiskWord | None = None,
    kind: OfferKind = "tool",
    search: Annotated[Text | None, Query(max_length=200)] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[AccessRow]:
    """Tools, and how up to 50 agents can use each of them on the endpoint, regardless of arguments.
    See also `/why`. With a limit of more than 50 tools, fewer agents are included: at most 2,500
    combinations are returned."""
    door = lookup.find_endpoint(endpoint)
    rows = Agent.objects.filter(slug__gt=after_agent or "").order_by("slug")
    agents = (
        [lookup.find_agent(agent)] if agent else list(rows[: min(_AGENTS, max(_CELLS // limit, 1))])
    )
    tools = select_tools(
        TableFilter(kind=kind, server=server or "", risk=risk or "", search=search or "")
    )
    order = ("server__slug", "name", "id")
    found = read_page(tools, order=order, limit=limit, cursor=cursor, show=lambda tool: tool)
    table = AccessTable(door, found.items, timezone.now())
    return Page[AccessRow](
        items=[row_out(tool, agents, table) for tool in found.items], next=found.next
    )


@router.get("/access/proposals", response=Page[GrantProposalOut])
def list_narrower_grants(
    request: HttpRequest,
    *,
    agent: Slug | None = None,
    endpoint: Slug | None = None,
    grant: Annotated[
        int | None,
        Query(
            ge=1,
            lt=2**63,
            description="Only this grant, analyzed now with all its calls of the period.",
        ),
    ] = None,
    days: Annotated[
        int,
        Query(
            ge=1,
            le=365,
            description="The period: 1, 7, 30 or 90; with `grant`, any number up to 365.",
        ),
    ] = DAYS,
    limit: Annotated[
        int, Query(ge=1, le=50, description="Number of grants that are examined for one page.")
    ] = 20,
    cursor: Cursor = None,
) -> Page[GrantProposalOut]:
    """Each grant and the latest proposal of the access analyzer for it.

    `proposal` is null if the grant is used as it is, or if the analyzer can conclude nothing: the
    grant is younger than the period, calls are not kept that long, or there were too many calls to
    read.
    """
    if grant is None and days not in PERIODS:
        named = ", ".join(map(str, PERIODS))
        raise ArgumentsInvalid(
            f"'days' must be one of {named} (got {days}).",
            remedy="Use one of these numbers, or add the parameter 'grant' to use any number up to 365.",
        )
    rows = select_candidates()
    now = timezone.now()
    if grant is not None:
        rows = rows.filter(pk=grant)
    if agent:
        rows = rows.filter(agent__slug=agent)
    if endpoint:
        rows = rows.filter(endpoint__slug=endpoint)

    found = read_page(rows, order=("id",), limit=limit, cursor=cursor, show=lambda grant: grant)
    if grant is not None:
        proven = [(row, analyse_whole(row, days=days, now=now)) for row in found.items]
        findings = Findings(
            {row.pk: each for row, each in proven if each}, {row.pk: now for row in found.items}
        )
    else:
        findings = load_findings(found.items, days=days)
    shown = [proposal_out(row, findings) for row in found.items]
    return Page[GrantProposalOut](items=shown, next=found.next)


@router.post("/access/proposals/{grant_id}", response={200: Applied})
@once()
def apply_narrower_grant(
    request: HttpRequest, grant_id: lookup.Id, payload: Apply
) -> Status[Applied]:
    """Replace the grant as proposed. This is refused (409) if the analyzer would propose something
    else by now."""
    made = apply_grant_proposal(
        grant=lookup.one(select_candidates(), "grant", pk=grant_id),
        key=payload.key,
        days=payload.days,
        now=timezone.now(),
        actor=actor(request),
        user=person(request),
        pins=payload.pins,
    )
    return Status(200, Applied(grants=made))
