"""Rows that many tests start from, without the time that it takes to make them: what was made a
moment ago, put in again.

They do not grow old: after ``FRESH`` seconds they are made anew, as if a test had been slow by that
much.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from django.db import connection, transaction

from mcpregistry.models import Configuration, call_text
from tests import origin

T = TypeVar("T")
FRESH = 20
_CONFIGURATION = Configuration._meta.db_table


@dataclass(frozen=True)
class _Made:
    at: float  # monotonic
    result: object
    rows: dict[str, origin.Rows]
    configuration: dict[str, object]


_made: dict[object, _Made] = {}


def remembered(key: object, make: Callable[[], T], ignored: str = "") -> T:
    """What ``make`` returns, a copy; the rows that it makes are in the database. Equal keys make
    equal rows.

    It may fill empty tables and change the configuration. Where the site is not as new, ``make`` is
    simply called. ``make`` neither reads nor writes the tables whose names begin with ``ignored``,
    so these may have rows.
    """
    empty = origin.as_new(_CONFIGURATION, ignored)
    if empty is None:
        return make()
    made = _made.get(key)
    if made is not None and time.monotonic() - made.at < FRESH:
        _put(made)
    else:
        made = _make(make, empty)
        _made[key] = made
    return copy.deepcopy(made.result)  # type: ignore[return-value]


def _make(make: Callable[[], object], empty: list[str]) -> _Made:
    at = time.monotonic()
    result = make()
    rows = {table: origin.rows(table) for table in origin.not_empty(empty)}
    return _Made(at, copy.deepcopy(result), rows, {**Configuration.objects.values().get()})


def _put(made: _Made) -> None:
    with transaction.atomic():
        with origin.unguarded(set(made.rows)):
            for table, rows in made.rows.items():
                origin.insert(table, rows)
            with connection.cursor() as cursor:
                for statement in call_text.index_anew(connection.vendor):
                    cursor.execute(statement)
        Configuration.objects.update(**made.configuration)  # and whoever runs already hears of it
