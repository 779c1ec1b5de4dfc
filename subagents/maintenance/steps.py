"""What a step of a plan is, and the server that a request is about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from mcpregistry.domain.errors import NotFound
from mcpregistry.downstream.pool.pool import Pool
from mcpregistry.models import Server
from subagents.models import MaintenanceRequest


async def _nothing(pool: Pool, request: MaintenanceRequest) -> Any:
    return None


@dataclass(frozen=True, slots=True)
class Step:
    """``says``: to people, while it runs. ``progress``: when it is done."""

    name: str
    says: str
    progress: int
    keep: Callable[[MaintenanceRequest, Any], None]
    act: Callable[[Pool, MaintenanceRequest], Awaitable[Any]] = _nothing


def server_of(request: MaintenanceRequest) -> Server:
    """The server; its id is noted for the steps that follow. Raises NotFound."""
    server = Server.objects.filter(slug=request.server_slug).first()
    if server is None:
        raise NotFound(f"There is no server '{request.server_slug}' any more.", remedy="It may have been removed.")
    request.notes["server_id"] = server.pk
    return server
