"""The words of new calls, put into SQLite's full-text index many at a time; PostgreSQL's keeps such
a list itself."""

from __future__ import annotations

from django.db import connection, transaction

from mcpregistry.models.call_text import INDEX, TABLE

# calls of one transaction, for others write in between; of one turn of the clock
AT_ONCE = 500
MOST = 50_000
_NEXT = (
    f"INSERT INTO {INDEX} (rowid, text) SELECT id, text FROM {TABLE} "  # noqa: S608
    f"WHERE id > COALESCE((SELECT max(id) FROM {INDEX}_docsize), 0) ORDER BY id LIMIT %s"
)


def index_due() -> int:
    """Index what has come since the last time, for the clock. Returns how many calls that was."""
    done = 0
    while connection.vendor == "sqlite" and done < MOST:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(_NEXT, [AT_ONCE])
            done += max(0, cursor.rowcount)
            if cursor.rowcount < AT_ONCE:
                break
    return done
