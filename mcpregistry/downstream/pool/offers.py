"""What one connected server offers: its lists read, read again when it says that they changed, and
their hashes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import structlog
from mcp.client.client import Client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError

from mcpregistry.domain.definitions.definition import hash_definition
from mcpregistry.domain.errors import DownstreamError
from mcpregistry.domain.offer_kinds import KINDS, PROMPT, RESOURCE, TOOL
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.downstream.pool.discovery import Discovery, SharedReading
from mcpregistry.downstream.pool.listing import (
    build_header_maps,
    explain_bad_header,
    explain_task_only,
    read_offers,
)

log = structlog.get_logger(__name__)

SETTLE_SECONDS = 0.05
REREAD_SECONDS = 0.25
LISTEN_RETRY_FIRST = 1.0
LISTEN_RETRY_MOST = 30.0
LISTEN_STABLE_SECONDS = 30.0


class Offers:
    """The lists of a connection, which asks for them with ``ask``. ``discovery`` is None until it
    has greeted."""

    def __init__(
        self,
        target: ServerTarget,
        ask: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]],
        on_changed: Callable[[Discovery], None],
    ) -> None:
        self.discovery: Discovery | None = None
        self.header_maps: dict[str, dict[tuple[str, ...], str]] = {}
        self._target = target
        self._ask = ask
        self._on_changed = on_changed
        self._hashes: dict[tuple[str, str], str] = {}
        self._reading = SharedReading(self._read_now)
        self._told: Discovery | None = None
        self._dirty = asyncio.Event()

    async def begin(self, greeted: Discovery) -> None:
        """Read for the first time, after the handshake has said the rest. Raises
        DownstreamError."""
        self.discovery = greeted
        self._told = await self.read()

    async def read(self) -> Discovery:
        """Read all pages again, or share a reading that others have asked for. Raises
        DownstreamError."""
        await self._reading()
        assert self.discovery is not None
        return self.discovery

    @property
    def _modern(self) -> bool:
        return self.discovery is not None and self.discovery.era == "modern"

    async def _read_now(self) -> None:
        assert self.discovery is not None
        self.discovery = await read_offers(
            self._ask, self.discovery, self._target.limits, self._explain_unusable
        )
        self.header_maps = (
            build_header_maps(self.discovery.tools)
            if self._modern and self._target.transport == "http"
            else {}
        )
        self._hashes = {}

    async def reread(self) -> None:
        """Read again and tell of what has changed. Raises DownstreamError."""
        found = await self.read()
        if found != self._told:
            self._told = found
            self._on_changed(found)

    def hash_offer(self, name: str, kind: str = TOOL) -> str:
        """Hash of what the server said last about this tool or prompt; empty when it does not list
        it."""
        if (kind, name) not in self._hashes:
            assert self.discovery is not None
            found = next(
                (
                    each
                    for each in self.discovery.get_kind(kind)
                    if each[KINDS[kind].identity] == name
                ),
                None,
            )
            self._hashes[kind, name] = (
                hash_definition(found, self.discovery.instructions, kind) if found else ""
            )
        return self._hashes[kind, name]

    def _explain_unusable(self, tool: Mapping[str, Any]) -> str:
        """Why a tool of this server cannot be called by us; empty where it can."""
        if not self._modern:
            return explain_task_only(tool)
        return explain_bad_header(tool) if self._target.transport == "http" else ""

    def mark_changed(self) -> None:
        """A list has changed: it will be read again soon."""
        self._dirty.set()

    async def listen(self, client: Client) -> None:
        """Hold a modern server's change stream open; a legacy server notifies on its own."""
        assert self.discovery is not None
        tells = {kind: self.discovery.can_notify_changes(kind) for kind in KINDS}
        if not self._modern or not any(tells.values()):
            return
        delay = LISTEN_RETRY_FIRST
        while True:
            started = time.monotonic()
            try:
                tools, prompts, resources = (tells[kind] for kind in (TOOL, PROMPT, RESOURCE))
                streams = client.listen(
                    tools_list_changed=tools,
                    prompts_list_changed=prompts,
                    resources_list_changed=resources,
                )
                async with streams as changes:
                    async for _ in changes:
                        self._dirty.set()
            except (SubscriptionLost, MCPError, TimeoutError):
                log.debug("change_stream_lost", server_id=self._target.server_id)
            # accepted and dropped at once is no success
            if time.monotonic() - started >= LISTEN_STABLE_SECONDS:
                delay = LISTEN_RETRY_FIRST
            await anyio.sleep(delay)
            delay = min(delay * 2, LISTEN_RETRY_MOST)
            self._dirty.set()  # what changed meanwhile was not told

    async def refresh(self) -> None:
        """Read again whenever a change was told, until cancelled."""
        while True:
            await self._dirty.wait()
            await anyio.sleep(SETTLE_SECONDS)  # one reading for a burst of notices
            self._dirty.clear()
            try:
                await self.reread()
            except DownstreamError as error:
                log.warning("tools_not_readable", server_id=self._target.server_id, code=error.code)
                continue
            await anyio.sleep(REREAD_SECONDS)
