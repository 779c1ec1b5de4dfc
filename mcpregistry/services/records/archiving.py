"""Moving old entries of the audit log into files: ``manage.py audit archive``.

A file is written, put on disk and read again; then, some thousand entries at a time, one
transaction adds the records that say so, removes the entries and tells it in the log. Killed
anywhere, every entry is in the database or in a file with its name, and the next run goes on. Taken
is a beginning of a chain: what is verified, sealed and old, up to the first entry of a call whose
record is still there; never a chain's last entry.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Substr

from mcpregistry.db import stream_rows
from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.failpoints import failpoint
from mcpregistry.models.audit import GENESIS, AuditArchive, AuditEntry
from mcpregistry.models.invocation import Invocation
from mcpregistry.models.signing import newest_key
from mcpregistry.services.records import (
    archive_files,
    archives,
    audit,
    chains,
    signed_calls,
    signed_permits,
    verification,
)
from mcpregistry.services.records.archives import Archives, ChainStand

LEAST = timedelta(days=7)
FILE = 100_000  # entries of one file
BATCH = 5_000  # entries that one transaction removes
_LOCK = ".archiving"
_PAGE = 500
_WHOLE = "Only entries in verified archive files were removed. Run `manage.py audit archive` again to continue."

Say = Callable[[str], None]


class EntryRun(NamedTuple):
    """Entries of one chain, from one number to another."""

    writer: str
    first: int
    last: int

    @property
    def entries(self) -> int:
        """How many they are."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Moved:
    """What one call of ``archive_entries`` has moved, or would move."""

    entries: int
    chains: int
    files: tuple[Path, ...] = ()


def archive_entries(
    now: datetime, older_than: timedelta, folder: Path, say: Say, *, dry_run: bool = False
) -> Moved:
    """Move what is older into files in the folder. Returns how much that was; with ``dry_run``, how
    much it would be.

    Raises Conflict where the log does not hold or somebody else archives, ConfigInvalid where the
    folder takes no file.
    """
    if older_than < LEAST:
        raise ConfigInvalid(
            f"Entries younger than {LEAST.days} days cannot be archived (got {older_than.days}).",
            remedy=f"Use --older-than {LEAST.days}d or more.",
        )
    if dry_run:
        return _sum_moved(plan_runs(now, older_than))
    with _hold_archive_lock(folder):
        runs = plan_runs(now, older_than)
        if runs:
            _repeat_retention_entry()
        paths = list[Path]()
        total = _sum_moved(runs).entries
        done = 0
        for batches in _iterate_files(runs):
            say(f"Writing and verifying {_count_entries(batches):,} entries")
            file = _write_file(folder, batches, now)
            paths.append(file.path)
            failpoint("archive_written")
            for batch in batches:
                _move(batch, file, now)
                done += sum(run.entries for run in batch)
                say(f"{done:,} of {total:,} entries moved")
    return Moved(total, _sum_moved(runs).chains, tuple(paths))


def _count_entries(batches: Iterable[Iterable[EntryRun]]) -> int:
    return sum(run.entries for batch in batches for run in batch)


def _sum_moved(runs: Sequence[EntryRun]) -> Moved:
    return Moved(sum(run.entries for run in runs), len({run.writer for run in runs}))


# What is taken


def plan_runs(now: datetime, older_than: timedelta) -> list[EntryRun]:
    """Of each chain what may be archived, if anything. Verifies the log first; raises Conflict
    where it does not hold."""
    report = verification.verify_log(now)
    if report.problems:
        raise Conflict(
            f"The audit log has been changed: {report.problems[0].rstrip('.')}.",
            remedy="Run `manage.py audit verify --full` to find the cause. No entries were moved to an archive.",
        )
    state = verification.load_verification_state()[0]
    known = archives.load_archives()
    found = []
    for writer, stand in sorted(state.stands.items()):
        first = known.get_stand(writer).seq + 1
        upto = min(stand.seq, state.sealed.get(writer, 0))
        last = _find_last_to_archive(writer, first, upto, before=now - older_than, now=now)
        if last >= first:
            found.append(EntryRun(writer, first, last))
    return found


def _find_last_to_archive(
    writer: str, first: int, upto: int, *, before: datetime, now: datetime
) -> int:
    if upto < first:
        return 0
    rows = AuditEntry.objects.filter(writer=writer).order_by("seq")
    call = Invocation.objects.filter(pk=Substr(OuterRef("subject"), len("call:") + 1))
    permit = signed_permits.match_live_permit_entries(now)
    stays = Q(at__gte=before) | Q(subject__startswith="call:") & Exists(call)
    kept_for = stays | Q(subject__startswith="permit:") & permit
    kept = (
        rows.filter(kept_for, seq__gte=first, seq__lte=upto).values_list("seq", flat=True).first()
    )
    newest = rows.values_list("seq", flat=True).last() or 0
    return min(upto, newest - 1, upto if kept is None else kept - 1)


def _repeat_retention_entry() -> None:
    """Until when retention has taken calls away must be in an entry that stays."""
    told = signed_calls.Forgotten()
    if told.calls.year > 1:
        said = {
            "calls_before": told.calls.isoformat(),
            "payloads_before": told.payloads.isoformat(),
        }
        audit.record_entry(
            kind="calls.forgotten", actor="archive", subject=signed_calls.FORGOTTEN, **said
        )


def _iterate_files(runs: Iterable[EntryRun]) -> Iterator[list[list[EntryRun]]]:
    """The runs, cut into batches, some batches to a file."""
    batches = _iterate_batches(runs)
    while file := list(islice(batches, max(1, FILE // BATCH))):
        yield file


def _iterate_batches(runs: Iterable[EntryRun]) -> Iterator[list[EntryRun]]:
    batch = list[EntryRun]()
    room = BATCH
    for run in runs:
        first = run.first
        while first <= run.last:
            part = EntryRun(run.writer, first, min(run.last, first + room - 1))
            batch.append(part)
            first = part.last + 1
            room = room - part.entries
            if not room:
                yield batch
                batch = []
                room = BATCH
    if batch:
        yield batch


# Into a file


@dataclass(frozen=True, slots=True)
class _File:
    """A file with its name. ``stands``: of each run in it, its last entry."""

    path: Path
    digest: str
    stands: dict[tuple[str, int], ChainStand]


def _write_file(folder: Path, batches: list[list[EntryRun]], now: datetime) -> _File:
    """These runs in a file that is on disk and was read again. Raises Conflict where an entry does
    not hold."""
    known = archives.load_archives()
    name = f"audit-{len(known.records) + 1:06d}-{now:%Y%m%dT%H%M%S.%f}Z.jsonl.gz"
    runs = [run for batch in batches for run in batch]
    if any(run.first <= known.get_stand(run.writer).seq for run in runs):
        raise _make_concurrency_error()
    try:
        part = archive_files.write_archive_file(
            folder, name, _iterate_checked_entries(runs, known), now
        )
        stands = _read_again(part, runs, known)
        digest = archive_files.hash_file(part)
        return _File(archive_files.publish_archive_file(part), digest, stands)
    except OSError as error:
        raise ConfigInvalid(
            f"The archive cannot be written to {folder}: {error.strerror}.",
            remedy=f"Free disk space, or choose another folder with --to. {_WHOLE}",
        ) from error


def _read_again(
    part: Path, runs: list[EntryRun], known: Archives
) -> dict[tuple[str, int], ChainStand]:
    content = archive_files.read_archive_file(part, known, [(run.writer, run.last) for run in runs])
    entries = sum(run.entries for run in runs)
    wrong = content.problems
    if not wrong and (content.entries != entries or len(content.stands) != len(runs)):
        wrong = [f"{entries:,} entries were written, but {content.entries:,} were read"]
    if wrong:
        part.unlink()
        raise Conflict(
            f"The archive file differs from the entries that were written to it: {wrong[0]}",
            remedy=f"Check the disk, or choose a folder on another disk with --to. {_WHOLE}",
        )
    return content.stands


def _iterate_checked_entries(runs: Iterable[EntryRun], known: Archives) -> Iterator[AuditEntry]:
    """The entries of these runs, each looked at: what does not hold, or whose call was taken by
    hand, is not archived."""
    forgotten = signed_calls.Forgotten()
    walked = chains.walk_chains(_iterate_rows(runs), known.get_stand)
    while page := list(islice(walked, _PAGE)):
        for entry, problems in page:
            if problems:
                raise _make_broken_log_error(f"{entry.writer} #{entry.seq}: {problems[0]}")
            yield entry
        for problem in signed_calls.find_misfits([entry for entry, _ in page], forgotten):
            raise _make_broken_log_error(problem)


def _iterate_rows(runs: Iterable[EntryRun]) -> Iterator[AuditEntry]:
    for run in runs:
        yield from stream_rows(_select_run_entries(run).order_by("seq"), _PAGE)


def _select_run_entries(run: EntryRun) -> QuerySet[AuditEntry]:
    return AuditEntry.objects.filter(writer=run.writer, seq__gte=run.first, seq__lte=run.last)


def _make_broken_log_error(problem: str) -> Conflict:
    return Conflict(
        f"{problem}.", remedy=f"Run `manage.py audit verify --full` to find the cause. {_WHOLE}"
    )


# Out of the database


def _move(batch: Sequence[EntryRun], file: _File, now: datetime) -> None:
    """Record that these runs are in the file, remove them, and tell it in the log; or nothing of
    it."""
    try:
        with transaction.atomic():
            records = _make_records(batch, file, now)
            AuditArchive.objects.bulk_create(records)
            failpoint("archive_recorded")
            # All of them must still be there; had another run taken the same ones, its records
            # would be in the way.
            for run in batch:
                if _select_run_entries(run).delete()[0] != run.entries:
                    raise _make_concurrency_error()
            said = {
                "entries": sum(run.entries for run in batch),
                "records": [records[0].number, records[-1].number],
            }
            subject = f"file:{file.path.name}"
            audit.record_entry(
                kind="audit.archived",
                actor="archive",
                subject=subject,
                digest=file.digest,
                **said,
            )
    except IntegrityError as error:
        raise _make_concurrency_error() from error


def _make_records(batch: Sequence[EntryRun], file: _File, now: datetime) -> list[AuditArchive]:
    last = AuditArchive.objects.order_by("-number").first()
    number, prev = (last.number, last.hash) if last else (0, GENESIS)
    made = []
    for run in batch:
        stand = file.stands[run.writer, run.last]
        number = number + 1
        record = AuditArchive(
            number=number,
            at=now,
            writer=run.writer,
            from_seq=run.first,
            to_seq=run.last,
            head=stand.head,
            head_key=stand.key_id,
            file=file.path.name,
            digest=file.digest,
            prev=prev,
            key_id=newest_key(),
        )
        made.append(archives.sign_archive(record))
        prev = record.hash
    return made


def _make_concurrency_error() -> Conflict:
    return Conflict("Another process archived entries at the same time.", remedy=_WHOLE)


@contextmanager
def _hold_archive_lock(folder: Path) -> Iterator[None]:
    """Nobody else archives into this folder; what a run has left that was killed is taken away."""
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigInvalid(
            f"No file can be written to the folder {folder}: {error.strerror}.",
            remedy="Create the folder, make it writable, or choose another one with --to. Nothing was removed.",
        ) from error
    try:
        _lock(descriptor, folder)
        for part in folder.glob(archive_files.PATTERN + archive_files.PART):
            part.unlink()
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Conflict(
            f"Another process is writing an archive to {folder}.",
            remedy="Wait until it is finished. Nothing was removed.",
        ) from error
