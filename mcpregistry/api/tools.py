"""Tools and prompts: find them, switch them on and off, vouch that one may be called twice."""

from __future__ import annotations

from typing import Annotated

from django.db.models import Q, QuerySet
from django.http import HttpRequest
from ninja import Path, Query

from mcpregistry.api import lookup
from mcpregistry.api.auth import actor, principal, rights
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.basics import OfferKind, Page, Slug, Text
from mcpregistry.api.schemas.tools import (
    DefinitionOut,
    ToolChange,
    ToolDetail,
    ToolOut,
    ToolStatus,
    definition_out,
    tool_detail,
    tool_out,
)
from mcpregistry.domain.energy import EnergyRates
from mcpregistry.models import Connection, Definition, Tool
from mcpregistry.queries import definitions
from mcpregistry.services.definitions import decisions
from mcpregistry.services.energy import estimates

router = PermissionRouter(tags=["tools"])

ToolName = Annotated[
    Text,
    Path(
        max_length=600,
        description="`server::tool`, the name that hosts use (for example `server__tool`), or `server::prompt:name`.",
    ),
]


@router.get("/tools", response=Page[ToolOut])
def list_tools(
    request: HttpRequest,
    *,
    q: Annotated[
        Text | None,
        Query(max_length=200, description="Text that the name of the tool or server contains."),
    ] = None,
    server: Slug | None = None,
    status: ToolStatus | None = None,
    offers: Annotated[
        OfferKind,
        Query(
            description="Whether to list tools, prompts, fixed resources, or resource templates."
        ),
    ] = "tool",
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ToolOut]:
    """Tools by server and name, or with `offers` prompts or resources."""
    rows: QuerySet[Tool] = Tool.offers.filter(kind=offers).select_related(
        "server", "pinned", "latest", "usage"
    )
    if q:
        rows = rows.filter(Q(name__icontains=q) | Q(server__slug__icontains=q))
    if server:
        rows = rows.filter(server__slug=server)
    if status:
        rows = definitions.with_status(rows, status)
    names = lookup.tool_names(offers)
    rates = _rates(request)
    return read_page(
        rows,
        order=("server__slug", "name"),
        limit=limit,
        cursor=cursor,
        show=lambda tool: tool_out(tool, names[tool.server.slug, tool.name], rates),
    )


@router.get("/tools/{name}", response=ToolDetail)
def get_tool(request: HttpRequest, name: ToolName) -> ToolDetail:
    """One tool with its schemas."""
    return _load_detail(lookup.tool(name), _rates(request))


@router.patch("/tools/{name}", response=ToolDetail)
def change_tool(request: HttpRequest, name: ToolName, payload: ToolChange) -> ToolDetail:
    """Change the fields that are sent. The others stay as they are."""
    tool = lookup.tool(name).change(**payload.get_sent_values())
    tool = decisions.save_tool(tool=tool, actor=actor(request), rights=rights(request))
    return _load_detail(tool, _rates(request))


@router.get("/tools/{name}/definitions", response=Page[DefinitionOut])
def list_tool_definitions(
    request: HttpRequest, name: ToolName, limit: Limit = 50, cursor: Cursor = None
) -> Page[DefinitionOut]:
    """All definitions of the tool that were ever seen, newest first."""
    tool = lookup.tool(name)
    rows = Definition.objects.filter(tool=tool)
    return read_page(
        rows, order=("-id",), limit=limit, cursor=cursor, show=lambda row: definition_out(row, tool)
    )


def _rates(request: HttpRequest) -> EnergyRates | None:
    """Those of the pool of the agent that asks, if it is one that has a pool."""
    agent = principal(request).agent
    return estimates.load_rates_by_agent([agent.slug]).get(agent.slug) if agent else None


def _load_detail(tool: Tool, rates: EnergyRates | None) -> ToolDetail:
    name = lookup.tool_names(tool.kind)[tool.server.slug, tool.name]
    connected = Connection.objects.filter(server=tool.server, state="connected").exists()
    return tool_detail(tool, name, connected=connected, rates=rates)
