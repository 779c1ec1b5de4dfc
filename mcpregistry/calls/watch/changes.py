"""The change feed of a process: one thread that hears what has changed in the database, and tells
whoever waits.

Topics are the configuration, held calls, runs, tasks and sessions of hosts; ``models/feed.py`` says
what of them is told, ``sources.py`` how it comes. Nobody polls on their own: listeners are called
when something has changed, and everything is told once whenever a connection was made anew, because
a change may have been missed before it listened.

An authorisation must not go on for ever on a configuration that nobody could refresh: ``state``
says how far the feed can be trusted, and calls are refused while it is BLIND.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from enum import StrEnum

import structlog
from django.db import Error, connection

from mcpregistry.calls.watch.sources import Changes, ChangeSource, list_all_topics, open_source
from mcpregistry.database_errors import fault_facts
from mcpregistry.db import distrust_pool

log = structlog.get_logger(__name__)

BLIND_AFTER = 5.0  # seconds without a successful look at the database
_BREAK = 1.0  # seconds after a failed look

# Called in the feed's thread with the keys of what has changed, None for "perhaps any". It may read
# the database, and raises a database error when that does not answer: then all is told again once
# it does.
Listener = Callable[[frozenset[str] | None], object]


class FeedState(StrEnum):
    """How a process learns of changes."""

    HEARING = "ok"
    POLLING = "polling"  # notifications are not delivered: everything is looked at each second
    BLIND = "blind"  # nothing could be asked for some seconds


class Feed:
    """One per process. ``start`` and ``stop`` it once; the rest may be called from any thread."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Listener]] = defaultdict(list)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._source: ChangeSource | None = None
        self._looked = time.monotonic()

    def start(self) -> None:
        """Begin to follow. What was read before counts as read now."""
        self._looked = time.monotonic()
        self._thread = threading.Thread(target=self._follow, name="changes", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and its source."""
        self._stopping.set()
        if source := self._source:
            source.wake()
        if self._thread:
            self._thread.join(timeout=5)

    def subscribe(self, topic: str, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` whenever something of the topic has changed. Returns what ends that."""
        self._listeners[topic].append(listener)
        return lambda: self._listeners[topic].remove(listener)

    @property
    def state(self) -> FeedState:
        if time.monotonic() - self._looked > BLIND_AFTER:
            return FeedState.BLIND
        source = self._source
        return (
            FeedState.POLLING if source is not None and not source.delivers else FeedState.HEARING
        )

    def _follow(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow_source(open_source())
            except Error as error:  # the database may be away; BLIND says so after a while
                log.warning("changes.interrupted", **fault_facts(error))
                distrust_pool()  # its connections have most probably gone with ours
                self._stopping.wait(_BREAK)
            except Exception:
                log.exception("changes.failed")
                self._stopping.wait(_BREAK)
            finally:
                connection.close()

    def _follow_source(self, source: ChangeSource) -> None:
        self._source = source
        try:
            self._notify_listeners(list_all_topics())
            while not self._stopping.is_set():
                self._looked = time.monotonic()
                self._notify_listeners(source.wait())
        finally:
            self._source = None
            source.close()

    def _notify_listeners(self, changes: Changes) -> None:
        for topic, keys in changes.items():
            for listener in list(self._listeners[topic]):
                listener(keys)
