"""Where a process learns that another has changed something: NOTIFY on PostgreSQL, counters on
SQLite.

A source belongs to the thread of the feed (``changes.py``), with database connections of its own:
what a busy pool keeps waiting would be told late.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Protocol

import structlog
from django.db import DEFAULT_DB_ALIAS, connections

from mcpregistry.db import create_unpooled_connection, note_clock
from mcpregistry.models import Change, Configuration
from mcpregistry.models.feed import CONFIGURATION, channel, topics

log = structlog.get_logger(__name__)

# For each topic the keys of what has changed; None where that is not known, so it may be any.
Changes = Mapping[str, frozenset[str] | None]

TICK = 0.05  # seconds between looks on SQLite; one costs some ten microseconds
# seconds between looks at the revision on PostgreSQL, whether notifications come or not
LOOK_EVERY = 1.0
PROVE_EVERY = 3.0  # seconds between signs that a listening connection sends to itself
HEARD_WITHIN = 2.0  # seconds in which such a sign must have come


class ChangeSource(Protocol):
    """``delivers``: changes come with their keys as they happen; else everything is looked at each
    second."""

    delivers: bool

    def wait(self) -> Changes:
        """What has changed since the last time; returns after a while also when nothing has.

        Raises a database error when it could not find out: nothing is known then until another
        source is open.
        """
        ...

    def wake(self) -> None:
        """Let ``wait`` return at once. From any thread."""
        ...

    def close(self) -> None:
        """Let go of the connections."""


def open_source() -> ChangeSource:
    """The source for the default database. Raises a database error."""
    return (
        PostgresSource() if connections[DEFAULT_DB_ALIAS].vendor == "postgresql" else SqliteSource()
    )


def list_all_topics() -> Changes:
    """Every topic without keys: anything may have changed."""
    return dict.fromkeys(topics())


class SqliteSource:
    """``PRAGMA data_version`` says that another connection has committed, and reads no file for it;
    counters that triggers raise say about what."""

    delivers = True

    def __init__(self) -> None:
        self._connection = connections[DEFAULT_DB_ALIAS]
        self._connection.ensure_connection()
        self._woken = Event()
        self._version = self._read_data_version()
        self._numbers = self._read_numbers()

    def wait(self) -> Changes:
        """See ``ChangeSource``: after a tick, the topics whose counters have risen."""
        self._woken.wait(TICK)
        with self._connection.wrap_database_errors:
            version = self._read_data_version()
            if version == self._version:
                return {}
            # In this order: what is committed between the two readings changes the version once
            # more.
            self._version = version
            before = self._numbers
            self._numbers = self._read_numbers()
        return {
            topic: None for topic, number in self._numbers.items() if number != before.get(topic)
        }

    def wake(self) -> None:
        """See ``ChangeSource``."""
        self._woken.set()

    def close(self) -> None:
        """See ``ChangeSource``."""
        self._connection.close()

    def _read_data_version(self) -> int:
        return int(self._connection.connection.execute("PRAGMA data_version").fetchone()[0])

    def _read_numbers(self) -> dict[str, int]:
        raw = self._connection.connection.execute(
            f"SELECT topic, number FROM {Change._meta.db_table} UNION ALL "  # noqa: S608  names of our own tables
            f"SELECT '{CONFIGURATION}', revision FROM {Configuration._meta.db_table}"
        )
        return {topic: int(number) for topic, number in raw.fetchall()}


class PostgresSource:
    """One connection that listens, one that asks.

    LISTEN succeeds behind a pooler in transaction mode and over a dead network path too, and then
    nothing ever comes. So this notifies itself every few seconds, by the other connection, and
    counts as hearing only while that comes.
    """

    def __init__(self) -> None:
        self.delivers = False
        self._own = f"slipsnisse_alive_{secrets.token_hex(8)}"
        self._sent = 0.0
        self._heard = 0.0
        self._sign = ""
        self._warned = False
        self._looked = 0.0
        self._revision = -1
        self._ear = create_unpooled_connection()
        self._asking = create_unpooled_connection()
        # of this thread, so listeners read by it as well
        connections[DEFAULT_DB_ALIAS] = self._asking
        self._bed, self._bell = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        try:
            self._listen()
        except BaseException:
            self.close()
            raise

    def _listen(self) -> None:
        self._ear.ensure_connection()
        with self._ear.cursor() as cursor:
            for name in (*map(channel, topics()), self._own):
                cursor.execute(f"LISTEN {name}")
        self._selector.register(self._ear.connection.fileno(), selectors.EVENT_READ)
        self._selector.register(self._bed, selectors.EVENT_READ)

    def wait(self) -> Changes:
        """See ``ChangeSource``: at a notification, or at the latest when the revision is to be
        looked at."""
        self._selector.select(max(0.0, self._looked + LOOK_EVERY - time.monotonic()))
        changes = self._read_notifications()
        looking = time.monotonic() - self._looked >= LOOK_EVERY
        moved = looking and self._read_revision()
        self._judge_delivery()
        if looking and not self.delivers:
            return list_all_topics()
        return {**changes, CONFIGURATION: None} if moved else changes

    def wake(self) -> None:
        """See ``ChangeSource``."""
        with suppress(OSError):  # it is closed already
            self._bell.send(b"x")

    def close(self) -> None:
        """See ``ChangeSource``."""
        self._selector.close()
        for each in (self._bed, self._bell, self._ear, self._asking):
            each.close()

    def _read_notifications(self) -> Changes:
        found: dict[str, set[str]] = defaultdict(set)
        with self._ear.wrap_database_errors:
            notes = list(self._ear.connection.notifies(timeout=0))
        for note in notes:
            if note.channel == self._own:
                self._heard = self._sent if note.payload == self._sign else self._heard
            else:
                found[note.channel].add(note.payload)
        named = {
            topic: frozenset(found[channel(topic)]) for topic in topics() if channel(topic) in found
        }
        return {topic: keys if topic != CONFIGURATION else None for topic, keys in named.items()}

    def _read_revision(self) -> bool:
        """Ask for the revision, read the database's clock with it, and now and then send the sign.
        True: it has moved."""
        before = time.monotonic()
        proving = before - self._sent >= PROVE_EVERY
        if proving:
            self._sign = secrets.token_hex(8)
            self._sent = before
        with self._asking.cursor() as cursor:
            cursor.execute(
                f"SELECT revision, clock_timestamp() FROM {Configuration._meta.db_table} WHERE id = 1"  # noqa: S608
            )
            revision, clock = cursor.fetchone() or (0, None)
            if clock is not None:
                note_clock(clock, before)
            if proving:
                cursor.execute("SELECT pg_notify(%s, %s)", [self._own, self._sign])
        moved = self._revision not in (-1, revision)
        self._looked = time.monotonic()
        self._revision = revision
        return moved

    def _judge_delivery(self) -> None:
        """Whether it hears, by the last sign that has had its time."""
        if self._sent and self._heard == self._sent:
            if self._warned:
                log.info("changes.delivered_again")
            self.delivers = True
            self._warned = False
        elif time.monotonic() - self._sent > HEARD_WITHIN:
            self.delivers = False
            if not self._warned:
                self._warned = True
                log.warning("changes.not_delivered", remedy=REMEDY)


REMEDY = (
    "This process receives no NOTIFY messages, so it polls once per second. Let DATABASE_URL point to PostgreSQL itself, "
    "or to a PgBouncer pool in session mode."
)


def check_delivery(patience: float = 3.0) -> bool:
    """Whether a notification that is sent now comes. Raises a database error."""
    # a source replaces its thread's own connection
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(_probe_delivery, patience).result()


def _probe_delivery(patience: float) -> bool:
    source = PostgresSource()
    try:
        until = time.monotonic() + patience
        while not source.delivers and time.monotonic() < until:
            source.wait()
        return source.delivers
    finally:
        source.close()
