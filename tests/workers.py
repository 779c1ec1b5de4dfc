"""``pytest --workers N``: runs the tests in N processes that are forked when all tests are
collected.

Importing and collecting take 7 s of CPU, here once and not once for each process. The workers take
one file after the other from a pipe, in the order of the run, and send their reports to the process
that has collected. If a worker dies, the test that it ran has failed, and a new worker runs what it
has left.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest import runner  # pytest has no public way to run one test and keep its reports

from tests import forkserver
from tests.results import CRASH, NO_PHASE

_NUMBER = 4  # bytes of the number of a file in the pipe
_INTERRUPTING = {signal.SIGINT, signal.SIGTERM}
_LOOK_AGAIN = 1.0  # seconds; a signal that comes right before a system call does not end it


@dataclass
class Worker:
    """A forked process, as the process sees it that has collected."""

    name: str
    pid: int
    messages: Connection
    running: int | None = None  # the number of a test
    following: int | None = None


class Workers:
    """The plug-in of the process that collects, and in its forks the one that runs the tests.

    ``before_forks`` is called with all tests if there are several workers. All workers have what it
    loads. ``at_start`` is called in each worker before its first test.
    """

    def __init__(
        self,
        config: pytest.Config,
        count: int,
        before_forks: Callable[[Sequence[pytest.Item]], None],
        at_start: Callable[[], None],
    ) -> None:
        self._config = config
        self._count = count
        self._before_forks = before_forks
        self._at_start = at_start
        self._workers: list[Worker] = []
        self._started = 0
        self._is_interrupted = False
        self._stop = mmap.mmap(-1, 1)  # shared with the workers: not 0 if no other test is to start
        self._queue = -1  # where workers take the numbers of files from
        self._files: list[list[int]] = []  # numbers of tests
        self._items: list[pytest.Item] = []
        self._messages: Connection

    # The process that has collected

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly or not session.items:
            return None  # pytest does what is to be done then
        self._config.pluginmanager.getplugin("terminalreporter").showfspath = False
        self._items = session.items
        self._fill_queue()
        if any(item.get_closest_marker("e2e") for item in self._items):
            forkserver.start_root()  # for all workers
        if self._count > 1:
            self._before_forks(self._items)
        with _terminated_as_interrupted():
            try:
                for _ in range(min(self._count, len(self._files))):
                    self._start([])
                while self._workers and not (session.shouldfail or session.shouldstop):
                    self._listen()
            except KeyboardInterrupt:
                self._interrupt()
                raise
            finally:
                self._wait_for_ends()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _fill_queue(self) -> None:
        """Write the numbers of all files into a pipe, where each is taken once: reads of so few
        bytes are whole."""
        files: dict[Path, list[int]] = {}
        for number, item in enumerate(self._items):
            files.setdefault(item.path, []).append(number)
        self._files = [*files.values()]
        self._queue, full = os.pipe()
        with os.fdopen(full, "wb") as end:
            end.write(
                b"".join(number.to_bytes(_NUMBER, "big") for number in range(len(self._files)))
            )

    def _start(self, rest: Sequence[int]) -> None:
        """Fork a worker that runs these tests first."""
        messages, theirs = Pipe(duplex=False)
        name = f"worker {self._started}"
        self._started += 1
        parent = os.getpid()
        with _signals_held():  # whoever interrupts the run interrupts this worker, too
            if (pid := os.fork()) == 0:
                messages.close()
                self._work(parent, theirs, rest)
            theirs.close()
            self._workers.append(Worker(name, pid, messages))

    def _wait_for_ends(self) -> None:
        """No other test is to start."""
        self._stop[0] = 1
        while self._workers:
            if not self._listen() and self._is_interrupted:
                self._interrupt()

    def _listen(self) -> bool:
        """Read a message of each worker that has sent one. Returns whether one has within a
        second."""
        ready = wait([worker.messages for worker in self._workers], _LOOK_AGAIN)
        # a message that is read by half would be lost, and with it all that follow
        with _signals_held():
            for worker in [worker for worker in self._workers if worker.messages in ready]:
                self._hear(worker)
        return bool(ready)

    def _hear(self, worker: Worker) -> None:
        """Read one message, or notice that the worker has ended."""
        try:
            kind, content = worker.messages.recv()
        except (EOFError, OSError):
            self._end(worker)
            return
        if kind == "runs":
            worker.running, worker.following = content
            self._config.hook.pytest_runtest_logstart(**self._place(worker.running))
        elif kind == "report":
            self._report(content)
        else:
            self._config.hook.pytest_runtest_logfinish(**self._place(worker.running))
            worker.running = None

    def _place(self, number: int | None) -> dict[str, Any]:
        assert number is not None
        item = self._items[number]
        return {"nodeid": item.nodeid, "location": item.location}

    def _report(self, data: dict[str, Any]) -> None:
        report = self._config.hook.pytest_report_from_serializable(config=self._config, data=data)
        self._config.hook.pytest_runtest_logreport(report=report)

    def _end(self, worker: Worker) -> None:
        """A worker has ended. If it has died, its test failed, and a new worker runs what it has
        left of its file."""
        self._workers.remove(worker)
        worker.messages.close()
        _, status = os.waitpid(worker.pid, 0)
        if self._stop[0] or (status == 0 and worker.running is None):
            return
        if worker.running is None:
            self._items[
                0
            ].session.shouldfail = f"{worker.name} has died between two tests; see its output above"
            return
        self._report_crash(worker, worker.running)
        if worker.following is not None:
            file = next(numbers for numbers in self._files if worker.following in numbers)
            self._start(file[file.index(worker.following) :])

    def _report_crash(self, worker: Worker, number: int) -> None:
        item = self._items[number]
        message = f"{worker.name} {CRASH} {item.nodeid!r}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", message, NO_PHASE)  # type: ignore[arg-type]
        self._config.hook.pytest_runtest_logreport(report=report)

    def _interrupt(self) -> None:
        """Interrupt the tests that run. A worker that ends its fixtures ignores it, so it can be
        repeated."""
        self._is_interrupted = True
        for worker in self._workers:
            os.kill(worker.pid, signal.SIGINT)

    # The workers

    def _work(self, parent: int, messages: Connection, rest: Sequence[int]) -> NoReturn:
        code = 1
        try:
            self._prepare(parent)
            try:
                self._messages = messages
                self._run_all(rest)
            except KeyboardInterrupt:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                raise
            finally:
                runner.pytest_sessionfinish(self._items[0].session)
            code = 0
        except KeyboardInterrupt:
            pass  # the process that has collected says so
        except BaseException:
            self._config.pluginmanager.getplugin("capturemanager").suspend_global_capture(in_=True)
            traceback.print_exc()
        finally:
            messages.close()
            forkserver.leave(code)

    def _prepare(self, parent: int) -> None:
        forkserver.die_with(parent)
        os.setpgrp()  # a terminal interrupts the process that has collected, and that its workers
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # a shell's background job starts with it ignored
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTING)
        for worker in self._workers:
            worker.messages.close()
        self._capture_into_own_files()
        self._at_start()

    def _capture_into_own_files(self) -> None:
        """Without it, all workers would write to one file, and read what others have written.
        Loggers keep their stream."""
        self._config.pluginmanager.getplugin("capturemanager").read_global_capture()
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            stream.flush()
            with contextlib.suppress(io.UnsupportedOperation), tempfile.TemporaryFile() as own:
                if stream.fileno() != number:
                    os.dup2(own.fileno(), stream.fileno(), inheritable=False)
                    os.dup2(own.fileno(), number)

    def _run_all(self, rest: Sequence[int]) -> None:
        numbers = self._take(rest)
        number = next(numbers, None)
        while number is not None and not self._stop[0]:
            following = next(numbers, None)
            next_item = None if following is None else self._items[following]
            self._messages.send(("runs", (number, following)))
            self._config.hook.pytest_runtest_protocol(item=self._items[number], nextitem=next_item)
            self._messages.send(("ran", None))
            number = following

    def _take(self, rest: Sequence[int]) -> Iterator[int]:
        """Yield the numbers of the tests to run. A worker takes the next file when it starts the
        last test of one."""
        yield from rest
        while taken := os.read(self._queue, _NUMBER):
            yield from self._files[int.from_bytes(taken, "big")]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """In a worker; what other plug-ins do around it is done."""
        for report in runner.runtestprotocol(item, log=False, nextitem=nextitem):
            data = self._config.hook.pytest_report_to_serializable(
                config=self._config, report=report
            )
            self._messages.send(("report", data))
        return True


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """A signal that interrupts the run arrives when the block has ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """A SIGTERM interrupts the run, so that the workers end in order."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
