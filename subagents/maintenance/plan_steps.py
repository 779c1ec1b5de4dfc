"""What a step of a plan is, and the server that a request is about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User

from mcpregistry.calls.engine import Engine
from mcpregistry.domain.calls.requester import NOBODY, Requester
from mcpregistry.domain.errors import NotFound
from mcpregistry.models import Server
from subagents.models import MaintenanceRequest


async def _do_nothing(engine: Engine, request: MaintenanceRequest) -> Any:
    return None


@dataclass(frozen=True, slots=True)
class PlanStep:
    """``says``: to people, while it runs. ``progress``: when it is done."""

    name: str
    says: str
    progress: int
    keep: Callable[[MaintenanceRequest, Any], None]
    act: Callable[[Engine, MaintenanceRequest], Awaitable[Any]] = _do_nothing


def load_server(request: MaintenanceRequest) -> Server:
    """The server; its id is noted for the steps that follow. Raises NotFound."""
    server = Server.objects.filter(slug=request.server_slug).first()
    if server is None:
        raise NotFound(
            f'The server "{request.server_slug}" no longer exists.',
            remedy="Choose another server in a new request.",
        )
    request.notes["server_id"] = server.pk
    return server


def find_requester(request: MaintenanceRequest) -> Requester:
    """The person who asked: they may not approve what calls of this request ask for."""
    kind, _, name = request.requested_by.partition(":")
    user = User.objects.filter(username=name).first() if kind == "user" else None
    return Requester(user.pk, user.get_username()) if user else NOBODY
