"""How the site and its servers are doing, for programs that watch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import cast

from django.db.models import Avg, Count, Max, Q
from django.http import HttpRequest

from mcpregistry.api import lookup
from mcpregistry.api.paging import Cursor, Limit, page
from mcpregistry.api.routes import Routes
from mcpregistry.api.schemas.basics import Page, Slug, capped
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
from mcpregistry.calls.engine import current_engine
from mcpregistry.domain.errors import Busy
from mcpregistry.domain.lifecycle import State
from mcpregistry.models import Configuration, Connection, Invocation, Server, ServerTest, Tool
from mcpregistry.models.invocation import UNASKED
from mcpregistry.queries.calls import error_patterns
from mcpregistry.services.servers.notes import ERRORS

router = Routes(tags=["status"])

_FAILED = (State.TOOL_ERROR, State.NOT_SENT, State.UNKNOWN)
_REFUSED = (State.DENIED, State.REJECTED, State.EXPIRED, State.CANCELLED, State.VOID)
_MOST_TOOLS = 1_000
_MOST_ERRORS = 20
_OPEN = (State.PENDING, State.READY, State.DISPATCHED)


@router.get("/status", response=SiteStatus)
def get_status(request: HttpRequest) -> SiteStatus:
    """The site as a whole."""
    by_lifecycle = dict(Server.objects.order_by().values_list("lifecycle").annotate(Count("id")))
    return SiteStatus(
        configuration_revision=Configuration.load().revision,
        servers_active=by_lifecycle.get("active", 0),
        servers_draft=by_lifecycle.get("draft", 0),
        servers_disabled=by_lifecycle.get("disabled", 0),
        servers_unavailable=Server.objects.active().filter(unavailable_since__isnull=False).count(),
        tools=Tool.objects.filter(present=True).count(),
        definitions_waiting=Tool.offers.waiting().count(),
        calls_open=Invocation.objects.filter(state__in=_OPEN).count(),
        tests_queued=ServerTest.objects.filter(verdict=ServerTest.Verdict.QUEUED).count(),
        changes=_changes(),
        processes=sorted(Connection.objects.order_by().values_list("process", flat=True).distinct()),
    )


def _changes() -> str:
    """How the process that answers learns of changes; "unknown" where it makes no calls."""
    try:
        return current_engine().feed.state.value
    except Busy:
        return "unknown"


@router.get("/status/servers", response=Page[StatusOut])
def list_server_status(request: HttpRequest, limit: Limit = 50, cursor: Cursor = None) -> Page[StatusOut]:
    """How every server is doing, also disabled ones and drafts."""
    found = page(Server.objects.all(), order=("slug",), limit=limit, cursor=cursor, show=lambda server: server)
    return Page[StatusOut](items=_statuses(found.items), next=found.next)


@router.get("/servers/{slug}/status", response=StatusDetail)
def get_server_status(request: HttpRequest, slug: Slug) -> StatusDetail:
    """How one server is doing, with figures per tool, those called most first; also of tools that are gone."""
    server = lookup.server(slug)
    return StatusDetail(**_statuses([server])[0].model_dump(), tools=_tools(server), errors=_errors(server),
        error_patterns=[ErrorPatternOut(**asdict(each)) for each in error_patterns(server=server)],
    )  # fmt: skip


def _errors(server: Server) -> list[str]:
    """What went wrong lately, newest first."""
    said = server.events.filter(kind__in=ERRORS).exclude(message="").order_by("-id")
    return [capped(message) for message in said.values_list("message", flat=True)[:_MOST_ERRORS]]


def _tools(server: Server) -> list[ToolFigures]:
    rows = Invocation.objects.filter(server_slug=server.slug).order_by().values("tool_name")
    good, bad = Q(state=State.SUCCEEDED), Q(state__in=_FAILED)
    counted = rows.annotate(
        good=Count("id", filter=good), bad=Count("id", filter=bad), refused=Count("id", filter=Q(state__in=_REFUSED)),
        mean=Avg("duration_ms", filter=(good | bad) & UNASKED), last=Max("received_at"),
    ).order_by("-good", "-bad", "tool_name")  # fmt: skip
    return [
        ToolFigures(
            tool=row["tool_name"], total_calls=row["good"] + row["bad"], success_calls=row["good"],
            failed_calls=row["bad"], refused_calls=row["refused"], mean_ms=row["mean"], last_call=row["last"],
        )
        for row in counted[:_MOST_TOOLS]
    ]  # fmt: skip


def _statuses(servers: list[Server]) -> list[StatusOut]:
    """In three queries, however many servers."""
    connections = defaultdict(list)
    for connection in Connection.objects.filter(server__in=servers).order_by("process"):
        connections[connection.server_id].append(connection)
    tools = dict(
        Tool.objects.filter(server__in=servers, present=True).order_by().values_list("server").annotate(Count("id"))
    )
    calls = _calls(server.slug for server in servers)
    return [_status(s, connections[s.id], tools.get(s.id, 0), calls.get(s.slug, (0, 0, None))) for s in servers]


def _calls(slugs: Iterable[str]) -> dict[str, tuple[int, int, datetime | None]]:
    """(succeeded, failed, when the newest of both came) by server."""
    rows = Invocation.objects.filter(server_slug__in=list(slugs)).order_by().values("server_slug")
    counted = rows.annotate(
        good=Count("id", filter=Q(state=State.SUCCEEDED)), bad=Count("id", filter=Q(state__in=_FAILED)),
        last=Max("received_at", filter=Q(state=State.SUCCEEDED) | Q(state__in=_FAILED)),
    )  # fmt: skip
    return {row["server_slug"]: (row["good"], row["bad"], row["last"]) for row in counted}


def _status(
    server: Server, connections: list[Connection], tools: int, calls: tuple[int, int, datetime | None]
) -> StatusOut:
    good, bad, last = calls
    return StatusOut(
        server_name=server.slug,
        name=server.title,
        transport=cast(TransportName, server.transport),
        lifecycle=cast(LifecycleName, server.lifecycle),
        connected=any(connection.state == "connected" for connection in connections),
        available=server.lifecycle == "active" and server.unavailable_since is None,
        tools_discovered=tools,
        total_calls=good + bad,
        success_calls=good,
        failed_calls=bad,
        last_error=capped(server.last_error),
        last_error_code=server.last_error_code,
        last_error_time=server.last_error_at,
        last_ok_time=server.last_ok_at,
        last_connect_time=server.last_connected_at,
        last_used_time=last,
        reconnect_attempts=max((connection.attempts for connection in connections), default=0),
        tools_left_out=server.left_out.splitlines(),
        processes=[connection_out(connection) for connection in connections],
    )
