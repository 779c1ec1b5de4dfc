"""Sums of usage that the clock works out ahead, so that no page adds up the rows of weeks.

First those of each day that is over, by endpoint and tool and by who called, once; of them the sums
of every period that pages ask for, as they will ask in this hour, and in the next, until its first
pass. They are made of counted hours and checked against them by whoever reads
(``queries.usage_sums.load_stored_sums``): nothing has to be taken back when an hour changes. After
an upgrade days are made a month a pass, and periods when all days are there; until then pages read
the hours.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

from django.db import transaction

from mcpregistry.db import open_snapshot
from mcpregistry.domain.usage import DAY, HOUR, split_time_range
from mcpregistry.domain.usage_sums import (
    PARTS,
    Sums,
    UsageKind,
    UsageLine,
    UsageLines,
    build_lines,
    group_sums,
    join_sums,
    pack_lines,
    unpack_lines,
)
from mcpregistry.models import CountedSpan, UsageSums
from mcpregistry.models.usage import SpanLength
from mcpregistry.queries import overview, usage
from mcpregistry.queries.usage_sums import Agreed, add_up_spans, name_of

OF_A_DAY = "a day"
_DAYS_IN_ONE_PASS = 31
_OF_DAYS = (UsageKind.BY_ENDPOINT, UsageKind.CALLERS)  # the others are sums of these


class Window(NamedTuple):
    """A period and the one before it, which begins with ``begins``, and ends with ``since``.
    ``kinds``: what is wanted of it; none: its busiest tools alone."""

    name: str
    begins: datetime
    since: datetime
    until: datetime
    kinds: tuple[UsageKind, ...] = ()


def list_windows(until: datetime) -> list[Window]:
    """What pages ask for while hours are counted up to ``until``: in the hour after it, and in the
    next one."""
    found = []
    for hour in (until, until + HOUR):
        for each in usage.PERIODS.values():
            since = each.since(hour)
            found.append(
                Window(each.name, since - HOUR * each.hours, since, until, tuple(UsageKind))
            )
        for bars in overview.PERIODS.values():
            first = bars.first(hour)
            found.append(Window(bars.name, first, first, until))
    return list(dict.fromkeys(found))


def refresh_sums(now: datetime) -> int:
    """Make what is not there or does not agree with the hours any more. Returns how many sums were
    made."""
    until = usage.find_counted_end(now)
    if until is None:
        return 0
    wanted = list_windows(until)
    begins = min(window.begins for window in wanted)
    hours = _Hours(begins, until)
    there = hours.there
    days = [
        day
        for day in hours.days
        if not all((name_of(kind, OF_A_DAY), day, day + DAY) in there for kind in _OF_DAYS)
    ]
    for day in days[:_DAYS_IN_ONE_PASS]:
        _make_day(day)
    missing = [name for name in _list_places(wanted) if name not in there]
    made = len(days[:_DAYS_IN_ONE_PASS])
    if missing and len(days) <= _DAYS_IN_ONE_PASS:
        made += _make_sums(wanted, begins, until)
    _forget(begins, {*_list_places(wanted)})
    return made


Place = tuple[str, datetime, datetime]


def _list_places(wanted: Iterable[Window]) -> list[Place]:
    found = []
    for window in wanted:
        names = [name_of(kind, window.name) for kind in window.kinds] or [
            overview.sums_name(window.name)
        ]
        found += [(name, window.begins, window.until) for name in names]
    return found


@dataclass(frozen=True)
class _Hours:
    """What the hours of some time are, in one question."""

    begins: datetime
    until: datetime
    rows: list[tuple[datetime, int, int, int]] = field(init=False)

    def __post_init__(self) -> None:
        within = CountedSpan.objects.filter(
            span=SpanLength.HOUR, begins__gte=self.begins, begins__lt=self.until
        )
        rows = within.order_by("begins").values_list("begins", "calls", "errors", "unsettled")
        object.__setattr__(self, "rows", list(rows))

    @cached_property
    def _at(self) -> list[datetime]:
        return [row[0] for row in self.rows]

    @cached_property
    def _up_to(self) -> list[list[int]]:
        columns = [
            [row[1] for row in self.rows],
            [row[2] for row in self.rows],
            [row[3] for row in self.rows],
        ]
        return [[0, *accumulate(column)] for column in columns]

    def read_agreed_figures(self, begins: datetime, until: datetime) -> Agreed:
        """What readers ask for of a part of it."""
        first = bisect_left(self._at, begins)
        last = bisect_left(self._at, until)
        return Agreed(last - first, *(sums[last] - sums[first] for sums in self._up_to))

    @cached_property
    def days(self) -> list[datetime]:
        """Those whose hours were added up, and that lie whole within it."""
        within = CountedSpan.objects.filter(
            span=SpanLength.DAY, begins__gte=self.begins, begins__lte=self.until - DAY
        )
        return sorted(within.values_list("begins", flat=True))

    @cached_property
    def there(self) -> set[Place]:
        """Which sums are there and agree."""
        rows = UsageSums.objects.filter(begins__gte=self.begins, until__lte=self.until)
        columns = ("name", "begins", "until", "hours", "calls", "errors", "unsettled")
        return {
            (name, begins, until)
            for name, begins, until, *found in rows.values_list(*columns)
            if self.read_agreed_figures(begins, until) == Agreed(*found)
        }


def _make_day(day: datetime) -> None:
    with open_snapshot():
        hours = _Hours(day, day + DAY)
        sums = {kind: add_up_spans(PARTS[kind], day, day + DAY) for kind in _OF_DAYS}
    _write(
        [
            _make_row((name_of(kind, OF_A_DAY), day, day + DAY), hours, build_lines(found, {}))
            for kind, found in sums.items()
        ]
    )


def _make_sums(wanted: Sequence[Window], begins: datetime, until: datetime) -> int:
    """All periods of one moment: between the edges of any of them everything is added up once."""
    with open_snapshot():
        hours = _Hours(begins, until)
        rows = [row for kind in _OF_DAYS for row in _iterate_rows(kind, wanted, hours)]
    _write(rows)
    return len(rows)


def _iterate_rows(kind: UsageKind, wanted: Sequence[Window], hours: _Hours) -> Iterator[UsageSums]:
    edges = sorted(
        {edge for window in wanted for edge in (window.begins, window.since, window.until)}
    )
    days = _find_agreeing_days(kind, hours)
    parts = {
        first: _load_sums_between(kind, first, last, days)
        for first, last in pairwise(edges)
        if hours.read_agreed_figures(first, last).calls
    }
    for window in wanted:
        now = join_sums(sums for first, sums in parts.items() if window.since <= first)
        before = join_sums(
            sums for first, sums in parts.items() if window.begins <= first < window.since
        )
        for name, lines in _iterate_window_lines(kind, window, now, before):
            yield _make_row((name, window.begins, window.until), hours, lines)


def _iterate_window_lines(
    kind: UsageKind, window: Window, now: Sums, before: Sums
) -> Iterator[tuple[str, UsageLines]]:
    if kind in window.kinds:
        yield name_of(kind, window.name), build_lines(now, before)
    if kind is UsageKind.BY_ENDPOINT:
        yield from _iterate_tool_lines(window, group_sums(now, (1, 2)), group_sums(before, (1, 2)))


def _iterate_tool_lines(
    window: Window, now: Sums, before: Sums
) -> Iterator[tuple[str, UsageLines]]:
    if window.kinds:
        yield name_of(UsageKind.TOOLS, window.name), build_lines(now, before, advised=True)
        yield (
            name_of(UsageKind.SERVERS, window.name),
            build_lines(group_sums(now, (0,)), group_sums(before, (0,))),
        )
    else:
        lines = build_lines(now, {})
        busy = sorted((row for row in lines.rows if row.name[0]), key=_count_calls, reverse=True)
        yield overview.sums_name(window.name), lines._replace(rows=busy[: overview.BUSIEST])


def _count_calls(line: UsageLine) -> int:
    return line.now.calls if line.now else 0


def _find_agreeing_days(kind: UsageKind, hours: _Hours) -> set[datetime]:
    """Whose sums are there and agree."""
    name = name_of(kind, OF_A_DAY)
    return {begins for found, begins, _ in hours.there if found == name}


def _load_sums_between(
    kind: UsageKind, first: datetime, last: datetime, days: set[datetime]
) -> Sums:
    whole, around = split_time_range(first, last, days)
    name = name_of(kind, OF_A_DAY)
    parts = []
    for day in whole:
        body = UsageSums.objects.values_list("body", flat=True).get(
            name=name, begins=day, until=day + DAY
        )
        lines = unpack_lines(body)
        parts.append(
            _load_current_sums(lines) if lines else add_up_spans(PARTS[kind], day, day + DAY)
        )
    parts += [add_up_spans(PARTS[kind], *each) for each in around]
    return join_sums(parts)


def _load_current_sums(lines: UsageLines) -> Sums:
    return {line.name: line.now for line in lines.rows if line.now}


def _make_row(place: Place, hours: _Hours, lines: UsageLines) -> UsageSums:
    name, begins, until = place
    found = hours.read_agreed_figures(begins, until)._asdict()
    return UsageSums(name=name, begins=begins, until=until, body=pack_lines(lines), **found)


def _write(rows: Sequence[UsageSums]) -> None:
    with transaction.atomic():
        for row in rows:
            UsageSums.objects.filter(name=row.name, begins=row.begins, until=row.until).delete()
        # another clock has made the same
        UsageSums.objects.bulk_create(rows, ignore_conflicts=True)


def _forget(begins: datetime, wanted: set[Place]) -> None:
    """Of periods that nobody asks for any more, and of days before all of them."""
    of_days = [name_of(kind, OF_A_DAY) for kind in _OF_DAYS]
    gone = [
        pk
        for pk, name, first, last in UsageSums.objects.values_list("pk", "name", "begins", "until")
        if (first < begins if name in of_days else (name, first, last) not in wanted)
    ]
    if gone:
        UsageSums.objects.filter(pk__in=gone).delete()
