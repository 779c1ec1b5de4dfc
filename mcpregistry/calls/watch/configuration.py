"""The live configuration of this process: a snapshot that follows the database within a second.

The change feed (``changes.py``) says when to look. Readers take ``current`` and never wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog
from django.db import close_old_connections

from mcpregistry.calls.watch.changes import Feed
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.models.feed import CONFIGURATION
from mcpregistry.services.configuration.snapshot import Known, load_snapshot, read_current_revision

log = structlog.get_logger(__name__)


class LiveConfiguration:
    """``current`` is always a whole snapshot; ``listeners`` hear of every swap, one swap at a time.

    They are called in the thread that has swapped: the feed's, or whichever called ``refresh``. So
    a listener hands over to its own thread or event loop, and does not wait.
    """

    def __init__(self, feed: Feed) -> None:
        self.current = Snapshot(revision=0)
        self.listeners: list[Callable[[Snapshot], None]] = []
        self._feed = feed
        self._looking = threading.Lock()
        self._known: Known = {}

    def start(self) -> None:
        """Load the first snapshot (raises when the database cannot be read), then follow the
        feed."""
        self.current = self._compile_snapshot()
        close_old_connections()
        self._feed.subscribe(CONFIGURATION, lambda _: self.refresh())

    def refresh(self) -> Snapshot:
        """Look now: for whoever must not act on what was true a moment ago. In any thread with a
        connection."""
        with self._looking:  # of two at once, the one with the older reading must not win
            if read_current_revision() != self.current.revision:
                self._swap_snapshot()
            return self.current

    def _swap_snapshot(self) -> None:
        self.current = self._compile_snapshot()
        for listener in list(self.listeners):
            try:
                listener(self.current)
            except Exception:  # one deaf listener must not keep the others from hearing
                log.exception("configuration.listener_failed")

    def _compile_snapshot(self) -> Snapshot:
        """A snapshot whose rules are compiled already: it takes milliseconds, which no call should
        wait for."""
        snapshot = load_snapshot(known=self._known)
        if (snapshot.rules, snapshot.default_outcome) == (
            self.current.rules,
            self.current.default_outcome,
        ):
            snapshot.__dict__["policy"] = self.current.policy  # where a cached property keeps it
        assert snapshot.policy is not None
        return snapshot
