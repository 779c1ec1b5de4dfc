"""Hosts' sessions: who is connected where, and the end of one."""

from __future__ import annotations

from typing import Annotated

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Path, Query

from mcpregistry.api import lookup
from mcpregistry.api.auth import actor, principal
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.basics import Page, Problem, Slug, Text
from mcpregistry.api.schemas.host_sessions import HostSessionOut, host_session_out
from mcpregistry.models import HostSession
from mcpregistry.queries.host_sessions import with_connections
from mcpregistry.services import host_sessions

router = PermissionRouter(tags=["host sessions"])

SessionPath = Annotated[Text, Path(min_length=1, max_length=64)]


@router.get("/host-sessions", response=Page[HostSessionOut])
def list_host_sessions(
    request: HttpRequest,
    *,
    agent: Slug | None = None,
    endpoint: Slug | None = None,
    ended: Annotated[
        bool | None,
        Query(description="`true`: only ended sessions. `false`: only active sessions."),
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[HostSessionOut]:
    """Host sessions, newest first. Ended sessions are listed for some minutes."""
    exact = {"agent_slug": agent, "endpoint_slug": endpoint}
    rows = _query_sessions(request).filter(
        **{key: value for key, value in exact.items() if value is not None}
    )
    if ended is not None:
        rows = rows.filter(ended_at__isnull=not ended)
    return read_page(
        rows, order=("-created_at", "id"), limit=limit, cursor=cursor, show=host_session_out
    )


@router.get("/host-sessions/{session_id}", response=HostSessionOut)
def get_host_session(request: HttpRequest, session_id: SessionPath) -> HostSessionOut:
    """One host session."""
    return host_session_out(_one(request, session_id))


@router.post("/host-sessions/{session_id}/end", response={200: HostSessionOut, 409: Problem})
def end_host_session(request: HttpRequest, session_id: SessionPath) -> HostSessionOut:
    """End the session and its own connections in every process. Its host can open a new one; to
    prevent that, revoke the token.
    """
    host_sessions.end_by_hand(session=_one(request, session_id), actor=actor(request))
    return host_session_out(_one(request, session_id))


def _query_sessions(request: HttpRequest) -> QuerySet[HostSession]:
    return with_connections(HostSession.objects.visible_to(principal(request).who))


def _one(request: HttpRequest, session_id: str) -> HostSession:
    return lookup.one(_query_sessions(request), "host session", pk=session_id)
