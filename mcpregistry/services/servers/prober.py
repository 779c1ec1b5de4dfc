"""Tests of servers for processes whose code is synchronous: a worker, or a command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import structlog
from django.db import Error

from mcpregistry.database_errors import is_passing
from mcpregistry.db import db_call
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import Interrupted, SlipsnisseError, TimedOut
from mcpregistry.domain.servers.health import compute_test_timeout
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.downstream.pool.events import TestReport
from mcpregistry.downstream.pool.server_probe import MakeCall, ProbeProgress, probe_once, send_only
from mcpregistry.downstream.runtime import LoopThread
from mcpregistry.models import Server
from mcpregistry.services.servers.targets import build_target

# Writes how far a test is: the steps that are done, in milliseconds, and what the server has
# written to standard error.
Tell = Callable[[Mapping[str, float], str], None]

log = structlog.get_logger(__name__)

_CLOSING_SECONDS = 20.0
_LOOK_EVERY = 1.0  # second, whether the server is still active
_LONGEST = (
    compute_test_timeout(600.0, None) + _CLOSING_SECONDS
)  # 600 is a server's longest time to connect


class Prober:
    """One loop thread; ``test`` may be called from many threads at once."""

    def __init__(self) -> None:
        self._loop = LoopThread()
        self._running: set[asyncio.Task[TestReport]] = set()  # touched on the loop alone
        self._interrupted = False

    def test(
        self,
        server_id: int,
        call: tuple[str, bytes] | None = None,
        in_sandbox: bool = False,
        *,
        make: MakeCall = send_only,
    ) -> TestReport:
        """Connect afresh, list the tools, perhaps make one call, close. Whatever goes wrong is in
        the report."""
        try:
            return self._loop.run(self.probe(server_id, call, in_sandbox, make=make), _LONGEST)
        except TimeoutError:
            return _make_failed_report(_make_timeout_error())

    async def probe(
        self,
        server_id: int,
        call: tuple[str, bytes] | None = None,
        in_sandbox: bool = False,
        *,
        tell: Tell | None = None,
        make: MakeCall = send_only,
    ) -> TestReport:
        """The same for callers that are already on its loop (``schedule``); ``tell`` follows the
        test's progress."""
        try:
            return await self._probe_one(
                probe_server(server_id, call, in_sandbox, tell=tell, make=make)
            )
        except SlipsnisseError as error:
            return _make_failed_report(error)
        except Exception as error:  # noqa: BLE001 (told in the report, with its text in the log)
            if is_passing(error):  # says nothing of the server
                return _make_failed_report(
                    Interrupted(
                        f"{error_texts.DATABASE_UNAVAILABLE} The test was not started.",
                        remedy="Test the server again.",
                    )
                )
            return _report_crash(server_id, error)

    def schedule(self, function: Callable[[], object]) -> None:
        """Call it on the loop. Returns at once, from any thread."""
        self._loop.loop.call_soon_threadsafe(function)

    def run(self, work: Coroutine[Any, Any, None], seconds: float) -> None:
        """Wait for work on the loop. Raises TimeoutError."""
        self._loop.run(work, seconds)

    async def _probe_one(self, work: Coroutine[Any, Any, TestReport]) -> TestReport:
        if self._interrupted:
            work.close()
            raise _make_interruption()
        test = asyncio.create_task(work)
        self._running.add(test)
        try:
            return await test
        except asyncio.CancelledError:
            raise (_make_interruption() if self._interrupted else asyncio.CancelledError) from None
        finally:
            self._running.discard(test)

    def interrupt(self) -> None:
        """End the tests that run now, and let no other begin: a worker that stops does not wait for
        servers.

        Returns at once, from any thread; each ``test`` returns as soon as its server's processes
        are gone.
        """
        self._interrupted = True
        self._loop.loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        while self._running:  # each once: a second cancellation would break into its tidying up
            self._running.pop().cancel()

    def close(self) -> None:
        """End the loop thread."""
        self._loop.stop()


async def probe_server(
    server_id: int,
    call: tuple[str, bytes] | None,
    in_sandbox: bool,
    *,
    tell: Tell | None = None,
    make: MakeCall = send_only,
) -> TestReport:
    """One test on this loop. ``make`` makes its call. Too long a one is ended here, so that its
    server is gone when we return.

    Whatever goes wrong with it is in the report; cancelling it ends the server first. Raises the
    error of our own database when that fails for a while.
    """
    try:
        target = await db_call(build_target, server_id, in_sandbox=in_sandbox)
        async with asyncio.timeout(_compute_timeout(target)):
            progress = ProbeProgress()
            test = probe_once(target, call, progress, make)
            return await _run_while_active(test, server_id, _make_progress_reporter(progress, tell))
    except SlipsnisseError as error:
        return _make_failed_report(error)
    except TimeoutError:
        return _make_failed_report(_make_timeout_error())
    except Exception as error:
        if is_passing(error):
            raise
        return _report_crash(server_id, error)


def _make_progress_reporter(
    progress: ProbeProgress, tell: Tell | None
) -> Callable[[], Awaitable[None]]:
    """Something to await from time to time: it tells how far the test is whenever that has
    changed."""
    told: tuple[dict[str, float], str] = ({}, "")

    async def report_new_steps() -> None:
        nonlocal told
        now = (progress.steps, progress.stderr)
        if tell is not None and now != told:
            await db_call(tell, *now)
            told = now

    return report_new_steps


async def _run_while_active(
    test: Coroutine[Any, Any, TestReport], server_id: int, look: Callable[[], Awaitable[None]]
) -> TestReport:
    """The test; cut where the server is disabled or edited meanwhile, for then nothing of it may
    run."""
    work = asyncio.create_task(test)
    inactive = asyncio.create_task(_wait_until_inactive(server_id, look))
    try:
        await asyncio.wait({work, inactive}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        # raises what kept us from looking, which is nothing that the server's people have done
        inactive.result()
        raise Interrupted(
            "The server was disabled or changed during the test.",
            remedy="Enable the server if it is disabled, then test it again.",
        )
    finally:
        work.cancel()
        inactive.cancel()
        await asyncio.gather(work, inactive, return_exceptions=True)


async def _wait_until_inactive(server_id: int, look: Callable[[], Awaitable[None]]) -> None:
    """Returns when the server may not run any more; until then it also tells how far the test
    is."""
    while True:
        await asyncio.sleep(_LOOK_EVERY)
        try:
            await look()
            if not await db_call(_is_active, server_id):
                return
        except Error as error:
            if not is_passing(error):
                raise


def _is_active(server_id: int) -> bool:
    return Server.objects.active().filter(pk=server_id).exists()


def _compute_timeout(target: ServerTarget) -> float:
    return compute_test_timeout(target.limits.connect_timeout, target.limits.request_timeout)


def _make_timeout_error() -> TimedOut:
    return TimedOut(
        "The test took too long and was stopped.",
        remedy="The log on the page of the server may show the cause.",
    )


def _report_crash(server_id: int, error: Exception) -> TestReport:
    # its text may hold a secret: it stays in the log
    log.error("test_crashed", server_id=server_id, exc_info=error)
    return _make_failed_report(
        SlipsnisseError(
            "The test failed because of an internal error.",
            remedy="An operator can find the cause in the log of the worker.",
        )
    )


def _make_interruption() -> Interrupted:
    return Interrupted(
        "The process that ran the test was stopped before the test ended.",
        remedy="Test the server again.",
    )


def _make_failed_report(error: SlipsnisseError) -> TestReport:
    return TestReport(ok=False, error=error, discovery=None, result=None, stderr="", timings={})
