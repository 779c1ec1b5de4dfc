"""What SQLite knows of its tables when it chooses an index; PostgreSQL keeps that by itself
(autovacuum)."""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction

_LOOK = 1_000  # entries of each index: some milliseconds, however long the record is
_WHOLE = """
    SELECT stat.rowid, stat.tbl, stat.stat FROM sqlite_stat1 AS stat
    LEFT JOIN sqlite_master AS made ON made.type = 'index' AND made.name = stat.idx
    WHERE made.sql IS NULL OR made.sql NOT LIKE '% WHERE %'
"""


def refresh() -> None:
    """Once an hour, from the clock: without it a query may go through all calls where an index
    would lead to ten."""
    if connection.vendor == "sqlite":
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"PRAGMA analysis_limit={_LOOK}")
            cursor.execute("ANALYZE")  # "optimize" looks only at what this connection has asked for
            _count_truly(cursor)
            cursor.execute("ANALYZE sqlite_master")  # which only reads what was written


def _count_truly(cursor: Any) -> None:
    """Who looks at a thousand entries guesses how many there are: of a million calls it was from
    600,000 to 6,600,000, by the index, and the list of calls was sorted whole instead of read by
    its index. Numbers of rows say it at once."""
    cursor.execute(_WHOLE)
    # those of the index of words number no rows
    ours = set(connection.introspection.django_table_names())
    known = [row for row in cursor.fetchall() if row[1] in ours]
    rows = {table: _estimate_row_count(cursor, table) for table in {table for _, table, _ in known}}
    for key, table, stat in known:
        guessed, *rest = stat.split()
        if guessed.isdecimal() and rows[table]:
            said = " ".join([str(rows[table]), *rest])
            cursor.execute("UPDATE sqlite_stat1 SET stat = %s WHERE rowid = %s", [said, key])


def _estimate_row_count(cursor: Any, table: str) -> int:
    """About how many: those that were deleted from the middle count as well."""
    name = connection.ops.quote_name(table)
    cursor.execute(f"SELECT (SELECT max(rowid) FROM {name}) - (SELECT min(rowid) FROM {name}) + 1")  # noqa: S608 - a table's name
    return cursor.fetchone()[0] or 0
