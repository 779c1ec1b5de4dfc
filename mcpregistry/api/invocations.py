"""The record of calls, newest first."""

from __future__ import annotations

from typing import Annotated, Literal

from django.http import HttpRequest
from ninja import Path, Query

from mcpregistry.api import lookup
from mcpregistry.api.auth import principal
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.basics import Page, Slug, Text, When
from mcpregistry.api.schemas.records import (
    InvocationDetail,
    InvocationOut,
    invocation_detail,
    invocation_out,
)
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Invocation
from mcpregistry.queries.call_search import search_calls

router = PermissionRouter(tags=["invocations"])

_PAYLOADS = ("arguments", "result")


@router.get("/invocations", response=Page[InvocationOut])
def list_invocations(
    request: HttpRequest,
    *,
    state: InvocationState | None = None,
    agent: Slug | None = None,
    endpoint: Slug | None = None,
    server: Slug | None = None,
    tool: Annotated[
        Text | None,
        Query(max_length=500, description="Name of the tool at its server or as hosts see it."),
    ] = None,
    origin: Literal["stdio", "http", "rest", "run", "test", "trial"] | None = None,
    request_id: Annotated[Text | None, Query(max_length=100)] = None,
    conversation: Annotated[Text | None, Query(max_length=32)] = None,
    q: Annotated[
        Text | None,
        Query(
            max_length=200, description="Words that the names, arguments, error or result contain."
        ),
    ] = None,
    since: Annotated[When | None, Query(description="Only calls from this time on.")] = None,
    until: Annotated[When | None, Query(description="Only calls before this time.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[InvocationOut]:
    """Calls, newest first, without arguments and results. `q` searches the newest 1,000 calls that
    contain all its words."""
    exact = {
        "agent_slug": agent,
        "endpoint_slug": endpoint,
        "server_slug": server,
        "origin": origin,
        "conversation": conversation,
        "received_at__gte": since,
        "received_at__lt": until,
    }
    rows = (
        Invocation.objects.visible_to(principal(request).who)
        .with_energy()
        .defer(*_PAYLOADS)
        .filter(**{k: v for k, v in exact.items() if v is not None})
    )
    if state is not None:
        rows = rows.in_state(state)
    if request_id is not None:
        rows = rows.of_request(request_id)
    if tool is not None:
        rows = rows.filter_by_tool_name(tool)
    if q is not None:
        rows = rows.filter(pk__in=search_calls(q))
    return read_page(
        rows, order=("-received_at", "-id"), limit=limit, cursor=cursor, show=invocation_out
    )


@router.get("/invocations/{invocation_id}", response=InvocationDetail)
def get_invocation(
    request: HttpRequest, invocation_id: Annotated[Text, Path(min_length=1, max_length=32)]
) -> InvocationDetail:
    """One call with its arguments and result, if they are still stored."""
    return invocation_detail(
        lookup.one(
            Invocation.objects.visible_to(principal(request).who).with_energy(),
            "call",
            pk=invocation_id,
        )
    )
