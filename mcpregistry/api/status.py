"""How the site and its servers are doing, for programs that watch."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import cast

from django.db.models import Count
from django.http import HttpRequest
from django.utils import timezone

from mcpregistry.api import lookup
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.basics import Page, Slug, cap_text
from mcpregistry.api.schemas.servers import (
    ErrorPatternOut,
    LifecycleName,
    StatusDetail,
    StatusOut,
    ToolFigures,
    TransportName,
    connection_out,
)
from mcpregistry.api.schemas.status import SiteStatus
from mcpregistry.calls.engine import get_current_engine
from mcpregistry.domain.errors import QueueFullError
from mcpregistry.models import Configuration, Connection, Invocation, Server, ServerTest, Tool
from mcpregistry.queries import server_figures
from mcpregistry.queries.calls import count_error_patterns
from mcpregistry.queries.server_figures import ServerFigures
from mcpregistry.services.servers.notes import ERRORS

router = PermissionRouter(tags=["status"])

_MOST_TOOLS = 1_000
_MOST_ERRORS = 20


@router.get("/status", response=SiteStatus)
def get_status(request: HttpRequest) -> SiteStatus:
    """The status of the whole site."""
    by_lifecycle = dict(Server.objects.order_by().values_list("lifecycle").annotate(Count("id")))
    return SiteStatus(
        configuration_revision=Configuration.load().revision,
        servers_active=by_lifecycle.get("active", 0),
        servers_draft=by_lifecycle.get("draft", 0),
        servers_disabled=by_lifecycle.get("disabled", 0),
        servers_unavailable=Server.objects.active().filter(unavailable_since__isnull=False).count(),
        tools=Tool.objects.filter(present=True).count(),
        definitions_waiting=Tool.offers.waiting().count(),
        calls_open=Invocation.objects.open().count(),
        tests_queued=ServerTest.objects.filter(verdict=ServerTest.Verdict.QUEUED).count(),
        changes=_changes(),
        processes=sorted(
            Connection.objects.order_by().values_list("process", flat=True).distinct()
        ),
    )


def _changes() -> str:
    """How the process that answers learns of changes; "unknown" where it makes no calls."""
    try:
        return get_current_engine().feed.state.value
    except QueueFullError:
        return "unknown"


@router.get("/status/servers", response=Page[StatusOut])
def list_server_status(
    request: HttpRequest, limit: Limit = 50, cursor: Cursor = None
) -> Page[StatusOut]:
    """The status of every server, including disabled servers and drafts."""
    found = read_page(
        Server.objects.all(),
        order=("slug",),
        limit=limit,
        cursor=cursor,
        show=lambda server: server,
    )
    return Page[StatusOut](items=_list_statuses(found.items), next=found.next)


@router.get("/servers/{slug}/status", response=StatusDetail)
def get_server_status(request: HttpRequest, slug: Slug) -> StatusDetail:
    """The status of one server, with figures for each tool, the most used first. Tools that no
    longer exist are included."""
    server = lookup.find_server(slug)
    return StatusDetail(
        **_list_statuses([server])[0].model_dump(),
        tools=_tools(server),
        errors=_errors(server),
        error_patterns=[
            ErrorPatternOut(**asdict(each)) for each in count_error_patterns(server=server)
        ],
    )


def _errors(server: Server) -> list[str]:
    """What went wrong lately, newest first."""
    said = server.events.filter(kind__in=ERRORS).exclude(message="").order_by("-id")
    return [cap_text(message) for message in said.values_list("message", flat=True)[:_MOST_ERRORS]]


def _tools(server: Server) -> list[ToolFigures]:
    rows = server_figures.compute_tool_figures(server.slug, now=timezone.now()).items()
    busiest = sorted(rows, key=lambda row: (-row[1].succeeded, -row[1].failed, row[0]))
    return [
        ToolFigures(
            tool=tool,
            total_calls=each.succeeded + each.failed,
            success_calls=each.succeeded,
            failed_calls=each.failed,
            refused_calls=each.refused,
            mean_ms=each.mean,
            last_call=each.last,
        )
        for tool, each in busiest[:_MOST_TOOLS]
    ]


def _list_statuses(servers: list[Server]) -> list[StatusOut]:
    """In a fixed number of queries, however many servers."""
    connections = defaultdict(list)
    for connection in Connection.objects.filter(server__in=servers).order_by("process"):
        connections[connection.server_id].append(connection)
    tools = dict(
        Tool.objects.filter(server__in=servers, present=True)
        .order_by()
        .values_list("server")
        .annotate(Count("id"))
    )
    calls = server_figures.compute_server_figures(
        [server.slug for server in servers], now=timezone.now()
    )
    return [
        _status(s, connections[s.id], tools.get(s.id, 0), calls.get(s.slug, ServerFigures()))
        for s in servers
    ]


def _status(
    server: Server, connections: list[Connection], tools: int, calls: ServerFigures
) -> StatusOut:
    return StatusOut(
        server_name=server.slug,
        name=server.title,
        transport=cast(TransportName, server.transport),
        lifecycle=cast(LifecycleName, server.lifecycle),
        connected=any(connection.state == "connected" for connection in connections),
        available=server.lifecycle == "active" and server.unavailable_since is None,
        tools_discovered=tools,
        total_calls=calls.succeeded + calls.failed,
        success_calls=calls.succeeded,
        failed_calls=calls.failed,
        last_error=cap_text(server.last_error),
        last_error_code=server.last_error_code,
        last_error_time=server.last_error_at,
        last_ok_time=server.last_ok_at,
        last_connect_time=server.last_connected_at,
        last_used_time=calls.last,
        reconnect_attempts=max((connection.attempts for connection in connections), default=0),
        tools_left_out=server.left_out.splitlines(),
        processes=[connection_out(connection) for connection in connections],
    )
