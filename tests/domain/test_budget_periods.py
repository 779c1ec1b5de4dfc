"""Periods of budgets by the calendar, whatever clocks do; and the arithmetic of marks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpregistry.domain.budgets import (
    Book,
    Level,
    Period,
    Unit,
    convert_dollars,
    convert_limit,
    convert_to_decimal,
    find_calendar_period,
    format_amount,
)

# Clocks change at two in the morning, at midnight itself (both ways), by half an hour, and not at
# all.
ZONES = [
    "UTC",
    "Europe/Oslo",
    "America/New_York",
    "America/Havana",
    "Asia/Beirut",
    "America/Santiago",
    "America/Asuncion",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "Pacific/Apia",
]
moments = st.integers(1_262_304_000, 2_145_830_400).map(
    lambda second: datetime.fromtimestamp(second, UTC)
)  # 2010 to 2037


@given(moments, st.sampled_from(Period), st.sampled_from(ZONES))
def test_every_moment_is_in_one_period_and_these_follow_each_other_without_a_gap(now, period, name):
    zone = ZoneInfo(name)
    here = find_calendar_period(period, now, zone)
    assert here.start <= now < here.end
    for inside in (
        here.start,
        here.end - timedelta(microseconds=1),
        here.start + (here.end - here.start) / 2,
    ):
        assert find_calendar_period(period, inside, zone) == here
    assert find_calendar_period(period, here.end, zone).start == here.end
    assert (
        find_calendar_period(period, here.start - timedelta(microseconds=1), zone).end == here.start
    )


@pytest.mark.parametrize(
    ("day", "hours"),
    [("2026-03-28", 24), ("2026-03-29", 23), ("2026-10-25", 25), ("2026-10-26", 24)],
)
def test_a_day_in_which_clocks_change_is_as_long_as_it_is(day, hours):
    zone = ZoneInfo("Europe/Oslo")
    found = find_calendar_period(
        Period.DAY, datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=zone), zone
    )
    assert found.end - found.start == timedelta(hours=hours)
    assert found.start.astimezone(zone).isoformat()[:19] == f"{day}T00:00:00"


@pytest.mark.parametrize(
    ("period", "start", "end"),
    [
        # the first of two hours that are called "2"
        (Period.HOUR, "2026-10-25T00:00", "2026-10-25T01:00"),
        (Period.DAY, "2026-10-24T22:00", "2026-10-25T23:00"),
        (Period.WEEK, "2026-10-18T22:00", "2026-10-25T23:00"),
        (Period.MONTH, "2026-09-30T22:00", "2026-10-31T23:00"),
    ],
)
def test_periods_around_a_change_of_clocks(period, start, end):
    found = find_calendar_period(
        period, datetime(2026, 10, 25, 0, 30, tzinfo=UTC), ZoneInfo("Europe/Oslo")
    )
    assert [found.start, found.end] == [
        datetime.fromisoformat(f"{each}+00:00") for each in (start, end)
    ]


numbers = st.integers(0, 10**12)


@given(numbers, st.lists(numbers, max_size=20))
def test_what_is_let_through_never_passes_the_hard_mark_and_nothing_is_refused_that_fits(
    hard, wanted
):
    spent = 0
    reserved = 0
    for number, more in enumerate(wanted):
        book = Book(spent, reserved, None, hard)
        assert book.can_afford(more) == (spent + reserved + max(more, 1) <= hard)
        if book.can_afford(more):
            spent, reserved = (spent + more, reserved) if number % 2 else (spent, reserved + more)
    assert spent + reserved <= hard


def test_a_book_says_how_it_stands():
    marks = {"soft": 80, "hard": 100}
    assert [Book(each, 0, **marks).level for each in (0, 79, 80, 99, 100, 130)] == [
        Level.OK,
        Level.OK,
        Level.SOFT,
        Level.SOFT,
        Level.SPENT,
        Level.SPENT,
    ]
    assert [Book(70, 5, **marks).has_reached_soft_limit(more) for more in (4, 5)] == [False, True]
    assert Book(10**18).can_afford(10**18), "without a mark everything passes"
    assert not Book(0, hard=0).can_afford(0), "nothing at all is left of nothing"


@given(st.decimals(0, 10**6, places=8))
def test_money_is_exact_down_to_a_hundred_millionth_of_a_dollar(dollars):
    assert convert_to_decimal(convert_dollars(dollars), Unit.MONEY) == dollars
    assert convert_limit(dollars, Unit.MONEY) == convert_dollars(dollars)


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        (125_000_000, Unit.MONEY, "$1.25"),
        (1_234_500, Unit.MONEY, "$0.0123"),
        (0, Unit.MONEY, "$0.00"),
        (123_456_789_012_345, Unit.MONEY, "$1,234,567.89"),
        (1, Unit.CALLS, "1 call"),
        (12_000, Unit.TOKENS, "12,000 tokens"),
    ],
)
def test_numbers_are_told_as_people_write_them(number, unit, text):
    assert format_amount(number, unit) == text


def test_what_is_smaller_than_the_books_can_tell_is_not_nothing():
    assert convert_dollars(Decimal("0.000000001")) == 1
