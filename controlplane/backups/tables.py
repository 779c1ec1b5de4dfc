"""The rows of one table as JSON, the same from either database, and back into either."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from itertools import islice
from typing import Any
from uuid import UUID

from django.db import DatabaseError, connections, models, transaction

from mcpregistry.db import stream_rows
from mcpregistry.domain.errors import ConfigInvalid

_BATCH = 500  # rows of one statement


@dataclass(slots=True)
class TableTally:
    """How many rows, and a digest of them that does not depend on their order."""

    rows: int = 0
    _sum: int = 0

    def add(self, canonical: bytes) -> None:
        """One row, as ``Table.canonical`` writes it."""
        self.rows += 1
        self._sum = (self._sum + int.from_bytes(hashlib.sha256(canonical).digest())) % 2**256

    @property
    def digest(self) -> str:
        return f"{self._sum:064x}"


class BackupTable:
    """One table, as the model describes it that the migrations make of it."""

    def __init__(self, model: type[models.Model]) -> None:
        self.model = model
        self.fields = model._meta.local_concrete_fields
        self.label = model._meta.label_lower
        self.name = model._meta.db_table
        self.columns = [field.attname for field in self.fields]
        self._json = [
            place for place, field in enumerate(self.fields) if isinstance(field, models.JSONField)
        ]
        self._counted = next(
            (str(field.column) for field in self.fields if isinstance(field, models.AutoField)),
            None,
        )

    def read(self, using: str) -> Iterator[Sequence[Any]]:
        """Every row, a chunk at a time."""
        rows = self.model._base_manager.using(using).order_by("pk")
        return stream_rows(rows.values_list(*self.columns), _BATCH)

    def tally(self, using: str) -> TableTally:
        """Of what the table holds now."""
        tally = TableTally()
        for row in self.read(using):
            tally.add(self.canonical(row))
        return tally

    def canonical(self, row: Sequence[Any]) -> bytes:
        """The row's one spelling: PostgreSQL keeps neither the order of an object's keys nor how a
        number is written."""
        if self._json:
            row = [*row]
            for place in self._json:
                row[place] = _plain(row[place])
        return dump_row(row)

    def insert(self, rows: Iterable[list[Any]], using: str) -> None:
        """Write rows that came as JSON. Raises ConfigInvalid, naming the row that the database does
        not take."""
        source = iter(rows)
        while batch := list(islice(source, _BATCH)):
            prepared = [self._prepare_row(row, using) for row in batch]
            try:
                self._execute(prepared, using)
            except DatabaseError:
                self._find_wrong(prepared, using)
                raise

    def _execute(self, rows: list[list[Any]], using: str) -> None:
        quoted = connections[using].ops.quote_name
        columns = ", ".join(quoted(str(field.column)) for field in self.fields)
        marks = ", ".join(["%s"] * len(self.fields))
        with transaction.atomic(using), connections[using].cursor() as cursor:
            insert = f"INSERT INTO {quoted(self.name)} ({columns}) VALUES ({marks})"  # noqa: S608 -- tables of ours
            cursor.executemany(insert, rows)

    def _prepare_row(self, row: list[Any], using: str) -> list[Any]:
        return [
            self._prepare_value(field, value, using)
            for field, value in zip(self.fields, row, strict=True)
        ]

    def _prepare_value(self, field: Any, value: Any, using: str) -> Any:
        connection = connections[using]
        if value is None and isinstance(field, models.JSONField) and not field.null:
            # JSON's null, which is a value
            return connection.ops.adapt_json_value(None, field.encoder)
        return None if value is None else field.get_db_prep_save(field.to_python(value), connection)

    def _find_wrong(self, rows: list[list[Any]], using: str) -> None:
        for row in rows:
            try:
                self._execute([row], using)
            except DatabaseError as error:
                vendor = connections[using].display_name
                raise ConfigInvalid(
                    f"{vendor} does not accept the row {row[0]} of {self.name} ({type(error).__name__}).",
                    remedy="Correct or delete that row in the source database. The usual causes are a text that is too long for its "
                    "column, and a text with a NUL character.",
                ) from error

    # Numbers that the database gives out itself: also those that were deleted are never given out
    # again.

    def find_next_number(self, using: str) -> int | None:
        """The number of the next new row; None where rows are not numbered by the database."""
        if self._counted is None:
            return None
        with connections[using].cursor() as cursor:
            if connections[using].vendor == "sqlite":
                cursor.execute("SELECT seq + 1 FROM sqlite_sequence WHERE name = %s", [self.name])
            else:
                cursor.execute("SELECT pg_get_serial_sequence(%s, %s)", [self.name, self._counted])
                sequence = cursor.fetchone()[0]
                cursor.execute(f"SELECT last_value + is_called::int FROM {sequence}")  # noqa: S608
            return next(iter(cursor.fetchone() or (1,)))

    def count_from(self, number: int | None, using: str) -> None:
        """Give the next new row this number."""
        if self._counted is None or number is None:
            return
        with connections[using].cursor() as cursor:
            if connections[using].vendor == "sqlite":
                cursor.execute("DELETE FROM sqlite_sequence WHERE name = %s", [self.name])
                cursor.execute(
                    "INSERT INTO sqlite_sequence (name, seq) VALUES (%s, %s)",
                    [self.name, number - 1],
                )
            else:
                cursor.execute(
                    "SELECT setval(pg_get_serial_sequence(%s, %s), %s, false)",
                    [self.name, self._counted, number],
                )


def dump_row(row: Sequence[Any]) -> bytes:
    """A row as one line of JSON; what JSON does not know is text, from which its column takes it
    back."""
    return json.dumps(row, default=_as_text, separators=(",", ":"), sort_keys=True).encode()


def _as_text(value: object) -> str:
    if isinstance(value, date):  # and moments
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise TypeError(f"Backups do not support the type {type(value).__name__} of a column.")


def _plain(value: Any) -> Any:
    """A JSON value with whole numbers written as such: PostgreSQL keeps 1e16 as
    10000000000000000."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
