"""Queries that Django composes once for each connection, and then only executes.

For a small query, composing the SQL takes the ORM more than ten times as long as executing it. That
is nothing for a page, but it was most of every step of a run. So what each step reads and writes is
written down as any queryset, once, with ``Given("name")`` in place of each value that is known only
later:

    _TURNS = Select(Turn.objects.filter(run=Given("run")).order_by("number").values_list("number",
    "text", named=True)) _TURNS.rows(run="…")

Tables, columns and conversions stay the ORM's own. What is given is not looked at, though: rows are
named by their keys, not by instances, and a filter compares with no None. (``calls.recording`` goes
below Django's cursor instead, to write many calls with one commit.)
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Expression, Model, QuerySet
from django.db.models.sql import InsertQuery, UpdateQuery


class Given(Expression):
    """A value that comes with each execution; it is converted as the model's field ``like`` does,
    or ``name``."""

    def __init__(self, name: str, like: str = "") -> None:
        super().__init__()
        self.name = name
        self.like = like or name

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        """A placeholder whose parameter is this expression itself, exchanged for the value at each
        execution."""
        return "%s", [self]


@dataclass(frozen=True, slots=True)
class _Sql:
    text: str
    # (the name of what is given, its conversion), or ("", a constant)
    params: list[tuple[str, Any]]
    names: frozenset[str]
    converters: list[tuple[int, list[Callable[..., Any]], Any]]  # of the columns that come back

    def values(self, given: Mapping[str, Any], connection: BaseDatabaseWrapper) -> list[Any]:
        if given.keys() != self.names:
            raise TypeError(
                f"The query requires the values {sorted(self.names)}, but got {sorted(given)}."
            )
        return [save(given[name], connection) if name else save for name, save in self.params]


class _Composed:
    def __init__(self, query: Any) -> None:
        self._query = query

    def _ready(self) -> tuple[_Sql, BaseDatabaseWrapper]:
        """The SQL for this thread's connection, and that; kept with it, since conversions may be
        the connection's own."""
        connection = connections[DEFAULT_DB_ALIAS]
        kept: dict[_Composed, _Sql] = vars(connection).setdefault("composed", {})
        if self not in kept:
            # composing changes it, and others may do so now
            kept[self] = _sql_of(self._query.clone(), connection)
        return kept[self], connection


def _sql_of(query: Any, connection: BaseDatabaseWrapper) -> _Sql:
    compiler = query.get_compiler(connection=connection)
    composed = compiler.as_sql()
    text, params = composed[0] if isinstance(composed, list) else composed
    columns = [column for column, _, _ in (getattr(compiler, "select", None) or ())]
    converters = [
        (at, made, column) for at, (made, column) in compiler.get_converters(columns).items()
    ]
    field = query.get_meta().get_field
    slots = [
        (p.name, field(p.like).get_db_prep_save) if isinstance(p, Given) else ("", p)
        for p in params
    ]
    return _Sql(text, slots, frozenset(name for name, _ in slots if name), converters)


class Select(_Composed):
    """A prepared SELECT; ``queryset`` is one of ``values_list(…, named=True)``."""

    def __init__(self, queryset: QuerySet[Any, Any]) -> None:
        super().__init__(queryset.query)
        self._make = namedtuple("Row", queryset._fields)._make  # type: ignore[attr-defined]

    def fetch_rows(self, **given: Any) -> list[Any]:
        """Every row as a named tuple."""
        sql, connection = self._ready()
        values = sql.values(given, connection)
        with connection.cursor() as cursor:
            cursor.execute(sql.text, values)
            found = [list(row) for row in cursor.fetchall()]
        for at, converters, column in sql.converters:
            for row in found:
                for convert in converters:
                    row[at] = convert(row[at], column, connection)
        return [self._make(row) for row in found]

    def get(self, **given: Any) -> Any:
        """The first row. Raises the model's DoesNotExist."""
        for row in self.fetch_rows(**given):
            return row
        raise self._query.model.DoesNotExist(
            f"{self._query.model._meta.object_name} matching query does not exist."
        )


class Update(_Composed):
    """A prepared UPDATE of the rows of ``queryset``.

    It sets the fields ``names`` to what is given by their names, others to ``expressions``. Calling
    it returns how many rows it changed, which is what a compare-and-set asks.
    """

    def __init__(self, queryset: QuerySet[Any, Any], *names: str, **expressions: Any) -> None:
        query: Any = queryset.query.chain(UpdateQuery)
        query.add_update_values({name: Given(name) for name in names} | expressions)
        super().__init__(query)

    def __call__(self, **given: Any) -> int:
        """Execute it; returns how many rows were changed."""
        sql, connection = self._ready()
        values = sql.values(given, connection)
        with (
            transaction.mark_for_rollback_on_error(using=connection.alias),
            connection.cursor() as cursor,
        ):
            cursor.execute(sql.text, values)
            return int(cursor.rowcount)


class Insert(_Composed):
    """A prepared INSERT for a model whose key the database makes. A field that a row does not name
    gets its default."""

    def __init__(self, model: type[Model]) -> None:
        self._fields = [
            field for field in model._meta.local_concrete_fields if not field.primary_key
        ]
        query = InsertQuery(model)
        query.insert_values(
            self._fields, [model(**{f.attname: Given(f.name) for f in self._fields})], raw=True
        )
        super().__init__(query)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert the rows, each a mapping of field names to values."""
        sql, connection = self._ready()
        whole = (
            {f.name: f.get_default() for f in self._fields if f.name not in row} | dict(row)
            for row in rows
        )
        values = [sql.values(row, connection) for row in whole]
        with (
            transaction.mark_for_rollback_on_error(using=connection.alias),
            connection.cursor() as cursor,
        ):
            cursor.executemany(sql.text, values)
