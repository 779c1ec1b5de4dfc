"""Sums of what the clock has counted: from where they were worked out ahead, or added up by the database.

What was worked out ahead is believed only while the hours that it was made of are as they were: never does it say anything
else than they do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.db.models import BigIntegerField, Count, Field, Max, OuterRef, Q, QuerySet, Subquery, Sum, TextField
from django.db.models.functions import Cast, Coalesce

from mcpregistry.domain.usage import Tally, spans
from mcpregistry.domain.usage_sums import PARTS, Kind, Lines, Name, Sums, unpacked
from mcpregistry.models import CountedSpan, SpanUsage, UsageSums
from mcpregistry.models.usage import TOOK, Span

COLUMNS = {"server": "server_slug", "tool": "tool_name", "agent": "agent_slug", "endpoint": "endpoint_slug"}
_SUMS = ("calls", "errors", "refused", "sent", "size", "cost", *TOOK)
# Sums of small numbers are whole ones in either database: to convert forty of each row anew takes longer than to add them up.
_LARGE = ("size", "cost")
_ADDED = {f"sum_{name}": Sum(name, output_field=None if name in _LARGE else Field()) for name in _SUMS}
_NEWEST = Max("last", output_field=Field())  # as the database has it: Django takes longer to convert thousands of them
_CODES = Cast("codes", TextField())  # thousands of rows share a few texts: each is parsed once


class Agreed(NamedTuple):
    """Of the hours of some time. Whatever changes one of them changes one of these numbers: calls become more, and each
    that ends leaves one less that is unsettled."""

    hours: int
    calls: int
    errors: int
    unsettled: int


def name_of(kind: Kind, period: str) -> str:
    """What the sums of a period, or of a day, are called."""
    return f"{kind} {period}"


def stored(name: str, begins: datetime, until: datetime) -> Lines | None:
    """What was worked out ahead; None if it was not, or an hour has changed since. In one question."""
    row = UsageSums.objects.filter(name=name, begins=begins, until=until, **_as_now()).values_list("body", flat=True)
    body = row.first()
    return unpacked(body) if body is not None else None


def _as_now() -> dict[str, Any]:
    """As ``Agreed`` says, of the hours as they are."""
    span = CountedSpan.objects.filter(span=Span.HOUR, begins__gte=OuterRef("begins"), begins__lt=OuterRef("until"))
    one = span.order_by().values("span")
    sums = {name: Sum(name) for name in ("calls", "errors", "unsettled")} | {"hours": Count("id")}
    return {
        name: Coalesce(Subquery(one.annotate(found=total).values("found")), 0, output_field=BigIntegerField())
        for name, total in sums.items()
    }


def kind_for(parts: Iterable[str]) -> Kind | None:
    """The smallest sums that tell these parts of a name; None: only the hours do."""
    return next((kind for kind, has in PARTS.items() if {*parts} <= {*has}), None)


def added_up(
    parts: Sequence[str], since: datetime, until: datetime, conditions: Mapping[str, str] | None = None
) -> Sums:
    """Hours and days of [since, until), by the database; only the codes of failures are added up here."""
    rows: QuerySet[Any, Any] = SpanUsage.objects.filter(within(since, until), **(conditions or {}))
    columns = [COLUMNS[part] for part in parts]
    codes = _codes(rows.filter(errors__gt=0).order_by().annotate(text=_CODES).values_list(*columns, "text"))
    sums = rows.order_by().values_list(*columns).annotate(**_ADDED, newest=_NEWEST)
    return dict(_tally(row[: len(parts)], row[len(parts) :], codes) for row in sums)


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


def _tally(name: Name, sums: tuple[Any, ...], codes: dict[Name, dict[str, int]]) -> tuple[Name, Tally]:
    """``sums`` in the order of ``_SUMS``, and when the last call came."""
    calls, errors, refused, sent, size, cost, *took, last = sums
    return name, Tally(calls, errors, refused, sent, size, cost, _moment(last), codes.get(name, {}), took)


def _moment(value: datetime | str) -> datetime:
    """SQLite has texts, in UTC."""
    return value if isinstance(value, datetime) else datetime.fromisoformat(value).replace(tzinfo=UTC)


def within(since: datetime, until: datetime) -> Q:
    """The days that were added up, and the hours around them."""
    days = CountedSpan.objects.filter(span=Span.DAY, begins__gte=since, begins__lt=until)
    whole, around = spans(since, until, days.values_list("begins", flat=True))
    found = Q(span=Span.DAY, begins__in=whole)
    for first, last in around:
        found |= Q(span=Span.HOUR, begins__gte=first, begins__lt=last)
    return found
