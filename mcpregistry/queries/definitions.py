"""Reads for the inbox of definitions: what waits, what was withdrawn and why, worst first.

Nothing here changes a row. A tool is in the inbox as long as what its server says is not what was
approved.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from django.db.models import Case, Count, F, IntegerField, Max, Q, QuerySet, Value, When, Window

from mcpregistry.domain.definitions.findings import Severity
from mcpregistry.domain.definitions.naming import list_long_names, map_offer_names
from mcpregistry.domain.offer_kinds import TOOL
from mcpregistry.models import Definition, Endpoint, Tool

# As people ask for it, and as ``Tool.status`` calls it.
SHOWS = {
    "waiting": "waiting",
    "new": "quarantined",
    "changed": "changed",
    "rejected": "rejected",
    "gone": "gone",
}
SEVERITIES = {
    "danger": Severity.DANGER,
    "suspicious": Severity.ALARM,
    "note": Severity.NOTE,
    "clean": Severity.CLEAN,
}


@dataclass(frozen=True, slots=True)
class InboxFilter:
    """What the inbox is narrowed to; empty means everything that waits."""

    show: str = ""
    server: str = ""
    severity: str = ""
    search: str = ""

    def __bool__(self) -> bool:
        return any(getattr(self, f.name) for f in fields(self))


def inbox(wanted: InboxFilter) -> QuerySet[Tool]:
    """Tools by server, the server with the worst finding first, and so within each."""
    tools = with_status(Tool.offers.all(), SHOWS.get(wanted.show, "waiting"))
    if wanted.server:
        tools = tools.filter(server__slug=wanted.server)
    if wanted.severity in SEVERITIES:
        tools = tools.filter(latest__severity=SEVERITIES[wanted.severity])
    if wanted.search:
        tools = tools.filter(
            Q(name__icontains=wanted.search) | Q(latest__body__icontains=wanted.search)
        )
    worst = Window(Max("latest__severity"), partition_by="server_id")
    changed = Case(
        When(pinned__isnull=True, then=Value(1)), default=Value(0), output_field=IntegerField()
    )
    return (
        tools.select_related("server", "latest", "pinned")
        .annotate(worst=worst, is_new=changed)
        .order_by(
            F("worst").desc(nulls_last=True),
            "server__slug",
            F("latest__severity").desc(nulls_last=True),
            "is_new",
            "name",
        )
    )


@dataclass(frozen=True, slots=True)
class WaitingTally:
    """Of one server: what waits, and how much of it gave no alarm. ``newest`` is the id of a
    definition."""

    waiting: int
    clean: int
    newest: int


def tallies(server_ids: set[int]) -> dict[int, WaitingTally]:
    """By server id, how much waits in the inbox and how much of it gave no alarm."""
    rows = (
        Tool.offers.waiting()
        .filter(server__in=server_ids)
        .order_by()
        .values("server_id")
        .annotate(
            waiting=Count("id"),
            calm=Count("id", filter=Q(latest__severity__lt=Severity.ALARM, latest__scanner__gt=0)),
            newest=Max("latest_id"),
        )
    )
    return {
        row["server_id"]: WaitingTally(row["waiting"], row["calm"], row["newest"]) for row in rows
    }


def servers_with_drift() -> list[str]:
    """Slugs of servers that have anything in the inbox, whatever it shows."""
    found = Tool.offers.exclude(pk__in=Tool.offers.serving())
    return [*found.order_by("server__slug").values_list("server__slug", flat=True).distinct()]


def counts() -> dict[str, int]:
    """How many there are of each kind that ``SHOWS`` names."""
    return {show: with_status(Tool.offers.all(), status).count() for show, status in SHOWS.items()}


def waiting_count() -> int:
    """How many tools have a definition that nobody has decided on."""
    return Tool.offers.waiting().count()


def with_status(tools: QuerySet[Tool], status: str) -> QuerySet[Tool]:
    """The tools of one status, as ``Tool.status`` would call it; ``disabled`` and ``waiting``
    besides."""
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
        return tools.filter(pk__in=Tool.offers.waiting())
    return tools.filter(kinds[status]) if status in kinds else tools


def list_definitions_with_decider(tool: Tool) -> QuerySet[Definition]:
    """Every definition of the tool with who decided on it, newest first."""
    return tool.definitions.select_related("decided_by").order_by("-seen_at", "-id")


def find_shortened_names(endpoint: Endpoint) -> list[str]:
    """Names that this endpoint may show and that some host would shorten; of all approved tools."""
    offers = (
        Tool.objects.filter_approved()
        .filter(present=True)
        .values_list("server__slug", "name", "own_name")
    )
    return list_long_names(map_offer_names(TOOL, offers, endpoint.naming_style).values())
