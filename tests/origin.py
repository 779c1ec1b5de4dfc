"""The database as a new site has it: what every test that commits rows starts from.

Django empties such a test's database table by table and has everything made anew that ``migrate``
makes; that costs more than most tests do. Here the rows and triggers of the new site are
remembered, and only what differs is put back. As with Django, ids go on counting: no test meets an
id that another test's leftovers may still know.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.db import connection, transaction

from mcpregistry.models.guards import drop_guards, install_guards

Rows = list[tuple[Any, ...]]

_TRIGGERS = {
    "sqlite": "SELECT tbl_name, name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name",
    "postgresql": "SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid), tgenabled::text FROM pg_trigger "
    "WHERE NOT tgisinternal ORDER BY tgname, 1",
}


# PostgreSQL keeps the room of deleted rows (nothing vacuums here), and reads through it. Giving it
# back makes all files of all tables anew, which costs half a second: not before there is more of it
# than is read in a millisecond or two.
_MUCH_ROOM = 4 << 20  # bytes
_ENABLE_TRIGGER = 1003  # SQLITE_DBCONFIG_ENABLE_TRIGGER


@dataclass(frozen=True)
class Origin:
    """``rows`` of the tables that a new site fills; ``others`` are those that it leaves empty."""

    rows: dict[str, Rows]
    others: list[str]
    triggers: Rows

    @classmethod
    def remember(cls) -> Origin:
        """Call it on a database that was just migrated."""
        filled = not_empty(tables())
        others = [table for table in tables() if table not in filled]
        origin = cls(
            {table: rows(table) for table in filled}, others, _fetch(_TRIGGERS[connection.vendor])
        )
        _origins.append(origin)
        return origin

    def restore(self) -> None:
        """Put back what a test changed, past the guards of the tables."""
        with transaction.atomic():
            used = not_empty(self.others)
            changed = [table for table, before in self.rows.items() if rows(table) != before]
            with unguarded({*used, *changed}):
                _execute(*(f'DELETE FROM "{table}"' for table in (*used, *changed)))
                for table in changed:
                    insert(table, self.rows[table])
                if (
                    connection.vendor == "postgresql"
                    and sum(_sizes(self.others).values()) > _MUCH_ROOM
                ):
                    _execute(f"TRUNCATE {', '.join(self.others)}")
            if _fetch(_TRIGGERS[connection.vendor]) != self.triggers:  # a test took some away
                drop_guards()
                install_guards()


_origins: list[Origin] = []  # one, once this process has made its database


def as_new(table: str, ignored: str = "") -> list[str] | None:
    """The tables that a new site leaves empty, if they all are and ``table`` is as it was; else
    None.

    Tables whose names begin with ``ignored`` may have rows, and are not returned.
    Also None for a role of PostgreSQL that may not switch triggers off.
    """
    if connection.vendor == "postgresql" and _fetch("SELECT current_setting('is_superuser')") != [
        ("on",)
    ]:
        return None
    (origin,) = _origins
    others = [name for name in origin.others if not (ignored and name.startswith(ignored))]
    if not_empty(others) or rows(table) != origin.rows[table]:
        return None
    return others


@contextmanager
def unguarded(tables: set[str]) -> Iterator[None]:
    """No trigger of these tables fires on this connection."""
    if connection.vendor == "postgresql":
        _execute("SET LOCAL session_replication_role = replica")
        yield
        _execute("SET LOCAL session_replication_role = origin")
        return
    if not _triggers_fire(False):
        with _dropped(tables):
            yield
        return
    try:
        yield
    finally:
        _triggers_fire(True)


def _triggers_fire(on: bool) -> bool:
    """Tell SQLite so, for this connection; False where it cannot be told (some builds of Python
    3.11)."""
    raw = connection.connection
    if hasattr(raw, "setconfig"):
        raw.setconfig(_ENABLE_TRIGGER, on)
        return True
    library = getattr(_sqlite3, "__file__", None)  # none where it is built in
    if library is None or not sys.platform.startswith("linux"):
        return False
    # sqlite3_db_config(3): the handle stands first in Python's object, behind what every object
    # has.
    handle = ctypes.c_void_p.from_address(id(raw) + object.__basicsize__)
    told = ctypes.c_int(-1)
    ctypes.CDLL(library).sqlite3_db_config(
        handle, _ENABLE_TRIGGER, ctypes.c_int(on), ctypes.byref(told)
    )
    return told.value == on


@contextmanager
def _dropped(tables: set[str]) -> Iterator[None]:
    """The triggers of these tables go for a moment. Every connection then reads the whole schema
    anew (2 ms)."""
    theirs = [(name, sql) for table, name, sql in _fetch(_TRIGGERS["sqlite"]) if table in tables]
    _execute(*(f"DROP TRIGGER {name}" for name, _ in theirs))
    yield
    _execute(*(sql for _, sql in theirs))


def tables() -> list[str]:
    """Every table of a model."""
    return sorted(connection.introspection.django_table_names(only_existing=True))


def _fetch(sql: str, *values: str) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(sql, values or None)
        return cursor.fetchall()


def _execute(*statements: str) -> None:
    """On PostgreSQL in one message."""
    together = (
        ["; ".join(statements)] if statements and connection.vendor == "postgresql" else statements
    )
    with connection.cursor() as cursor:
        for statement in together:
            cursor.execute(statement)


def rows(table: str) -> Rows:
    return sorted(_fetch(f'SELECT {_columns(connection.vendor, table)} FROM "{table}"'))


@cache
def _columns(vendor: str, table: str) -> str:
    """The columns that can be written: PostgreSQL makes some itself."""
    if vendor != "postgresql":
        return "*"
    found = _fetch(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped "
        "AND attgenerated = '' ORDER BY attnum",
        table,
    )
    return ", ".join(f'"{name}"' for (name,) in found)


def _sizes(tables: list[str]) -> dict[str, int]:
    """Bytes that each table takes on PostgreSQL's disk."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT t, pg_relation_size(quote_ident(t)::regclass) FROM unnest(%s::text[]) t",
            [tables],
        )
        return dict(cursor.fetchall())


def not_empty(tables: list[str]) -> list[str]:
    """Those that have rows. PostgreSQL takes a while to plan a look at a hundred tables, most of
    which have no file yet."""
    if connection.vendor == "postgresql":
        tables = [table for table, size in _sizes(tables).items() if size]
    looks = (f"SELECT '{table}' WHERE EXISTS (SELECT 1 FROM \"{table}\")" for table in tables)
    return [table for (table,) in _fetch(" UNION ALL ".join(looks))] if tables else []


def insert(table: str, values: Rows) -> None:
    columns = _columns(connection.vendor, table)
    places = ", ".join(["%s"] * len(values[0]))
    into = f'"{table}"' if columns == "*" else f'"{table}" ({columns})'
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {into} VALUES ({places})", values)
