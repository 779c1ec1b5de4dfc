"""Sums of what the clock has counted: from where they were worked out ahead, or added up by the
database.

What was worked out ahead is believed only while the hours that it was made of are as they were:
never does it say anything else than they do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.db.models import (
    BigIntegerField,
    Count,
    Field,
    Max,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    TextField,
)
from django.db.models.functions import Cast, Coalesce

from mcpregistry.domain.usage import BUCKETS, UsageTally, merge_tallies, split_time_range
from mcpregistry.domain.usage_sums import PARTS, Name, Sums, UsageKind, UsageLines, unpack_lines
from mcpregistry.models import CountedSpan, SpanUsage, UsageSums
from mcpregistry.models.usage import TOOK, SpanLength

COLUMNS = {
    "server": "server_slug",
    "tool": "tool_name",
    "agent": "agent_slug",
    "endpoint": "endpoint_slug",
}
_SUMS = ("calls", "errors", "refused", "sent", "size", "cost")
# Sums of small numbers are whole ones in either database: to convert forty of each row anew takes
# longer than to add them up.
_LARGE = ("size", "cost")
_ADDED = {
    f"sum_{name}": Sum(name, output_field=None if name in _LARGE else Field())
    for name in (*_SUMS, *TOOK)
}
# as the database has it: Django takes longer to convert thousands of them
_NEWEST = Max("last", output_field=Field())
_CODES = Cast("codes", TextField())  # thousands of rows share a few texts: each is parsed once


class Agreed(NamedTuple):
    """Of the hours of some time. Whatever changes one of them changes one of these numbers: calls
    become more, and each that ends leaves one less that is unsettled."""

    hours: int
    calls: int
    errors: int
    unsettled: int


def name_of(kind: UsageKind, period: str) -> str:
    """What the sums of a period, or of a day, are called."""
    return f"{kind} {period}"


def load_stored_sums(name: str, begins: datetime, until: datetime) -> UsageLines | None:
    """What was worked out ahead; None if it was not, or an hour has changed since. In one
    question."""
    row = UsageSums.objects.filter(
        name=name, begins=begins, until=until, **_build_current_filter()
    ).values_list("body", flat=True)
    body = row.first()
    return unpack_lines(body) if body is not None else None


def _build_current_filter() -> dict[str, Any]:
    """As ``Agreed`` says, of the hours as they are."""
    span = CountedSpan.objects.filter(
        span=SpanLength.HOUR, begins__gte=OuterRef("begins"), begins__lt=OuterRef("until")
    )
    one = span.order_by().values("span")
    sums = {name: Sum(name) for name in ("calls", "errors", "unsettled")} | {"hours": Count("id")}
    return {
        name: Coalesce(
            Subquery(one.annotate(found=total).values("found")), 0, output_field=BigIntegerField()
        )
        for name, total in sums.items()
    }


def kind_for(parts: Iterable[str]) -> UsageKind | None:
    """The smallest sums that tell these parts of a name; None: only the hours do."""
    return next((kind for kind, has in PARTS.items() if {*parts} <= {*has}), None)


def find_used_buckets(period: str, begins: datetime, until: datetime) -> Sequence[int]:
    """The buckets of durations that have calls in a period or the one before; all buckets if no
    sums are stored for it."""
    lines = load_stored_sums(name_of(UsageKind.SERVERS, period), begins, until)
    if lines is None:
        return range(BUCKETS)
    took = merge_tallies(tally for tally in lines.total[1:3] if isinstance(tally, UsageTally)).took
    return [bucket for bucket, count in enumerate(took) if count]


def sum_calls_and_times(
    parts: Sequence[str],
    since: datetime,
    until: datetime,
    conditions: Mapping[str, str],
    buckets: Sequence[int],
) -> Sums:
    """Like ``add_up_spans``, but only how many calls there were and how long they took, because the
    database needs much less time for it."""
    rows = SpanUsage.objects.filter(build_span_filter(since, until), **conditions)
    columns = [COLUMNS[part] for part in parts]
    names = ["sum_calls", *(f"sum_{TOOK[bucket]}" for bucket in buckets)]
    sums = rows.order_by().values_list(*columns).annotate(**{name: _ADDED[name] for name in names})
    return {row[: len(parts)]: _calls_and_times(row[len(parts) :], buckets) for row in sums}


def _calls_and_times(sums: tuple[int, ...], buckets: Sequence[int]) -> UsageTally:
    calls, *counts = sums
    return UsageTally(calls=calls, took=_took(counts, buckets))


def add_up_spans(
    parts: Sequence[str],
    since: datetime,
    until: datetime,
    conditions: Mapping[str, str] | None = None,
    *,
    buckets: Sequence[int] = range(BUCKETS),
) -> Sums:
    """Hours and days of [since, until), by the database; only the codes of failures are added up
    here. ``buckets`` limits the durations that are read to those that have calls at all: half of a
    page's time goes into these columns."""
    rows: QuerySet[Any, Any] = SpanUsage.objects.filter(
        build_span_filter(since, until), **(conditions or {})
    )
    columns = [COLUMNS[part] for part in parts]
    codes = _codes(
        rows.filter(errors__gt=0).order_by().annotate(text=_CODES).values_list(*columns, "text")
    )
    added = {
        f"sum_{name}": _ADDED[f"sum_{name}"]
        for name in (*_SUMS, *(TOOK[bucket] for bucket in buckets))
    }
    sums = rows.order_by().values_list(*columns).annotate(**added, newest=_NEWEST)
    found = {}
    for row in sums:
        name = row[: len(parts)]
        values = row[len(parts) :]
        found[name] = _tally(values, codes.get(name, {}), buckets)
    return found


def _codes(rows: Iterable[tuple[str, ...]]) -> dict[Name, dict[str, int]]:
    found: dict[Name, dict[str, int]] = {}
    parsed: dict[str, list[tuple[str, int]]] = {}
    for *name, text in rows:
        if text not in parsed:
            parsed[text] = list(json.loads(text).items())
        codes = found.setdefault(tuple(name), {})
        for code, count in parsed[text]:
            codes[code] = codes.get(code, 0) + count
    return found


def _tally(sums: tuple[Any, ...], codes: dict[str, int], buckets: Sequence[int]) -> UsageTally:
    """``sums`` in the order of ``_SUMS``, then of ``buckets``, and when the last call came."""
    calls, errors, refused, sent, size, cost, *counts, last = sums
    return UsageTally(
        calls, errors, refused, sent, size, cost, _moment(last), codes, _took(counts, buckets)
    )


def _took(counts: Iterable[int], buckets: Sequence[int]) -> list[int]:
    took = [0] * BUCKETS
    for bucket, count in zip(buckets, counts, strict=True):
        took[bucket] = count
    return took


def _moment(value: datetime | str) -> datetime:
    """SQLite has texts, in UTC."""
    return (
        value if isinstance(value, datetime) else datetime.fromisoformat(value).replace(tzinfo=UTC)
    )


def build_span_filter(since: datetime, until: datetime) -> Q:
    """The days that were added up, and the hours around them."""
    days = CountedSpan.objects.filter(span=SpanLength.DAY, begins__gte=since, begins__lt=until)
    whole, around = split_time_range(since, until, days.values_list("begins", flat=True))
    found = Q(span=SpanLength.DAY, begins__in=whole)
    for first, last in around:
        found |= Q(span=SpanLength.HOUR, begins__gte=first, begins__lt=last)
    return found
