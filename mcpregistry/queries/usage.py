"""What is used, how fast, what fails and what it costs: read of what the clock has counted, and of
the hour that is not over.

A period is asked for in a fixed number of questions, however many calls it had; the database adds
up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from heapq import nlargest
from operator import attrgetter, itemgetter
from typing import Any

from django.db.models import Max, QuerySet, Sum

from mcpregistry.db import open_snapshot
from mcpregistry.domain.usage import (
    EXPERTS,
    HOUR,
    Key,
    Tallied,
    UsageTally,
    merge_tallies,
    truncate_to_hour,
)
from mcpregistry.domain.usage_advice import FEWEST, Advice
from mcpregistry.domain.usage_sums import (
    PARTS,
    Name,
    Sums,
    UsageLine,
    UsageLines,
    advise_on_line,
    collect_durations_by_server,
    group_sums,
)
from mcpregistry.models import CountedSpan, Invocation, SpanUsage
from mcpregistry.models.usage import TOOK, SpanLength
from mcpregistry.queries.call_tallies import tally_calls_between
from mcpregistry.queries.usage_sums import (
    COLUMNS,
    add_up_spans,
    build_span_filter,
    find_used_buckets,
    kind_for,
    load_stored_sums,
    name_of,
    sum_calls_and_times,
)

CHARACTERS = 4  # of a token, about
DOLLAR = 100_000_000
# the period before begins, this one, and its counted hours end
_Edges = tuple[datetime, datetime, datetime]
_NOTHING = UsageTally()
_MOST_ADVISED = 500  # tools whose advice a page works out


class By(StrEnum):
    """What rows of usage are of."""

    TOOL = "tool"
    SERVER = "server"
    AGENT = "agent"
    ENDPOINT = "endpoint"
    EXPERT = "expert"


_PARTS = {
    By.TOOL: ("server", "tool"),
    By.SERVER: ("server",),
    By.AGENT: ("agent",),
    By.ENDPOINT: ("endpoint",),
    By.EXPERT: ("tool",),
}


@dataclass(frozen=True, slots=True)
class UsagePeriod:
    """So many whole hours, the last of which is not over yet."""

    name: str
    label: str
    hours: int
    of_calls: str  # what the list of calls calls it

    def since(self, now: datetime) -> datetime:
        """When it begins."""
        return truncate_to_hour(now) - HOUR * (self.hours - 1)


PERIODS = {
    each.name: each
    for each in (
        UsagePeriod("24h", "24 hours", 24, "day"),
        UsagePeriod("7d", "7 days", 7 * 24, "week"),
        UsagePeriod("30d", "30 days", 30 * 24, "month"),
        UsagePeriod("90d", "90 days", 90 * 24, "quarter"),
    )
}


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Which calls count: of these by name, where one is given. ``search``: stands in the row's
    name."""

    server: str = ""
    tool: str = ""
    agent: str = ""
    endpoint: str = ""
    search: str = ""

    def of_parts(self, by: By) -> dict[str, str]:
        """As conditions on the parts of names."""
        given = {part: getattr(self, part) for part in COLUMNS}
        given |= {"server": EXPERTS} if by is By.EXPERT else {}
        return {part: value for part, value in given.items() if value}

    def of_columns(self, by: By) -> dict[str, str]:
        """As conditions on the columns of calls and of counted hours."""
        return {COLUMNS[part]: value for part, value in self.of_parts(by).items()}


@dataclass(frozen=True)
class UsageRow:
    """One tool, server, agent, endpoint or expert tool in a period, and the period before."""

    server: str
    name: str
    tally: UsageTally
    before: UsageTally  # only calls and how long they took can be relied on
    definition: int | None = None  # characters of definitions on each turn of a model that sees it
    pk: int | None = None  # of a tool that is there
    advice: Sequence[Advice] = ()  # what the figures of a tool advise

    @property
    def codes(self) -> list[tuple[str, int]]:
        """Failures by their code, the most frequent first."""
        return sorted(self.tally.codes.items(), key=itemgetter(1), reverse=True)

    @cached_property
    def p50(self) -> float | None:
        """Milliseconds."""
        return self.tally.p50

    @cached_property
    def p95(self) -> float | None:
        """Milliseconds."""
        return self.tally.p95

    @property
    def trend(self) -> float | None:
        """By how much more it was called than before: 1 is twice as often, -1 not at all; None: not
        called before."""
        return (
            (self.tally.calls - self.before.calls) / self.before.calls
            if self.before.calls
            else None
        )

    @property
    def result_tokens(self) -> int:
        """About how many tokens its results were."""
        return round(self.tally.size / CHARACTERS)

    @property
    def definition_tokens(self) -> int | None:
        """About how many tokens of definitions it puts into each turn of a model that sees it."""
        return None if self.definition is None else round(self.definition / CHARACTERS)

    @property
    def dollars(self) -> float | None:
        """What it cost, as far as that is known."""
        return None if self.tally.cost is None else self.tally.cost / DOLLAR


_VALUES: dict[str, Callable[[UsageRow], Any]] = {
    "name": lambda row: (row.server, row.name),
    "calls": lambda row: row.tally.calls,
    "errors": lambda row: row.tally.errors,
    "error_rate": lambda row: row.tally.error_rate,
    "p50": lambda row: row.p50,
    "p95": lambda row: row.p95,
    "trend": lambda row: row.trend,
    "result_tokens": lambda row: row.result_tokens,
    "definition_tokens": lambda row: row.definition_tokens,
    "cost": lambda row: row.dollars,
    "last_used": lambda row: row.tally.last,
}
SORTS = tuple(_VALUES)


def sort_rows(rows: Iterable[UsageRow], sort: str) -> list[UsageRow]:
    """By one of ``SORTS``, with ``-`` before it the largest first; rows that have no such value
    come last."""
    value = _VALUES[sort.lstrip("-")]
    named = sorted(rows, key=lambda row: (row.server, row.name))
    valued = [(value(row), row) for row in named]
    having = [pair for pair in valued if pair[0] is not None]
    without = [row for found, row in valued if found is None]
    having.sort(key=itemgetter(0), reverse=sort.startswith("-"))
    return [row for _, row in having] + without


@dataclass(frozen=True, slots=True)
class UsageTable:
    """Rows in no order, their sum, and since when calls themselves were read.

    ``missing_from``: the hours from then to ``live_from`` are in no figure, because the clock has
    not counted them yet.
    """

    rows: list[UsageRow]
    total: UsageRow
    live_from: datetime
    missing_from: datetime | None


def usage(by: By, period: UsagePeriod, *, now: datetime, wanted: UsageFilter) -> UsageTable:
    """What was called in the period, or in the one before. Of one moment: the clock may replace an
    hour in the meantime.

    ``definition_sizes.sort_page`` adds what definitions take."""
    with open_snapshot():
        return _usage(by, period, now, wanted)


def sums(by: By, period: UsagePeriod, *, now: datetime, wanted: UsageFilter) -> Sums:
    """What was called in the period, by name, for who asks nothing else of ``usage``, and not what
    it cost."""
    with open_snapshot():
        return _count_usage(by, period, now, wanted, priced=False)[0].now


def _usage(by: By, period: UsagePeriod, now: datetime, wanted: UsageFilter) -> UsageTable:
    found, live, live_from, counted = _count_usage(by, period, now, wanted)
    if by is By.TOOL:
        found.advise(live if found.ahead else found.now)
    searched = wanted.search.casefold()
    names = [
        name
        for name in {**found.now, **found.before}
        if not searched or searched in "::".join(name).casefold()
    ]
    rows = [found.row(by, name) for name in names]
    missing = _find_missing_start(max(filter(None, (counted, period.since(now)))), live_from)
    return UsageTable(rows, _total(found.ahead, rows, live, searched), live_from, missing)


def _find_missing_start(counted: datetime, live_from: datetime) -> datetime | None:
    """Since when calls are in no figure: they came after the hours that are counted, and before
    those that are read."""
    lost = Invocation.objects.filter(received_at__gte=counted, received_at__lt=live_from)
    return counted if counted < live_from and lost.exists() else None


def _count_usage(
    by: By, period: UsagePeriod, now: datetime, wanted: UsageFilter, *, priced: bool = True
) -> tuple[_CountedUsage, Sums, datetime, datetime | None]:
    """All by name, what of it is of calls that were read themselves, since when they were, and
    until when the clock counted."""
    since = period.since(now)
    counted = find_counted_end(now)
    live_from = _read_from(counted, now)
    edges = (since - HOUR * period.hours, since, live_from)
    found = (
        (_ahead(by, period, edges, wanted) or _read(by, period, edges, wanted))
        if counted
        else _CountedUsage({}, {}, {})
    )
    calls = tally_calls_between(
        max(live_from, since), priced=priced, conditions=wanted.of_columns(by)
    )
    live = _live(calls.by_key, by, wanted)
    for name, tally in live.items():
        found.now[name] = merge_tallies([found.now[name], tally]) if name in found.now else tally
    return found, live, live_from, counted


def _live(by_key: Mapping[Key, UsageTally], by: By, wanted: UsageFilter) -> Sums:
    """Sums of calls themselves, of those that are wanted."""
    given = wanted.of_parts(by).items()
    name_of_key = attrgetter(*_PARTS[by])
    found: Sums = {}
    for key, tally in by_key.items():
        if all(getattr(key, part) == value for part, value in given):
            name = name_of_key(key)
            found.setdefault(name if isinstance(name, tuple) else (name,), UsageTally()).add(tally)
    return found


def _total(ahead: UsageLine | None, rows: list[UsageRow], live: Sums, searched: str) -> UsageRow:
    if ahead is None or searched:
        return UsageRow(
            "",
            "",
            merge_tallies(row.tally for row in rows),
            merge_tallies(row.before for row in rows),
        )
    return UsageRow(
        "",
        "",
        merge_tallies([ahead.now or UsageTally(), *live.values()]),
        ahead.before or UsageTally(),
    )


@dataclass(frozen=True, slots=True)
class _CountedUsage:
    """What was counted, by name: in the period and in the one before; and what that advises of each
    tool. ``ahead``: the sum of all, where that and the advice was worked out ahead."""

    now: Sums
    before: Sums
    advice: dict[Name, list[Advice]]
    ahead: UsageLine | None = None

    def advise(self, names: Iterable[Name]) -> None:
        """Of these tools anew, but not of more than the busiest."""
        enough = {name: self.now[name].calls for name in names if self.now[name].calls >= FEWEST}
        names = nlargest(_MOST_ADVISED, enough, key=enough.__getitem__)
        servers = {name[0] for name in names}
        beside = collect_durations_by_server(
            {name: tally for name, tally in self.now.items() if name[0] in servers}
        )
        for name in names:
            self.advice[name] = advise_on_line(
                UsageLine(name, self.now[name], self.before.get(name)), beside
            )

    def row(self, by: By, name: Name) -> UsageRow:
        if by is By.EXPERT:
            server = EXPERTS
        elif by is By.TOOL:
            server = name[0]
        else:
            server = ""
        tally = self.now.get(name) or UsageTally()
        before = self.before.get(name) or _NOTHING
        return UsageRow(server, name[-1], tally, before, advice=self.advice.get(name, ()))


def _ahead(by: By, period: UsagePeriod, edges: _Edges, wanted: UsageFilter) -> _CountedUsage | None:
    """From the smallest sums that were worked out ahead and know all that is asked for."""
    given = wanted.of_parts(by)
    kind = kind_for([*_PARTS[by], *given])
    lines = load_stored_sums(name_of(kind, period.name), edges[0], edges[2]) if kind else None
    if kind is None or lines is None:
        return None
    has = PARTS[kind]
    fits = [(has.index(part), value) for part, value in given.items()]
    rows = (
        [row for row in lines.rows if all(row.name[place] == value for place, value in fits)]
        if fits
        else lines.rows
    )
    now = {row.name: row.now for row in rows if row.now}
    before = {row.name: row.before for row in rows if row.before}
    if has != _PARTS[by]:
        places = tuple(has.index(part) for part in _PARTS[by])
        return _CountedUsage(group_sums(now, places), group_sums(before, places), {})
    return _CountedUsage(
        now,
        before,
        {row.name: row.advice for row in rows if row.advice},
        None if fits else lines.total,
    )


def _read(by: By, period: UsagePeriod, edges: _Edges, wanted: UsageFilter) -> _CountedUsage:
    """From hours and days."""
    begins, since, until = edges
    conditions = wanted.of_columns(by)
    buckets = find_used_buckets(period.name, begins, until)
    now = add_up_spans(_PARTS[by], since, until, conditions, buckets=buckets)
    before = sum_calls_and_times(_PARTS[by], begins, since, conditions, buckets)
    return _CountedUsage(now, before, {})


def find_live_start(now: datetime) -> datetime:
    """From here on calls themselves are read: an hour of them that is over at most, should the
    clock not have counted."""
    return _read_from(find_counted_end(now), now)


def find_counted_end(now: datetime) -> datetime | None:
    """Until when the clock has counted hours that are over; None: no hour yet."""
    over = truncate_to_hour(now)
    known = CountedSpan.objects.filter(span=SpanLength.HOUR, begins__lt=over).aggregate(
        last=Max("begins")
    )["last"]
    return known + HOUR if known else None


def _read_from(counted: datetime | None, now: datetime) -> datetime:
    return max(filter(None, (counted, truncate_to_hour(now) - HOUR)))


# The newest hour, and times


@dataclass(frozen=True, slots=True)
class Lately:
    """The calls of the hour that is not counted yet."""

    since: datetime
    calls: Tallied


def lately(live_from: datetime, first: datetime, *, now: datetime) -> Lately:
    """Since when the clock has not counted; of a clock that stands still two hours at most. In one
    question."""
    since = max(live_from, first, truncate_to_hour(now) - HOUR)
    return Lately(since, tally_calls_between(since, priced=False))


def times_since(since: datetime, newest: Lately, ahead: UsageLines | None = None) -> UsageTally:
    """How long calls took, of any time up to now; of what was worked out ahead
    (``overview.ahead``), or in two questions."""
    counted = ahead.total.now or UsageTally() if ahead else _tally_times(since, newest.since)
    return merge_tallies([counted, *newest.calls.by_key.values()])


def _tally_times(since: datetime, until: datetime) -> UsageTally:
    found: QuerySet[Any] = SpanUsage.objects.filter(build_span_filter(since, until))
    sums = found.aggregate(**{f"sum_{name}": Sum(name) for name in TOOK})
    return UsageTally(took=[sums[f"sum_{name}"] or 0 for name in TOOK])
