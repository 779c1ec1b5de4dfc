"""Reads across aggregates, for the pages and for REST. Nothing here changes a row.

Times are aware datetimes and ``now`` is an argument; durations are milliseconds. Every read of the
calls table is bounded by an index and a limit, because that table grows without end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, F, Q, QuerySet
from django.db.models.functions import TruncHour

from mcpregistry.calls.catalog import Catalogue, Catalogues, DownstreamTools
from mcpregistry.domain.canonical import plain
from mcpregistry.domain.lifecycle import State
from mcpregistry.domain.naming import exposed_names, long_names
from mcpregistry.models import Agent, AuditEntry, Definition, Endpoint, Invocation, Server, Tool
from mcpregistry.models.audit import GENESIS, entry_hash
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.snapshots import load_snapshot

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
    at: datetime
    calls: int
    errors: int


@dataclass(frozen=True, slots=True)
class ServerCounts:
    up: int
    down: int
    drafts: int
    disabled: int

    @property
    def total(self) -> int:
        return self.up + self.down + self.drafts + self.disabled


@dataclass(frozen=True, slots=True)
class Chain:
    """What checking one writer's audit chain found. ``bad_seq`` is the first entry that does not hold."""

    writer: str
    entries: int
    bad_seq: int | None = None
    problem: str = ""


# Calls


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
    return CallFigures(totals["calls"], totals["errors"], _percentile(durations, 0.50), _percentile(durations, 0.95))


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


def latest_calls(*, server: Server | None = None, failed: bool = False, limit: int = 10) -> QuerySet[Invocation]:
    """The newest calls without their payloads."""
    calls = Invocation.objects.defer("arguments", "result")
    if server is not None:
        calls = calls.filter(server_slug=server.slug)
    if failed:
        calls = calls.filter(state__in=FAILED)
    return calls.order_by("-received_at", "-id")[:limit]


def audit_of_call(call: Invocation) -> QuerySet[AuditEntry]:
    return AuditEntry.objects.filter(subject=f"call:{call.pk}").order_by("id")


def _failed() -> Q:
    return Q(state__in=FAILED)


def _percentile(ordered: list[float], part: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else None


# Servers and tools


def server_state(server: Server) -> str:
    """One word: draft, disabled, unavailable, failing, ready, or untested when nothing is known yet."""
    if server.lifecycle != Lifecycle.ACTIVE:
        return server.lifecycle
    if server.unavailable_since:
        return "unavailable"
    if server.consecutive_failures:
        return "failing"
    return "ready" if server.last_ok_at else "untested"


def server_counts() -> ServerCounts:
    active = Q(lifecycle=Lifecycle.ACTIVE)
    down = active & Q(unavailable_since__isnull=False)
    return ServerCounts(
        **Server.objects.order_by().aggregate(
            up=Count("id", active & ~down),
            down=Count("id", down),
            drafts=Count("id", Q(lifecycle=Lifecycle.DRAFT)),
            disabled=Count("id", Q(lifecycle=Lifecycle.DISABLED)),
        )
    )


def waiting_count() -> int:
    """How many tools have a definition that nobody has decided on."""
    return Tool.objects.waiting().count()


def with_status(tools: QuerySet[Tool], status: str) -> QuerySet[Tool]:
    """The tools of one status, as ``Tool.status`` would call it; ``disabled`` and ``waiting`` besides."""
    current = Q(pinned__isnull=False, latest=F("pinned"))
    rejected = Q(latest__decided_at__isnull=False, latest__approved=False)
    kinds = {
        "gone": Q(present=False),
        "disabled": Q(enabled=False),
        "approved": Q(present=True) & current,
        "rejected": Q(present=True) & rejected & ~current,
        "changed": Q(present=True, pinned__isnull=False) & ~current & ~rejected,
        "quarantined": Q(present=True, pinned__isnull=True) & ~rejected,
    }
    if status == "waiting":
        return tools.filter(pk__in=Tool.objects.waiting())
    return tools.filter(kinds[status]) if status in kinds else tools


def decided_definitions(tool: Tool) -> QuerySet[Definition]:
    return tool.definitions.select_related("decided_by").order_by("-seen_at", "-id")


def catalogue(agent: Agent, endpoint: Endpoint, *, now: datetime) -> Catalogue | None:
    """What this agent sees on this endpoint now, built as the gateway builds it; None if either is off."""
    snapshot = load_snapshot()
    caller, door = snapshot.agents.get(agent.slug), snapshot.endpoints.get(endpoint.slug)
    if caller is None or door is None:
        return None
    return Catalogues([DownstreamTools()]).get(snapshot, door, caller, now.timestamp())


def shortened_names(endpoint: Endpoint) -> list[str]:
    """Names that this endpoint may show and that some host would shorten; of all approved tools."""
    pairs = Tool.objects.approved().filter(present=True).values_list("server__slug", "name")
    return long_names(exposed_names(pairs, endpoint.naming_style).values())


# The audit log


def entry_problem(entry: AuditEntry) -> str:
    """Why this entry, looked at alone, cannot be what was written; empty when it can."""
    if entry_hash(entry.prev, entry.body) != entry.hash:
        return "its text does not fit its hash"
    try:
        body = json.loads(entry.body)
        written = (body["writer"], body["seq"], body["kind"], plain(body["actor"], 150), plain(body["subject"], 200))
        moment = datetime.fromisoformat(body["at"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "its text cannot be read"
    if written != (entry.writer, entry.seq, entry.kind, entry.actor, entry.subject) or moment != entry.at:
        return "its columns differ from its text"
    return ""


def verify_audit() -> list[Chain]:
    """Check every chain from its first entry on. Reads the whole log: about 100,000 entries a second.

    Entries removed from the end of a chain leave no trace in it: compare the heads with a copy kept elsewhere.
    """
    writers = AuditEntry.objects.order_by("writer").values_list("writer", flat=True).distinct()
    return [_verify(writer) for writer in writers]


def _verify(writer: str) -> Chain:
    count, seq, head = 0, 0, GENESIS
    for entry in _entries(writer):
        count += 1
        problem = entry_problem(entry)
        if entry.seq != seq + 1:
            problem = f"entries from {seq + 1} on are missing before it"
        elif entry.prev != head:
            problem = "it does not follow the entry before it"
        if problem:
            return Chain(writer, count, entry.seq, problem)
        seq, head = entry.seq, entry.hash
    return Chain(writer, count)


def _entries(writer: str) -> Iterator[AuditEntry]:
    return AuditEntry.objects.filter(writer=writer).order_by("seq").iterator(chunk_size=2_000)
