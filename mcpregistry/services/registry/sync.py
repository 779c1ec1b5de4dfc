"""Reading a registry into the site's copy: whole once a week, else what has changed, a page a
transaction.

Invariants:
* One worker reads a registry at a time, by a lease; who has lost it writes nothing more.
* The watermark moves only after the last page, so what a broken round did not see comes again in
  the next.
* What a registry takes back, or alters under the same version, is told and acted on in the
  transaction that notes it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property

import structlog
from django.db import transaction
from django.db.models import Q

from mcpregistry.db import read_database_now
from mcpregistry.domain.errors import (
    Interrupted,
    ProtocolError,
    ResourceLimit,
    SlipsnisseError,
    TimedOut,
)
from mcpregistry.domain.registry.entries import RegistryListing, Status, Unreadable, read
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.downstream import registries
from mcpregistry.models import RegistryEntry, RegistrySource
from mcpregistry.models.registry import OFFERED
from mcpregistry.services.registry import versions, withdrawn_entries

log = structlog.get_logger(__name__)

LEASE = timedelta(seconds=120)  # longer than a page may take
WHOLE_EVERY = timedelta(days=7)
# before the watermark: entries that were being written when it was read
OVERLAP = timedelta(minutes=5)
# a change of later than that is a lie or a wrong clock: it moves no watermark
AHEAD = timedelta(days=1)
MOST_PAGES = 2_000
MOST_SECONDS = 1_800.0  # of one round: a worker has other work as well
MOST_BYTES = 256 * 1024 * 1024  # of documents in one round
_BROKEN_OFF = "The registry was not read completely, because the worker stopped. Press “Sync registry” on the page of the registry."
_REPORT = "Report this problem to the operators of the registry."
_FROM_ENTRY = (
    "title",
    "description",
    "kinds",
    "status",
    "status_message",
    "document",
    "sha256",
    "published_at",
    "updated_at",
)
_KEPT = (*_FROM_ENTRY, "altered_at", "seen_at", "is_latest")


@dataclass
class Round:
    """One reading of one registry. ``newest``: the latest change that it has told of."""

    source: RegistrySource
    lease: datetime
    started: datetime
    newest: datetime | None
    pages: int = 0
    skipped: int = 0
    skipped_why: str = ""
    stored_bytes: int = 0
    cursors: set[str] = field(default_factory=set)

    @cached_property
    def packages(self) -> versions.Used:
        """What servers start now."""
        return versions.list_used_versions() if self.source.propose_versions else {}

    @property
    def whole(self) -> bool:
        """Everything is read, not only what has changed."""
        full = self.source.full_at
        mark = self.source.watermark
        return full is None or mark is None or self.started - full > WHOLE_EVERY

    def build_query(self) -> dict[str, str]:
        """What its first page is asked with."""
        if self.whole:
            return {"limit": str(registries.MOST_ENTRIES), "include_deleted": "true"}
        assert self.source.watermark is not None
        since = (
            (self.source.watermark - OVERLAP)
            .astimezone(UTC)
            .isoformat(timespec="seconds")
            .replace("+00:00", "Z")
        )
        return {"limit": str(registries.MOST_ENTRIES), "updated_since": since}


def sync_source(*, source_id: int, seconds: float = registries.SECONDS) -> RegistrySource | None:
    """Read it; a worker calls this. None: somebody else reads it. What goes wrong stands on its
    page then.

    ``seconds``: how long the registry may take for each page.
    """
    turn = _claim(source_id)
    if turn is None:
        return None
    try:
        _read_and_end(turn, seconds)
    except Interrupted:
        return None
    return RegistrySource.objects.filter(pk=source_id).first()


def _claim(source_id: int) -> Round | None:
    now = read_database_now()
    free = Q(lease_until=None) | Q(lease_until__lt=now)
    claimed = RegistrySource.objects.filter(free, pk=source_id).update(
        lease_until=now + LEASE,
        tried_at=now,
        asked_at=None,
        pages=0,
        skipped=0,
        skipped_why="",
        error=_BROKEN_OFF,
    )
    source = RegistrySource.objects.filter(pk=source_id).first() if claimed else None
    return Round(source, now + LEASE, now, source.watermark) if source else None


def _read_and_end(turn: Round, seconds: float) -> None:
    try:
        _read_all(turn, seconds)
    except Interrupted:
        raise
    except SlipsnisseError as error:
        _end(turn, error=clean_text(str(error)))
    else:
        _end(turn)


def _read_all(turn: Round, seconds: float) -> None:
    source = turn.source
    query = turn.build_query()
    began = time.monotonic()
    for _ in range(MOST_PAGES):
        if time.monotonic() - began > MOST_SECONDS:
            raise TimedOut(
                "The registry could not be read within 30 minutes.",
                remedy="Sync the registry again later.",
            )
        page = asyncio.run(
            registries.fetch_page(
                source.base_url, query, tuple(source.allowed_networks), seconds, source.token
            )
        )
        _store(turn, page.entries)
        if not page.cursor:
            return
        if page.cursor in turn.cursors:
            raise ProtocolError(
                "The registry returned the same page twice, so its list never ends.", remedy=_REPORT
            )
        turn.cursors.add(page.cursor)
        query |= {"cursor": page.cursor}
    raise ResourceLimit(f"The registry has more than {MOST_PAGES} pages.", remedy=_REPORT)


def _store(turn: Round, raw: list[object]) -> None:
    # Read before the transaction begins: what a registry says may be long and odd.
    _write_page(
        turn, {(entry.name, entry.version): entry for entry in _iterate_readable(turn, raw)}
    )


@transaction.atomic
def _write_page(turn: Round, entries: dict[tuple[str, str], RegistryListing]) -> None:
    turn.pages += 1
    _hold(turn, pages=turn.pages, skipped=turn.skipped, skipped_why=turn.skipped_why)
    names = {name for name, _ in entries}
    rows = {(row.name, row.version): row for row in turn.source.entries.filter(name__in=names)}
    newest = {row.pk for row in rows.values() if row.is_latest}
    for key, entry in entries.items():
        row = rows.setdefault(
            key, RegistryEntry(source=turn.source, name=entry.name, version=entry.version)
        )
        _take_entry(turn, row, entry)
    _mark_latest(rows.values())
    _update([row for key, row in rows.items() if row.pk and key in entries], _KEPT)
    _update(
        [
            row
            for key, row in rows.items()
            if row.pk and key not in entries and row.is_latest != (row.pk in newest)
        ],
        ["is_latest"],
    )
    RegistryEntry.objects.bulk_create([row for row in rows.values() if row.pk is None])
    versions.propose_newer_versions(rows.values(), turn.packages)


def _update(rows: list[RegistryEntry], columns: Sequence[str]) -> None:
    RegistryEntry.objects.bulk_update(rows, columns, batch_size=50)


def _iterate_readable(turn: Round, raw: list[object]) -> Iterable[RegistryListing]:
    for item in raw:
        try:
            entry = read(item)
        except Unreadable as error:
            turn.skipped += 1
            turn.skipped_why = clean_text(str(error), 200)
            continue
        turn.stored_bytes += len(entry.document)
        if turn.stored_bytes > MOST_BYTES:
            raise ResourceLimit(
                "The entries of the registry are larger than 256 MiB in total.", remedy=_REPORT
            )
        yield entry


def _take_entry(turn: Round, row: RegistryEntry, entry: RegistryListing) -> None:
    """The row becomes what the registry says now. An entry is meant to stay as it is once it was
    published."""
    altered = row.pk is not None and row.sha256 != entry.sha256
    deleted = entry.status == Status.DELETED and row.status != Status.DELETED
    before = withdrawn_entries.list_entry_servers(row) if altered else []
    for name in _FROM_ENTRY:
        setattr(row, name, getattr(entry, name))
    row.kinds = " ".join(entry.kinds)
    row.seen_at = turn.started
    if altered:
        row.altered_at = turn.started
        withdrawn_entries.handle_altered_entry(row, before)
    if deleted:
        withdrawn_entries.handle_deleted_entry(row, before, disable=turn.source.disable_deleted)
    if entry.updated_at and entry.updated_at <= turn.started + AHEAD:
        turn.newest = max(turn.newest or entry.updated_at, entry.updated_at)


def _mark_latest(rows: Iterable[RegistryEntry]) -> None:
    """Of each name the last published one that was not taken back. ``rows``: all versions of their
    names."""
    newest: dict[str, RegistryEntry] = {}
    for row in sorted(
        rows,
        key=lambda row: (row.published_at or datetime.min.replace(tzinfo=UTC), row.pk or 2**63),
    ):
        row.is_latest = False
        if row.status in OFFERED:
            newest[row.name] = row
    for row in newest.values():
        row.is_latest = True


def _hold(turn: Round, **values: object) -> None:
    """Renew the lease, with what is known so far. Raises Interrupted when it is another's, or the
    address has changed."""
    lease = read_database_now() + LEASE
    _set(turn, lease_until=lease, **values)
    turn.lease = lease


def _set(turn: Round, **values: object) -> None:
    """Whoever has the lease writes: it only ever moves forward, so it is nobody else's as well."""
    ours = RegistrySource.objects.filter(
        pk=turn.source.pk, lease_until=turn.lease, base_url=turn.source.base_url
    )
    if not ours.update(**values):
        raise Interrupted("Another worker is reading this registry, or the registry was changed.")


@transaction.atomic
def _end(turn: Round, *, error: str = "") -> None:
    values: dict[str, object] = {"lease_until": None, "error": error}
    if not error:
        values |= {"synced_at": turn.started, "watermark": turn.newest}
        values |= {"full_at": turn.started} if turn.whole else {}
    _set(turn, **values)
    if turn.whole and not error:
        _forget_unseen(turn)
    log.info(
        "registry_read",
        registry=turn.source.slug,
        pages=turn.pages,
        skipped=turn.skipped,
        error=error,
    )


def _forget_unseen(turn: Round) -> None:
    """What a whole reading did not show is gone; another version of the same server may be the
    newest then."""
    unseen = turn.source.entries.filter(seen_at__lt=turn.started).exclude(status=Status.GONE)
    names = list(unseen.values_list("name", flat=True).distinct())
    unseen.update(status=Status.GONE)
    for start in range(0, len(names), 500):
        rows = list(
            turn.source.entries.filter(name__in=names[start : start + 500]).defer("document")
        )
        _mark_latest(rows)
        _update(rows, ["is_latest"])
