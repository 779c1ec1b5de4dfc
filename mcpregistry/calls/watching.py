"""One look for all: the states of the calls that this process waits for, read together."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import structlog

from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import State
from mcpregistry.services import holding

log = structlog.get_logger(__name__)

LOOK_EVERY = 0.05  # seconds; a decision made anywhere is seen in less than a tenth of a second
_AFTER_FAULT = 1.0


class Watch:
    """Reads nothing while nobody waits."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[State]]] = defaultdict(set)
        self._seen: dict[asyncio.Future[State], State] = {}
        self._looking: asyncio.Task[None] | None = None
        self.stopping = False

    async def until_not(self, call_id: str, seen: State, timeout: float | None) -> State:
        """Wait until the call's state is another than ``seen``; that one again after ``timeout`` seconds."""
        if self.stopping:
            return seen
        changed: asyncio.Future[State] = asyncio.get_running_loop().create_future()
        self._waiting[call_id].add(changed)
        self._seen[changed] = seen
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look())
        try:
            done, _ = await asyncio.wait({changed}, timeout=timeout)
            return changed.result() if done else seen
        finally:
            self._forget(call_id, changed)

    def stop(self) -> None:
        """Let everybody go with what was seen last."""
        self.stopping = True
        for future, seen in self._seen.items():
            if not future.done():
                future.set_result(seen)

    def _forget(self, call_id: str, changed: asyncio.Future[State]) -> None:
        self._seen.pop(changed, None)
        self._waiting[call_id].discard(changed)
        if not self._waiting[call_id]:
            del self._waiting[call_id]

    async def _look(self) -> None:
        while self._waiting and not self.stopping:
            try:
                self._tell(await db_call(holding.states, list(self._waiting)))
            except Exception:  # the database may be away; they go on waiting
                log.exception("approvals.look_failed")
                await asyncio.sleep(_AFTER_FAULT)
            await asyncio.sleep(LOOK_EVERY)

    def _tell(self, states: dict[str, State]) -> None:
        for call_id, state in states.items():
            for future in self._waiting.get(call_id, ()):
                if state is not self._seen[future] and not future.done():
                    future.set_result(state)
