"""Counts of several kinds of rows in one query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import Count, QuerySet, Value


def counts(wanted: Mapping[str, QuerySet[Any]]) -> dict[str, int]:
    """How many rows there are of each, by name."""
    rows = [found.order_by().values(of=Value(name)).annotate(count=Count("pk")) for name, found in wanted.items()]
    return {row["of"]: row["count"] for row in rows[0].union(*rows[1:], all=True)} if rows else {}
