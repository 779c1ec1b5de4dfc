"""Work of a worker that may hang: tests and checks of servers, installations, reading of
registries.

Each kind has its own share of the process: so many at a time, and no thread of the worker's other
work. The rows are the queue: a message or a tick only says that there may be some, a share claims
as many as it has places for, and looks again whenever one of them has ended. So fifty servers that
hang keep neither a run nor a person's test waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import structlog
from django.db import Error

from mcpregistry.calls.recording.recorder import Recorder
from mcpregistry.calls.server_test_dispatch import make_call
from mcpregistry.database_errors import is_passing
from mcpregistry.db import db_call, long_db_call, read_database_now
from mcpregistry.domain.text.canonical import encode_canonical_json
from mcpregistry.downstream.pool.server_probe import Send
from mcpregistry.models import ServerTest
from mcpregistry.services.installs import install_cleanup, install_work
from mcpregistry.services.registry import sources, sync
from mcpregistry.services.servers import checks, trials
from mcpregistry.services.servers.connections import make_process_name
from mcpregistry.services.servers.prober import Prober
from mcpregistry.services.servers.server_test_calls import read_call_order
from mcpregistry.services.upkeep.process_lease import ProcessLease

log = structlog.get_logger(__name__)

# Pieces of work at a time in one process.
TESTS = 8  # that people asked for, and wait for
CHECKS = 8  # of servers that answered the last time
FAILING = 4  # checks of servers that did not, or were never asked: these are the ones that may hang
INSTALLS = 2
REGISTRIES = 2
_RETRY = 1.0  # seconds until a result is written that the database did not take
_CLOSING_SECONDS = 25.0  # in which the ends of tests are written that were cut

_T = TypeVar("_T", bound=Hashable)
_Result = TypeVar("_Result")


class Share(Generic[_T]):
    """The places of one kind. Everything happens on one event loop; ``claim`` and what it returns
    is database code.

    ``claim`` takes the number of free places. It may return again what is being worked on here:
    that is left out.
    """

    def __init__(
        self,
        places: int,
        claim: Callable[[int], Sequence[_T]],
        work_on: Callable[[_T], Awaitable[None]],
    ) -> None:
        self._places = places
        self._claim = claim
        self._work_on = work_on
        self._working: dict[_T, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._again = False
        self._closed = False

    def close(self) -> None:
        """Take nothing more. From any thread."""
        self._closed = True

    def look(self) -> None:
        """Take what is due, as far as there is room."""
        self._again = True
        if self._looking is None and not self._closed:
            self._looking = asyncio.ensure_future(self._take())

    async def wait_until_idle(self) -> None:
        """Once nothing is worked on any more."""
        while busy := [*self._working.values(), *filter(None, [self._looking])]:
            await asyncio.wait(busy)

    async def _take(self) -> None:
        try:
            while self._again and (room := self._places - len(self._working)):
                self._again = False
                for each in await db_call(self._claim, room):
                    if each not in self._working:
                        self._working[each] = asyncio.ensure_future(self._work_on_one(each))
        except Exception as error:  # the clock looks again
            log.warning(
                "share.not_read", error=type(error).__name__, exc_info=not is_passing(error)
            )
        finally:
            self._looking = None

    async def _work_on_one(self, each: _T) -> None:
        try:
            await self._work_on(each)
        except Exception:
            log.exception("share.failed")
            return  # the clock looks again: what fails at once shall not be tried at once
        finally:
            del self._working[each]
        self.look()


class Shares:
    """The shares of this process, on the loop of its prober. ``look_for_…`` may be called from any
    thread, and return at once."""

    def __init__(self) -> None:
        self._prober = Prober()
        self._process = make_process_name("worker")
        self._lease = ProcessLease.hold("worker")
        self._stopping = False
        # of the calls of tests; started with the first of them
        self._recorder: Recorder | None = None
        self._tests: Share[int] = Share(
            TESTS, partial(trials.claim_tests, worker=self._lease.key), self._test
        )
        claim = partial(checks.claim_due, worker=self._lease.key)
        self._checks: Share[int] = Share(CHECKS, partial(claim, answering=True), self._check)
        self._failing: Share[int] = Share(FAILING, partial(claim, answering=False), self._check)
        self._installs: Share[int] = Share(INSTALLS, install_work.list_waiting, self._install)
        self._registries: Share[int] = Share(REGISTRIES, sources.list_due_sources, self._read)

    def look_for_tests(self) -> None:
        """Tests that people asked for."""
        self._wake_soon(self._tests)

    def look_for_checks(self) -> None:
        """Servers whose check is due."""
        self._wake_soon(self._checks, self._failing)

    def look_for_installs(self) -> None:
        """Packages to resolve or to install."""
        self._wake_soon(self._installs)

    def look_for_registries(self) -> None:
        """Registries to read."""
        self._wake_soon(self._registries)

    def interrupt(self) -> None:
        """End the tests that run, and begin nothing more: a worker that stops does not wait for
        servers."""
        self._stopping = True
        for share in (self._tests, self._checks, self._failing, self._installs, self._registries):
            share.close()
        self._prober.interrupt()

    def close(self) -> None:
        """End the tests, write down that they were interrupted, give back the installations, and
        end the loop thread."""
        self.interrupt()
        try:
            self._prober.run(self._close_shares(), _CLOSING_SECONDS)
        except TimeoutError:
            log.warning("shares.not_ended")
        finally:
            self._give_back_installs()
            self._prober.close()
            self._lease.release()

    def _give_back_installs(self) -> None:
        """Installations end with this process. Let other workers begin them again, without waiting
        for the leases to expire."""
        try:
            install_cleanup.take_back_of(self._lease.key, read_database_now())
        except Error as error:  # then the leases expire
            log.warning("installs.not_released", error=type(error).__name__)

    async def _close_shares(self) -> None:
        for share in (self._tests, self._checks, self._failing):
            await share.wait_until_idle()
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.close)

    def _wake_soon(self, *shares: Share[int]) -> None:
        for share in shares:
            self._prober.schedule(share.look)

    async def _test(self, test_id: int) -> None:
        test = await db_call(_load_test, test_id)
        call = (
            (test.call_tool, encode_canonical_json(test.call_arguments).encode())
            if test.call_tool
            else None
        )
        tell = partial(trials.record_progress, test_id)
        make = partial(self._make_call, test)
        report = await self._prober.probe(
            test.server_id, call, test.in_sandbox, tell=tell, make=make
        )
        test = await self._write_result(
            partial(trials.record_test_result, test=test, report=report, process=self._process)
        )
        log.info(
            "server_tested", server=test.server.slug, verdict=test.verdict, code=test.error_code
        )

    async def _make_call(
        self, test: ServerTest, name: str, arguments: bytes, send: Send
    ) -> dict[str, Any]:
        if self._recorder is None:
            self._recorder = Recorder("worker")
            self._recorder.start(asyncio.get_running_loop())
        return await make_call(self._recorder, read_call_order(test), send)

    async def _check(self, server_id: int) -> None:
        report = await self._prober.probe(server_id)
        await self._write_result(
            partial(trials.record_check, server_id=server_id, report=report, process=self._process)
        )

    async def _write_result(self, write: Callable[[], _Result]) -> _Result:
        """Write a result; while the database does not accept it, try again. Raises its error when
        the process stops.

        To scan long definitions takes seconds.
        """
        while True:
            try:
                return await long_db_call(write)
            except Error as error:
                if self._stopping or not is_passing(error):
                    raise
                await asyncio.sleep(_RETRY)

    async def _install(self, install_id: int) -> None:
        install = await long_db_call(
            partial(install_work.work_on_install, install_id=install_id, worker=self._lease.key)
        )
        if install is not None:
            log.info("install_worked", package=str(install), state=install.state)

    async def _read(self, source_id: int) -> None:
        await long_db_call(partial(sync.sync_source, source_id=source_id))


def _load_test(test_id: int) -> ServerTest:
    return ServerTest.objects.select_related("server", "requested_by").get(pk=test_id)
