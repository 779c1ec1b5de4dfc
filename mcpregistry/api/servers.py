"""Servers: change, confirm, run, test, watch. Creating or changing one only ever makes a draft.

Nothing here starts a process: a test, refresh or reconnect is a request to the workers, by id, and
is refused until a person has confirmed the launch.
"""

from __future__ import annotations

from typing import Annotated

from django.db.models import Q
from django.http import HttpRequest
from ninja import Query, Status

from mcpregistry.api import lookup
from mcpregistry.api.auth import actor, person
from mcpregistry.api.paging import Cursor, Limit, page
from mcpregistry.api.routes import Routes
from mcpregistry.api.schemas.basics import Accepted, Page, Problem, Slug, Text
from mcpregistry.api.schemas.servers import (
    Confirmation,
    EventOut,
    LaunchOut,
    LifecycleName,
    ServerChange,
    ServerNew,
    ServerOut,
    ServerTestOut,
    TestOrder,
    TransportName,
    event_out,
    launch_out,
    server_out,
    test_out,
)
from mcpregistry.models import Server, ServerEvent, ServerTest
from mcpregistry.services import health, servers
from mcpregistry.services.wakeups import NO_BROKER

router = Routes(tags=["servers"])


@router.get("/servers", response=Page[ServerOut])
def list_servers(
    request: HttpRequest,
    *,
    q: Annotated[Text | None, Query(max_length=200, description="Part of slug, name or description.")] = None,
    lifecycle: LifecycleName | None = None,
    transport: TransportName | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ServerOut]:
    rows = Server.objects.all()
    if q:
        rows = rows.filter(Q(slug__icontains=q) | Q(name__icontains=q) | Q(description__icontains=q))
    if lifecycle:
        rows = rows.filter(lifecycle=lifecycle)
    if transport:
        rows = rows.filter(transport=transport)
    return page(rows, order=("slug",), limit=limit, cursor=cursor, show=server_out)


@router.post("/servers", response={201: ServerOut})
def create_server(request: HttpRequest, payload: ServerNew) -> Status[ServerOut]:
    """A draft: it cannot run before somebody with that right has confirmed its launch."""
    server = servers.save_server(server=Server(**payload.given(), source="api"), actor=actor(request))
    return Status(201, server_out(server))


@router.get("/servers/{slug}", response=ServerOut)
def get_server(request: HttpRequest, slug: Slug) -> ServerOut:
    return server_out(lookup.server(slug))


@router.patch("/servers/{slug}", response=ServerOut)
def change_server(request: HttpRequest, slug: Slug, payload: ServerChange) -> ServerOut:
    """Keys that are left out or null stay as they are. A changed launch makes it a draft again."""
    server = lookup.server(slug)
    for name, value in payload.given().items():
        setattr(server, name, value)
    return server_out(servers.save_server(server=server, actor=actor(request)))


@router.delete("/servers/{slug}", response={204: None})
def delete_server(request: HttpRequest, slug: Slug) -> Status[None]:
    """Its tools and grants go with it; the records of its calls stay."""
    servers.delete_server(server=lookup.server(slug), actor=actor(request))
    return Status(204, None)


@router.get("/servers/{slug}/launch", response=LaunchOut)
def show_launch(request: HttpRequest, slug: Slug) -> LaunchOut:
    """What would run or be reached, and the hash by which to confirm exactly this."""
    return launch_out(lookup.server(slug))


@router.post("/servers/{slug}/confirm", response={200: ServerOut, 409: Problem})
def confirm_server(request: HttpRequest, slug: Slug, payload: Confirmation) -> ServerOut:
    server = servers.confirm_launch(
        server=lookup.server(slug), actor=actor(request), launch_hash=payload.launch_hash, user=person(request)
    )
    return server_out(server)


@router.post("/servers/{slug}/enable", response=ServerOut)
def enable_server(request: HttpRequest, slug: Slug) -> ServerOut:
    """Active if its launch is still the confirmed one, else a draft."""
    return server_out(servers.enable_server(server=lookup.server(slug), actor=actor(request)))


@router.post("/servers/{slug}/disable", response=ServerOut)
def disable_server(request: HttpRequest, slug: Slug) -> ServerOut:
    return server_out(servers.disable_server(server=lookup.server(slug), actor=actor(request)))


@router.post("/servers/{slug}/refresh", response={202: Accepted, 409: Problem})
def refresh_server(request: HttpRequest, slug: Slug) -> Status[Accepted]:
    """Read its tools anew. What changed waits for approval."""
    soon = health.request_refresh(server=lookup.server(slug), actor=actor(request))
    return Status(202, Accepted(message="A worker reads its tools now." if soon else NO_BROKER))


@router.post("/servers/{slug}/reconnect", response={202: Accepted, 409: Problem})
def reconnect_server(request: HttpRequest, slug: Slug) -> Status[Accepted]:
    health.request_reconnect(server=lookup.server(slug), actor=actor(request))
    return Status(202, Accepted(message="Every process drops its connection; the next call opens a new one."))


@router.get("/servers/{slug}/tests", response=Page[ServerTestOut])
def list_tests(request: HttpRequest, slug: Slug, limit: Limit = 50, cursor: Cursor = None) -> Page[ServerTestOut]:
    rows = ServerTest.objects.filter(server=lookup.server(slug)).select_related("server")
    return page(rows, order=("-id",), limit=limit, cursor=cursor, show=test_out)


@router.post("/servers/{slug}/tests", response={202: ServerTestOut, 409: Problem})
def test_server(request: HttpRequest, slug: Slug, payload: TestOrder) -> Status[ServerTestOut]:
    """Connect, list, and call one read-only tool if named. Ask for the answered id until it has a verdict."""
    test = health.request_test(
        server=lookup.server(slug),
        actor=actor(request),
        user=person(request),
        call_tool=payload.call_tool,
        call_arguments=payload.call_arguments,
    )
    return Status(202, test_out(test))


@router.get("/servers/{slug}/tests/{test_id}", response=ServerTestOut)
def get_test(request: HttpRequest, slug: Slug, test_id: lookup.Id) -> ServerTestOut:
    rows = ServerTest.objects.filter(server__slug=slug).select_related("server")
    return test_out(lookup.one(rows, "test", pk=test_id))


@router.get("/servers/{slug}/events", response=Page[EventOut])
def list_events(request: HttpRequest, slug: Slug, limit: Limit = 50, cursor: Cursor = None) -> Page[EventOut]:
    rows = ServerEvent.objects.filter(server=lookup.server(slug))
    return page(rows, order=("-id",), limit=limit, cursor=cursor, show=event_out)
