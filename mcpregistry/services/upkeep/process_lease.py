"""The lease of this process, and the watch over those of the others.

A thread renews the lease every few seconds on a connection of its own, so that neither a busy event
loop nor an exhausted pool makes a living process look dead. The same thread looks for processes
whose lease has expired, on all machines, and ends what they had in progress
(``dead_processes.py``). No supervisor and no clock is needed: any living process does it.

While the database is unavailable no process can renew, and a suspended machine stops all of its
processes. So a process declares another one dead only if its own renewals have succeeded, without a
longer gap, for the length of a lease.
"""

from __future__ import annotations

import contextlib
import threading
from datetime import datetime, timedelta
from typing import ClassVar

import structlog
from django.db import DEFAULT_DB_ALIAS, Error, connections

from mcpregistry.database_errors import fault_facts
from mcpregistry.db import create_unpooled_connection
from mcpregistry.models import SiteProcess
from mcpregistry.services.servers.connections import make_process_name
from mcpregistry.services.upkeep import dead_processes, processes

log = structlog.get_logger(__name__)

RENEW_EVERY = 2.5  # seconds
RETRY_EVERY = 0.5  # seconds, while the database does not accept the renewal
LONGEST_GAP = timedelta(seconds=5)  # between two renewals of a process that may declare others dead
_AFTER_EXPIRY = 0.05  # seconds from the expiry of another lease to the look that finds it
_START_SECONDS = 5.0
_STOP_SECONDS = 5.0


class ProcessLease:
    """Holds the lease of this process from ``start`` to ``stop``. Get it with ``hold``."""

    _held: ClassVar[dict[str, ProcessLease]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, kind: str) -> None:
        self.key = processes.make_writer_base(kind)
        self.name = make_process_name(kind)
        self._address = ""
        self._holders = 0
        self._has_tried = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="process-lease", daemon=True)
        self._judge = Judge()
        self._burial: threading.Thread | None = None
        self._buried: dict[str, datetime] = {}

    @classmethod
    def hold(cls, kind: str) -> ProcessLease:
        """Return the lease of this process. It is started for the first holder; each holder calls
        ``release``.

        Blocks until the first renewal has succeeded or failed. Never fails: a process also starts
        on a read-only database.
        """
        with cls._lock:
            lease = cls._held.get(processes.make_writer_base(kind))
            if lease is None:
                lease = cls(kind)
                cls._held[lease.key] = lease
                lease._thread.start()
            lease._holders += 1
        lease._has_tried.wait(_START_SECONDS)  # so that no call is sent before the row is there
        return lease

    def announce(self, address: str) -> None:
        """Let processes on other machines find this one at its address. Blocks. If the database
        fails, the next renewal does it."""
        self._address = address
        with contextlib.suppress(Error):
            processes.renew_process_lease(self.key, self.name, address)

    def release(self) -> None:
        """End the lease once its last holder has released it. Blocks for a moment."""
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
            del self._held[self.key]
        self._stopping.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        connections[DEFAULT_DB_ALIAS] = create_unpooled_connection()
        pause = 0.0
        try:
            while not self._stopping.wait(pause):
                pause = self._renew_and_watch()
                self._has_tried.set()
            processes.delete_own_process(self.key)
        except Error as error:  # then the lease expires
            log.info("process_lease.not_ended", **fault_facts(error))
        finally:
            connections[DEFAULT_DB_ALIAS].close()

    def _renew_and_watch(self) -> float:
        """Renew the lease, and look at those of the others. Returns the seconds until the next
        time."""
        try:
            now = processes.renew_process_lease(self.key, self.name, self._address)
            self._judge.note_renewal(now)
            others = processes.list_other_processes(self.key)
            if self._judge.can_judge(now):
                self._clean_up_dead([each for each in others if each.lease_until < now], now)
        except Exception as error:
            # no error may end this thread, or the process would count as dead
            log.warning(
                "process_lease.not_renewed",
                **fault_facts(error),
                exc_info=not isinstance(error, Error),
            )
            connections[DEFAULT_DB_ALIAS].close()
            return RETRY_EVERY
        expiries = [
            (each.lease_until - now).total_seconds() for each in others if each.lease_until >= now
        ]
        return min([RENEW_EVERY, *(each + _AFTER_EXPIRY for each in expiries)])

    def _clean_up_dead(self, dead: list[SiteProcess], now: datetime) -> None:
        """End what these processes had in progress, in another thread, because this thread must
        renew its lease."""
        self._buried = {each.pk: self._buried[each.pk] for each in dead if each.pk in self._buried}
        due = [
            each
            for each in dead
            if self._buried.get(each.pk) != each.lease_until
            or each.lease_until < now - processes.KEPT
        ]
        if due and (self._burial is None or not self._burial.is_alive()):
            self._burial = threading.Thread(
                target=self._clean_up_each, args=(due, now), name="burial", daemon=True
            )
            self._burial.start()

    def _clean_up_each(self, due: list[SiteProcess], now: datetime) -> None:
        try:
            for each in due:
                dead_processes.clean_up_dead_process(each, now)
                self._buried[each.pk] = each.lease_until
                if each.lease_until < now - processes.KEPT:
                    processes.delete_dead_process(each)
        except Exception as error:  # the next look tries again
            log.warning(
                "process_lease.not_buried",
                error=type(error).__name__,
                exc_info=not isinstance(error, Error),
            )
        finally:
            connections.close_all()


class Judge:
    """Whether this process may conclude from an expired lease that another process is dead."""

    def __init__(self) -> None:
        self._last: datetime | None = None
        self._steady_since: datetime | None = None

    def note_renewal(self, now: datetime) -> None:
        """This process has renewed its own lease, at this time of the database."""
        is_steady = self._last is not None and timedelta() <= now - self._last <= LONGEST_GAP
        if not is_steady:
            self._steady_since = now
        self._last = now

    def can_judge(self, now: datetime) -> bool:
        """Whether every living process has had enough time to renew its lease."""
        return self._steady_since is not None and now - self._steady_since >= processes.LEASE
