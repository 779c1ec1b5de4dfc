"""What processes tell about their connections: rows for people to look at, never for the hot path.

Each process writes from one thread of its own, in batches, so that a server that flaps cannot
flood the database. A process that dies without a word stops beating; its rows are removed after a
minute.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import structlog
from django.db import close_old_connections, connections
from django.utils import timezone

from mcpregistry.domain.canonical import plain
from mcpregistry.models import Connection, Server, ServerEvent
from mcpregistry.services.events import trim_events
from mcpregistry.services.health import learn

if TYPE_CHECKING:
    from mcpregistry.downstream.facts import ConnectionEvent

log = structlog.get_logger(__name__)

STALE_AFTER = timedelta(seconds=60)
_BEAT_SECONDS = 20.0
_BATCH_SECONDS = 0.2
_QUEUE = 2_000
_NOTES_PER_BATCH = 20
_TOLD = {"connected", "reconnecting", "error", "disconnected"}


def process_name(kind: str) -> str:
    """``web@box:4711``: kind, host and process id."""
    return f"{kind}@{socket.gethostname()[:60]}:{os.getpid()}"


def forget_process(process: str) -> None:
    """A process is leaving: it has no connections any more."""
    Connection.objects.filter(process=process).delete()


def forget_stale(now: datetime) -> int:
    """Remove connections of processes that have not been heard of for a minute. Returns how many."""
    return Connection.objects.filter(seen_at__lt=now - STALE_AFTER).delete()[0]


def record_event(event: ConnectionEvent, process: str) -> None:
    """Write one event now. Blocks; a process with an event loop uses a ConnectionLog."""
    record_events([event], {event.server_id: Seen.of(event)}, process)


def record_events(events: Iterable[ConnectionEvent], seen: Mapping[int, Seen], process: str) -> None:
    """Bring the connections' rows up to date, note what happened, compare new tool lists with the pins."""
    servers = Server.objects.in_bulk([*seen])
    told = [event for event in events if event.server_id in servers]
    _write_rows({key: value for key, value in seen.items() if key in servers}, process)
    _write_notes(told, process)
    newest = {event.server_id: event.discovery for event in told if event.discovery is not None}
    for server_id, discovery in newest.items():
        learn(server=servers[server_id], discovery=discovery, process=process)


def _write_rows(seen: Mapping[int, Seen], process: str) -> None:
    now = timezone.now()
    rows = [
        Connection(
            server_id=server_id,
            process=process,
            state=one.event.state,
            protocol_era=one.event.era or "",
            pid=one.event.pid,
            since=_time(one.since),
            last_error=plain(one.last_error),
            stderr_tail=plain(one.stderr, 64 * 1024),
            seen_at=now,
        )
        for server_id, one in seen.items()
    ]
    columns = ["state", "protocol_era", "pid", "since", "last_error", "stderr_tail", "seen_at"]
    Connection.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["server", "process"], update_fields=columns
    )


def _write_notes(events: Iterable[ConnectionEvent], process: str) -> None:
    """Of a burst, the newest per server."""
    by_server: dict[int, deque[ServerEvent]] = {}
    for event in events:
        if (event.kind == "state" and event.state in _TOLD) or event.kind == "secrets":
            note = ServerEvent(
                server_id=event.server_id,
                at=_time(event.at),
                kind=event.kind if event.kind == "secrets" else event.state,
                message=plain(event.detail),
                process=process,
            )
            by_server.setdefault(event.server_id, deque(maxlen=_NOTES_PER_BATCH)).append(note)
    ServerEvent.objects.bulk_create([note for notes in by_server.values() for note in notes])
    trim_events(by_server)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a process knows of one connection: its last event, and what earlier ones said."""

    event: ConnectionEvent
    since: float
    last_error: str = ""
    stderr: str = ""

    @classmethod
    def of(cls, event: ConnectionEvent) -> Seen:
        return cls(event, event.at).after(event)

    def after(self, event: ConnectionEvent) -> Seen:
        if event.kind == "stderr":
            return replace(self, stderr=event.detail)
        since = self.since if event.state == self.event.state else event.at
        failed = event.state in ("error", "reconnecting") and event.detail
        return replace(self, event=event, since=since, last_error=event.detail if failed else self.last_error)


class ConnectionLog:
    """The one writer of a process: give ``record`` to the pool as ``on_event``, ``close`` at the end."""

    def __init__(self, process: str) -> None:
        self.process = process
        self._queue: deque[ConnectionEvent] = deque(maxlen=_QUEUE)
        self._seen: dict[int, Seen] = {}
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="connection-log", daemon=True)
        self._thread.start()

    def record(self, event: ConnectionEvent) -> None:
        """Never blocks and never raises: safe on an event loop."""
        self._queue.append(event)
        self._wake.set()

    def close(self) -> None:
        """Write what is left, then remove the rows of this process."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _serve(self) -> None:
        beat_at = time.monotonic() + _BEAT_SECONDS
        while not self._closing:
            self._wake.wait(max(0.0, beat_at - time.monotonic()))
            if not self._closing:
                time.sleep(_BATCH_SECONDS)  # let a burst gather
            self._wake.clear()
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + _BEAT_SECONDS
                self._guarded(lambda: self._write(beat=True))
            elif self._queue:
                self._guarded(self._write)
        self._guarded(self._leave)
        connections.close_all()

    def _guarded(self, work: Callable[[], None]) -> None:
        """Whatever fails, the database being away first of all, the next beat tells it all again."""
        close_old_connections()
        try:
            work()
        except Exception:
            log.exception("connections_not_recorded", process=self.process)

    def _write(self, *, beat: bool = False) -> None:
        """Write what is new; with a beat, every connection anew, so that its row does not grow stale."""
        events = [self._queue.popleft() for _ in range(len(self._queue))]
        for event in events:
            before = self._seen.get(event.server_id)
            self._seen[event.server_id] = before.after(event) if before else Seen.of(event)
        touched = {event.server_id for event in events}
        record_events(events, {k: v for k, v in self._seen.items() if beat or k in touched}, self.process)

    def _leave(self) -> None:
        self._write()
        forget_process(self.process)
