"""One look for all: the states of the calls or runs that this process waits for, read together."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Generic, TypeVar

import structlog

from mcpregistry.db import db_call

log = structlog.get_logger(__name__)

S = TypeVar("S")
_AFTER_FAULT = 1.0


class Watch(Generic[S]):
    """Reads nothing while nobody waits. ``read`` is called in a database thread, ``every`` so many seconds."""

    def __init__(self, read: Callable[[list[str]], dict[str, S]], every: float) -> None:
        self._read, self._every = read, every
        self._waiting: dict[str, set[asyncio.Future[S]]] = defaultdict(set)
        self._seen: dict[asyncio.Future[S], S] = {}
        self._looking: asyncio.Task[None] | None = None
        self.stopping = False

    async def until_not(self, key: str, seen: S, timeout: float | None) -> S:
        """Wait until its state is another than ``seen``; that one again after ``timeout`` seconds."""
        if self.stopping:
            return seen
        changed: asyncio.Future[S] = asyncio.get_running_loop().create_future()
        self._waiting[key].add(changed)
        self._seen[changed] = seen
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look())
        try:
            done, _ = await asyncio.wait({changed}, timeout=timeout)
            return changed.result() if done else seen
        finally:
            self._forget(key, changed)

    def stop(self) -> None:
        """Let everybody go with what was seen last."""
        self.stopping = True
        for future, seen in self._seen.items():
            if not future.done():
                future.set_result(seen)

    def _forget(self, key: str, changed: asyncio.Future[S]) -> None:
        self._seen.pop(changed, None)
        self._waiting[key].discard(changed)
        if not self._waiting[key]:
            del self._waiting[key]

    async def _look(self) -> None:
        while self._waiting and not self.stopping:
            try:
                self._tell(await db_call(self._read, list(self._waiting)))
            except Exception:  # the database may be away; they go on waiting
                log.exception("watch.look_failed")
                await asyncio.sleep(_AFTER_FAULT)
            await asyncio.sleep(self._every)

    def _tell(self, states: dict[str, S]) -> None:
        for key, state in states.items():
            for future in self._waiting.get(key, ()):
                if state != self._seen[future] and not future.done():
                    future.set_result(state)
