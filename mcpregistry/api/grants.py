"""Grants: who may use what, with pinned arguments, until when."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import Status

from mcpregistry.api import lookup
from mcpregistry.api.auth import actor, person
from mcpregistry.api.idempotent_operations import once
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.access import GrantNew, GrantOut, grant_out
from mcpregistry.api.schemas.basics import Page, Problem, Slug
from mcpregistry.models import Grant
from mcpregistry.services.access import grants

router = PermissionRouter(tags=["grants"])

_ROWS = Grant.objects.select_related("agent", "endpoint", "server", "tool__server")


@router.get("/grants", response=Page[GrantOut])
def list_grants(
    request: HttpRequest,
    *,
    agent: Slug | None = None,
    endpoint: Slug | None = None,
    server: Slug | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[GrantOut]:
    """Grants. The filter `server` returns grants of the whole server, not those of single tools."""
    rows = _ROWS.all()
    if agent:
        rows = rows.filter(agent__slug=agent)
    if endpoint:
        rows = rows.filter(endpoint__slug=endpoint)
    if server:
        rows = rows.filter(server__slug=server)
    return read_page(rows, order=("-id",), limit=limit, cursor=cursor, show=grant_out)


@router.post("/grants", response={201: GrantOut, 404: Problem})
@once()
def create_grant(request: HttpRequest, payload: GrantNew) -> Status[GrantOut]:
    """Allow an agent to use a server or one tool, or let an endpoint list it."""
    grant = Grant(
        agent=lookup.find_agent(payload.agent) if payload.agent else None,
        endpoint=lookup.find_endpoint(payload.endpoint) if payload.endpoint else None,
        server=lookup.find_server(payload.server) if payload.server else None,
        kind=payload.kind,
        uri=payload.uri,
        tool=lookup.tool(payload.tool) if payload.tool else None,
        argument_pins=payload.argument_pins,
        expires_at=payload.expires_at,
        note=payload.note,
    )
    return Status(
        201, grant_out(grants.save_grant(grant=grant, actor=actor(request), user=person(request)))
    )


@router.get("/grants/{grant_id}", response=GrantOut)
def get_grant(request: HttpRequest, grant_id: lookup.Id) -> GrantOut:
    """One grant."""
    return grant_out(lookup.one(_ROWS.all(), "grant", pk=grant_id))


@router.delete("/grants/{grant_id}", response={204: None})
def withdraw_grant(request: HttpRequest, grant_id: lookup.Id) -> Status[None]:
    """Revoke a grant. It ends in every process within a second."""
    grants.withdraw_grant(grant=lookup.one(_ROWS.all(), "grant", pk=grant_id), actor=actor(request))
    return Status(204, None)
