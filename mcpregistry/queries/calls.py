"""Reads of the record of calls, for the pages and for REST. Nothing here changes a row.

Times are aware datetimes and ``now`` is an argument; durations are milliseconds. Every read of the
calls table is bounded by an index and a limit, because that table grows without end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Q, QuerySet
from django.db.models.functions import TruncHour

from mcpregistry.domain.calls.error_patterns import ErrorPattern, Occurrence, grouped
from mcpregistry.domain.figures import percentile
from mcpregistry.domain.lifecycle import State
from mcpregistry.models import Conversation, Invocation, Server

DAY = timedelta(days=1)
# Ends that count as failures of the server or of us; a refusal by policy is not one.
FAILED = (State.TOOL_ERROR, State.NOT_SENT, State.UNKNOWN)
SAMPLE = 5_000


@dataclass(frozen=True, slots=True)
class CallFigures:
    """Calls of a period. ``error_rate`` is 0 to 1, percentiles (ms) are of ended calls to
    servers that no person was asked about; None without calls."""

    calls: int = 0
    errors: int = 0
    p50: float | None = None
    p95: float | None = None

    @property
    def error_rate(self) -> float | None:
        return self.errors / self.calls if self.calls else None


@dataclass(frozen=True, slots=True)
class Hour:
    """Calls that were received within one hour, and how many of them failed."""

    at: datetime
    calls: int
    errors: int


def call_counts(slugs: Iterable[str], *, now: datetime) -> dict[str, CallFigures]:
    """Calls and errors per server in the last 24 hours, without percentiles; one query for a whole page."""
    recent = Invocation.objects.filter(server_slug__in=list(slugs), received_at__gte=now - DAY)
    rows = recent.order_by().values("server_slug").annotate(calls=Count("id"), errors=Count("id", _failed()))
    return {row["server_slug"]: CallFigures(row["calls"], row["errors"]) for row in rows}


def call_figures(*, now: datetime, server: Server | None = None) -> CallFigures:
    """The last 24 hours of one server, or of the site. Percentiles come from the newest 5,000 calls."""
    recent = Invocation.objects.filter(received_at__gte=now - DAY)
    if server is not None:
        recent = recent.filter(server_slug=server.slug)
    totals = recent.order_by().aggregate(calls=Count("id"), errors=Count("id", _failed()))
    times = recent.of_servers_alone().filter(duration_ms__isnull=False).order_by("-received_at")
    durations = sorted(took for took in times.values_list("duration_ms", flat=True)[:SAMPLE] if took is not None)
    return CallFigures(totals["calls"], totals["errors"], percentile(durations, 50), percentile(durations, 95))


def calls_per_hour(*, now: datetime, hours: int = 24) -> list[Hour]:
    """One entry per hour, oldest first, empty hours included; the last one is not over yet."""
    last = now.replace(minute=0, second=0, microsecond=0)
    first = last - timedelta(hours=hours - 1)
    rows = (
        Invocation.objects.filter(received_at__gte=first)
        .order_by()
        .annotate(hour=TruncHour("received_at"))
        .values("hour")
        .annotate(calls=Count("id"), errors=Count("id", _failed()))
    )
    found = {row["hour"]: (row["calls"], row["errors"]) for row in rows}
    marks = [first + timedelta(hours=number) for number in range(hours)]
    return [Hour(mark, *found.get(mark, (0, 0))) for mark in marks]


def latest_calls(
    *, server: Server | None = None, conversation: Conversation | None = None, failed: bool = False, limit: int = 10
) -> QuerySet[Invocation]:
    """The newest calls without their payloads."""
    calls = Invocation.objects.defer("arguments", "result")
    if server is not None:
        calls = calls.filter(server_slug=server.slug)
    if conversation is not None:
        calls = calls.filter(conversation=conversation)
    if failed:
        calls = calls.filter(state__in=FAILED)
    return calls.order_by("-received_at", "-id")[:limit]


def _failed() -> Q:
    return Q(state__in=FAILED)


def error_patterns(*, server: Server) -> list[ErrorPattern]:
    """What goes wrong with the server, among its newest 5,000 calls, the most frequent first."""
    newest = Invocation.objects.filter(server_slug=server.slug).order_by("-received_at", "-id")
    rows = newest.values_list("state", "tool_name", "error_code", "reason", "received_at")[:SAMPLE]
    failed = {str(state) for state in FAILED}
    return grouped(Occurrence(tool, code, reason, at) for state, tool, code, reason, at in rows if state in failed)
