"""A pool for processes whose code is synchronous: a worker, or a command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from mcpregistry.db import db_call
from mcpregistry.domain.errors import SlipsnisseError, TimedOut
from mcpregistry.domain.servers.target import Target
from mcpregistry.downstream.pool.events import ConnectionEvent, TestReport
from mcpregistry.downstream.pool.pool import Pool
from mcpregistry.downstream.runtime import LoopThread
from mcpregistry.services.servers.targets import target_for

log = structlog.get_logger(__name__)

CALL_SECONDS = 60.0
_CLOSING_SECONDS = 20.0


class Prober:
    """One loop thread and one pool; ``test`` may be called from many threads at once."""

    def __init__(self, on_event: Callable[[ConnectionEvent], None] = lambda event: None) -> None:
        self._loop = LoopThread()
        self._pool = Pool(lambda server_id: db_call(target_for, server_id), on_event)

    def test(self, server_id: int, call: tuple[str, bytes] | None = None) -> TestReport:
        """Connect afresh, list the tools, perhaps make one call, close. Whatever goes wrong is in the report."""
        try:
            target = target_for(server_id)
            patience = _patience(target)
            return self._loop.run(self._within(patience, target, call), patience + _CLOSING_SECONDS)
        except SlipsnisseError as error:
            return _failed(error)
        except TimeoutError:
            return _failed(TimedOut("The test took too long and was ended.", remedy="Look at the server's log."))
        except Exception:
            log.exception("test_crashed", server_id=server_id)  # its text may hold a secret: it stays in the log
            return _failed(SlipsnisseError("The test failed inside Slipsnisse.", remedy="Look at the worker's log."))

    async def _within(self, patience: float, target: Target, call: tuple[str, bytes] | None) -> TestReport:
        """Too long a test is ended here, on the loop, so that its server is gone when we return."""
        async with asyncio.timeout(patience):
            return await self._pool.test(target, call=call)

    def close(self) -> None:
        """Close every connection and end the loop thread."""
        try:
            self._loop.run(self._pool.close(), _CLOSING_SECONDS)
        finally:
            self._loop.stop()


def _patience(target: Target) -> float:
    return target.limits.connect_timeout + min(target.limits.request_timeout or CALL_SECONDS, CALL_SECONDS) + 30


def _failed(error: SlipsnisseError) -> TestReport:
    return TestReport(ok=False, error=error, discovery=None, result=None, stderr="", timings={})
