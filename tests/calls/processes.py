"""Processes of a site, as far as the placement of sessions is concerned: each has a pool and an
address of its own."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from mcpregistry.calls.connection_placement import Placement
from mcpregistry.domain.calls.forwarding import NOTHING
from mcpregistry.downstream.peers.sockets import PeerAddress
from mcpregistry.downstream.pool.pool import Pool
from mcpregistry.downstream.server_call import ServerCall
from mcpregistry.models import Server
from mcpregistry.services.servers.placement import Owner
from tests.waiting import HANG_LIMIT

SESSION = "ann/http:1"
_NOBODY = 2**22  # above every process id of Linux


class Process:
    """One process. It takes calls of the others at ``place``."""

    def __init__(self, number: int, place: Path | PeerAddress, target: Any) -> None:
        async def targets(_: int) -> Any:
            return target

        self.name = f"web@box:{_NOBODY + number}"
        self.pool = Pool(targets, lambda _: None, on_session_over=self._release)
        self.placement = Placement(self.pool, self.name)
        self._place = place

    def _release(self, server: int, session: str, is_lost: bool) -> None:
        self.placement.release(server, session, is_lost=is_lost)

    async def start(self) -> None:
        await self.placement.start(self._place)

    async def stop(self) -> None:
        await self.placement.close()
        await self.pool.close()

    async def die(self) -> None:
        """End without telling anybody."""
        await self.placement._server.close()
        assert self.placement._renewing is not None
        self.placement._renewing.cancel()
        self.placement._us = Owner(self.name, "")
        self.placement._owners.clear()
        await self.pool.close()

    async def call(
        self, server: Server, tool: str, arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        host = options.pop("host", NOTHING)
        session = options.pop("session", SESSION)
        given = json.dumps(dict(arguments or {})).encode()
        return await self.placement.call(
            ServerCall(
                server.pk, tool, given, session=session, host=host, timeout=HANG_LIMIT, **options
            )
        )


Start = Callable[..., Awaitable[list[Process]]]


def text_of(result: Mapping[str, Any]) -> str:
    """Return the text of a result, without a note in front of it."""
    return str(result["content"][-1]["text"])
