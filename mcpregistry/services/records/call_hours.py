"""What calls come to, by the hour and by the day, counted by the clock: no page goes through the
calls of weeks.

An hour is counted when it is over. It is counted anew when its calls have changed since: a held
call has ended, a call was recorded late, an end that was only supposed has become known. Each count
reads the hour whole and replaces it whole, in one transaction, so that nothing is counted twice,
whoever dies in the middle. A day is the sum of its hours. It goes with the first hour of it that is
replaced, and is added up anew: who finds none reads the hours.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import DataError, connection, transaction
from django.db.models import Max, Min

from mcpregistry.domain.usage import (
    DAY,
    HOUR,
    Key,
    Tallied,
    UsageTally,
    truncate_to_day,
    truncate_to_hour,
)
from mcpregistry.models import CountedSpan, Invocation, SpanFailure, SpanUsage
from mcpregistry.models.usage import TOOK, SpanLength
from mcpregistry.queries.call_tallies import count_totals, open_calls, tally_calls_between
from mcpregistry.queries.usage_sums import add_up_spans
from mcpregistry.services.records.sql import adapt_moment, build_insert

log = structlog.get_logger(__name__)

KEPT = timedelta(days=400)
_LATE = timedelta(hours=24)  # so long after an hour a call of it may still be recorded
_IN_ONE_PASS = 1_000  # hours that were never counted: after an upgrade there may be a year of them
_UNSETTLED = 500  # hours with calls that have no end, looked at in one pass; the newest
_SUMS = ("calls", "errors", "refused", "sent", "size", "cost", *TOOK)
_KEY = ("agent_slug", "endpoint_slug", "server_slug", "tool_name")
_COLUMNS = ("span", "begins", *_KEY, *_SUMS, "codes", "last")
_INSERT = build_insert(SpanUsage._meta.db_table, _COLUMNS)


def count_due(now: datetime) -> int:
    """Count the hours that are over and are not counted yet, or have changed since. Returns how
    many were counted."""
    over = truncate_to_hour(now)
    _mark_for_recount(over)
    hours = [*_list_new_hours(over), *_list_changed_hours(over)]
    for hour in hours:
        _count_or_postpone(hour)
    for day in _list_due_days(over):
        _add_up(day)
    return len(hours)


def _count_or_postpone(hour: datetime) -> None:
    """One that cannot be counted is tried again with each pass, and keeps no later one from being
    counted."""
    try:
        _count(hour)
    except (DataError, ValueError):
        log.exception("hour_not_counted", hour=hour.isoformat())
        CountedSpan.objects.update_or_create(
            span=SpanLength.HOUR, begins=hour, defaults={"again": True}
        )


def _mark_for_recount(over: datetime) -> None:
    """After a clock was set back: what it counted before, and is not over now, is counted again
    when it is."""
    ahead = CountedSpan.objects.filter(span=SpanLength.HOUR, begins__gte=over, again=False)
    if ahead.update(again=True):
        with transaction.atomic():
            _forget_days(begins__gt=over - DAY)


def _forget_days(**which: Any) -> None:
    CountedSpan.objects.filter(span=SpanLength.DAY, **which).delete()
    SpanUsage.objects.filter(span=SpanLength.DAY, **which).delete()


def _list_new_hours(over: datetime) -> list[datetime]:
    """From the newest that is counted, or from the oldest call."""
    counted = CountedSpan.objects.filter(span=SpanLength.HOUR, begins__lt=over).aggregate(
        last=Max("begins")
    )["last"]
    first = counted + HOUR if counted else _find_oldest_hour(over)
    due = 0 if first is None else min(_IN_ONE_PASS, int((over - first) / HOUR))
    return [first + HOUR * number for number in range(due)] if first else []


def _find_oldest_hour(over: datetime) -> datetime | None:
    found = Invocation.objects.filter(received_at__gte=over - KEPT).aggregate(
        at=Min("received_at")
    )["at"]
    return found and truncate_to_hour(found)


def _list_changed_hours(over: datetime) -> list[datetime]:
    """Those counted before whose calls are others now.

    How many came, failed and may still change is enough to see it: calls are never fewer, and each
    known end leaves one less that may change. Retention alone takes calls away; what was counted of
    them stays.
    """
    known = CountedSpan.objects.filter(span=SpanLength.HOUR, begins__lt=over)
    late = known.filter(begins__gte=over - _LATE)
    again = known.filter(again=True)
    unsettled = known.filter(unsettled__gt=0).order_by("-begins")[:_UNSETTLED]
    rows = {row.begins: row for found in (late, again, unsettled) for row in found}
    still_open = open_calls()
    return [
        begins
        for begins, row in sorted(rows.items())
        if row.again or _is_hour_changed(row, still_open)
    ]


def _is_hour_changed(row: CountedSpan, still_open: list[datetime]) -> bool:
    found = count_totals(row.begins, row.begins + HOUR, still_open)
    return found != (row.calls, row.errors, row.unsettled) and (
        found.calls >= row.calls or row.unsettled > 0
    )


def _count(hour: datetime) -> None:
    """Read before anything is locked: calls never wait. Should two clocks count at once, the older
    reading may stay; the next pass sees that it differs."""
    found = tally_calls_between(hour, hour + HOUR, still_open=open_calls())
    with transaction.atomic():
        CountedSpan.objects.get_or_create(span=SpanLength.HOUR, begins=hour)
        row = CountedSpan.objects.select_for_update().get(span=SpanLength.HOUR, begins=hour)
        # retention has been there: nothing of it changes any more
        gone = found.totals.calls < row.calls
        if not gone:
            row.calls, row.errors, row.unsettled = found.totals
            _replace(hour, found)
        else:
            row.unsettled = 0
        row.again = False
        row.save()


def _replace(hour: datetime, found: Tallied) -> None:
    SpanUsage.objects.filter(span=SpanLength.HOUR, begins=hour).delete()
    SpanFailure.objects.filter(begins=hour).delete()
    _forget_days(begins=truncate_to_day(hour))
    _write(SpanLength.HOUR, hour, sorted(found.by_key.items()))
    SpanFailure.objects.bulk_create(
        SpanFailure(
            begins=hour,
            server_slug=key.server,
            tool_name=key.tool,
            code=key.code,
            shape=key.shape,
            count=alike.count,
            first=alike.first,
            last=alike.last,
            examples=[[at.isoformat(), call] for at, call in alike.examples],
        )
        for key, alike in found.alike.items()
    )


def _write(span: SpanLength, begins: datetime, tallies: Iterable[tuple[Key, UsageTally]]) -> None:
    """In plain SQL: Django would look at each of fifty columns of each row, which takes five times
    as long."""
    rows = [
        [
            span.value,
            adapt_moment(begins),
            *key,
            tally.calls,
            tally.errors,
            tally.refused,
            tally.sent,
            tally.size,
            tally.cost,
            *tally.took,
            json.dumps(tally.codes),
            adapt_moment(tally.last or begins),
        ]
        for key, tally in tallies
    ]
    if rows:
        with connection.cursor() as cursor:
            cursor.executemany(_INSERT, rows)


def _list_due_days(over: datetime) -> list[datetime]:
    """Days that are over, whose hours are counted and not added up; the first has fewer hours."""
    hours = CountedSpan.objects.filter(span=SpanLength.HOUR, begins__lt=truncate_to_day(over))
    days = {truncate_to_day(hour) for hour in hours.values_list("begins", flat=True)}
    return sorted(
        days.difference(
            CountedSpan.objects.filter(span=SpanLength.DAY).values_list("begins", flat=True)
        )
    )


def _add_up(day: datetime) -> None:
    """Its hours are locked, so that nobody replaces one meanwhile."""
    within = CountedSpan.objects.filter(span=SpanLength.HOUR, begins__gte=day, begins__lt=day + DAY)
    with transaction.atomic():
        hours = list(within.select_for_update().order_by("begins"))
        _forget_days(begins=day)
        sums = add_up_spans(Key._fields, day, day + DAY)
        _write(SpanLength.DAY, day, sorted((Key(*name), tally) for name, tally in sums.items()))
        CountedSpan.objects.create(
            span=SpanLength.DAY,
            begins=day,
            calls=sum(hour.calls for hour in hours),
            errors=sum(hour.errors for hour in hours),
        )
