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

from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.models import Connection, Server, ServerEvent
from mcpregistry.services.servers.checks import mark_failed, note_answer
from mcpregistry.services.servers.comparing import DefinitionComparer
from mcpregistry.services.servers.notes import trim_events

if TYPE_CHECKING:
    from mcpregistry.downstream.pool.discovery import Discovery
    from mcpregistry.downstream.pool.events import ConnectionEvent

log = structlog.get_logger(__name__)

STALE_AFTER = timedelta(seconds=60)
_BEAT_SECONDS = 20.0
_BATCH_SECONDS = 0.2
_QUEUE = 2_000
_NOTES_PER_BATCH = 20
_MOVES = ("state", "session")  # a session that opens shows, too, that the server can be reached
_LOST = {"reconnecting", "error"}
_TOLD = {"connected", "reconnecting", "error", "disconnected"}


def make_process_name(kind: str, pid: int = 0) -> str:
    """``web@box:4711``: kind, host and process id; ours unless another of this host is meant."""
    return f"{kind}@{socket.gethostname()[:60]}:{pid or os.getpid()}"


def forget_process(process: str) -> None:
    """A process is leaving: it has no connections any more."""
    Connection.objects.filter(process=process).delete()


def forget_stale(now: datetime) -> int:
    """Remove connections of processes that have not been heard of for a minute. Returns how
    many."""
    return Connection.objects.filter(seen_at__lt=now - STALE_AFTER).delete()[0]


def record_events(
    events: Iterable[ConnectionEvent],
    seen: Mapping[int, ConnectionHistory],
    process: str,
    submit: Callable[[int, Discovery], None],
) -> None:
    """Bring the connections' rows up to date, note what happened, and ``submit`` new lists for
    comparison with the pins."""
    servers = Server.objects.in_bulk([*seen])
    told = [event for event in events if event.server_id in servers]
    _write_rows({key: value for key, value in seen.items() if key in servers}, process)
    _write_notes(told, process)
    newest = {event.server_id: event.discovery for event in told if event.discovery is not None}
    for server_id, discovery in newest.items():
        submit(server_id, discovery)
        note_answer(server=servers[server_id], discovery=discovery)
    for server_id in {event.server_id for event in told}:
        _tell_server(server_id, [event for event in told if event.server_id == server_id])


def _tell_server(server_id: int, events: list[ConnectionEvent]) -> None:
    """What a batch of events means for the server as a whole: its last error, and whether it can be
    reached.

    A failed call is an error to be seen; only a connection that failed or was lost counts towards
    "unavailable", and only what came after the last one that was made.
    """
    made = max(
        (
            n
            for n, event in enumerate(events)
            if event.kind in _MOVES and event.state == "connected"
        ),
        default=-1,
    )
    lost = [event for event in events[made + 1 :] if event.kind == "state" and event.state in _LOST]
    if made >= 0:
        Server.objects.filter(pk=server_id).update(last_connected_at=_to_datetime(events[made].at))
    if lost:
        mark_failed(
            server_id=server_id, code=lost[-1].code, message=lost[-1].detail, times=len(lost)
        )
    failed = [
        event
        for event in events
        if event.kind == "call_failed" or (event.kind == "state" and event.state in _LOST)
    ]
    if failed:
        last = failed[-1]
        Server.objects.filter(pk=server_id).update(
            last_error=clean_text(last.detail),
            last_error_code=last.code,
            last_error_at=_to_datetime(last.at),
        )


def _write_rows(seen: Mapping[int, ConnectionHistory], process: str) -> None:
    now = timezone.now()
    rows = [
        Connection(
            server_id=server_id,
            process=process,
            state=one.event.state,
            protocol_era=one.event.era or "",
            pid=one.event.pid,
            since=_to_datetime(one.since),
            connected_at=_to_datetime(one.connected_at) if one.connected_at else None,
            attempts=one.event.attempts,
            sessions=one.event.sessions,
            last_error=clean_text(one.last_error),
            stderr_tail=clean_text(one.stderr, 64 * 1024),
            log_tail=clean_text(one.logs, 64 * 1024),
            seen_at=now,
        )
        for server_id, one in seen.items()
    ]
    columns = [
        "state",
        "protocol_era",
        "pid",
        "since",
        "connected_at",
        "attempts",
        "sessions",
        "last_error",
        "stderr_tail",
        "log_tail",
        "seen_at",
    ]
    Connection.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["server", "process"], update_fields=columns
    )


def _write_notes(events: Iterable[ConnectionEvent], process: str) -> None:
    """Of a burst, the newest per server."""
    by_server: dict[int, deque[ServerEvent]] = {}
    for event in events:
        if (event.kind == "state" and event.state in _TOLD) or event.kind in (
            "secrets",
            "call_failed",
        ):
            note = ServerEvent(
                server_id=event.server_id,
                at=_to_datetime(event.at),
                kind=event.state if event.kind == "state" else event.kind,
                message=clean_text(event.detail),
                process=process,
            )
            notes = by_server.setdefault(event.server_id, deque(maxlen=_NOTES_PER_BATCH))
            if notes and notes[-1].kind == note.kind == "call_failed":
                # of many failed calls in a row one is enough here: each has its own record
                notes.pop()
            notes.append(note)
    ServerEvent.objects.bulk_create([note for notes in by_server.values() for note in notes])
    trim_events(by_server)


def _to_datetime(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@dataclass(frozen=True, slots=True)
class ConnectionHistory:
    """What a process knows of one connection: its last event, and what earlier ones said."""

    event: ConnectionEvent
    since: float
    last_error: str = ""
    stderr: str = ""
    logs: str = ""
    connected_at: float = 0.0  # 0: never

    @classmethod
    def make_from_event(cls, event: ConnectionEvent) -> ConnectionHistory:
        """What the first event of a connection says."""
        return cls(event, event.at).add_event(event)

    def add_event(self, event: ConnectionEvent) -> ConnectionHistory:
        """The same after one more event."""
        if event.kind == "stderr":
            return replace(self, stderr=event.detail)
        if event.kind == "log":
            return replace(self, logs=event.detail)
        since = self.since if event.state == self.event.state else event.at
        failed = (event.kind == "call_failed" or event.state in _LOST) and event.detail
        again = event.kind == "session" and self.event.state == "connected"
        made = event.kind in _MOVES and event.state == "connected" and not again
        return replace(
            self,
            event=event,
            since=since,
            last_error=event.detail if failed else self.last_error,
            connected_at=event.at if made else self.connected_at,
        )


class ConnectionLog:
    """The one writer of a process: give ``record`` to the pool as ``on_event``, ``close`` at the
    end."""

    def __init__(self, process: str) -> None:
        self.process = process
        self._comparer = DefinitionComparer(process)
        self._queue: deque[ConnectionEvent] = deque(maxlen=_QUEUE)
        self._seen: dict[int, ConnectionHistory] = {}
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
        self._comparer.close()

    def _serve(self) -> None:
        beat_at = time.monotonic() + _BEAT_SECONDS
        while not self._closing:
            self._wake.wait(max(0.0, beat_at - time.monotonic()))
            if not self._closing:
                time.sleep(_BATCH_SECONDS)  # let a burst gather
            self._wake.clear()
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + _BEAT_SECONDS
                self._run_guarded(lambda: self._write(beat=True))
            elif self._queue:
                self._run_guarded(self._write)
        self._run_guarded(self._leave)
        connections.close_all()

    def _run_guarded(self, work: Callable[[], None]) -> None:
        """Whatever fails, the database being away first of all, the next beat tells it all
        again."""
        close_old_connections()
        try:
            work()
        except Exception:
            log.exception("connections_not_recorded", process=self.process)

    def _write(self, *, beat: bool = False) -> None:
        """Write what is new; with a beat, every connection anew, so that its row does not grow
        stale."""
        events = [self._queue.popleft() for _ in range(len(self._queue))]
        for event in events:
            before = self._seen.get(event.server_id)
            self._seen[event.server_id] = (
                before.add_event(event) if before else ConnectionHistory.make_from_event(event)
            )
        touched = {event.server_id for event in events}
        shown = {k: v for k, v in self._seen.items() if beat or k in touched}
        record_events(events, shown, self.process, self._comparer.submit)

    def _leave(self) -> None:
        self._write()
        forget_process(self.process)
