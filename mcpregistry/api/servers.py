"""Servers: change, confirm, run, test, watch. Creating or changing one only ever makes a draft.

Nothing here starts a process: a test, refresh or reconnect is a request to the workers, by id, and
is refused until a person has confirmed the launch.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from django.db.models import Q
from django.http import HttpRequest
from ninja import Query, Status

from mcpregistry.api import lookup
from mcpregistry.api.auth import actor, person, rights
from mcpregistry.api.idempotent_operations import once
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.basics import Accepted, Page, Problem, Slug, Text
from mcpregistry.api.schemas.pasted import PastedIn, PastedOut, build_pasted_out
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
from mcpregistry.domain.formats import pasted
from mcpregistry.models import Server, ServerEvent, ServerTest
from mcpregistry.services.configuration.dispatch import NO_BROKER
from mcpregistry.services.servers import checks, exposed_secrets, lifecycle
from mcpregistry.services.servers.sandbox import find_default_mode

router = PermissionRouter(tags=["servers"])


@router.get("/servers", response=Page[ServerOut])
def list_servers(
    request: HttpRequest,
    *,
    q: Annotated[
        Text | None,
        Query(max_length=200, description="Text that the slug, name or description contains."),
    ] = None,
    lifecycle: LifecycleName | None = None,
    transport: TransportName | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ServerOut]:
    """Servers by slug."""
    rows = Server.objects.all()
    if q:
        rows = rows.filter(
            Q(slug__icontains=q) | Q(name__icontains=q) | Q(description__icontains=q)
        )
    if lifecycle:
        rows = rows.filter(lifecycle=lifecycle)
    if transport:
        rows = rows.filter(transport=transport)
    return read_page(
        rows,
        order=("slug",),
        limit=limit,
        cursor=cursor,
        show=partial(server_out, whole=_may_see_all(request)),
    )


@router.post("/servers", response={201: ServerOut})
@once()
def create_server(request: HttpRequest, payload: ServerNew) -> Status[ServerOut]:
    """Add a server as a draft. It cannot run until a user with that permission has confirmed its
    launch.

    A local server runs in a sandbox if this machine supports it, unless `sandbox` says otherwise.
    """
    facts = {"sandbox": find_default_mode(), **payload.get_sent_values()}
    server = lifecycle.save_server(server=Server(**facts, source="api"), actor=actor(request))
    return Status(201, server_out(server))


@router.post("/servers/read", response=PastedOut)
def read_pasted(request: HttpRequest, payload: PastedIn) -> PastedOut:
    """Convert a command or configuration, for example from a README, into the fields of new
    servers. Nothing is saved or started.

    Add credentials for the secrets that the answer names, then send each server to `POST /servers`.
    """
    return build_pasted_out(pasted.read(payload.text))


@router.get("/servers/{slug}", response=ServerOut)
def get_server(request: HttpRequest, slug: Slug) -> ServerOut:
    """One server. Secrets in its command and address are masked for users who cannot change or
    confirm servers."""
    return server_out(lookup.find_server(slug), whole=_may_see_all(request))


@router.patch("/servers/{slug}", response=ServerOut)
def change_server(request: HttpRequest, slug: Slug, payload: ServerChange) -> ServerOut:
    """Change the fields that are sent. Fields that are left out or null stay as they are. After a
    change of its launch, the server is a draft again.
    """
    server = lookup.find_server(slug).change(**payload.get_sent_values())
    return server_out(
        lifecycle.save_server(server=server, actor=actor(request), rights=rights(request))
    )


@router.delete("/servers/{slug}", response={204: None, 409: Problem})
def delete_server(request: HttpRequest, slug: Slug) -> Status[None]:
    """Delete a server with its tools and grants. The records of its calls stay."""
    lifecycle.delete_server(
        server=lookup.find_server(slug), actor=actor(request), rights=rights(request)
    )
    return Status(204, None)


@router.get("/servers/{slug}/launch", response=LaunchOut)
def show_launch(request: HttpRequest, slug: Slug) -> LaunchOut:
    """What the server would start or connect to, and the hash that confirms exactly this."""
    return launch_out(lookup.find_server(slug), whole=_may_see_all(request))


@router.post("/servers/{slug}/confirm", response={200: ServerOut, 409: Problem})
def confirm_server(request: HttpRequest, slug: Slug, payload: Confirmation) -> ServerOut:
    """Confirm exactly the launch that was shown. The server becomes active and is then checked."""
    server = lifecycle.confirm_launch(
        server=lookup.find_server(slug),
        actor=actor(request),
        launch_hash=payload.launch_hash,
        user=person(request),
    )
    return server_out(server)


@router.post("/servers/{slug}/keep-secrets", response={200: ServerOut, 409: Problem})
def keep_secrets(request: HttpRequest, slug: Slug) -> ServerOut:
    """Store the secrets that `open_secrets` lists as credentials of this server, and refer to them
    in its command and address.

    The server becomes a draft, because its launch has changed. Earlier versions and backups still
    contain the secrets.
    """
    server = lookup.find_server(slug)
    user = person(request)
    assert user is not None  # the operation needs a right that only people have
    exposed_secrets.keep_open_secrets(server=server, user=user, actor=actor(request))
    return server_out(server)


@router.post("/servers/{slug}/enable", response=ServerOut)
def enable_server(request: HttpRequest, slug: Slug) -> ServerOut:
    """Enable a server. It is active if its launch is still the confirmed one, otherwise it is a
    draft."""
    return server_out(
        lifecycle.enable_server(server=lookup.find_server(slug), actor=actor(request))
    )


@router.post("/servers/{slug}/disable", response=ServerOut)
def disable_server(request: HttpRequest, slug: Slug) -> ServerOut:
    """Disable a server. It is no longer offered anywhere within a second."""
    return server_out(
        lifecycle.disable_server(server=lookup.find_server(slug), actor=actor(request))
    )


@router.post("/servers/{slug}/refresh", response={202: Accepted, 409: Problem})
def refresh_server(request: HttpRequest, slug: Slug) -> Status[Accepted]:
    """Let a worker read the server's tools again. Changed definitions wait for approval."""
    soon = checks.request_refresh(server=lookup.find_server(slug), actor=actor(request))
    return Status(
        202, Accepted(message="A worker reads the server's tools now." if soon else NO_BROKER)
    )


@router.post("/servers/{slug}/connect", response={202: Accepted, 409: Problem})
def connect_server(request: HttpRequest, slug: Slug) -> Status[Accepted]:
    """Let a worker connect to the server now and read its tools, prompts and resources."""
    soon = checks.request_connect(server=lookup.find_server(slug), actor=actor(request))
    return Status(
        202, Accepted(message="A worker is connecting to the server." if soon else NO_BROKER)
    )


@router.post("/servers/{slug}/disconnect", response={202: Accepted, 409: Problem})
def disconnect_server(request: HttpRequest, slug: Slug) -> Status[Accepted]:
    """Let every process close its connection. The next call, check or connect opens a new one."""
    checks.request_disconnect(server=lookup.find_server(slug), actor=actor(request))
    return Status(
        202,
        Accepted(
            message="Every process closes its connection. The next call, check or connect opens a new connection."
        ),
    )


@router.post("/servers/{slug}/reconnect", response={202: Accepted, 409: Problem})
def reconnect_server(request: HttpRequest, slug: Slug) -> Status[Accepted]:
    """Let every process close its connection and open a new one."""
    checks.request_reconnect(server=lookup.find_server(slug), actor=actor(request))
    return Status(
        202,
        Accepted(
            message="Every process closes its connection. The next call opens a new connection."
        ),
    )


@router.get("/servers/{slug}/tests", response=Page[ServerTestOut])
def list_tests(
    request: HttpRequest, slug: Slug, limit: Limit = 50, cursor: Cursor = None
) -> Page[ServerTestOut]:
    """Tests of the server, newest first."""
    rows = ServerTest.objects.filter(server=lookup.find_server(slug)).select_related("server")
    return read_page(rows, order=("-id",), limit=limit, cursor=cursor, show=test_out)


@router.post("/servers/{slug}/tests", response={202: ServerTestOut, 409: Problem})
@once()
def test_server(request: HttpRequest, slug: Slug, payload: TestOrder) -> Status[ServerTestOut]:
    """Let a worker connect to the server, list its tools, and call one read-only tool if you name
    it. Poll the returned id for the result.
    """
    test = checks.request_test(
        server=lookup.find_server(slug),
        actor=actor(request),
        user=person(request),
        call_tool=payload.call_tool,
        call_arguments=payload.call_arguments,
        in_sandbox=payload.in_sandbox,
    )
    return Status(202, test_out(test))


@router.get("/servers/{slug}/tests/{test_id}", response=ServerTestOut)
def get_test(request: HttpRequest, slug: Slug, test_id: lookup.Id) -> ServerTestOut:
    """One test."""
    rows = ServerTest.objects.filter(server__slug=slug).select_related("server")
    return test_out(lookup.one(rows, "test", pk=test_id))


@router.get("/servers/{slug}/events", response=Page[EventOut])
def list_events(
    request: HttpRequest, slug: Slug, limit: Limit = 50, cursor: Cursor = None
) -> Page[EventOut]:
    """Server events, newest first."""
    rows = ServerEvent.objects.filter(server=lookup.find_server(slug))
    return read_page(rows, order=("-id",), limit=limit, cursor=cursor, show=event_out)


def _may_see_all(request: HttpRequest) -> bool:
    return lifecycle.may_see_secrets_of_launch(person(request))
