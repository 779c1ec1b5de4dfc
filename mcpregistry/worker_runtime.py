"""What one worker process keeps between its tasks: loop threads for calls, tests of servers and
notifications.

Celery's tasks are synchronous and short; whatever needs an event loop lives here. ``runtime`` is
the process's one; ``tasks.py`` and other apps' tasks ask it, and Celery's signals for the end of a
worker close it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import structlog
from celery import bootsteps
from celery.signals import worker_init, worker_process_shutdown, worker_ready, worker_shutdown

from mcpregistry.calls.background_engine import BackgroundEngine
from mcpregistry.garbage_collection import settle
from mcpregistry.services.notifications.delivery import Deliverer
from mcpregistry.worker_shares import Shares

log = structlog.get_logger(__name__)


class Closable(Protocol):
    """Something that owns a thread, or works on another's."""

    def close(self) -> None:
        """End what still runs; returns when it has ended."""


Owned = TypeVar("Owned", bound=Closable)


class RuntimePart(Generic[Owned]):
    """One thing of the process: made by whoever first asks for it, from any thread."""

    def __init__(self, make: Callable[[], Owned]) -> None:
        self._make = make
        # its own: making one may take a minute, and nobody else waits for that
        self._lock = threading.Lock()
        self._made: Owned | None = None

    def get(self) -> Owned:
        """The one of this process."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def close(self) -> None:
        """End it, if it was made; asked for again, it would be made anew."""
        with self._lock:
            made = self._made
            self._made = None
        if made is not None:
            made.close()


class WorkerRuntime:
    """The parts of a worker process. They are closed in order: who makes work for others before
    them."""

    def __init__(self) -> None:
        self.calls = RuntimePart(BackgroundEngine)
        self.shares = RuntimePart(Shares)
        self.deliverer = RuntimePart(Deliverer)
        self._before_calls: list[Closable] = []

    def before_calls(self, make: Callable[[], Owned]) -> RuntimePart[Owned]:
        """A part of another app that makes calls; it is closed before they are."""
        part = RuntimePart(make)
        self._before_calls.append(part)
        return part

    def close(self) -> None:
        """Close every part. One that fails is logged and keeps no other from being closed."""
        parts: tuple[Closable, ...] = (*self._before_calls, self.calls, self.shares, self.deliverer)
        for part in parts:
            try:
                part.close()
            except Exception:
                log.exception("worker.part_not_closed")


runtime = WorkerRuntime()


class InterruptTests(bootsteps.StartStopStep):
    """Tests of servers are cut when the worker stops: it does not wait for servers."""

    requires = ("celery.worker.components:Pool",)  # started after it, hence stopped before

    def start(self, parent: Any) -> None:
        """Nothing: whoever tests first makes the shares."""

    def stop(self, parent: Any) -> None:
        """Called by Celery once the worker takes no more tasks. One that is about to begin its test
        is refused it."""
        runtime.shares.get().interrupt()

    def terminate(self, parent: Any) -> None:
        """The same when it is told to hurry."""
        self.stop(parent)


@worker_init.connect
def _add_steps(sender: Any, **_: object) -> None:
    sender.app.steps["worker"].add(InterruptTests)


@worker_ready.connect
def _settle(**_: object) -> None:
    settle()


@worker_shutdown.connect
@worker_process_shutdown.connect
def _close(**_: object) -> None:
    runtime.close()
