"""The recorder: every call's record and its audit entries, committed in groups by one thread.

While one commit is on its way to the disk, the calls that arrive meanwhile gather into the next, so
durable audit costs a call a fraction of a commit. A lone call never waits for others; where several are
under way, the thread naps once if fewer have come than last time. ``begin`` returns when the intent is
on disk (nothing may be sent before), ``end`` when the end is.

It writes raw SQL on Django's own connection (the ORM costs six times the CPU here); the statements
are made from the models, so the two cannot disagree. Each recorder is a writer with its own audit
chain: one global chain would serialise all processes on its head.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from operator import itemgetter
from queue import Empty, SimpleQueue
from typing import Any

import structlog
from django.db import DatabaseError, OperationalError, connection
from django.db.models import DateTimeField

from mcpregistry.domain.canonical import plain, stored
from mcpregistry.domain.errors import Busy, SlipsnisseError
from mcpregistry.domain.lifecycle import State
from mcpregistry.models.access import Configuration
from mcpregistry.models.approval import ApprovalRequest
from mcpregistry.models.audit import GENESIS, AuditEntry, entry_hash
from mcpregistry.models.invocation import Invocation

log = structlog.get_logger(__name__)

MAX_WAITING = 5_000  # about a second of work
MAX_BATCH = 500
MAX_RESULT = 64 * 1024  # characters of a result that are kept
_LOCK_WAIT, _LOCK_PAUSE = 20.0, 0.0005
_NAP = 0.0002  # seconds


class NotRecorded(SlipsnisseError):
    """The database did not take the record, so the call must not happen."""

    code = "NOT_RECORDED"


class NotClaimed(SlipsnisseError):
    """Somebody else has the call, or it is no longer what was to be claimed: look at it again."""

    code = "NOT_CLAIMED"


@dataclass(slots=True, eq=False)
class _Item:
    kind: str  # "insert", "claim", "finish" or "note" (an audit entry alone)
    row: Mapping[str, Any]
    fact: tuple[str, str, str, Mapping[str, Any]]  # audit: kind, actor, subject, facts
    done: asyncio.Future[None] | None


class Recorder:
    def __init__(self, process: str) -> None:
        self.process = process
        self.writer = self._new_writer()
        self._waiting: SimpleQueue[_Item | None] = SimpleQueue()  # None: the last one was before
        self._closing = False
        self._door = threading.Lock()  # what passes it before close() is written, what comes after is refused
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._seq, self._head = 0, GENESIS
        self._together = 0  # how many the last commit held

    def _new_writer(self) -> str:
        return f"{self.process}:{socket.gethostname()[:24]}:{os.getpid()}:{secrets.token_hex(4)}"

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.Thread(target=self._write, name="recorder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what waits, then end. Blocks; nothing may be recorded afterwards."""
        with self._door:
            self._closing = True
            self._waiting.put(None)
        if self._thread:
            self._thread.join(timeout=30)

    async def begin(self, row: Mapping[str, Any], *, kind: str, facts: Mapping[str, Any]) -> None:
        """Insert a call in whatever state it is; returns when that is durable. Raises NotRecorded, Busy."""
        await self._wait(self._put("insert", row, kind, facts))

    async def claim(self, row: Mapping[str, Any], *, facts: Mapping[str, Any]) -> int:
        """Take a call in the state ready; returns its new fence when that is durable. Raises NotRecorded,
        and NotClaimed when its binding, its fence or the configuration's ``revision`` are not as they were
        looked at, or its time to run is over.
        """
        await self._wait(self._put("claim", row, "call.dispatched", facts))
        return int(row["fence"]) + 1

    async def end(self, row: Mapping[str, Any], *, kind: str, facts: Mapping[str, Any]) -> None:
        """Move a dispatched call to its end; returns when that is durable. Raises NotRecorded.
        With ``keep`` in the row, its approval keeps the whole result, by the same commit."""
        await self._wait(self._put("finish", row, kind, facts))

    def begin_soon(self, row: Mapping[str, Any], *, kind: str, facts: Mapping[str, Any]) -> None:
        """Insert a call that has ended already, without waiting: for a caller that is being cancelled."""
        self._put("insert", row, kind, facts)

    def end_soon(self, row: Mapping[str, Any], *, kind: str, facts: Mapping[str, Any]) -> None:
        """The same without waiting: for a caller that is being cancelled."""
        self._put("finish", row, kind, facts)

    def _put(self, what: str, row: Mapping[str, Any], kind: str, facts: Mapping[str, Any]) -> asyncio.Future[None]:
        # An end is always taken: its call has happened, whatever the queue looks like.
        if what == "insert" and self._waiting.qsize() >= MAX_WAITING:
            raise Busy("The site is recording as many calls as it can.", remedy="Call again in a moment.")
        with self._door:
            if self._closing or self._loop is None:
                raise NotRecorded("The site is shutting down.", remedy="Call again in a moment.")
            done: asyncio.Future[None] = self._loop.create_future()
            self._waiting.put(_Item(what, row, (kind, row["agent_slug"], f"call:{row['id']}", facts), done))
        return done

    @staticmethod
    async def _wait(done: asyncio.Future[None]) -> None:
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            done.add_done_callback(_swallow)
            raise

    # The writer thread

    def _write(self) -> None:
        self._commit_all([_note("writer.started", self.writer)])
        closing = False
        while not closing:
            taken = self._take()
            batch = [item for item in taken if item is not None]
            closing = len(batch) < len(taken)
            if batch:
                self._settle(batch, self._commit_all(batch))
        self._commit_all([_note("writer.stopped", self.writer)])
        connection.close()

    def _take(self) -> list[_Item | None]:
        """What has come; waits for the first, and shortly for those that were committed with it last time.

        They come one by one, as the event loop gets to them: without the nap, ten calls at once cost a
        quarter more CPU in commits and context switches, and each of them takes longer.
        """
        taken = [self._waiting.get()]
        if self._waiting.qsize() + 1 < self._together:
            time.sleep(_NAP)
        with suppress(Empty):
            while len(taken) < MAX_BATCH:
                taken.append(self._waiting.get_nowait())
        self._together = len(taken)
        return taken

    def _commit_all(self, batch: list[_Item]) -> list[Exception | None]:
        """Commit the batch as one; if a row is to blame, each alone, so that a bad one stands alone."""
        try:
            return self._commit(batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, the callers must hear of it
            if len(batch) == 1 or _database_fails(error):
                log.error("recorder.failed", error=type(error).__name__, call=batch[0].row["id"], rows=len(batch))
                self._start_afresh(error)
                return [error] * len(batch)
            return [self._commit_all([item])[0] for item in batch]

    def _commit(self, batch: list[_Item]) -> list[Exception | None]:
        """One transaction. What comes back is None for each, but NotClaimed for a claim that was lost."""
        claims = [item for item in batch if item.kind == "claim"]
        if not claims:
            work, seq, head = self._work(batch)
            _BACKENDS[_vendor()](work)
            self._seq, self._head = seq, head
            return [None] * len(batch)
        lost: list[_Item] = []

        def rest(won: list[bool]) -> Work:
            nonlocal seq, head
            lost.extend(item for item, mine in zip(claims, won, strict=True) if not mine)
            work, seq, head = self._work([item for item in batch if item not in lost])
            return work

        _BACKENDS[_vendor()]([], _Claims([_claim_values(item.row) for item in claims], rest))
        self._seq, self._head = seq, head
        return [NotClaimed("The call is in other hands.") if item in lost else None for item in batch]

    def _work(self, batch: list[_Item]) -> tuple[Work, int, str]:
        """The statements for these items, and where the audit chain stands after them."""
        seq, head = self._seq, self._head
        audit = []
        for item in batch:
            seq += 1
            row, head = self._audit_row(item, seq, head)
            audit.append(row)
        inserts = [_insert_values(item.row, self.writer) for item in batch if item.kind == "insert"]
        finishes = [_finish_values(item.row) for item in batch if item.kind == "finish"]
        kept = [_keep_values(item.row) for item in batch if item.kind == "finish" and item.row.get("keep")]
        # First what is kept: whoever sees the end finds the result.
        return [(_INSERT, inserts), (_KEEP, kept), (_FINISH, finishes), (_AUDIT, audit)], seq, head

    def _audit_row(self, item: _Item, seq: int, prev: str) -> tuple[Sequence[Any], str]:
        kind, actor, subject, facts = item.fact
        now = datetime.now(UTC)
        body = stored(
            {"writer": self.writer, "seq": seq, "at": now.isoformat(), "kind": kind, "actor": actor, "subject": subject}
            | dict(facts)
        )
        head = entry_hash(prev, body)
        return [self.writer, seq, _moment(now), kind, plain(actor, 150), subject, body, prev, head], head

    def _settle(self, batch: list[_Item], errors: list[Exception | None]) -> None:
        def resolve() -> None:
            for item, error in zip(batch, errors, strict=True):
                if item.done is None or item.done.done():
                    continue
                if error is None:
                    item.done.set_result(None)
                else:
                    unwritten = NotRecorded(
                        "The call was not made: it could not be recorded.", remedy="Ask the operator."
                    )
                    item.done.set_exception(error if isinstance(error, NotClaimed) else unwritten)
                    item.done.exception()  # the caller may have left; that is not an error of its own

        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(resolve)
        except RuntimeError:
            log.debug("recorder.loop_closed")

    def _start_afresh(self, error: Exception) -> None:
        """After a database error nobody knows whether the commit happened: connect anew, with a new chain."""
        if isinstance(error, DatabaseError | _driver().Error):
            connection.close()
            self.writer, self._seq, self._head = self._new_writer(), 0, GENESIS


def _note(kind: str, writer: str) -> _Item:
    return _Item("note", {"id": writer}, (kind, "recorder", f"writer:{writer}", {}), None)


def _driver() -> Any:
    """The database driver's module: raw statements raise its errors, not Django's."""
    return connection.Database  # type: ignore[attr-defined]  # every backend has it, the base class does not say so


def _database_fails(error: Exception) -> bool:
    """Gone, locked, full: whatever the rows are, and waiting once for each of them would take hours."""
    return isinstance(error, OperationalError | _driver().OperationalError)


def _swallow(done: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.exception()


# Statements, made from the models so that a new column cannot be forgotten

_INSERT_COLUMNS = [f.attname for f in Invocation._meta.local_concrete_fields]
_FINISH_COLUMNS = ["state", "reason", "error_code", "result", "result_bytes", "finished_at", "duration_ms"]
_AUDIT_COLUMNS = [f.attname for f in AuditEntry._meta.local_concrete_fields if not f.primary_key]
_DEFAULTS = {f.attname: f.get_default() for f in Invocation._meta.local_concrete_fields}
_TIMES = [f.attname for f in Invocation._meta.local_concrete_fields if isinstance(f, DateTimeField)]
_inserted = itemgetter(*_INSERT_COLUMNS)
_finished = itemgetter(*_FINISH_COLUMNS, "id", "fence")


def _insert_sql(table: str, columns: Iterable[str]) -> str:
    names = list(columns)
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))})"  # noqa: S608


_INSERT = _insert_sql(Invocation._meta.db_table, _INSERT_COLUMNS)
_AUDIT = _insert_sql(AuditEntry._meta.db_table, _AUDIT_COLUMNS)
_FINISH = (
    f"UPDATE {Invocation._meta.db_table} SET lease_until = NULL, "  # noqa: S608
    + ", ".join(f"{column} = %s" for column in _FINISH_COLUMNS)
    + f" WHERE id = %s AND fence = %s AND state = '{State.DISPATCHED.value}'"
)
_CLAIM = (
    f"UPDATE {Invocation._meta.db_table} SET state = '{State.DISPATCHED.value}', fence = fence + 1, "  # noqa: S608
    f"dispatched_at = %s, lease_until = %s WHERE id = %s AND state = '{State.READY.value}' AND binding = %s "
    f"AND fence = %s AND EXISTS (SELECT 1 FROM {ApprovalRequest._meta.db_table} r WHERE r.call_id = "
    f"{Invocation._meta.db_table}.id AND r.execute_by > %s) "
    f"AND (SELECT revision FROM {Configuration._meta.db_table} WHERE id = 1) = %s"
)
_KEEP = (
    f"UPDATE {ApprovalRequest._meta.db_table} SET result = %s WHERE call_id = %s AND EXISTS (SELECT 1 FROM "  # noqa: S608
    f"{Invocation._meta.db_table} c WHERE c.id = %s AND c.fence = %s AND c.state = '{State.DISPATCHED.value}')"
)


def _moment(value: datetime | None) -> Any:
    """As ``adapt_datetimefield_value``, which takes ten times as long; our moments are in UTC, as is the database."""
    if value is None or _vendor() != "sqlite":
        return value
    return value.replace(tzinfo=None).isoformat(" ")


@cache
def _vendor() -> str:
    """Asked many times a call, and finding a thread's connection takes a while."""
    return connection.vendor


def _whole(row: Mapping[str, Any]) -> dict[str, Any]:
    """Every column as the database takes it. The result becomes text here, not on the event loop."""
    result = row.get("result")
    text = stored(result) if result is not None else ""
    kept = text if len(text) <= MAX_RESULT else text[:MAX_RESULT] + "…"
    whole = {**_DEFAULTS, **row, "result": kept, "result_bytes": len(text)}
    for column in _TIMES:
        whole[column] = _moment(whole[column])
    return whole


def _insert_values(row: Mapping[str, Any], writer: str) -> Sequence[Any]:
    return _inserted(_whole(row) | {"writer": writer})


def _finish_values(row: Mapping[str, Any]) -> Sequence[Any]:
    return _finished(_whole(row))


def _claim_values(row: Mapping[str, Any]) -> list[Any]:
    now = _moment(row["dispatched_at"])
    return [now, _moment(row["lease_until"]), row["id"], row["binding"], row["fence"], now, row["revision"]]


def _keep_values(row: Mapping[str, Any]) -> list[Any]:
    text = stored(row["result"]) if row.get("result") is not None else ""
    return [text, row["id"], row["id"], row.get("fence", 0)]


Work = list[tuple[str, Sequence[Sequence[Any]]]]


@dataclass(frozen=True, slots=True)
class _Claims:
    """Tried first; ``rest`` makes of which were won what else is to be written."""

    values: list[list[Any]]
    rest: Callable[[list[bool]], Work]


_NO_CLAIMS = _Claims([], lambda won: [])


def _sqlite(work: Work, claims: _Claims = _NO_CLAIMS) -> None:
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


def _postgres(work: Work, claims: _Claims = _NO_CLAIMS) -> None:
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


_BACKENDS: dict[str, Callable[..., None]] = {"sqlite": _sqlite, "postgresql": _postgres}
