"""The live configuration of this process: a snapshot that follows the database within a second.

One thread watches: on PostgreSQL it waits for NOTIFY, on SQLite it asks ``PRAGMA data_version``
(a few microseconds, no file read) every 200 ms. Readers take ``current`` and never wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog
from django.db import close_old_connections, connection

from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.models.guards import CHANNEL
from mcpregistry.services.snapshots import current_revision, load_snapshot

log = structlog.get_logger(__name__)

_TICK = 0.2  # seconds between looks on SQLite
_BREAK = 1.0  # seconds after a failed look


class LiveConfiguration:
    """``current`` is always a whole snapshot; ``listeners`` hear of every swap, in the watching thread."""

    def __init__(self) -> None:
        self.current = Snapshot(revision=0)
        self.listeners: list[Callable[[Snapshot], None]] = []
        self._looking = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._version: object = None

    def start(self) -> None:
        """Load the first snapshot (raises when the database cannot be read), then watch."""
        self.current = _compiled()
        close_old_connections()
        self._thread = threading.Thread(target=self._watch, name="configuration", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join(timeout=5)

    def refresh(self) -> Snapshot:
        """Look now: for whoever must not act on what was true a moment ago. In any thread with a connection."""
        with self._looking:  # of two at once, the one with the older reading must not win
            if current_revision() != self.current.revision:
                self._swap()
            return self.current

    def _watch(self) -> None:
        while not self._stop.is_set():
            try:
                self._watch_connection()
            except Exception:  # the database may be away; serving goes on from the last snapshot
                log.exception("configuration.watch_failed")
                self._stop.wait(_BREAK)
            finally:
                connection.close()

    def _watch_connection(self) -> None:
        wait = self._wait_postgres if connection.vendor == "postgresql" else self._wait_sqlite
        connection.ensure_connection()
        self._version = None  # SQLite counts anew for every connection
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(f"LISTEN {CHANNEL}")
        self.refresh()  # a change may have come before we listened
        while not self._stop.is_set():
            if wait():
                self.refresh()

    def _wait_postgres(self) -> bool:
        raw = connection.connection
        return any(True for _ in raw.notifies(timeout=_TICK, stop_after=1))

    def _wait_sqlite(self) -> bool:
        self._stop.wait(_TICK)
        with connection.cursor() as cursor:
            version = cursor.execute("PRAGMA data_version").fetchone()
        changed = version != self._version
        self._version = version
        return changed

    def _swap(self) -> None:
        self.current = _compiled()
        for listener in list(self.listeners):
            try:
                listener(self.current)
            except Exception:  # one deaf listener must not keep the others from hearing
                log.exception("configuration.listener_failed")


def _compiled() -> Snapshot:
    """A snapshot whose rules are compiled already: it takes milliseconds, which no call should wait for."""
    snapshot = load_snapshot()
    assert snapshot.policy is not None
    return snapshot
