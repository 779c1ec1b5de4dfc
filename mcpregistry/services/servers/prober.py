"""A pool for processes whose code is synchronous: a worker, or a command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from mcpregistry.db import db_call
from mcpregistry.domain.errors import Interrupted, SlipsnisseError, TimedOut
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
        self._running: set[asyncio.Task[TestReport]] = set()  # touched on the loop alone
        self._interrupted = False

    def test(self, server_id: int, call: tuple[str, bytes] | None = None, in_sandbox: bool = False) -> TestReport:
        """Connect afresh, list the tools, perhaps make one call, close. Whatever goes wrong is in the report."""
        try:
            target = target_for(server_id, in_sandbox=in_sandbox)
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
        if self._interrupted:
            raise _stopped()
        test = asyncio.create_task(self._pool.test(target, call=call))
        self._running.add(test)
        try:
            async with asyncio.timeout(patience):
                return await test
        except asyncio.CancelledError:
            raise (_stopped() if self._interrupted else asyncio.CancelledError) from None
        finally:
            self._running.discard(test)

    def interrupt(self) -> None:
        """End the tests that run now, and let no other begin: a worker that stops does not wait for servers.

        Returns at once, from any thread; each ``test`` returns as soon as its server's processes are gone.
        """
        self._interrupted = True
        self._loop.loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        while self._running:  # each once: a second cancellation would break into its tidying up
            self._running.pop().cancel()

    def close(self) -> None:
        """Close every connection and end the loop thread."""
        try:
            self._loop.run(self._pool.close(), _CLOSING_SECONDS)
        finally:
            self._loop.stop()


def _patience(target: Target) -> float:
    return target.limits.connect_timeout + min(target.limits.request_timeout or CALL_SECONDS, CALL_SECONDS) + 30


def _stopped() -> Interrupted:
    return Interrupted("This process was stopped before the test was over.", remedy="Test again.")


def _failed(error: SlipsnisseError) -> TestReport:
    return TestReport(ok=False, error=error, discovery=None, result=None, stderr="", timings={})
