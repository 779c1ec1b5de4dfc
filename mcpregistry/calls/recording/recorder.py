"""The recorder: every call's record and its audit entries, committed in groups by one thread.

While one commit is on its way to the disk, the calls that arrive meanwhile gather into the next, so
durable audit costs a call a fraction of a commit. A lone call never waits for others; where several are
under way, the thread naps once if fewer have come than last time. ``begin`` returns when the intent is
on disk (nothing may be sent before), ``end`` when the end is.

What it writes is in ``calls/ledger.py``. Each recorder is a writer with its own audit
chain: one global chain would serialise all processes on its head.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Any

import structlog
from django.db import DatabaseError, OperationalError, connection

from mcpregistry.calls import ledger
from mcpregistry.domain.canonical import plain, stored
from mcpregistry.domain.errors import Busy, SlipsnisseError
from mcpregistry.models.audit import GENESIS, entry_hash

log = structlog.get_logger(__name__)

MAX_WAITING = 5_000  # about a second of work
MAX_BATCH = 500
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
            ledger.BACKENDS[ledger.vendor()](work)
            self._seq, self._head = seq, head
            return [None] * len(batch)
        lost: list[_Item] = []

        def rest(won: list[bool]) -> ledger.Work:
            nonlocal seq, head
            lost.extend(item for item, mine in zip(claims, won, strict=True) if not mine)
            work, seq, head = self._work([item for item in batch if item not in lost])
            return work

        ledger.BACKENDS[ledger.vendor()]([], ledger.Claims([ledger.claim_values(item.row) for item in claims], rest))
        self._seq, self._head = seq, head
        return [NotClaimed("The call is in other hands.") if item in lost else None for item in batch]

    def _work(self, batch: list[_Item]) -> tuple[ledger.Work, int, str]:
        """The statements for these items, and where the audit chain stands after them."""
        seq, head = self._seq, self._head
        audit = []
        for item in batch:
            seq += 1
            row, head = self._audit_row(item, seq, head)
            audit.append(row)
        inserts = [ledger.insert_values(item.row, self.writer) for item in batch if item.kind == "insert"]
        finishes = [ledger.finish_values(item.row) for item in batch if item.kind == "finish"]
        kept = [ledger.keep_values(item.row) for item in batch if item.kind == "finish" and item.row.get("keep")]
        # First what is kept: whoever sees the end finds the result.
        return (
            [(ledger.INSERT, inserts), (ledger.KEEP, kept), (ledger.FINISH, finishes), (ledger.AUDIT, audit)],
            seq,
            head,
        )

    def _audit_row(self, item: _Item, seq: int, prev: str) -> tuple[Sequence[Any], str]:
        kind, actor, subject, facts = item.fact
        now = datetime.now(UTC)
        body = stored(
            {"writer": self.writer, "seq": seq, "at": now.isoformat(), "kind": kind, "actor": actor, "subject": subject}
            | dict(facts)
        )
        head = entry_hash(prev, body)
        return [self.writer, seq, ledger.moment(now), kind, plain(actor, 150), subject, body, prev, head], head

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
