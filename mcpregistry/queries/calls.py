"""Reads of the record of calls, for the pages and for REST. Nothing here changes a row.

Times are aware datetimes and ``now`` is an argument; durations are milliseconds. Every read of the
calls table is bounded by an index and a limit, because that table grows without end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Q, QuerySet

from mcpregistry.domain.calls.error_patterns import ErrorPattern, Occurrence, group_errors
from mcpregistry.domain.lifecycle import FAILED
from mcpregistry.domain.sample_statistics import find_percentile
from mcpregistry.models import Agent, Configuration, Conversation, Endpoint, Invocation, Server
from mcpregistry.services.records.signed_calls import Forgotten

DAY = timedelta(days=1)
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


def call_counts(slugs: Iterable[str], *, now: datetime) -> dict[str, CallFigures]:
    """Calls and errors per server in the last 24 hours, without percentiles; one query for a whole
    page."""
    recent = Invocation.objects.filter(server_slug__in=list(slugs), received_at__gte=now - DAY)
    rows = (
        recent.order_by()
        .values("server_slug")
        .annotate(calls=Count("id"), errors=Count("id", _build_failed_filter()))
    )
    return {row["server_slug"]: CallFigures(row["calls"], row["errors"]) for row in rows}


def call_figures(*, now: datetime, server: Server) -> CallFigures:
    """The last 24 hours of one server. Percentiles come from the newest 5,000 calls."""
    recent = Invocation.objects.filter(received_at__gte=now - DAY, server_slug=server.slug)
    totals = recent.order_by().aggregate(
        calls=Count("id"), errors=Count("id", _build_failed_filter())
    )
    return CallFigures(totals["calls"], totals["errors"], *_percentiles(recent))


def find_first_call(*, agent: str, endpoint: str, since: datetime) -> Invocation | None:
    """The first call of the agent on the endpoint since then; looked for among those of at most the
    last day."""
    recent = Invocation.objects.filter(
        received_at__gte=since, agent_slug=agent, endpoint_slug=endpoint
    )
    return recent.order_by("received_at", "id").first()


def list_tools_called(
    holder: Agent | Endpoint, *, since: datetime, most: int
) -> list[tuple[str, str, datetime]]:
    """(server, tool, when) of the newest calls since then, at most so many: of an agent wherever it
    called, of an endpoint whoever did. These are what its grants are used for."""
    whose = (
        {"agent_slug": holder.slug} if isinstance(holder, Agent) else {"endpoint_slug": holder.slug}
    )
    recent = Invocation.objects.filter(received_at__gte=since, **whose)
    return list(
        recent.order_by("-received_at", "-id").values_list(
            "server_slug", "tool_name", "received_at"
        )[:most]
    )


def find_record_start(now: datetime) -> datetime:
    """Since when the record of calls is whole: retention has deleted, or is about to delete, what
    is older."""
    kept = now - timedelta(days=Configuration.load().keep_calls_days)
    return max(kept, Forgotten().calls)


def count_known_days(now: datetime) -> int:
    """The whole days of that, at least one: no longer period is known."""
    return max(1, (now - find_record_start(now)).days)


def _percentiles(calls: Any) -> tuple[float | None, float | None]:
    times = calls.of_servers_alone().filter(duration_ms__isnull=False).order_by("-received_at")
    found = sorted(
        took for took in times.values_list("duration_ms", flat=True)[:SAMPLE] if took is not None
    )
    return find_percentile(found, 50), find_percentile(found, 95)


def query_latest_calls(
    *, server: Server | None = None, conversation: Conversation | None = None, limit: int = 10
) -> QuerySet[Invocation]:
    """The newest calls without their payloads."""
    calls = Invocation.objects.defer("arguments", "result")
    if server is not None:
        calls = calls.filter(server_slug=server.slug)
    if conversation is not None:
        calls = calls.filter(conversation=conversation)
    return calls.order_by("-received_at", "-id")[:limit]


def _build_failed_filter() -> Q:
    return Q(state__in=FAILED)


def count_error_patterns(*, server: Server) -> list[ErrorPattern]:
    """What goes wrong with the server, among its newest 5,000 calls, the most frequent first."""
    newest = Invocation.objects.filter(server_slug=server.slug).order_by("-received_at", "-id")
    rows = newest.values_list("state", "tool_name", "error_code", "reason", "received_at")[:SAMPLE]
    failed = {str(state) for state in FAILED}
    return group_errors(
        Occurrence(tool, code, reason, at)
        for state, tool, code, reason, at in rows
        if state in failed
    )
