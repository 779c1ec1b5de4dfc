"""Arithmetic of budgets: what an agent or endpoint may spend in a period of the calendar, and when
the next one begins.

All books are kept in whole numbers, so that sums are exact in every database: tokens and calls as
they are, money in hundred-millionths of a US dollar (``convert_dollars``). Pure: times are given,
nothing is stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_CEILING, ROUND_DOWN, Decimal
from enum import StrEnum
from zoneinfo import ZoneInfo

_DOLLAR = 10**8
_HOUR = 3600
_ENDPOINT = "endpoint:"  # no name has a colon


def name_endpoint_payer(slug: str) -> str:
    """An endpoint among those who pay, beside agents, which stand there by their names alone."""
    return f"{_ENDPOINT}{slug}"


def list_endpoint_payers(payers: Iterable[str]) -> list[str]:
    """The names of the endpoints among them."""
    return [each.removeprefix(_ENDPOINT) for each in payers if each.startswith(_ENDPOINT)]


class Unit(StrEnum):
    """What is counted."""

    MONEY = "money"
    TOKENS = "tokens"
    CALLS = "calls"


class Period(StrEnum):
    """How often a budget resets."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class Level(StrEnum):
    """How a budget stands, in a word."""

    OK = "ok"
    SOFT = "soft limit reached"
    SPENT = "spent"


@dataclass(frozen=True, slots=True)
class CalendarSpan:
    """A period of the calendar: from ``start`` on, before ``end``; both in UTC."""

    start: datetime
    end: datetime


def find_calendar_period(period: Period, now: datetime, zone: ZoneInfo) -> CalendarSpan:
    """The period around ``now``. Days, weeks (from Monday on) and months begin at midnight in
    ``zone``, so a day in which clocks are changed has 23 or 25 hours; hours are the full hours of
    UTC, which no change of clocks touches."""
    if period is Period.HOUR:
        start = datetime.fromtimestamp(now.timestamp() // _HOUR * _HOUR, UTC)
        return CalendarSpan(start, start + timedelta(seconds=_HOUR))
    first = _find_first_day(period, now.astimezone(zone).date())
    return CalendarSpan(
        _find_midnight(first, zone), _find_midnight(_find_next_first_day(period, first), zone)
    )


def _find_first_day(period: Period, today: date) -> date:
    if period is Period.DAY:
        return today
    return (
        today - timedelta(days=today.weekday()) if period is Period.WEEK else today.replace(day=1)
    )


def _find_next_first_day(period: Period, first: date) -> date:
    if period is Period.MONTH:
        return (first + timedelta(days=31)).replace(day=1)
    return first + timedelta(days=7 if period is Period.WEEK else 1)


def _find_midnight(day: date, zone: ZoneInfo) -> datetime:
    """Where a day has no midnight it begins when clocks are put forward, where it has two with the
    first."""
    return datetime.combine(day, time(), zone).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Book:
    """How a budget stands in a period: ``reserved`` for what is out, ``soft`` and ``hard`` None
    where there is no mark."""

    spent: int
    reserved: int = 0
    soft: int | None = None
    hard: int | None = None

    def can_afford(self, more: int) -> bool:
        """Whether ``more`` fits under the hard limit, with all that is out. With 0: whether
        anything is left at all."""
        return self.hard is None or self.spent + self.reserved + max(more, 1) <= self.hard

    def has_reached_soft_limit(self, more: int = 0) -> bool:
        """Whether the soft limit is reached, once ``more`` is spent."""
        return self.soft is not None and self.spent + self.reserved + more >= self.soft

    @property
    def level(self) -> Level:
        """By what is spent, without what is out."""
        if self.hard is not None and self.spent >= self.hard:
            return Level.SPENT
        return Level.SOFT if self.soft is not None and self.spent >= self.soft else Level.OK


def convert_dollars(amount: Decimal) -> int:
    """Money as the books have it; what is smaller than they can tell counts as the next larger."""
    return int((amount * _DOLLAR).to_integral_value(ROUND_CEILING))


def convert_limit(mark: Decimal | None, unit: Unit) -> int | None:
    """A mark as people enter it, as the books have it."""
    if mark is None:
        return None
    return (
        convert_dollars(mark) if unit is Unit.MONEY else int(mark.to_integral_value(ROUND_CEILING))
    )


def convert_to_decimal(number: int, unit: Unit) -> Decimal:
    """A number of the books as people enter it: dollars, tokens or calls."""
    return Decimal(number) / _DOLLAR if unit is Unit.MONEY else Decimal(number)


def format_amount(number: int, unit: Unit) -> str:
    """A number of the books in words: "$1.25", "12,000 tokens", "1 call"; of money never more than
    it is."""
    if unit is Unit.MONEY:
        dollars = convert_to_decimal(number, unit)
        places = (
            Decimal("0.01") if number % (_DOLLAR // 100) == 0 or dollars >= 1 else Decimal("0.0001")
        )
        return f"${dollars.quantize(places, ROUND_DOWN):,}"
    return f"{number:,} {unit.value.removesuffix('s') if number == 1 else unit.value}"
