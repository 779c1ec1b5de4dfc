"""Counts of several kinds of rows in one query."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import Count, Min, QuerySet, Value
from django.db.models.functions import Coalesce


def counts(wanted: Mapping[str, QuerySet[Any]]) -> dict[str, int]:
    """How many rows there are of each, by name."""
    rows = [
        found.order_by().values(of=Value(name)).annotate(count=Count("pk"))
        for name, found in wanted.items()
    ]
    return {row["of"]: row["count"] for row in rows[0].union(*rows[1:], all=True)} if rows else {}


def oldest(
    wanted: Mapping[str, tuple[QuerySet[Any], Coalesce | str]],
) -> dict[str, tuple[int, datetime | None]]:
    """How many rows there are of each, and the earliest time of the column or expression beside it.
    Only what there is any of."""
    rows = [
        found.order_by().values(of=Value(name)).annotate(count=Count("pk"), since=Min(time))
        for name, (found, time) in wanted.items()
    ]
    every = rows[0].union(*rows[1:], all=True) if rows else []
    return {row["of"]: (row["count"], row["since"]) for row in every if row["count"]}
