"""Installed packages: ask for one, read its lock, approve exactly that, set a server to it, roll
back, remove."""

from __future__ import annotations

from typing import cast

from django.contrib.auth.models import User
from django.http import HttpRequest
from ninja import Status

from mcpregistry.api import lookup
from mcpregistry.api.auth import actor, person
from mcpregistry.api.idempotent_operations import once
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.basics import Page, Problem, Slug
from mcpregistry.api.schemas.installs import (
    InstallApproval,
    InstallNew,
    InstallOut,
    InstallUse,
    InstallWhole,
    StateName,
    install_out,
    install_whole,
)
from mcpregistry.api.schemas.servers import ServerOut, server_out
from mcpregistry.models import Install
from mcpregistry.services import installs
from mcpregistry.services.installs import requests
from mcpregistry.services.registry import bundle_settings

router = PermissionRouter(tags=["installs"])

_ROWS = Install.objects.select_related("server")


@router.get("/installs", response=Page[InstallOut])
def list_installs(
    request: HttpRequest,
    *,
    server: Slug | None = None,
    state: StateName | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[InstallOut]:
    """Installs, newest first."""
    rows = _ROWS.defer("lock")
    if server:
        rows = rows.filter(server__slug=server)
    if state:
        rows = rows.filter(state=state)
    return read_page(rows, order=("-id",), limit=limit, cursor=cursor, show=install_out)


@router.post("/installs", response={202: InstallOut, 404: Problem, 409: Problem})
@once()
def ask_install(request: HttpRequest, payload: InstallNew) -> Status[InstallOut]:
    """Request the installation of a package. A worker creates its lock: poll the returned id until
    its state is `waiting`."""
    install = installs.request_install(
        ecosystem=payload.ecosystem,
        package=payload.package,
        version=payload.version,
        program=payload.program,
        server=lookup.find_server(payload.server) if payload.server else None,
        slug=payload.slug,
        actor=actor(request),
    )
    return Status(202, install_out(install))


@router.get("/installs/{install_id}", response=InstallWhole)
def get_install(request: HttpRequest, install_id: lookup.Id) -> InstallWhole:
    """One install with its packages, and their differences from the previous install."""
    return install_whole(lookup.one(_ROWS.all(), "install", pk=install_id))


@router.post("/installs/{install_id}/approve", response={202: InstallOut, 409: Problem})
def approve_install(
    request: HttpRequest, install_id: lookup.Id, payload: InstallApproval
) -> Status[InstallOut]:
    """Approve exactly the lock that was shown. A worker then installs it. This does not start a
    server."""
    install = requests.approve_lock(
        install=lookup.one(_ROWS.all(), "install", pk=install_id),
        lock_sha256=payload.lock_sha256,
        actor=actor(request),
        user=person(request),
    )
    return Status(202, install_out(install))


@router.post("/installs/{install_id}/use", response={200: ServerOut, 409: Problem})
def use_install(request: HttpRequest, install_id: lookup.Id, payload: InstallUse) -> ServerOut:
    """Set the command of a server to this install, or add a server for it. It is a draft until its
    launch is confirmed."""
    install = lookup.one(_ROWS.all(), "install", pk=install_id)
    server = lookup.find_server(payload.server) if payload.server else None
    if payload.values is None:
        return server_out(
            requests.use_install(install=install, server=server, actor=actor(request))
        )
    user = cast(User, person(request))
    made = bundle_settings.use_bundle(
        install=install, values=payload.values, server=server, user=user, actor=actor(request)
    )
    return server_out(made)


@router.delete("/installs/{install_id}", response={204: None, 409: Problem})
def remove_install(request: HttpRequest, install_id: lookup.Id) -> Status[None]:
    """Delete the install. Its folder is deleted within a minute. This is refused while a server
    uses it."""
    requests.remove_install(
        install=lookup.one(_ROWS.all(), "install", pk=install_id), actor=actor(request)
    )
    return Status(204, None)


@router.post("/servers/{slug}/roll-back", response={200: ServerOut, 409: Problem})
def roll_back_server(request: HttpRequest, slug: Slug) -> ServerOut:
    """Set the server to its previous install. It is a draft until its launch is confirmed."""
    return server_out(requests.roll_back(server=lookup.find_server(slug), actor=actor(request)))
