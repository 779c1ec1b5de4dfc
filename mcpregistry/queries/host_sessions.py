"""Reads of hosts' sessions for their pages. Nothing here changes a row."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import Prefetch, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from mcpregistry.models import HostConnection, HostSession
from mcpregistry.services.host_sessions import IDLE

_QUIET = timedelta(minutes=2)  # without a word of its host
_TOLD_FOR = timedelta(seconds=90)  # processes say every 30 s which connections sessions have


def with_connections(rows: QuerySet[HostSession]) -> QuerySet[HostSession]:
    """The same rows, each with the connections that it has for itself, as their processes said
    lately."""
    live = HostConnection.objects.filter(seen_at__gt=timezone.now() - _TOLD_FOR).select_related(
        "server"
    )
    return rows.prefetch_related(Prefetch("connections", live.order_by("server__slug", "process")))


def state(row: HostSession) -> str:
    """ "ended", "idle" (nobody was here for two minutes) or "open"."""
    now = timezone.now()
    if row.ended_at is not None or row.seen_at < now - IDLE:
        return "ended"
    return "idle" if row.seen_at < now - _QUIET else "open"


def host(row: HostSession) -> str:
    """The host's name with its version."""
    return f"{row.host_name or _('unknown host')} {row.host_version}".strip()


def servers(row: HostSession) -> list[str]:
    """The servers to which it has a connection of its own, of rows that ``with_connections``
    gave."""
    return (
        sorted({each.server.slug for each in row.connections.all()}) if row.ended_at is None else []
    )


def describe_session(row: HostSession) -> dict[str, Any]:
    """What its page says."""
    return {
        "row": row,
        "state": state(row),
        "host": host(row),
        "abilities": sorted(map(str, row.declared)),
        "connections": list(row.connections.all()) if row.ended_at is None else [],
    }
