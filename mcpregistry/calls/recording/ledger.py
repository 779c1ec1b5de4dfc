"""What the recorder writes, as raw SQL on Django's own connection: rows, statements, one transaction.

The ORM costs six times the CPU here. The statements are made from the models, so that a new column
cannot be forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from operator import itemgetter
from typing import Any

from django.db import connection
from django.db.models import DateTimeField

from mcpregistry.domain.canonical import stored
from mcpregistry.domain.lifecycle import State
from mcpregistry.models.access import Configuration
from mcpregistry.models.approval import ApprovalRequest
from mcpregistry.models.audit import AuditEntry
from mcpregistry.models.invocation import Invocation

MAX_RESULT = 64 * 1024  # characters of a result that are kept
_LOCK_WAIT, _LOCK_PAUSE = 20.0, 0.0005

INSERT_COLUMNS = [f.attname for f in Invocation._meta.local_concrete_fields]
FINISH_COLUMNS = ["state", "reason", "error_code", "result", "result_bytes", "finished_at", "duration_ms"]
AUDIT_COLUMNS = [f.attname for f in AuditEntry._meta.local_concrete_fields if not f.primary_key]
_DEFAULTS = {f.attname: f.get_default() for f in Invocation._meta.local_concrete_fields}
_TIMES = [f.attname for f in Invocation._meta.local_concrete_fields if isinstance(f, DateTimeField)]
_inserted = itemgetter(*INSERT_COLUMNS)
_finished = itemgetter(*FINISH_COLUMNS, "id", "fence")


def _insert_sql(table: str, columns: Iterable[str]) -> str:
    names = list(columns)
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))})"  # noqa: S608


INSERT = _insert_sql(Invocation._meta.db_table, INSERT_COLUMNS)
AUDIT = _insert_sql(AuditEntry._meta.db_table, AUDIT_COLUMNS)
FINISH = (
    f"UPDATE {Invocation._meta.db_table} SET lease_until = NULL, "  # noqa: S608
    + ", ".join(f"{column} = %s" for column in FINISH_COLUMNS)
    + f" WHERE id = %s AND fence = %s AND state = '{State.DISPATCHED.value}'"
)
_CLAIM = (
    f"UPDATE {Invocation._meta.db_table} SET state = '{State.DISPATCHED.value}', fence = fence + 1, "  # noqa: S608
    f"dispatched_at = %s, lease_until = %s WHERE id = %s AND state = '{State.READY.value}' AND binding = %s "
    f"AND fence = %s AND EXISTS (SELECT 1 FROM {ApprovalRequest._meta.db_table} r WHERE r.call_id = "
    f"{Invocation._meta.db_table}.id AND r.execute_by > %s) "
    f"AND (SELECT revision FROM {Configuration._meta.db_table} WHERE id = 1) = %s"
)
KEEP = (
    f"UPDATE {ApprovalRequest._meta.db_table} SET result = %s WHERE call_id = %s AND EXISTS (SELECT 1 FROM "  # noqa: S608
    f"{Invocation._meta.db_table} c WHERE c.id = %s AND c.fence = %s AND c.state = '{State.DISPATCHED.value}')"
)


def moment(value: datetime | None) -> Any:
    """As ``adapt_datetimefield_value``, which takes ten times as long; our moments are in UTC, as is the database."""
    if value is None or vendor() != "sqlite":
        return value
    return value.replace(tzinfo=None).isoformat(" ")


@cache
def vendor() -> str:
    """Asked many times a call, and finding a thread's connection takes a while."""
    return connection.vendor


def _whole(row: Mapping[str, Any]) -> dict[str, Any]:
    """Every column as the database takes it. The result becomes text here, not on the event loop."""
    result = row.get("result")
    text = stored(result) if result is not None else ""
    kept = text if len(text) <= MAX_RESULT else text[:MAX_RESULT] + "…"
    whole = {**_DEFAULTS, **row, "result": kept, "result_bytes": len(text)}
    for column in _TIMES:
        whole[column] = moment(whole[column])
    return whole


def insert_values(row: Mapping[str, Any], writer: str) -> Sequence[Any]:
    return _inserted(_whole(row) | {"writer": writer})


def finish_values(row: Mapping[str, Any]) -> Sequence[Any]:
    return _finished(_whole(row))


def claim_values(row: Mapping[str, Any]) -> list[Any]:
    now = moment(row["dispatched_at"])
    return [now, moment(row["lease_until"]), row["id"], row["binding"], row["fence"], now, row["revision"]]


def keep_values(row: Mapping[str, Any]) -> list[Any]:
    text = stored(row["result"]) if row.get("result") is not None else ""
    return [text, row["id"], row["id"], row.get("fence", 0)]


Work = list[tuple[str, Sequence[Sequence[Any]]]]


@dataclass(frozen=True, slots=True)
class Claims:
    """Tried first; ``rest`` makes of which were won what else is to be written."""

    values: list[list[Any]]
    rest: Callable[[list[bool]], Work]


_NO_CLAIMS = Claims([], lambda won: [])


def _sqlite(work: Work, claims: Claims = _NO_CLAIMS) -> None:
    """One transaction, on disk when it returns (FULL), without SQLite's unfair waiting for the lock."""
    raw: Any = connection.connection
    if raw is None:
        connection.ensure_connection()
        raw = connection.connection
        raw.execute("PRAGMA synchronous=FULL")
        raw.execute("PRAGMA busy_timeout=0")
    _begin(raw)
    try:
        won = [raw.execute(_CLAIM.replace("%s", "?"), values).rowcount == 1 for values in claims.values]
        for sql, rows in work or claims.rest(won):
            if rows:
                raw.executemany(sql.replace("%s", "?"), rows)
        raw.execute("COMMIT")
    except BaseException:
        if raw.in_transaction:
            raw.execute("ROLLBACK")
        raise


def _begin(raw: Any) -> None:
    """SQLite's busy handler sleeps up to 100 ms and starves one of two writers; short naps are fair."""
    deadline = time.monotonic() + _LOCK_WAIT
    while True:
        try:
            raw.execute("BEGIN IMMEDIATE")
            return
        except Exception as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_LOCK_PAUSE)


def _postgres(work: Work, claims: Claims = _NO_CLAIMS) -> None:
    connection.ensure_connection()
    raw = connection.connection
    with raw.pipeline() as pipeline, raw.transaction(), raw.cursor() as cursor:
        tried = [raw.execute(_CLAIM, values) for values in claims.values]
        if tried:
            pipeline.sync()  # in a pipeline, how many rows were changed is known only afterwards
        won = [claim.rowcount == 1 for claim in tried]
        for sql, rows in work or claims.rest(won):
            if rows:
                cursor.executemany(sql, rows)


BACKENDS: dict[str, Callable[..., None]] = {"sqlite": _sqlite, "postgresql": _postgres}
