"""What statements in raw SQL share: those of the recorder, whose hot path cannot afford the ORM,
and of what must write the very same (``ending.py``, ``audit.py``)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import cache

from django.db import connection


@cache
def get_vendor() -> str:
    """ "sqlite" or "postgresql", remembered: it is asked many times a call."""
    return connection.vendor


def build_insert(table: str, columns: Iterable[str]) -> str:
    """One row's INSERT, with ``%s`` for each value."""
    names = list(columns)
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))})"  # noqa: S608


def adapt_moment(value: datetime | None) -> datetime | str | None:
    """As ``adapt_datetimefield_value``, which takes ten times as long; our moments are in UTC, as
    is the database."""
    if value is None or get_vendor() != "sqlite":
        return value
    return value.replace(tzinfo=None).isoformat(" ")
