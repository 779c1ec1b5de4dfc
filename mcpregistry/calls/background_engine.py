"""Calls of a worker that nobody there waits for: an engine of its own in a process whose code is
synchronous.

It is started when the first such call comes, on a loop thread of its own, and takes no place among
the worker's other work: a call that takes an hour keeps nobody waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from mcpregistry.calls.engine import Engine, set_current_engine
from mcpregistry.downstream.runtime import LoopThread

log = structlog.get_logger(__name__)

AT_ONCE = 32  # calls; more would only wait for the same servers
_START_SECONDS = 60.0
_STOP_SECONDS = 40.0


class BackgroundEngine:
    """The worker's engine; ``run`` may be called from any thread, as often as one likes for the
    same call."""

    def __init__(self, process: str = "worker") -> None:
        self._thread = LoopThread("approved-calls")
        self._engine = Engine(process)
        self._places = asyncio.Semaphore(AT_ONCE)
        self._running: dict[str, asyncio.Task[None]] = {}
        try:
            self._thread.run(self._engine.start(), _START_SECONDS)
        except BaseException:
            self._thread.stop()
            raise
        set_current_engine(self._engine)

    @property
    def engine(self) -> Engine:
        return self._engine

    def call_on_loop(self, function: Callable[..., object], *arguments: object) -> None:
        """Call it on the engine's loop. Returns at once; for other apps' work in this process."""
        self._thread.loop.call_soon_threadsafe(function, *arguments)

    def await_on_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """Await it on the engine's loop: for other apps' work, which ends before the engine
        does."""
        self._thread.run(work, _STOP_SECONDS)

    def run(self, call_id: str) -> None:
        """See to it that the approved call is run. Returns at once."""
        self._thread.loop.call_soon_threadsafe(self._begin, call_id)

    def close(self) -> None:
        """End what still runs, then the engine."""
        set_current_engine(None)
        try:
            self._thread.run(self._engine.stop(), _STOP_SECONDS)
        finally:
            self._thread.stop()

    def _begin(self, call_id: str) -> None:
        if call_id not in self._running:
            self._running[call_id] = self._thread.loop.create_task(self._run_call(call_id))

    async def _run_call(self, call_id: str) -> None:
        try:
            async with self._places:
                outcome = await self._engine.approvals.runner.settle_call(call_id)
            if outcome is not None:
                log.info("approved_call_run", call=call_id, state=outcome.state.value)
        except Exception:
            log.exception("approved_call_failed", call=call_id)
        finally:
            self._running.pop(call_id, None)
