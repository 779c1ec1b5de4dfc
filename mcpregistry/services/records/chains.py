"""Verifying the audit log: every writer's chain is whole, and nothing that was exported is gone.

A chain alone cannot show that its tail was cut off or that all of it was written anew; an export
that was kept out of reach can, so ``verify_chains`` is one half and ``find_missing_from_log`` the
other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any

from django.db import connection

from mcpregistry.db import stream_rows
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.models.audit import AuditEntry, entry_hash
from mcpregistry.services.records import archives
from mcpregistry.services.records.archives import Archives, ChainStand

_PAGE = 500
_TRIES = 30  # while a long archive goes on beside it


def verify_chains() -> Iterator[str]:
    """One sentence for each broken place, chain by chain. Reads the whole log but its archives, a
    page at a time."""
    known = archives.load_archives()
    found = list[str]()
    for _ in range(_TRIES):
        found = [*_find_broken_places(known)]
        if not (found and known.is_stale()):
            break
        known = (
            known.reload_archives()
        )  # it may be that entries were archived before they were looked at
    yield from found


def _find_broken_places(known: Archives) -> Iterator[str]:
    yield from known.problems
    yield from find_cut_chains(known)
    for entry, problems in walk_chains(
        stream_rows(AuditEntry.objects.order_by("writer", "seq"), _PAGE), known.get_stand
    ):
        yield from (f"{entry.writer} #{entry.seq}: {problem}" for problem in problems)


def walk_chains(
    entries: Iterable[AuditEntry], stands: Callable[[str], ChainStand]
) -> Iterator[tuple[AuditEntry, list[str]]]:
    """Each entry with what is wrong with it. They come chain by chain, in order; ``stands``: from
    where on each does."""
    writer = None
    stand = ChainStand()
    number = 0
    for entry in entries:
        if entry.writer != writer:
            writer = entry.writer
            stand = stands(entry.writer)
            number = 0
        if entry.seq <= stand.seq:
            yield entry, ["it was archived, but it is in the database again"]
            continue
        problems = [*_find_entry_problems(entry, stand)]
        if entry.pk is not None and entry.pk <= number:  # one that comes from a file has no number
            problems.append("its number in the table is lower than that of the entry before it")
        number = entry.pk or number
        yield entry, problems
        stand = ChainStand(entry.seq, entry.hash, entry.key_id)


def _find_entry_problems(entry: AuditEntry, before: ChainStand) -> Iterator[str]:
    if entry.seq != before.seq + 1:
        yield f"the entries before it are missing, from number {before.seq + 1} on"
    elif entry.prev != before.head:
        yield "it does not follow the entry before it"
    if problem := explain_entry_problem(entry):
        yield problem


def explain_entry_problem(entry: AuditEntry) -> str:
    """Return why this entry, looked at alone, cannot be what was written; empty when it can."""
    if not entry.key_id:
        return "it is not signed with a key, so anyone could have written it"
    try:
        if entry.hash != entry_hash(entry.prev, entry.body, entry.key_id):
            return "its text does not match its hash"
    except ConfigInvalid as error:
        return f"it cannot be verified. {error.message} {error.remedy}"
    return "" if _are_columns_consistent(entry) else "a column does not match its text"


def _are_columns_consistent(entry: AuditEntry) -> bool:
    try:
        body: dict[str, Any] = json.loads(entry.body)
        at = datetime.fromisoformat(body["at"])
        said = (
            body["writer"],
            body["seq"],
            at,
            body["kind"],
            clean_text(body["actor"], 150),
            clean_text(body["subject"], 200),
        )
    except (KeyError, TypeError, ValueError, RecursionError):
        return False
    return said == (entry.writer, entry.seq, entry.at, entry.kind, entry.actor, entry.subject)


def export_log() -> Iterator[str]:
    """The whole log as JSON lines: writer, seq, prev, hash, the key's id and the text that the hash
    covers."""
    for entry in stream_rows(AuditEntry.objects.order_by("id"), _PAGE):
        yield format_entry_line(entry)


def format_entry_line(entry: AuditEntry) -> str:
    """One entry as a line of an export."""
    return json.dumps(
        {name: getattr(entry, name) for name in ("writer", "seq", "prev", "hash", "key_id", "body")}
    )


def find_missing_from_log(lines: Iterable[str], known: Archives | None = None) -> Iterator[str]:
    """One sentence for each line of an earlier export that neither the log nor its archives hold as
    it was.

    Raises ValueError, KeyError or TypeError for a line that no export holds.
    """
    known = known or archives.load_archives()
    entries = (json.loads(line) for line in lines)
    hashes = ((entry["writer"], entry["seq"], entry["hash"]) for entry in entries)
    while page := list(islice(hashes, _PAGE)):
        yield from _compare_page(page, known)


def load_hashes(places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """The hashes of these entries (writer, seq), of those that are there. Some hundred at a
    time."""
    wanted = [value for place in places for value in place]
    if not wanted:
        return {}
    table = AuditEntry._meta.db_table
    rows = ", ".join(["(%s, %s)"] * (len(wanted) // 2))
    with connection.cursor() as cursor:
        query = f"SELECT writer, seq, hash FROM {table} WHERE (writer, seq) IN (VALUES {rows})"  # noqa: S608
        cursor.execute(query, wanted)
        return {(writer, seq): head for writer, seq, head in cursor.fetchall()}


def find_cut_chains(known: Archives) -> Iterator[str]:
    """One sentence for each chain that ends with its archive: the last entry of a chain is never
    archived."""
    stands = known.iterate_stands()
    while page := list(islice(stands, _PAGE)):
        found = load_hashes((writer, stand.seq + 1) for writer, stand in page)
        for writer, stand in page:
            if (writer, stand.seq + 1) not in found:
                yield f"{writer} #{stand.seq + 1}: it must follow the archived entries, but it is missing"


def find_missing_ends(
    ends: Iterable[tuple[str, tuple[int, str]]], known: Archives
) -> Iterator[str]:
    """One sentence for each chain that does not reach as far as it did when it was sealed or
    verified."""
    told = iter(ends)
    while page := list(islice(told, _PAGE)):
        found = load_hashes((writer, seq) for writer, (seq, _) in page)
        for writer, (seq, head) in page:
            if found.get((writer, seq)) != head and not known.has_entry(writer, seq, head):
                yield f"{writer} #{seq}: a checkpoint covers it, but it {'was changed' if (writer, seq) in found else 'is missing'}"


def _compare_page(page: list[tuple[str, int, str]], known: Archives) -> Iterator[str]:
    found = load_hashes((writer, seq) for writer, seq, _ in page)
    for writer, seq, digest in page:
        if found.get((writer, seq)) != digest and not known.has_entry(writer, seq, digest):
            yield f"{writer} #{seq}: it was exported, and {'was changed' if (writer, seq) in found else 'is missing'}"
