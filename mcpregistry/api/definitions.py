"""Definitions that wait for a decision, and the decision: approve or reject."""

from __future__ import annotations

from typing import Literal

from django.db.models import F
from django.http import HttpRequest

from mcpregistry.api import lookup
from mcpregistry.api.auth import actor, person
from mcpregistry.api.paging import Cursor, Limit, page
from mcpregistry.api.routes import Routes
from mcpregistry.api.schemas.basics import Page, Slug
from mcpregistry.api.schemas.tools import DefinitionOut, definition_out
from mcpregistry.models import Definition
from mcpregistry.services import definitions

router = Routes(tags=["definitions"])

_ROWS = Definition.objects.select_related("tool__server")


@router.get("/definitions", response=Page[DefinitionOut])
def list_definitions(
    request: HttpRequest,
    *,
    state: Literal["waiting", "serving", "all"] = "waiting",
    server: Slug | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[DefinitionOut]:
    """Waiting: the newest of its tool, and nobody has decided on it yet."""
    rows = _ROWS.all()
    if state == "waiting":
        rows = rows.filter(decided_at__isnull=True, tool__present=True, tool__latest=F("pk"))
    elif state == "serving":
        rows = rows.filter(tool__pinned=F("pk"))
    if server:
        rows = rows.filter(tool__server__slug=server)
    return page(rows, order=("-id",), limit=limit, cursor=cursor, show=lambda row: definition_out(row, row.tool))


@router.get("/definitions/{definition_id}", response=DefinitionOut)
def get_definition(request: HttpRequest, definition_id: lookup.Id) -> DefinitionOut:
    return _shown(definition_id)


@router.post("/definitions/{definition_id}/approve", response=DefinitionOut)
def approve_definition(request: HttpRequest, definition_id: lookup.Id) -> DefinitionOut:
    """From now on exactly this text and schema is listed and called."""
    found = lookup.one(_ROWS.all(), "definition", pk=definition_id)
    definitions.approve(definition=found, actor=actor(request), user=person(request))
    return _shown(definition_id)


@router.post("/definitions/{definition_id}/reject", response=DefinitionOut)
def reject_definition(request: HttpRequest, definition_id: lookup.Id) -> DefinitionOut:
    """Never serve it; if it is being served, the tool is withdrawn."""
    found = lookup.one(_ROWS.all(), "definition", pk=definition_id)
    definitions.reject(definition=found, actor=actor(request), user=person(request))
    return _shown(definition_id)


def _shown(definition_id: int) -> DefinitionOut:
    row = lookup.one(_ROWS.all(), "definition", pk=definition_id)
    return definition_out(row, row.tool)
