"""Files of archived audit entries: gzip of the lines of an export, and a last line that is signed.

    {"writer": "web:1", "seq": 1, "prev": "…", "hash": "…", "key_id": "…", "body": "…"} {"archive":
    "{…}", "key_id": "…", "hash": "…"}        how many lines, their SHA-256, how far each chain goes

A file has its name only when it is whole, on disk, and was read again.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.text.canonical import clean_text, encode_canonical_json
from mcpregistry.domain.text.display import number_of
from mcpregistry.models.audit import AuditArchive, AuditEntry
from mcpregistry.models.signing import newest_key, signature, verify_signature
from mcpregistry.services.records import chains
from mcpregistry.services.records.archives import Archives, ChainStand

PATTERN = "audit-*.jsonl.gz"
PART = ".part"
_LEVEL = 4  # of gzip, as in backups
_LONGEST = 64 * 1024 * 1024  # bytes of one line
_MOST = 100  # problems that are told of one file
_PAGE = 500
# What reading raises of a file that is no gzip, cut, damaged, or written by somebody to be odd.
_UNREADABLE = (
    OSError,
    EOFError,
    zlib.error,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)

Ends = dict[str, tuple[int, str]]  # of each chain: the last entry, and its hash


@dataclass(slots=True)
class Content:
    """What was read of a file. ``stands``: of each place that was asked for, the entry that is
    there."""

    entries: int = 0
    ends: Ends = field(default_factory=dict)
    stands: dict[tuple[str, int], ChainStand] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


# Writing


def write_archive_file(
    folder: Path, name: str, entries: Iterable[AuditEntry], now: datetime
) -> Path:
    """Write a file and have it on disk, under a name that says that it is not looked at yet. Raises
    OSError."""
    part = folder / f"{name}{PART}"
    try:
        with open(part, "xb", opener=_open_private) as stream:
            with gzip.GzipFile(
                fileobj=stream, mode="wb", compresslevel=_LEVEL, filename=""
            ) as lines:
                _write_lines(lines, entries, now)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    return part


def publish_archive_file(part: Path) -> Path:
    """Give a file that was read again its name, and have that on disk as well. Raises OSError."""
    path = part.with_name(part.name.removesuffix(PART))
    part.rename(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return path


def _write_lines(lines: gzip.GzipFile, entries: Iterable[AuditEntry], now: datetime) -> None:
    digest = hashlib.sha256()
    number = 0
    ends = Ends()
    for entry in entries:
        line = f"{chains.format_entry_line(entry)}\n".encode()
        digest.update(line)
        lines.write(line)
        number = number + 1
        ends[entry.writer] = (entry.seq, entry.hash)
    body = encode_canonical_json(
        {"at": now.isoformat(), "entries": number, "digest": digest.hexdigest(), "ends": ends}
    )
    key_id = newest_key()
    last = {"archive": body, "key_id": key_id, "hash": signature(key_id, "archive", body)}
    lines.write(f"{json.dumps(last)}\n".encode())


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


# Reading


def hash_file(path: Path) -> str:
    """The SHA-256 of a file's bytes. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_archive_file(
    path: Path, known: Archives, wanted: Iterable[tuple[str, int]], *, hear: bool = False
) -> Content:
    """Read a file to its end: each entry holds, follows the one before, and the last line speaks of
    exactly these.

    The first entry of a chain follows what ``known`` says of the one before. ``hear``: tell
    ``known`` of each entry.
    """
    content = Content()
    places = {*wanted}
    digest = hashlib.sha256()
    try:
        with gzip.open(path) as stream:
            lines = _Lines(stream, digest)
            for entry, problems in chains.walk_chains(
                lines, lambda writer: _find_stand_before(lines.next, known)
            ):
                if problems and len(content.problems) < _MOST:
                    content.problems += [
                        f"{path.name}: {entry.writer} #{entry.seq}: {problem}"
                        for problem in problems
                    ]
                content.entries = content.entries + 1
                content.ends[entry.writer] = (entry.seq, entry.hash)
                if (entry.writer, entry.seq) in places:
                    content.stands[entry.writer, entry.seq] = ChainStand(
                        entry.seq, entry.hash, entry.key_id
                    )
                if hear and not problems:
                    known.record_read_file(entry.writer, entry.seq, entry.hash)
            content.problems += [
                f"{path.name} {problem}."
                for problem in _check_last_line(lines.last, content, digest.hexdigest())
            ]
    except _UNREADABLE as error:
        content.problems.append(
            f"{path.name} is not a complete archive of an audit log ({type(error).__name__})."
        )
    return content


class _Lines:
    """The entries of a file, and what its last line says; ``next`` is the entry that was just
    read."""

    def __init__(self, stream: gzip.GzipFile, digest: Any) -> None:
        self._stream = stream
        self._digest = digest
        self.next: AuditEntry
        self.last: Mapping[str, Any] = {}

    def __iter__(self) -> Iterator[AuditEntry]:
        while line := self._stream.readline(_LONGEST):
            said = json.loads(line)
            if "archive" in said:
                self.last = said
                if self._stream.readline(1):
                    raise ValueError("there is more content after the last line")
                return
            self._digest.update(line)
            self.next = _parse_entry(said)
            yield self.next


def _parse_entry(said: Mapping[str, Any]) -> AuditEntry:
    """An entry from its line: the other columns are what its text says, which the hash covers."""
    body = json.loads(said["body"])
    return AuditEntry(
        writer=said["writer"],
        seq=int(said["seq"]),
        prev=said["prev"],
        hash=said["hash"],
        key_id=said["key_id"],
        body=said["body"],
        at=datetime.fromisoformat(body["at"]),
        kind=body["kind"],
        actor=clean_text(body["actor"], 150),
        subject=clean_text(body["subject"], 200),
    )


def _find_stand_before(first: AuditEntry, known: Archives) -> ChainStand:
    """Where the chain stood ahead of its first entry in a file, as records say; else that entry's
    own word."""
    if first.seq == 1:
        return ChainStand()
    return known.ends.get((first.writer, first.seq - 1), ChainStand(first.seq - 1, first.prev))


def _check_last_line(said: Mapping[str, Any], content: Content, digest: str) -> Iterator[str]:
    if not said:
        yield "is incomplete: its last line is missing"
        return
    try:
        if not verify_signature(said["key_id"], "archive", said["archive"], said["hash"]):
            yield "does not match its signature"
            return
    except ConfigInvalid as error:
        yield f"cannot be verified: {error.message} {error.remedy}"
        return
    body = json.loads(said["archive"])
    ends = {writer: list(end) for writer, end in content.ends.items()}
    if (body["entries"], body["digest"], body["ends"]) != (content.entries, digest, ends):
        yield "does not contain the entries that its last line lists"


# Verifying


def verify_archive_files(places: Iterable[str], known: Archives) -> Iterator[str]:
    """One sentence for whatever is wrong with these files, or folders of them, and for each file
    that is missing.

    ``known`` hears of each entry. Raises ConfigInvalid for a place that is not there or cannot be
    read.
    """
    by_digest: dict[str, list[AuditArchive]] = {}
    for record in known.records:
        by_digest.setdefault(record.digest, []).append(record)
    digests = {record.file: record.digest for record in known.records}
    read_already = set[str]()
    replaced = set[str]()
    ends = list[tuple[str, Ends]]()
    for path in find_archive_files(places):
        digest = _hash_or_refuse(path)
        if digests.get(path.name, digest) != digest:
            yield f"{path.name} is not the file that was archived: it was changed, damaged or replaced."
            replaced.add(digests[path.name])
        elif digest not in read_already:
            content = read_archive_file(
                path, known, _list_ends(by_digest.get(digest, ())), hear=digest in by_digest
            )
            yield from content.problems
            yield from _check_other_files(path.name, content, by_digest.get(digest, ()))
            ends += [] if content.problems else [(path.name, content.ends)]
            read_already.add(digest)
    for digest in by_digest.keys() - read_already - replaced:
        entries = sum(record.to_seq - record.from_seq + 1 for record in by_digest[digest])
        name = by_digest[digest][0].file
        yield f"{name} is missing, with {number_of(entries, 'entry', 'entries')}. Enter the folder that contains this file."
    for name, each in ends:  # now it is known which entries are in other files
        yield from _find_missing_entries(name, each, known)


def find_archive_files(places: Iterable[str]) -> Iterator[Path]:
    """The files of these places: a file itself, of a folder those that are named as archives
    are."""
    for place in map(Path, places):
        if place.is_dir():
            yield from sorted(place.glob(PATTERN))
        elif place.is_file():
            yield place
        else:
            raise ConfigInvalid(
                f"{place} does not exist.",
                remedy="Enter an archive file, or a folder with archive files.",
            )


def _hash_or_refuse(path: Path) -> str:
    try:
        return hash_file(path)
    except OSError as error:
        raise ConfigInvalid(
            f"{path} cannot be read: {error.strerror}.",
            remedy="Run the command as a user that can read the file.",
        ) from error


def _list_ends(records: Iterable[AuditArchive]) -> list[tuple[str, int]]:
    return [(record.writer, record.to_seq) for record in records]


def _check_other_files(
    name: str, content: Content, records: Iterable[AuditArchive]
) -> Iterator[str]:
    for record in records:
        stand = content.stands.get((record.writer, record.to_seq))
        if stand is None or (stand.head, stand.key_id) != (record.head, record.head_key):
            yield f"{name}: {record.writer} #{record.to_seq} is not the entry that was archived."


def _find_missing_entries(name: str, ends: Ends, known: Archives) -> Iterator[str]:
    """Entries of a file that no record names are elsewhere, too: a run was broken off, or the
    database was put back."""
    told = iter(ends.items())
    while page := list(islice(told, _PAGE)):
        there = chains.load_hashes((writer, seq) for writer, (seq, _) in page)
        for writer, (seq, head) in page:
            if there.get((writer, seq)) != head and not known.has_entry(writer, seq, head):
                yield f"{name} contains {writer} #{seq}, which is missing from the log, and no archive record lists it."
