"""When tokens of agents were last used over MCP and at headends: collected here, written twice a
minute."""

from __future__ import annotations

import asyncio

import structlog
from django.db import Error

from mcpregistry.db import db_call
from mcpregistry.services.access import tokens

log = structlog.get_logger(__name__)

SECONDS = 30.0  # between two writes


class TokenUses:
    """Of one process. What cannot be written at one time is written at the next."""

    def __init__(self) -> None:
        self._hashes: set[str] = set()
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write; to be called on the event loop."""
        self._writing = asyncio.create_task(self._write_repeatedly())

    def add(self, token_hash: str) -> None:
        """A valid token was used."""
        self._hashes.add(token_hash)

    async def close(self) -> None:
        """Write what is left."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
            await self.write()

    async def write(self) -> None:
        """Write all uses since the last time."""
        used = self._hashes
        self._hashes = set()
        if not used:
            return
        try:
            await db_call(tokens.note_uses, used)
        except Error:
            self._hashes |= used
            log.warning("token_uses.not_written", exc_info=True)

    async def _write_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(SECONDS)
            await self.write()
