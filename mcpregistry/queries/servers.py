"""Reads of the servers' state, for the pages and for REST. Nothing here changes a row."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.db.models import Count, Q
from django.utils import timezone

from mcpregistry.models import Connection, Server
from mcpregistry.models.server import Lifecycle

_SILENT_AFTER = timedelta(seconds=45)  # two beats of a process, and some


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """How many servers are in which state. ``incomplete``: active ones of which something is left
    out or changed."""

    up: int
    down: int
    drafts: int
    disabled: int
    incomplete: int

    @property
    def total(self) -> int:
        return self.up + self.down + self.drafts + self.disabled


def server_state(server: Server) -> str:
    """One word: draft, disabled, unavailable, failing, ready, or untested when nothing is known
    yet."""
    if server.lifecycle != Lifecycle.ACTIVE:
        return server.lifecycle
    if server.unavailable_since:
        return "unavailable"
    if server.consecutive_failures:
        return "failing"
    return "ready" if server.last_ok_at else "untested"


def is_silent(row: Connection) -> bool:
    """Whether its process has missed its beats: it was killed, most probably, and its row goes with
    the next clock."""
    return row.seen_at < timezone.now() - _SILENT_AFTER


def count_servers() -> ServerCounts:
    """How many servers are in which state, in one query."""
    active = Q(lifecycle=Lifecycle.ACTIVE)
    down = active & Q(unavailable_since__isnull=False)
    return ServerCounts(
        **Server.objects.order_by().aggregate(
            up=Count("id", active & ~down),
            down=Count("id", down),
            drafts=Count("id", Q(lifecycle=Lifecycle.DRAFT)),
            disabled=Count("id", Q(lifecycle=Lifecycle.DISABLED)),
            incomplete=Count("id", active & ~Q(left_out="")),
        )
    )
