"""Whether this process could write down a call now, without writing one: asked by the readiness
probe."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from django.db import connection
from django.db.models import Model

from mcpregistry.models import ApprovalRequest, AuditEntry, HostTask, Invocation

# bytes that must be free for SQLite's files: a large result, and what goes with it
ROOM = 1024 * 1024
_WRITTEN: tuple[type[Model], ...] = (Invocation, AuditEntry, ApprovalRequest, HostTask)


def find_obstacle() -> str:
    """Why no call can be recorded, in words for an operator; "" when nothing is known against it.

    During a rolling upgrade a newer release may have added a column that must not be empty and has
    no default in the database: every insert of this older process then fails. Raises a database
    error when it does not answer.
    """
    if connection.vendor == "postgresql" and _is_read_only():
        return "the database is read-only"
    if connection.vendor == "sqlite" and (
        reason := explain_unwritable(Path(connection.settings_dict["NAME"]).parent)
    ):
        return f"the disk of the database is not writable: {reason}"
    for model in _WRITTEN:
        for column in sorted(
            _list_required_columns(model._meta.db_table) - _list_known_columns(model)
        ):
            return f"the column {model._meta.db_table}.{column} is newer than this process and has no default"
    return ""


def explain_unwritable(folder: Path) -> str:
    """Why no more can be written into a folder, in the system's words; "" when there is room.

    Asks for the room and gives it back, in a file without a name. Not by a write into the database,
    which would wait for whoever holds its lock. PostgreSQL's disk is its own server's; what that
    refuses is told with the call.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, ROOM)
    except OSError as error:
        return os.strerror(error.errno or 0)
    return ""


def _list_known_columns(model: type[Model]) -> set[str]:
    return {field.column for field in model._meta.local_concrete_fields if field.column}


def _is_read_only() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('transaction_read_only')")
        return bool(cursor.fetchone()[0] == "on")


def _list_required_columns(table: str) -> set[str]:
    """Columns that an insert has to name."""
    if connection.vendor == "postgresql":
        query = (
            "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema() "
            "AND table_name = %s AND is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO'"
        )
    else:
        query = 'SELECT name FROM pragma_table_info(%s) WHERE "notnull" AND dflt_value IS NULL'
    with connection.cursor() as cursor:
        cursor.execute(query, [table])
        return {name for (name,) in cursor.fetchall()}
