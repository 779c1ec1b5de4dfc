"""The calls that are under way in a process, so that it can stop and leave none without an end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mcpregistry.garbage_collection import Idle

DRAIN_SECONDS = 10.0  # for calls to end, and again for those that were cut to write down their end


class InFlight:
    """Tasks that make calls. Used on the event loop alone."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._cut: set[asyncio.Task[Any]] = set()
        self._idle = Idle()
        self.is_cutting = False  # calls that are cancelled now are cut by us, not by their callers

    def track_task(self, task: asyncio.Task[Any]) -> None:
        """Count the task until it has ended."""
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    @contextmanager
    def track_block(self, task: asyncio.Task[Any]) -> Iterator[None]:
        """Count the task until the block ends."""
        self._running.add(task)
        try:
            yield
        finally:
            self._running.discard(task)
            self._idle.stir()

    async def end_within(self, grace: float) -> None:
        """Wait for all to end by themselves, up to ``grace`` seconds."""
        if self._running:
            await asyncio.wait(self._running, timeout=grace)

    async def cancel_all(self) -> None:
        """Cancel what still runs, and wait for it to write down its end."""
        self.is_cutting = True
        self._cut = set(self._running)
        for task in self._cut:
            task.cancel()
        if self._cut:
            await asyncio.wait(self._cut, timeout=DRAIN_SECONDS)

    def explain_cancel(self, reason: str) -> str:
        """Why a call is cancelled now: ``reason``, unless it is this process that stops."""
        if self.is_cutting:
            return "this process was stopped before the answer arrived"
        return reason

    def was_cut(self, task: asyncio.Task[Any]) -> bool:
        """Whether we have cancelled it, and not whoever called."""
        return task in self._cut
