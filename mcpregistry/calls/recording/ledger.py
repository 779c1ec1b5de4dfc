"""What the recorder writes, as raw SQL on Django's own connection: rows, statements, one
transaction.

The ORM costs six times the CPU here. The statements are made from the models, so that a new column
cannot be forgotten. Those of a call's end and of the audit log have their own places
(``services/records/ending.py``, ``audit.py``), for others write the same.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from django.db import connection
from django.db.models import DateTimeField

from mcpregistry.db import distrust_pool
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models.access import Configuration
from mcpregistry.models.approval import ApprovalRequest
from mcpregistry.models.invocation import Invocation
from mcpregistry.services.records import signed_calls
from mcpregistry.services.records.call_rows import Claim, Intent, RefusedCallColumns
from mcpregistry.services.records.ending import encode_result
from mcpregistry.services.records.sql import adapt_moment, build_insert

_LOCK_WAIT = 20.0
_LOCK_PAUSE = 0.0005

INSERT_COLUMNS = [f.attname for f in Invocation._meta.local_concrete_fields]
_DEFAULTS = {f.attname: f.get_default() for f in Invocation._meta.local_concrete_fields}
_TIMES = [f.attname for f in Invocation._meta.local_concrete_fields if isinstance(f, DateTimeField)]
_inserted = itemgetter(*INSERT_COLUMNS)

INSERT = build_insert(Invocation._meta.db_table, INSERT_COLUMNS)
# The claim compares, in one statement, everything that was looked at before: of two processes one
# wins, and a change between the last look and this statement loses.
_CLAIM = (
    f"UPDATE {Invocation._meta.db_table} SET state = '{InvocationState.DISPATCHED.value}', fence = fence + 1, "  # noqa: S608
    f"dispatched_at = %s, lease_until = %s, writer = %s WHERE id = %s AND state = '{InvocationState.READY.value}' AND binding = %s "
    f"AND fence = %s AND EXISTS (SELECT 1 FROM {ApprovalRequest._meta.db_table} r WHERE r.call_id = "
    f"{Invocation._meta.db_table}.id AND r.execute_by > %s) "
    f"AND (SELECT revision FROM {Configuration._meta.db_table} WHERE id = 1) = %s"
)


def list_call_values(row: Intent | RefusedCallColumns, writer: str) -> Sequence[Any]:
    """The parameters of ``INSERT`` for one row."""
    text, length = encode_result(row.get("result"))
    whole: dict[str, Any] = {
        **_DEFAULTS,
        **row,
        "result": text,
        "result_bytes": length,
        "writer": writer,
    }
    for column in _TIMES:
        whole[column] = adapt_moment(whole[column])
    return _inserted(whole)


def build_bound_facts(row: Intent | RefusedCallColumns, writer: str) -> dict[str, str]:
    """What the audit entry of the row's beginning says of it; of a refused call that is its end as
    well."""
    whole: dict[str, Any] = {**_DEFAULTS, **row, "writer": writer}
    begun = signed_calls.build_begin_facts(whole)
    return (
        begun | signed_calls.build_end_facts(whole, *encode_result(row.get("result")))
        if whole["finished_at"]
        else begun
    )


def list_claim_values(row: Claim, writer: str) -> list[Any]:
    """Return the parameters of the claim for one row. The call then belongs to the process of
    ``writer``."""
    now = adapt_moment(row["dispatched_at"])
    return [
        now,
        adapt_moment(row["lease_until"]),
        writer,
        row["id"],
        row["binding"],
        row["fence"],
        now,
        row["revision"],
    ]


Work = list[tuple[str, Sequence[Sequence[Any]]]]  # each statement once
Changed = dict[str, int]  # how many rows each of them has changed


@dataclass(frozen=True, slots=True)
class Claims:
    """Compare-and-sets to be tried first; ``rest`` makes of which were won the other statements of
    the same transaction. Claims of held calls, unless ``sql`` says otherwise; ``before`` is done
    ahead of them."""

    values: Sequence[Sequence[Any]]
    rest: Callable[[list[bool]], Work]
    sql: str = _CLAIM
    before: Work = field(default_factory=list)


_NO_CLAIMS = Claims([], lambda won: [])


def _commit_sqlite(work: Work, claims: Claims = _NO_CLAIMS) -> Changed:
    """One transaction, on disk when it returns (FULL), without SQLite's unfair waiting for the
    lock."""
    raw: Any = connection.connection
    if raw is None:
        connection.ensure_connection()
        raw = connection.connection
        raw.execute("PRAGMA synchronous=FULL")
        raw.execute("PRAGMA busy_timeout=0")
    _begin_sqlite(raw)
    try:
        for sql, rows in claims.before:
            raw.executemany(sql.replace("%s", "?"), rows)
        won = [
            raw.execute(claims.sql.replace("%s", "?"), values).rowcount == 1
            for values in claims.values
        ]
        changed = {
            sql: raw.executemany(sql.replace("%s", "?"), rows).rowcount
            for sql, rows in work or claims.rest(won)
            if rows
        }
        raw.execute("COMMIT")
    except BaseException:
        if raw.in_transaction:
            raw.execute("ROLLBACK")
        raise
    return changed


def _begin_sqlite(raw: Any) -> None:
    """SQLite's busy handler sleeps up to 100 ms and starves one of two writers; short naps are
    fair."""
    deadline = time.monotonic() + _LOCK_WAIT
    while True:
        try:
            raw.execute("BEGIN IMMEDIATE")
            return
        except Exception as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_LOCK_PAUSE)


def _is_session_ended(raw: Any) -> bool:
    """Whether an idle session was ended meanwhile. Only then there is something to be read, so it
    costs no question.

    Tried with such a session, a commit would leave it open whether it happened.
    """
    if raw.closed:
        return True
    poll = select.poll()  # unlike select() it takes descriptors of any number
    poll.register(raw.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))


def _commit_postgres(work: Work, claims: Claims = _NO_CLAIMS) -> Changed:
    if connection.connection is not None and _is_session_ended(connection.connection):
        connection.close()
        # the others ended with it, and it would pause for a second or more after each
        distrust_pool()
    connection.ensure_connection()
    raw = connection.connection
    with raw.pipeline() as pipeline, raw.transaction(), raw.cursor() as cursor:
        for sql, rows in claims.before:
            cursor.executemany(sql, rows)
        tried = [raw.execute(claims.sql, values) for values in claims.values]
        if tried:
            pipeline.sync()  # in a pipeline, how many rows were changed is known only afterwards
        won = [claim.rowcount == 1 for claim in tried]
        done = {}
        for sql, rows in work or claims.rest(won):
            if rows:
                done[sql] = raw.cursor()
                done[sql].executemany(sql, rows)
    # in a pipeline it is known only at its end
    return {sql: each.rowcount for sql, each in done.items()}


BACKENDS: dict[str, Callable[..., Changed]] = {
    "sqlite": _commit_sqlite,
    "postgresql": _commit_postgres,
}
