"""What fails alike: failures with the same code and shape of words are one pattern, whatever tools
they are of.

Hours that are over are read as the clock has counted them, calls themselves only of the hour that
is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from django.db.models import Max, Min, QuerySet

from mcpregistry.db import open_snapshot
from mcpregistry.domain.usage import HOUR, FailureExample, FailureGroup, ShapeKey
from mcpregistry.models import SpanFailure
from mcpregistry.queries.usage import Lately, UsageFilter, UsagePeriod, find_live_start, lately

MOST_FAILURES = (
    # rows of hours read for the patterns of a period, the newest; of one tool that fails, one an
    # hour
    20_000
)
_MOST_ROWS = 5  # of a pattern whose examples are read


class ToolCount(NamedTuple):
    """How often a tool failed so."""

    server: str
    tool: str
    failures: int


@dataclass(frozen=True, slots=True)
class Pattern:
    """Failures with the same code and the same shape of words, of whatever tools."""

    code: str
    shape: str
    alike: FailureGroup
    tools: Sequence[ToolCount]  # the most frequent first

    @property
    def tool(self) -> ToolCount:
        """The one that failed so most often."""
        return self.tools[0]


_PatternKey = tuple[str, str]  # code and shape


@dataclass(slots=True)
class _Group:
    """What is known of a pattern while hours are read, the newest first."""

    # no Counter: thousands are added up for a page
    tools: dict[tuple[str, str], int] = field(default_factory=dict)
    newest: list[int] = field(default_factory=list)  # primary keys of the newest rows
    live: list[FailureGroup] = field(default_factory=list)

    def count(self, tool: tuple[str, str], failures: int) -> None:
        """Add failures of a tool."""
        self.tools[tool] = self.tools.get(tool, 0) + failures

    @property
    def total(self) -> int:
        """How many failures of all tools."""
        return sum(self.tools.values())

    def holds(self, searched: str, key: _PatternKey) -> bool:
        """Whether the code, the shape or the name of a tool contains the text."""
        names = (" ".join((*tool, *key)).casefold() for tool in self.tools)
        return not searched or any(searched in name for name in names)


@dataclass(frozen=True, slots=True)
class Patterns:
    """The most frequent first. ``cut``: failures before this hour are not in it, because there were
    too many."""

    rows: list[Pattern]
    cut: datetime | None = None


def patterns(
    period: UsagePeriod, *, now: datetime, wanted: UsageFilter, most: int = 200
) -> Patterns:
    """What failed alike in the period, the most frequent first. Words of tools are forgotten with
    the payloads of calls."""
    since = period.since(now)
    return patterns_since(
        since, lately(find_live_start(now), since, now=now), wanted=wanted, most=most
    )


def patterns_since(since: datetime, newest: Lately, *, wanted: UsageFilter, most: int) -> Patterns:
    """The same of any time up to now, in three queries: how often, then of those that are shown
    when and which calls; in two more if not all rows are read. Of one moment: the clock may replace
    an hour in the meantime."""
    with open_snapshot():
        return _read_patterns(since, newest, wanted, most)


def _read_patterns(since: datetime, newest: Lately, wanted: UsageFilter, most: int) -> Patterns:
    hours = _of_wanted(
        SpanFailure.objects.filter(begins__gte=since, begins__lt=newest.since), wanted
    )
    counted_rows, cut = _newest_rows(hours)
    hours = hours.filter(begins__gte=cut) if cut else hours
    groups = _groups(counted_rows, newest, wanted)
    searched = wanted.search.casefold()
    fitting = {key: group.total for key, group in groups.items() if group.holds(searched, key)}
    shown = {key: groups[key] for key, _ in Counter(fitting).most_common(most)}
    counted = _find_alike(hours, {key: group for key, group in shown.items() if group.newest})
    rows = [_pattern(key, group, counted.get(key)) for key, group in shown.items()]
    return Patterns(
        sorted(rows, key=lambda each: (each.alike.count, each.alike.last), reverse=True), cut
    )


_Row = tuple[int, int, str, str, str, str]  # key, failures, server, tool, code and shape


def _newest_rows(hours: QuerySet[SpanFailure]) -> tuple[list[_Row], datetime | None]:
    """The newest rows, of whole hours only, and the first of these hours if there are more rows
    than are read. The hour of each row is not read: thousands of times take long to convert."""
    newest = hours.order_by("-begins")
    columns = newest.values_list("pk", "count", "server_slug", "tool_name", "code", "shape")
    rows = list(columns[: MOST_FAILURES + 1])
    if len(rows) <= MOST_FAILURES:
        return rows, None
    (beyond,) = newest.values_list("begins", flat=True)[MOST_FAILURES : MOST_FAILURES + 1]
    cut = beyond + HOUR
    return rows[: hours.filter(begins__gte=cut).count()], cut


def _groups(rows: list[_Row], newest: Lately, wanted: UsageFilter) -> dict[_PatternKey, _Group]:
    found: dict[_PatternKey, _Group] = {}
    for pk, count, server, tool, code, shape in rows:
        group = found.get((code, shape)) or found.setdefault((code, shape), _Group())
        group.count((server, tool), count)
        if len(group.newest) < _MOST_ROWS:
            group.newest.append(pk)
    for key, alike in newest.calls.alike.items():
        if _is_of(key, wanted):
            group = found.setdefault((key.code, key.shape), _Group())
            group.count((key.server, key.tool), alike.count)
            group.live.append(alike)
    return found


def _find_alike(
    hours: QuerySet[SpanFailure], shown: dict[_PatternKey, _Group]
) -> dict[_PatternKey, FailureGroup]:
    """When first and last, with examples, in the hours; without how often."""
    if not shown:
        return {}
    codes, shapes = zip(*shown, strict=True)
    ends = (
        hours.filter(code__in={*codes}, shape__in={*shapes}).order_by().values_list("code", "shape")
    )
    times = {
        (code, shape): (first, last)
        for code, shape, first, last in ends.annotate(Min("first"), Max("last"))
    }
    rows = SpanFailure.objects.only("examples").in_bulk(
        [pk for group in shown.values() for pk in group.newest]
    )
    found = {}
    for key, group in shown.items():
        examples = [
            FailureExample(datetime.fromisoformat(at), call)
            for pk in group.newest
            for at, call in rows[pk].examples
        ]
        found[key] = FailureGroup(0, *times[key], examples)
    return found


def _pattern(key: _PatternKey, group: _Group, counted: FailureGroup | None) -> Pattern:
    first, *others = [*([counted] if counted else []), *group.live]
    alike = replace(first, count=0, examples=[])
    for each in (first, *others):
        alike.add(each)
    alike.count = group.total
    return Pattern(
        *key, alike, [ToolCount(*tool, count) for tool, count in Counter(group.tools).most_common()]
    )


def _of_wanted(hours: QuerySet[SpanFailure], wanted: UsageFilter) -> QuerySet[SpanFailure]:
    given = {"server_slug": wanted.server, "tool_name": wanted.tool}
    return hours.filter(**{column: value for column, value in given.items() if value})


def _is_of(key: ShapeKey, wanted: UsageFilter) -> bool:
    return wanted.server in ("", key.server) and wanted.tool in ("", key.tool)
