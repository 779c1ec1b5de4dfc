"""A server of the site that lists any JSON, taken in as the site takes in what a real server
lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asgiref.sync import async_to_sync

from mcpregistry.domain.offer_kinds import KINDS
from mcpregistry.domain.servers.target import ServerLimits
from mcpregistry.downstream.pool.discovery import Discovery
from mcpregistry.downstream.pool.listing import explain_bad_header, read_offers
from mcpregistry.models import Server
from mcpregistry.services.definitions import decisions
from mcpregistry.services.servers import checks

Lists = Mapping[str, Sequence[Any]]  # by kind
_SILENT = Discovery(
    tools=(),
    problems=(),
    era="legacy",
    protocol_version="2025-11-25",
    instructions="",
    server_info={},
    capabilities={kind.capability: {} for kind in KINDS.values()},
)


def read(lists: Lists) -> Discovery:
    """What the site keeps of these lists."""
    answers = {
        KINDS[kind].list_method: {KINDS[kind].listed: list(items)} for kind, items in lists.items()
    }

    async def ask(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        found = answers.get(method)
        return found or {kind.listed: [] for kind in KINDS.values() if kind.list_method == method}

    return async_to_sync(read_offers)(ask, _SILENT, ServerLimits(), explain_bad_header)


def learn_and_approve(server: Server, lists: Lists, *, actor: str) -> Discovery:
    """Let the server list this from now on, and approve all of it that is kept."""
    discovery = read(lists)
    checks.record_discovery(server=server, discovery=discovery)
    decisions.approve_waiting(server=server, actor=actor)
    return discovery
