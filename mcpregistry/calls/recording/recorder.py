"""The recorder: every call's record and its audit entries, committed in groups by one thread.

While one commit is on its way to the disk, the calls that arrive meanwhile gather into the next, so
durable audit costs a call a fraction of a commit. A lone call never waits for others; where several
are under way, the thread naps once if fewer have come than last time. ``begin`` returns when the
intent is on disk (nothing may be sent before), ``end`` when the end is.

What it writes is in ``calls/recording/ledger.py``, ``services/records/ending.py`` and ``audit.py``.
Each recorder is a writer with its own audit chain: one global chain would serialise all processes
on its head.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from queue import Empty, SimpleQueue

import structlog
from django.db import connection

from mcpregistry.calls.recording import late_ends, ledger
from mcpregistry.calls.recording.backlog import MOST_TOGETHER, EndBacklog
from mcpregistry.calls.recording.errors import (
    EndedOtherwiseError,
    NotClaimedError,
    NotRecordedError,
    make_not_recorded_error,
    make_recorder_stopped_error,
)
from mcpregistry.calls.recording.late_ends import LateEnd
from mcpregistry.calls.recording.recorder_items import (
    RecorderItem,
    build_doubtful_end,
    build_late_end,
    is_passing_failure,
    make_note,
)
from mcpregistry.database_errors import fault_facts, is_database_error, is_passing
from mcpregistry.db import leave_read_only_sessions
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import QueueFullError, SlipsnisseError
from mcpregistry.failpoints import failpoint
from mcpregistry.services.records import audit, ending, signed_calls
from mcpregistry.services.records.audit import AuditFact, Chain
from mcpregistry.services.records.call_rows import Claim, Intent, RefusedCallColumns
from mcpregistry.services.records.ending import End
from mcpregistry.services.records.sql import get_vendor
from mcpregistry.services.upkeep import processes

log = structlog.get_logger(__name__)

MAX_WAITING = 5_000  # about a second of work
_NAP = 0.0002  # seconds
# all recorders of a process count together, so that each chain has its own name
_chains = itertools.count(1)
# Seconds between attempts to write ends that the database did not take. The reaper comes by far
# less often.
RETRY = 0.25
FLUSH_SECONDS = 10.0  # for how long that is tried when the process ends


class Recorder:
    """One thread, one connection, one audit chain; one per engine. The async methods belong to its
    loop."""

    def __init__(self, process: str) -> None:
        self.process = process
        self._chain = Chain(self._make_writer_name())
        self._waiting: SimpleQueue[RecorderItem | None] = (
            SimpleQueue()
        )  # None: the last one was before
        self._closing = False
        self._stopped = False
        self._last_taken = False
        # what passes it before close() is written, what comes after is refused
        self._door = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._backlog = EndBacklog()
        self._in_hand: list[
            RecorderItem
        ] = []  # taken from the queue, and their callers have not heard yet
        self._together = 0  # how many the last commit held
        # calls whose beginning failed last time, the newest last; for the thread
        self._unbegun: dict[str, None] = {}

    @property
    def writer(self) -> str:
        """The name under which it writes now."""
        return self._chain.writer

    @property
    def late(self) -> int:
        """How many ends the database has not taken so far."""
        return len(self._backlog)

    @property
    def running(self) -> bool:
        """Whether its thread works. Once it has ended, no call can be made in this process."""
        return self._thread is not None and self._thread.is_alive() and not self._stopped

    def _make_writer_name(self) -> str:
        return f"{processes.make_writer_base(self.process)}.{next(_chains):x}"

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread; ``loop`` is where callers wait."""
        self._loop = loop
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what waits, then end. Blocks; nothing may be recorded afterwards."""
        with self._door:
            self._closing = True
            self._waiting.put(None)
        if self._thread:
            self._thread.join(timeout=30)

    async def begin(self, row: Intent | RefusedCallColumns, fact: AuditFact) -> None:
        """Insert a call that is about to be sent, or was refused; returns when that is durable.

        Raises NotRecorded, Busy.
        """
        await self._wait(self._put(RecorderItem(fact, begin=row)))

    async def claim(self, row: Claim, fact: AuditFact) -> int:
        """Take a call in the state ready; returns its new fence when that is durable. Raises
        NotRecorded, and NotClaimed when its binding, its fence or the configuration's ``revision``
        are not as they were looked at, or its time to run is over.
        """
        await self._wait(self._put(RecorderItem(fact, claim=row)))
        return row["fence"] + 1

    async def end(self, row: End, fact: AuditFact) -> None:
        """Move a dispatched call to its end; returns when that is durable.

        Raises NotRecorded when that cannot be now. It is kept then, and written as soon as the
        database takes it, while this process lives. (The lease of a call that is out outlasts its
        time by a minute.) Where the clock has given the call up meanwhile, the end replaces what it
        supposed. Raises EndedOtherwise when the record says something else all the same.
        """
        await self._wait(self._put(RecorderItem(fact, end=row)))

    def begin_soon(self, row: RefusedCallColumns, fact: AuditFact) -> None:
        """Insert a call that has ended already, without waiting: for a caller that is being
        cancelled. Never raises; what cannot be recorded is logged."""
        self._put_soon(RecorderItem(fact, begin=row))

    def end_soon(self, row: End, fact: AuditFact) -> None:
        """``end`` without waiting: for a caller that is being cancelled. Never raises; what cannot
        be recorded is logged."""
        self._put_soon(RecorderItem(fact, end=row))

    def _put_soon(self, item: RecorderItem) -> None:
        try:
            self._put(item)
        except SlipsnisseError:
            log.error("call.end_not_recorded", about=item.fact.subject)

    def _put(self, item: RecorderItem) -> asyncio.Future[None]:
        # An end is always taken: its call has happened, whatever the queue looks like.
        if item.begin and self._waiting.qsize() >= MAX_WAITING:
            raise QueueFullError(
                "The site cannot record more calls at the moment.",
                remedy=error_texts.TRY_AGAIN_SOON,
            )
        with self._door:
            if self._closing or self._loop is None:
                raise NotRecordedError(
                    "The site is shutting down.", remedy=error_texts.TRY_AGAIN_SOON
                )
            if self._stopped:
                raise make_recorder_stopped_error()
            item.done = self._loop.create_future()
            self._waiting.put(item)
        return item.done

    @staticmethod
    async def _wait(done: asyncio.Future[None]) -> None:
        try:
            # What is in the queue is written whether or not its caller still waits; only the
            # waiting can be cancelled.
            await asyncio.shield(done)
        except asyncio.CancelledError:
            done.add_done_callback(_ignore_result)
            raise

    # The writer thread

    def _run(self) -> None:
        try:
            self._commit_all([make_note("writer.started", self.writer)])
            while not self._last_taken:
                self._write_safely()
            self._flush()
            self._commit_all([make_note("writer.stopped", self.writer)])
        finally:
            connection.close()
            self._refuse_the_rest()

    def _write_safely(self) -> None:
        """No error ends the thread, because nobody else writes."""
        try:
            self._write()
        except Exception as error:
            log.exception(
                "recorder.interrupted", about=[item.fact.subject for item in self._in_hand]
            )
            self._backlog.add(filter(None, map(build_doubtful_end, self._in_hand)))
            self._resolve_callers(self._in_hand, [error] * len(self._in_hand))
            self._reconnect(error)
            time.sleep(RETRY)

    def _write(self) -> None:
        taken = self._take_batch()
        batch = [item for item in taken if item is not None]
        self._in_hand = batch
        self._last_taken = len(batch) < len(taken)
        for item in batch:
            if item.begin:
                self._unbegun.pop(item.begin["id"], None)
        errors = self._commit_all(batch) if batch else []
        self._backlog.add(
            late
            for item, error in zip(batch, errors, strict=True)
            if (late := build_late_end(item, error))
        )
        self._resolve_callers(batch, errors)
        self._in_hand = []
        if self._backlog and not any(map(is_passing_failure, errors)):
            self._backlog.write(self._commit_late)

    def _refuse_the_rest(self) -> None:
        """The thread has ended: report that to all that wait."""
        with self._door:
            self._stopped = True
            waiting = self._in_hand
            with suppress(Empty):
                while True:
                    if item := self._waiting.get_nowait():
                        waiting.append(item)
        if waiting or self._backlog:
            log.error(
                "recorder.stopped",
                about=[item.fact.subject for item in waiting] + self._backlog.list_subjects(),
            )
        self._resolve_callers(waiting, [make_recorder_stopped_error()] * len(waiting))

    def _take_batch(self) -> list[RecorderItem | None]:
        """What has come; waits for the first, and shortly for those that were committed with it
        last time.

        They come one by one, as the event loop gets to them: without the nap, ten calls at once
        cost a quarter more CPU in commits and context switches, and each of them takes longer.
        """
        try:
            taken = [self._waiting.get(timeout=RETRY if self._backlog else None)]
        except Empty:
            return []
        if self._waiting.qsize() + 1 < self._together:
            time.sleep(_NAP)
        with suppress(Empty):
            while len(taken) < MOST_TOGETHER:
                taken.append(self._waiting.get_nowait())
        self._together = len(taken)
        return taken

    def _commit_all(self, batch: list[RecorderItem]) -> list[Exception | None]:
        """Commit the batch as one; if a row is to blame, each half, so that in the end a bad one
        stands alone."""
        try:
            return self._commit(batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, the callers must hear of it
            if len(batch) == 1 or is_passing(error):
                self._note_failure(batch, error)
                self._note_unbegun(batch)
                self._reconnect(error)
                return [error] * len(batch)
        half = len(batch) // 2
        return self._commit_all(batch[:half]) + self._commit_all(batch[half:])

    def _note_unbegun(self, batch: list[RecorderItem]) -> None:
        """Remember whose beginning failed: an end that a caller left behind has no record then, and
        gets no audit entry.

        Where the beginning may have been written all the same, ``kept`` has its end.
        """
        for item in batch:
            if item.begin:
                self._unbegun[item.begin["id"]] = None
        while len(self._unbegun) > MAX_WAITING:
            del self._unbegun[next(iter(self._unbegun))]

    @staticmethod
    def _note_failure(batch: list[RecorderItem], error: Exception) -> None:
        log.error(
            "recorder.failed", **fault_facts(error), about=batch[0].fact.subject, rows=len(batch)
        )

    def _commit(self, batch: list[RecorderItem]) -> list[Exception | None]:
        """One transaction. What comes back is None for each, but NotClaimed for a claim that was
        lost, and what ``_check_ends`` says of an end."""
        failpoint("committing")
        claims = [(item, item.claim) for item in batch if item.claim]
        if not claims:
            work, chain = self._build_work(batch)
            changed = ledger.BACKENDS[get_vendor()](work)
            self._chain = chain
            return self._check_ends(batch, changed)
        lost: list[RecorderItem] = []

        def build_rest(won: list[bool]) -> ledger.Work:
            nonlocal chain
            lost.extend(item for (item, _), mine in zip(claims, won, strict=True) if not mine)
            work, chain = self._build_work([item for item in batch if item not in lost])
            return work

        tries = [ledger.list_claim_values(claim, self.writer) for _, claim in claims]
        changed = ledger.BACKENDS[get_vendor()]([], ledger.Claims(tries, build_rest))
        self._chain = chain
        ended = self._check_ends(batch, changed)
        return [
            NotClaimedError("Another process has claimed the call.") if item in lost else error
            for item, error in zip(batch, ended, strict=True)
        ]

    def _check_ends(
        self, batch: list[RecorderItem], changed: ledger.Changed
    ) -> list[Exception | None]:
        """After a commit: whether its ends were taken. The clock may have given up calls whose
        process had stalled."""
        ends = [LateEnd(item.end, item.fact) for item in batch if item.end]
        if changed.get(ending.FINISH, 0) >= len(ends):
            return [None] * len(batch)
        try:
            self._chain = late_ends.correct(ends, self._chain)
            stand = iter(late_ends.match_recorded_ends(ends))
        except Exception as error:
            # they are kept and tried again, like those that were not written at all
            log.exception("recorder.not_corrected", about=[each.fact.subject for each in ends])
            self._reconnect(error)
            return [error if item.end else None for item in batch]
        return [
            EndedOtherwiseError("The call already has another outcome.")
            if item.end and not next(stand)
            else None
            for item in batch
        ]

    def _build_work(self, batch: list[RecorderItem]) -> tuple[ledger.Work, Chain]:
        """The statements for these items, and where the audit chain stands after them."""
        begins = []
        kept = []
        finished = []
        facts = []
        for item in batch:
            if item.end and item.end["id"] in self._unbegun:
                continue
            said = item.fact
            if item.begin:
                begins.append(ledger.list_call_values(item.begin, self.writer))
                said = said.add_facts(ledger.build_bound_facts(item.begin, self.writer))
            if item.claim:
                said = said.add_facts(
                    signed_calls.build_claim_facts(item.claim["dispatched_at"], self.writer)
                )
            if item.end:
                answer = ending.encode_result(item.end["result"])
                kept += [ending.list_keep_values(item.end)] if item.end["keep"] else []
                finished.append(ending.list_finish_values(item.end, answer))
                said = said.add_facts(signed_calls.build_end_facts(item.end, *answer))
            facts.append(said)
        chain, entries = self._chain.extend_chain(facts, datetime.now(UTC))
        told = [audit.list_insert_values(entry) for entry in entries]
        # First what is kept: whoever sees the end finds the result.
        work: ledger.Work = [
            (ledger.INSERT, begins),
            (ending.KEEP, kept),
            (ending.FINISH, finished),
            (audit.INSERT, told),
        ]
        return work, chain

    def _commit_late(self, late: list[LateEnd]) -> None:
        try:
            self._chain, won = late_ends.write(late, self._chain)
            lost = [each for each, mine in zip(late, won, strict=True) if not mine]
            self._chain = late_ends.correct(lost, self._chain)
        except Exception as error:
            self._reconnect(error)
            raise

    def _flush(self) -> None:
        """The process ends: what is late is tried for some seconds more; then only the reaper is
        left."""
        deadline = time.monotonic() + FLUSH_SECONDS
        while self._backlog and time.monotonic() < deadline:
            self._backlog.write(self._commit_late)
            if self._backlog:
                time.sleep(RETRY)

    def _resolve_callers(self, batch: list[RecorderItem], errors: list[Exception | None]) -> None:
        def resolve() -> None:
            for item, error in zip(batch, errors, strict=True):
                if item.done is None or item.done.done():
                    continue
                if error is None:
                    item.done.set_result(None)
                else:
                    known = isinstance(
                        error, NotClaimedError | EndedOtherwiseError | NotRecordedError
                    )
                    item.done.set_exception(error if known else make_not_recorded_error())
                    # the caller may have left; that is not an error of its own
                    item.done.exception()

        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(resolve)
        except RuntimeError:
            log.debug("recorder.loop_closed")

    def _reconnect(self, error: Exception) -> None:
        """After a database error nobody knows whether the commit happened: connect anew, with a new
        chain."""
        if is_database_error(error):
            connection.close()
            leave_read_only_sessions(error)
            self._chain = Chain(self._make_writer_name())


def _ignore_result(done: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.exception()
