"""Sums that the clock works out ahead say what the hours say: whatever changed since, whoever died,
in this hour and in the next."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import astuple
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError

from mcpregistry.domain.usage import BUCKETS, DAY, UsageTally
from mcpregistry.domain.usage_advice import FEWEST, advise_on_usage
from mcpregistry.domain.usage_sums import (
    Sums,
    UsageKind,
    UsageLine,
    UsageLines,
    group_sums,
    join_sums,
    pack_lines,
    unpack_lines,
)
from mcpregistry.models import CountedSpan, UsageSums
from mcpregistry.models.usage import SpanLength
from mcpregistry.queries import overview, usage
from mcpregistry.queries import usage_sums as queries
from mcpregistry.queries.usage import By, UsageFilter
from mcpregistry.services.records import call_hours, usage_sums
from tests.services.test_call_hours import History

NARROWED = (
    UsageFilter(server="git"),
    UsageFilter(search="L"),
    UsageFilter(agent="a"),
    UsageFilter(endpoint="default"),
    UsageFilter(server="git", tool="diff"),
)
PAGES = [
    *((by, "7d", UsageFilter()) for by in By),
    *((By.TOOL, period, UsageFilter()) for period in ("24h", "30d")),
    *((by, "7d", wanted) for by in (By.TOOL, By.AGENT) for wanted in NARROWED),
]


def compared(before: UsageTally) -> tuple[int, list[int]]:
    """What pages say of the period before."""
    return before.calls, before.took


def said(now: datetime) -> dict[Any, Any]:
    """Every figure of every page."""
    found: dict[Any, Any] = {}
    for by, period, wanted in PAGES:
        page = usage.usage(by, usage.PERIODS[period], now=now, wanted=wanted)
        rows = {
            (row.server, row.name): (row.tally, compared(row.before), [*row.advice])
            for row in page.rows
        }
        found[by, period, wanted] = (
            rows,
            page.total.tally,
            compared(page.total.before),
            page.live_from,
        )
    for bars in overview.PERIODS.values():
        first = bars.first(now)
        live_from = overview.count_traffic(bars, now=now).live_from
        newest = usage.lately(live_from, first, now=now)
        ahead = overview.ahead(bars, now=now, newest=newest)
        busy = overview.busiest(bars, now=now, newest=newest, counted=ahead)
        found[bars.name] = (
            usage.times_since(first, newest, ahead).took,
            {astuple(each) for each in busy},
        )
    return found


def of_hours(monkeypatch: pytest.MonkeyPatch, now: datetime) -> dict[Any, Any]:
    with monkeypatch.context() as patch:
        patch.setattr(usage, "load_stored_sums", lambda *_: None)
        patch.setattr(overview, "load_stored_sums", lambda *_: None)
        patch.setattr(queries, "load_stored_sums", lambda *_: None)  # then all buckets are read
        return said(now)


@pytest.mark.exhaustive
@pytest.mark.django_db
@pytest.mark.both_databases
def test_they_say_what_the_hours_say(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(random.Random(7))
    for step in range(12):
        history.come(30)
        history.end_late()
        history.correct()
        call_hours.count_due(history.now)
        if step == 5:
            dies(monkeypatch, history.now)
        if step == 8:
            usage_sums.refresh_sums(history.now)
            assert usage_sums.refresh_sums(history.now) == 0, "made twice"
        history.now += timedelta(hours=history.chance.randrange(8, 30))
    history.now = history.now.replace(minute=50)
    call_hours.count_due(history.now)
    usage_sums.refresh_sums(history.now)
    assert (
        UsageSums.objects.filter(name=queries.name_of(UsageKind.BY_ENDPOINT, "a day")).count() >= 6
    )
    next_hour = history.now + timedelta(minutes=15)  # the clock has not been at it yet
    assert read_ahead(history.now) == read_ahead(next_hour) == 17, (
        "all but those of one agent's tools, and of one server's agents"
    )
    assert said(next_hour) == of_hours(monkeypatch, next_hour)
    while history.open:  # their hours are counted again, by a process that knows of no sums
        history.end_late()
    assert call_hours.count_due(history.now) > 0
    assert read_ahead(history.now) == 0
    usage_sums.refresh_sums(history.now)
    assert read_ahead(history.now) == 17
    assert said(history.now) == of_hours(monkeypatch, history.now)


def dies(monkeypatch: pytest.MonkeyPatch, now: datetime) -> None:
    """The database goes away when some are written and others are not."""
    made = usage_sums._make_row
    left = iter(range(5))

    def row(*facts: Any) -> UsageSums:
        if next(left, None) is None:
            raise DatabaseError("gone")
        return made(*facts)

    with monkeypatch.context() as patch, suppress(DatabaseError):
        patch.setattr(usage_sums, "_make_row", row)
        usage_sums.refresh_sums(now)


def read_ahead(now: datetime) -> int:
    """How many of the pages find their sums."""
    with pytest.MonkeyPatch.context() as patch:
        found: list[UsageLines | None] = []

        def stored(*wanted: Any) -> UsageLines | None:
            found.append(queries.load_stored_sums(*wanted))
            return found[-1]

        patch.setattr(usage, "load_stored_sums", stored)
        patch.setattr(overview, "load_stored_sums", stored)
        said(now)
    return sum(each is not None for each in found)


@pytest.mark.exhaustive
@pytest.mark.django_db
def test_after_an_upgrade_days_are_made_first_in_many_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History(random.Random(8))
    for _ in range(10):
        history.come(5)
        history.now += DAY
    call_hours.count_due(history.now)
    monkeypatch.setattr(usage_sums, "_DAYS_IN_ONE_PASS", 4)
    names = [queries.name_of(kind, "a day") for kind in usage_sums._OF_DAYS]
    whole = CountedSpan.objects.filter(span=SpanLength.DAY).count()
    passes = 0
    while usage_sums.refresh_sums(history.now):
        passes += 1
        made = UsageSums.objects.filter(name__in=names).count()
        assert made == min(4 * passes, whole) * 2
        assert UsageSums.objects.exclude(name__in=names).exists() == (made == whole * 2)
        assert read_ahead(history.now) == 17 * (made == whole * 2)
    assert passes > 2
    assert said(history.now) == of_hours(monkeypatch, history.now)


def test_what_another_release_has_written_is_none() -> None:
    lines = UsageLines(
        UsageLine((), UsageTally(calls=2)),
        [UsageLine(("git", "log"), UsageTally(calls=2, codes=UsageTally().codes), None, [])],
    )
    assert unpack_lines(pack_lines(lines)) == lines
    for body in ("", "x", pack_lines(lines)[:-9], "eJwDAAAAAAE="):
        assert unpack_lines(body) is None


def test_parts_stay_as_they_are_when_they_are_joined() -> None:
    one: Sums = {("a",): UsageTally(calls=1)}
    two: Sums = {("a",): UsageTally(calls=2), ("b",): UsageTally(calls=4)}
    whole = join_sums([one, two, two])
    assert {name[0]: tally.calls for name, tally in whole.items()} == {"a": 5, "b": 8}
    assert (one["a",].calls, two["a",].calls, two["b",].calls) == (1, 2, 4)


def test_sums_stay_as_they_are_when_they_are_grouped() -> None:
    tools: Sums = {
        ("git", "log"): UsageTally(calls=1),
        ("git", "diff"): UsageTally(calls=2),
        ("files", "read"): UsageTally(calls=4),
    }
    assert {name: tally.calls for name, tally in group_sums(tools, (0,)).items()} == {
        ("git",): 3,
        ("files",): 4,
    }
    assert [tally.calls for tally in tools.values()] == [1, 2, 4]


def test_nothing_is_advised_of_fewer_calls_than_advice_needs() -> None:
    """Else the sums, which leave such tools out, would say less than their figures."""
    fast = [0] * BUCKETS
    slow = [0] * BUCKETS
    fast[5] = 1_000
    slow[-1] = FEWEST - 1
    worst = UsageTally(
        FEWEST - 1, FEWEST - 1, 0, FEWEST - 1, 10**9, None, None, {"TIMEOUT": FEWEST - 1}, slow
    )
    assert advise_on_usage(worst, before=UsageTally(took=fast), others=UsageTally(took=fast)) == []
