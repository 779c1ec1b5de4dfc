"""Definitions that wait for a decision, what was found in them, and the decision; tools that have
drifted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from django.db.models import F
from django.http import HttpRequest
from ninja import Query

from mcpregistry.api import lookup
from mcpregistry.api.auth import actor, person
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.basics import Page, Problem, Slug
from mcpregistry.api.schemas.tools import (
    DefinitionDetail,
    DefinitionOut,
    DriftOut,
    definition_detail,
    definition_out,
    drift_out,
)
from mcpregistry.models import Definition, Tool
from mcpregistry.services.definitions import decisions

router = PermissionRouter(tags=["definitions"])

_ROWS = Definition.objects.select_related("tool__server", "tool__latest", "tool__pinned")


@router.get("/definitions", response=Page[DefinitionOut])
def list_definitions(
    request: HttpRequest,
    *,
    state: Literal["waiting", "serving", "rejected", "all"] = "waiting",
    server: Slug | None = None,
    severity: Annotated[
        int, Query(ge=0, le=3, description="Minimum severity: 1 note, 2 suspicious, 3 danger.")
    ] = 0,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[DefinitionOut]:
    """Definitions by state. `waiting` means the newest definition of a tool, which is not approved
    or rejected yet."""
    rows = _ROWS.all()
    if state == "waiting":
        rows = rows.filter(decided_at__isnull=True, tool__present=True, tool__latest=F("pk"))
    elif state == "serving":
        rows = rows.filter(tool__pinned=F("pk"), tool__latest=F("pk"), tool__present=True)
    elif state == "rejected":
        rows = rows.filter(decided_at__isnull=False, approved=False)
    if severity:
        rows = rows.filter(severity__gte=severity)
    if server:
        rows = rows.filter(tool__server__slug=server)
    return read_page(
        rows,
        order=("-id",),
        limit=limit,
        cursor=cursor,
        show=lambda row: definition_out(row, row.tool),
    )


@router.get("/drift", response=Page[DriftOut])
def list_drift(
    request: HttpRequest, *, server: Slug | None = None, limit: Limit = 50, cursor: Cursor = None
) -> Page[DriftOut]:
    """Tools that no agent sees because their definition is new, changed, rejected, or no longer
    offered by the server."""
    rows = Tool.offers.exclude(pk__in=Tool.offers.serving()).select_related(
        "server", "latest", "pinned"
    )
    if server:
        rows = rows.filter(server__slug=server)
    return read_page(
        rows, order=("server__slug", "name"), limit=limit, cursor=cursor, show=drift_out
    )


@router.get("/definitions/{definition_id}", response=DefinitionDetail)
def get_definition(request: HttpRequest, definition_id: lookup.Id) -> DefinitionDetail:
    """One definition with the scanner's findings, and its differences from the approved one, word
    by word."""
    return _load_detail(definition_id)


@router.post("/definitions/{definition_id}/approve", response=DefinitionDetail)
def approve_definition(request: HttpRequest, definition_id: lookup.Id) -> DefinitionDetail:
    """Approve the definition. Agents can use the tool as long as its server offers exactly this
    definition."""
    return _decide(request, definition_id, decisions.approve)


@router.post("/definitions/{definition_id}/reject", response=DefinitionDetail)
def reject_definition(request: HttpRequest, definition_id: lookup.Id) -> DefinitionDetail:
    """Reject the definition. It is never offered; if it is offered now, the tool is withdrawn."""
    return _decide(request, definition_id, decisions.reject)


@router.post("/definitions/{definition_id}/revert", response={200: DefinitionDetail, 409: Problem})
def revert_definition(request: HttpRequest, definition_id: lookup.Id) -> DefinitionDetail:
    """Reject the definition and keep the approved one. The tool is offered again as soon as its
    server returns to it."""
    return _decide(request, definition_id, decisions.revert)


def _decide(
    request: HttpRequest, definition_id: int, verb: Callable[..., Tool]
) -> DefinitionDetail:
    found = lookup.one(_ROWS.all(), "definition", pk=definition_id)
    verb(definition=found, actor=actor(request), user=person(request))
    return _load_detail(definition_id)


def _load_detail(definition_id: int) -> DefinitionDetail:
    row = lookup.one(_ROWS.all(), "definition", pk=definition_id)
    return definition_detail(row, row.tool)
