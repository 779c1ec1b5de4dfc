"""What the database knows of the audit log's archives: where each chain begins that no longer
begins with its first entry.

The records are signed and chained as seals are. One that does not hold counts for nothing, so that
what it would excuse is missing. ``archive_files`` reads the files, ``archiving`` makes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC
from typing import NamedTuple

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.text.canonical import encode_canonical_json
from mcpregistry.domain.text.display import number_of
from mcpregistry.models.audit import GENESIS, AuditArchive
from mcpregistry.models.signing import signature, verify_signature

_SIGNED = ("number", "writer", "from_seq", "to_seq", "head", "head_key", "file", "digest", "prev")
_DIGEST = 32  # bytes of a hash


class ChainStand(NamedTuple):
    """How far a chain has come: the number and hash of its last entry, and the key of that."""

    seq: int = 0
    head: str = GENESIS
    key_id: str = ""


class Archives:
    """The records, as far as they hold; ``load_archives`` makes one for each verification."""

    def __init__(self, records: Iterable[AuditArchive]) -> None:
        self.records: list[AuditArchive] = []
        self.problems: list[str] = []
        self.ends: dict[tuple[str, int], ChainStand] = {}  # of each record
        self._stands: dict[str, ChainStand] = {}
        self._newest: int | None = None
        self._read: dict[str, bytearray] = {}  # hashes of the entries whose files were read
        number = 0
        head = GENESIS
        for record in records:
            problem = _explain_problem(record, number, head) or self._explain_misplaced(record)
            number = record.number
            head = record.hash
            self._newest = number
            if problem:
                self.problems.append(f"Archive record {record.number}: {problem}.")
            else:
                self._take(record)

    def is_stale(self) -> bool:
        """Whether entries were archived since this was read: what was looked at meanwhile may have
        been both here and there."""
        newest = AuditArchive.objects.order_by("-number").values_list("number", flat=True).first()
        return newest != self._newest

    def reload_archives(self) -> Archives:
        """As the database has them now, with what was heard of files."""
        made = load_archives()
        made._read = self._read
        return made

    def get_stand(self, writer: str) -> ChainStand:
        """Until where this chain is in archives."""
        return self._stands.get(writer, ChainStand())

    def iterate_stands(self) -> Iterator[tuple[str, ChainStand]]:
        """The same of every chain of which entries are in archives."""
        return iter(self._stands.items())

    def record_read_file(self, writer: str, seq: int, head: str) -> None:
        """A file was read that holds this entry."""
        hashes = self._read.setdefault(writer, bytearray())
        hashes.extend(bytes(max(0, seq * _DIGEST - len(hashes))))
        hashes[(seq - 1) * _DIGEST : seq * _DIGEST] = bytes.fromhex(head)

    def has_entry(self, writer: str, seq: int, head: str) -> bool:
        """Whether this very entry is in an archive. Of files that were not read, their ends are
        known alone."""
        if seq > self.get_stand(writer).seq:
            return False
        known = self._read.get(writer, b"")[(seq - 1) * _DIGEST : seq * _DIGEST]
        if any(known):
            return known.hex() == head
        end = self.ends.get((writer, seq))
        return end is None or end.head == head

    def describe_archives(self) -> str:
        """What is in archives, in a sentence; empty when nothing is."""
        if not self.records:
            return ""
        files = sorted({record.file for record in self.records})
        entries = sum(stand.seq for stand in self._stands.values())
        named = files[0] if len(files) == 1 else f"{len(files):,} files, {files[0]} to {files[-1]}"
        read = (
            "were read as well."
            if self._read
            else "were not read. To read them, add --archive with the folder of the files."
        )
        verb = "is" if entries == 1 else "are"
        return f"{number_of(entries, 'entry', 'entries')} of {number_of(len(self._stands), 'chain')} {verb} in archives ({named}). The archives {read}"

    def _explain_misplaced(self, record: AuditArchive) -> str:
        if (
            record.from_seq != self.get_stand(record.writer).seq + 1
            or record.to_seq < record.from_seq
        ):
            return f"{record.writer} #{record.from_seq} to #{record.to_seq} does not follow the entries that were archived before"
        return ""

    def _take(self, record: AuditArchive) -> None:
        self.records.append(record)
        stand = ChainStand(record.to_seq, record.head, record.head_key)
        self.ends[record.writer, record.to_seq] = stand
        self._stands[record.writer] = stand


def load_archives() -> Archives:
    """What the database has of them now."""
    return Archives(AuditArchive.objects.order_by("number"))


def build_signed_text(record: AuditArchive) -> str:
    """What a record's signature covers."""
    said = {name: getattr(record, name) for name in _SIGNED}
    return encode_canonical_json(said | {"at": record.at.astimezone(UTC).isoformat()})


def sign_archive(record: AuditArchive) -> AuditArchive:
    """Give it its signature, by the key that it names."""
    record.hash = signature(record.key_id, "archived", build_signed_text(record))
    return record


def _explain_problem(record: AuditArchive, number: int, head: str) -> str:
    """Why this record cannot be what was written after the one of that number and signature."""
    try:
        if not verify_signature(record.key_id, "archived", build_signed_text(record), record.hash):
            return "it does not match its signature"
    except ConfigInvalid as error:
        return f"it cannot be verified. {error.message} {error.remedy}"
    if record.number != number + 1:
        return f"the records before it are missing, from number {number + 1} on"
    return "" if record.prev == head else "it does not follow the record before it"
