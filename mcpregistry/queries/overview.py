"""What the first page shows: a chart of calls, the busiest and slowest tools, what fails alike, the
first steps of a site.

Nothing here changes a row. Each function asks a fixed number of questions: hours that are over are
read as the clock has counted them, and calls themselves only from then on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Sum
from django.db.models.functions import TruncHour

from mcpregistry.domain.lifecycle import FAILED, InvocationState
from mcpregistry.domain.usage import HOUR, truncate_to_hour
from mcpregistry.domain.usage_sums import UsageLines
from mcpregistry.models import (
    ApprovalVote,
    CountedSpan,
    Grant,
    Invocation,
    Server,
    SpanUsage,
    Token,
    Tool,
    ToolUsage,
)
from mcpregistry.models.server import Lifecycle
from mcpregistry.models.usage import SpanLength
from mcpregistry.queries.usage import Lately
from mcpregistry.queries.usage_sums import load_stored_sums

# calls themselves are read so far back at most, should no clock have counted
_LIVE = timedelta(hours=25)
_SAMPLE = 5_000
SOON = timedelta(days=14)
_SHOWN = 6
FEW = 1_000  # calls whose hours are added up as fast as sums of them are looked for
BUSIEST = 200  # that are read; calls of this hour may bring any of them to the top
_TEXT = 600  # characters of a result in which the words of a failure are looked for


@dataclass(frozen=True, slots=True)
class ChartPeriod:
    """What a chart covers: ``bars`` times ``step``, the last of which is not over yet."""

    name: str
    label: str
    bars: int
    step: timedelta
    step_label: str
    marks: int  # how many bars share one mark of the axis

    def first(self, now: datetime) -> datetime:
        """When its first bar begins; bars begin at whole steps of UTC."""
        epoch = datetime(2020, 1, 1, tzinfo=UTC)
        return now - (now - epoch) % self.step - self.step * (self.bars - 1)


PERIODS = {
    each.name: each
    for each in (
        ChartPeriod("day", "24 hours", 24, HOUR, "an hour", 6),
        ChartPeriod("week", "7 days", 28, HOUR * 6, "6 hours", 4),
        ChartPeriod("month", "30 days", 30, HOUR * 24, "a day", 5),
    )
}


@dataclass(frozen=True, slots=True)
class TrafficBar:
    """Calls that came within one step of the chart, and how many of them failed."""

    at: datetime
    calls: int
    errors: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """The calls of a period. ``live_from``: since when they are read from the record itself."""

    bars: Sequence[TrafficBar]
    live_from: datetime

    @property
    def calls(self) -> int:
        return sum(bar.calls for bar in self.bars)

    @property
    def errors(self) -> int:
        return sum(bar.errors for bar in self.bars)

    @property
    def error_rate(self) -> float | None:
        return self.errors / self.calls if self.calls else None

    @property
    def most(self) -> int:
        return max(bar.calls for bar in self.bars)


def sums_name(period: str) -> str:
    """What the sums of a chart's period are called that the clock works out ahead
    (``queries.usage_sums``)."""
    return f"overview {period}"


def count_traffic(period: ChartPeriod, *, now: datetime) -> Traffic:
    """Two questions, whatever the period."""
    first = period.first(now)
    counted = CountedSpan.objects.filter(
        span=SpanLength.HOUR, begins__gte=first, begins__lt=truncate_to_hour(now)
    )
    hours = [*counted.values_list("begins", "calls", "errors")]
    live_from = max(
        max((hour for hour, *_ in hours), default=first - HOUR) + HOUR, first, now - _LIVE
    )
    live = (
        _filter_received_since(live_from)
        .annotate(hour=TruncHour("received_at"))
        .values("hour")
        .annotate(**_sums())
    )
    hours += live.values_list("hour", "calls", "errors")
    calls = Counter[int]()
    errors = Counter[int]()
    for hour, count, failed in hours:
        place = (hour - first) // period.step
        calls[place] += count
        errors[place] += failed
    bars = [
        TrafficBar(first + period.step * place, calls[place], errors[place])
        for place in range(period.bars)
    ]
    return Traffic(bars, live_from)


def _filter_received_since(since: datetime) -> QuerySet[Invocation]:
    return Invocation.objects.filter(received_at__gte=since).order_by()


def _sums() -> dict[str, Count]:
    return {"calls": Count("id"), "errors": Count("id", Q(state__in=FAILED))}


@dataclass(frozen=True, slots=True)
class BusyTool:
    """A tool with its calls of a period."""

    server: str
    tool: str
    calls: int
    errors: int

    @property
    def error_rate(self) -> float:
        return self.errors / self.calls


def ahead(period: ChartPeriod, *, now: datetime, newest: Lately) -> UsageLines | None:
    """The sum of the period and its busiest tools, as the clock has worked them out ahead; None:
    read the hours."""
    return load_stored_sums(sums_name(period.name), period.first(now), newest.since)


def busiest(
    period: ChartPeriod, *, now: datetime, newest: Lately, counted: UsageLines | None = None
) -> list[BusyTool]:
    """The tools with the most calls; ``newest``: the calls that are not counted yet; ``counted``:
    the others, as ``ahead`` says, or in one question."""
    calls = Counter[tuple[str, str]]()
    errors = Counter[tuple[str, str]]()
    for server, tool, came, failed in (
        _busy(counted) if counted else _count_busy_hours(period.first(now), newest.since)
    ):
        calls[server, tool] += came
        errors[server, tool] += failed
    for key, tally in newest.calls.by_key.items():
        if key.server:
            calls[key.server, key.tool] += tally.calls
            errors[key.server, key.tool] += tally.errors
    return [BusyTool(*key, count, errors[key]) for key, count in calls.most_common(_SHOWN)]


def _busy(counted: UsageLines) -> list[tuple[str, str, int, int]]:
    return [
        (row.name[0], row.name[1], row.now.calls, row.now.errors) for row in counted.rows if row.now
    ]


def _count_busy_hours(since: datetime, until: datetime) -> list[tuple[str, str, int, int]]:
    hours: QuerySet[Any] = SpanUsage.objects.filter(
        span=SpanLength.HOUR, begins__gte=since, begins__lt=until
    )
    named = hours.exclude(server_slug="").values("server_slug", "tool_name")
    found = named.annotate(n=Sum("calls"), bad=Sum("errors")).order_by("-n")
    return list(found.values_list("server_slug", "tool_name", "n", "bad")[:BUSIEST])


def list_slowest_tools(period: ChartPeriod, *, now: datetime) -> list[ToolUsage]:
    """The tools in use whose slow calls took longest, as the clock has reckoned of the newest 200
    calls of each."""
    used = ToolUsage.objects.filter(counted_at__gte=period.first(now), calls__gte=3)
    return [*used.select_related("tool__server").order_by("-p95")[:_SHOWN]]


# What needs people


def query_ending_soon(now: datetime, viewer: User) -> dict[str, QuerySet[Any]]:
    """Tokens and grants that are in force and end within two weeks.

    Of people's tokens only the viewer's, since nobody else can rotate them; no token that has a
    successor already.
    """
    soon = Q(expires_at__gt=now, expires_at__lte=now + SOON)
    live = Token.objects.filter(revoked_at__isnull=True)
    later = Q(expires_at__gt=now + SOON) | Q(expires_at=None)
    newer = live.filter(later, name=OuterRef("name"), created_at__gt=OuterRef("created_at"))
    mine = Q(user=viewer)
    of_agents = Q(agent__enabled=True)
    own = newer.filter(user=OuterRef("user"))
    agents = newer.filter(agent=OuterRef("agent"))
    return {
        "tokens": live.filter(soon, (mine & ~Exists(own)) | (of_agents & ~Exists(agents))),
        "grants": Grant.objects.filter(soon),
    }


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """What a new site has of what it needs. ``settled``: calls have gone through for a week."""

    server: bool
    definitions: bool
    grant: bool
    connected: bool
    called: bool
    approved: bool
    settled: bool

    @property
    def done(self) -> bool:
        """Nobody needs to be told any more."""
        return self.settled or all(
            (self.server, self.definitions, self.grant, self.connected, self.called, self.approved)
        )


def read_first_steps(viewer: User, *, now: datetime) -> FirstSteps:
    """In one question, whose only row is the viewer's."""
    went_well = Invocation.objects.filter(state=InvocationState.SUCCEEDED)
    asked = {
        "has_server": Exists(Server.objects.filter(lifecycle=Lifecycle.ACTIVE)),
        "has_definition": Exists(Tool.objects.filter(pinned__isnull=False)),
        "has_grant": Exists(Grant.objects.filter(agent__enabled=True)),
        "has_token_in_use": Exists(
            Token.objects.filter(last_used_at__isnull=False, agent__isnull=False)
        ),
        "has_call": Exists(Invocation.objects.all()),
        "has_success": Exists(went_well),
        "has_vote": Exists(ApprovalVote.objects.all()),
        "has_lasted": Exists(went_well.filter(received_at__lt=now - timedelta(days=7))),
    }
    row = User.objects.filter(pk=viewer.pk).annotate(**asked).values(*asked).get()
    return FirstSteps(
        server=row["has_server"],
        definitions=row["has_definition"],
        grant=row["has_grant"],
        connected=row["has_token_in_use"] or row["has_call"],
        called=row["has_success"],
        approved=row["has_vote"],
        settled=row["has_lasted"] and row["has_grant"] and row["has_server"],
    )
