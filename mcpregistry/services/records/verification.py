"""Verifying the audit log: each chain by its keys, all by the seals, calls and votes by the log.
Never in a request: it may take long.

Mostly it goes on from where the last verification ended, which is noted with a signature. It reads
what is new, makes sure that nothing of what was verified or sealed is gone from the ends of the
chains, and reads some of the older entries and seals again, each time those that were not read for
longest. So a change of anything is found within some rounds, a cut one at once; ``full`` reads
everything. A file of this machine shows if seals are gone together with the note.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from itertools import chain, islice

import structlog

from mcpregistry.database_errors import is_passing
from mcpregistry.db import stream_rows
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.text.canonical import encode_canonical_json
from mcpregistry.models import Conversation, Invocation
from mcpregistry.models.audit import GENESIS, AuditEntry, AuditSeal, AuditVerification
from mcpregistry.models.signing import newest_key, signature, verify_signature
from mcpregistry.services.records import (
    archives,
    chains,
    newest_seal,
    seals,
    signed_books,
    signed_calls,
    signed_messages,
    unrecorded_rows,
)
from mcpregistry.services.records.archives import Archives, ChainStand

log = structlog.get_logger(__name__)

AGAIN = 20_000  # older entries that are read again at a time
# older seals; a day has at most 2,880 new ones, and 144 verifications by the clock
SEALS_AGAIN = 20_000
SEALED_BY = timedelta(minutes=5)  # the clock comes every half minute
ROWS = 20_000  # calls, and conversations, that are looked for in the log at a time
MOST_TOLD = 100
_TRIES = 30  # while a long archive goes on beside it
_SEEN_LATE = 10_000  # ids: an entry may have its number long before it is seen
_PAGE = 500
_NO_FILE = (
    f"The file {newest_seal.FILE} did not exist on this machine: the machine is new, or the file was deleted. If entries "
    "were removed from the end of the log earlier, this verification cannot detect it."
)
_NO_NOTE = (
    "The state of the last verification is missing from the database, so the whole log was read again. If no other "
    "problem is found, `manage.py audit verify --full` creates it again."
)
_FORGED_NOTE = "The state of the last verification was changed, so the whole log was read again."
_UNREADABLE = (
    "The log could not be read completely, because a table contains a value that the site does not write. See the log of "
    "the process for the place."
)


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """What a verification found, in sentences. ``iterate_notes`` are no faults."""

    at: datetime
    full: bool
    entries: int
    chains: int
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    seconds: float


@dataclass(slots=True)
class VerificationState:
    """Until where the log was verified; ``sealed``: how many entries of each writer a seal has told
    of."""

    seal: int = 0
    head: str = GENESIS  # of that seal
    stands: dict[str, ChainStand] = field(default_factory=dict)
    sealed: dict[str, int] = field(default_factory=dict)
    mark: int = 0  # the newest entry
    # up to where older entries were read again in this round
    again: tuple[str, ChainStand] | None = None
    archives: tuple[int, str] | None = None  # the last record of archives, and its signature
    calls: str = ""  # the last call that was looked for in the log in this round
    conversations: str = ""  # the same of conversations
    # the last seal that was read again in this round, and its hash
    seals_again: tuple[int, str] | None = None
    # how far a seal has told of each
    books: dict[str, tuple[int, str]] = field(default_factory=dict)


def verify_log(
    now: datetime, *, full: bool = False, known: Archives | None = None
) -> VerificationReport:
    """Verify the log, note what was found, return it. ``full`` reads all of it; ``known``: whose
    files were read, perhaps."""
    began = time.monotonic()
    known = known or archives.load_archives()
    look = _run_verification(now, known, full=full)
    for _ in range(_TRIES):
        if not (look.problems and known.is_stale()):
            break
        known = (
            known.reload_archives()
        )  # it may be that entries were archived before they were looked at
        look = _run_verification(now, known, full=full)
    look.problems = [*dict.fromkeys(look.problems)]
    if not look.problems:
        look.keep()
    report = VerificationReport(
        now,
        look.full,
        look.entries,
        len(look.state.stands),
        tuple(look.problems[:MOST_TOLD]),
        tuple(look.iterate_notes()),
        time.monotonic() - began,
    )
    _note(report, look.state)
    return report


def _run_verification(now: datetime, known: Archives, *, full: bool) -> _Verification:
    before, told = load_verification_state()
    state = VerificationState() if full else before
    look = _Verification(now, state, known, before, full=full or not state.seal)
    look.expects_note = not (full or told)
    look.problems += [told] if told and not full else []
    try:
        look.verify_all()
    except Exception as error:
        if is_passing(error):
            raise
        log.exception("audit.unreadable")
        look.problems.append(f"{_UNREADABLE} {type(error).__name__}.")
    return look


def load_last_report() -> VerificationReport | None:
    """What the last verification found; None before the first."""
    row = AuditVerification.objects.filter(pk=1).first()
    if row is None:
        return None
    return VerificationReport(
        row.at,
        row.full,
        row.entries,
        row.chains,
        tuple(row.problems),
        tuple(row.notes),
        row.seconds,
    )


def load_verification_state() -> tuple[VerificationState, str]:
    """Where the last verification ended, and why that cannot be believed; the beginning if so."""
    row = AuditVerification.objects.filter(pk=1).first()
    if row is None or not row.state:
        return VerificationState(), ""
    if not all(isinstance(text, str) for text in (row.key_id, row.state, row.hash)):
        return VerificationState(), _FORGED_NOTE
    try:
        if not verify_signature(row.key_id, "verified", row.state, row.hash):
            return VerificationState(), _FORGED_NOTE
    except ConfigInvalid as error:  # a key was taken off the ring, or so it says
        return (
            VerificationState(),
            f"The state of the last verification cannot be verified, so the whole log was read again. {error.message}",
        )
    said = json.loads(row.state)
    stands = {writer: ChainStand(*stand) for writer, stand in said["stands"].items()}
    again = (said["again"][0], ChainStand(*said["again"][1])) if said["again"] else None
    archived = tuple(said["archives"]) if said["archives"] else None
    seals_again = tuple(said["seals_again"]) if said.get("seals_again") else None
    books = {name: (seq, head) for name, (seq, head) in said.get("books", {}).items()}
    read = {
        "stands": stands,
        "again": again,
        "archives": archived,
        "seals_again": seals_again,
        "books": books,
    }
    return VerificationState(**said | read), ""


def _note(report: VerificationReport, state: VerificationState) -> None:
    """Where something is wrong, the next verification begins where this one did."""
    row = asdict(report) | {"intact": not report.problems}
    if not report.problems:
        text = encode_canonical_json(asdict(state))
        key_id = newest_key()
        row |= {"state": text, "key_id": key_id, "hash": signature(key_id, "verified", text)}
    AuditVerification.objects.update_or_create(
        pk=1, defaults=row, create_defaults={"state": "", "hash": "", "key_id": "", **row}
    )


class _Verification:
    """One verification under way."""

    def __init__(
        self,
        now: datetime,
        state: VerificationState,
        known: Archives,
        before: VerificationState,
        *,
        full: bool,
    ) -> None:
        self.now = now
        self.state = state
        self.known = known
        self.full = full
        # What was verified before must be there, also where everything is read anew.
        self._verified = {
            writer: (stand.seq, stand.head) for writer, stand in before.stands.items()
        }
        self._seal_before = (before.seal, before.head)
        self._archive_before = before.archives
        self._books_before = dict(before.books)
        self._books_told = list[tuple[str, tuple[int, str]]]()
        self.problems: list[str] = []
        self._file_notes: list[str] = []
        self.entries = 0
        self._forgotten = signed_calls.Forgotten()
        self.expects_note = True

    def verify_all(self) -> None:
        """Everything, in order: archives and seals first, so that what they tell of must be
        there."""
        self._check_seal_file()
        self._check_archives()
        told = self._check_new_seals()
        self._check_heads([item for item in self._verified.items() if item[1] != told.get(item[0])])
        self._check_new_entries()
        if not self.full:
            self._recheck_old_entries()
        self._check_books()
        self._check_unwritten()

    def iterate_notes(self) -> Iterator[str]:
        """What is no fault, and yet should be known."""
        yield from self._file_notes
        if archived := self.known.describe_archives():
            yield archived
        late = AuditSeal.objects.order_by("-number").values_list("at", flat=True).first()
        if late and AuditEntry.objects.filter(at__gt=late, at__lt=self.now - SEALED_BY).exists():
            yield f"Checkpoints do not cover the entries after {late:%Y-%m-%d %H:%M} UTC, because the scheduler has not run since then."

    # The file of this machine

    def _check_seal_file(self) -> None:
        """The seal that it names is there, and so is the note of what was verified."""
        try:
            kept = newest_seal.read_newest_seal()
        except newest_seal.SealFileUnusable as error:
            self.problems.append(f"{error.message} {error.remedy}")
            return
        if kept is None:
            self._file_notes.append(_NO_FILE)
            return
        if loss := newest_seal.describe_loss(kept):
            self.problems.append(f"{loss} {newest_seal.ADVICE}")
        if self.expects_note and kept.noted and not self._seal_before[0]:
            self.problems.append(_NO_NOTE)

    def keep(self) -> None:
        """Let the file name the newest seal, if nothing is wrong."""
        try:
            newest_seal.keep_newest_seal(make=True, noted=bool(self._seal_before[0]))
        except (OSError, newest_seal.SealFileUnusable) as error:
            why = error.strerror if isinstance(error, OSError) else "another process damaged it"
            self._file_notes.append(
                f"The file {newest_seal.FILE} of this machine was not written: {why}."
            )

    # Archives

    def _check_archives(self) -> None:
        """The records that were verified are there, all of them hold, and every chain goes on after
        its own."""
        known = {record.number: record.hash for record in self.known.records}
        last = self._archive_before
        if last and known.get(last[0]) != last[1]:
            self.problems.append(
                f"Archive record {last[0]} is missing or was changed since it was verified."
            )
        self.problems += self.known.problems
        self.problems += chains.find_cut_chains(self.known)
        self.state.archives = max(known.items(), default=None)

    # Seals

    def _check_new_seals(self) -> seals.Heads:
        """What the seals since the last verification say of the chains.

        Every head that they name must be there. A later seal may name an earlier head or another
        one, if entries were cut off in between.
        """
        state = self.state
        told = seals.Heads()
        heads_to_check = list[tuple[str, tuple[int, str]]]()
        if not AuditSeal.objects.filter(number=1).exists():
            self.problems.append(
                "The first checkpoint is missing. Every site has one from its installation on."
            )
        for at in seals.list_losses():
            self.problems.append(
                f"All checkpoints before {at:%Y-%m-%d %H:%M} UTC were deleted. It is not known what else was deleted."
            )
        number, head = self._seal_before
        if number and not AuditSeal.objects.filter(number=number, hash=head).exists():
            self.problems.append(
                f"Checkpoint {number} is missing or was changed since it was verified."
            )
        newer = stream_rows(
            AuditSeal.objects.filter(number__gt=state.seal).order_by("number"), _PAGE
        )
        if not self.full:
            self._recheck_old_seals()
        for each, heads, problem in seals.check_seals(newer, state.seal, state.head):
            if problem:
                self.problems.append(f"Checkpoint {each.number}: {problem}.")
            else:
                self._note_book_heads(each)
            heads_to_check += [item for item in heads.items() if told.get(item[0]) != item[1]]
            if len(heads_to_check) >= _PAGE:
                self._check_heads(heads_to_check)
                heads_to_check = []
            told |= heads
            state.seal = each.number
            state.head = each.hash
        self._check_heads(heads_to_check)
        state.sealed |= {writer: seq for writer, (seq, _) in told.items()}
        return told

    def _check_heads(self, heads: Sequence[tuple[str, tuple[int, str]]]) -> None:
        """The chains still have these entries."""
        self.problems += chains.find_missing_ends(heads, self.known)

    def _recheck_old_seals(self) -> None:
        """Some of the older seals, as ``_recheck_old_entries`` does with entries."""
        state = self.state
        number, head = state.seals_again or (0, GENESIS)
        older = AuditSeal.objects.filter(number__gt=number, number__lte=state.seal).order_by(
            "number"
        )[:SEALS_AGAIN]
        for each, _, problem in seals.check_seals(stream_rows(older, _PAGE), number, head):
            if problem:
                self.problems.append(f"Checkpoint {each.number}: {problem}.")
            number = each.number
            head = each.hash
        state.seals_again = (number, head) if number < state.seal else None

    # Books of energy and budgets

    def _note_book_heads(self, each: AuditSeal) -> None:
        for name, head in seals.read_book_heads(each).items():
            known = self.state.books.get(name)
            if known and head[0] < known[0]:
                self.problems.append(
                    f"Checkpoint {each.number}: {name} had {known[0]} entries, but has only {head[0]} now."
                )
            if known != head:
                self.state.books[name] = head
                self._books_told.append((name, head))

    def _check_books(self) -> None:
        """Each book reaches as far as it was sealed, its new entries follow from each other, and
        the last has its balance."""
        books = self.state.books
        before = self._books_before
        heads = dict.fromkeys([*before.items(), *self._books_told, *books.items()])
        self.problems += signed_books.find_lost_heads(
            heads, {*before, *(name for name, _ in self._books_told)}
        )
        new_entries = (
            signed_books.find_broken_chains(kind, None if self.full else before)
            for kind in signed_books.TABLES
        )
        self.problems += islice(
            chain(signed_books.find_balance_problems(), *new_entries), MOST_TOLD
        )
        self.state.books = {
            name: head for name, head in books.items() if not signed_books.is_gone(name)
        }

    # Entries

    def _check_new_entries(self) -> None:
        """What has come since, or everything."""
        rows = AuditEntry.objects.order_by("writer", "seq")
        newest = AuditEntry.objects.order_by("-id").values_list("id", flat=True).first() or 0
        if self.full:
            self._walk(stream_rows(rows, _PAGE), self._get_stand)
        else:
            near = AuditEntry.objects.filter(id__gt=self.state.mark - _SEEN_LATE).order_by()
            for writer in sorted(near.values_list("writer", flat=True).distinct()):
                own = rows.filter(writer=writer, seq__gt=self._get_stand(writer).seq)
                self._walk(stream_rows(own, _PAGE), self._get_stand)
        self.state.mark = newest

    def _recheck_old_entries(self) -> None:
        """Some of the older entries, from where the last time ended; from the beginning, once all
        were read."""
        state = self.state
        left = AGAIN
        rows = AuditEntry.objects.order_by("writer", "seq")
        before = self.entries
        if state.again is not None:
            writer, stand = state.again
            stand = max(stand, self.known.get_stand(writer), key=_get_seq)
            self._walk(
                rows.filter(writer=writer, seq__gt=stand.seq)[:left], lambda _: stand, again=True
            )
            rows = rows.filter(writer__gt=writer)
            left = left - (self.entries - before)
        if left:
            self._walk(stream_rows(rows[:left], _PAGE), self.known.get_stand, again=True)
        if self.entries - before < AGAIN:
            state.again = None

    # Calls and messages

    def _check_unwritten(self) -> None:
        """Calls and messages that the log does not tell of: all, or those whose turn it is."""
        state = self.state
        calls = unrecorded_rows.KeyRange()
        talks = unrecorded_rows.KeyRange()
        if not self.full:
            calls = unrecorded_rows.find_next_part(Invocation, state.calls, ROWS)
            talks = unrecorded_rows.find_next_part(Conversation, state.conversations, ROWS)
        found = chain(
            unrecorded_rows.find_unrecorded_calls(calls),
            unrecorded_rows.find_unrecorded_messages(talks),
            unrecorded_rows.find_unrecorded_permits(self.now),
        )
        self.problems += islice(found, MOST_TOLD)
        state.calls = calls.upto
        state.conversations = talks.upto

    def _get_stand(self, writer: str) -> ChainStand:
        return max(
            self.state.stands.get(writer, ChainStand()), self.known.get_stand(writer), key=_get_seq
        )

    def _walk(
        self,
        entries: Iterable[AuditEntry],
        stands: Callable[[str], ChainStand],
        *,
        again: bool = False,
    ) -> None:
        walked = chains.walk_chains(entries, stands)
        while page := list(islice(walked, _PAGE)):
            for entry, problems in page:
                self.problems += [f"{entry.writer} #{entry.seq}: {problem}" for problem in problems]
                stand = ChainStand(entry.seq, entry.hash, entry.key_id)
                if again:
                    self.state.again = entry.writer, stand
                else:
                    self.state.stands[entry.writer] = stand
            read = [entry for entry, _ in page]
            self.problems += signed_calls.find_misfits(read, self._forgotten)
            self.problems += signed_messages.find_message_misfits(read, self._forgotten)
            self.entries += len(page)


def _get_seq(stand: ChainStand) -> int:
    return stand.seq
