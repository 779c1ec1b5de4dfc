"""Verifying the audit log: every writer's chain is whole, and nothing that was exported is gone.

A chain alone cannot show that its tail was cut off or that all of it was written anew; an export that was kept out of
reach can, so ``verify`` is one half and ``missing_from_log`` the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any

from mcpregistry.db import streamed
from mcpregistry.domain.text.canonical import plain
from mcpregistry.models.audit import GENESIS, AuditEntry, entry_hash

_PAGE = 500


def verify() -> Iterator[str]:
    """One sentence for each broken place, chain by chain. Reads the whole log, a page at a time."""
    writer, seq, head = None, 0, GENESIS
    for entry in streamed(AuditEntry.objects.order_by("writer", "seq"), _PAGE):
        if entry.writer != writer:
            writer, seq, head = entry.writer, 0, GENESIS
        yield from (f"{writer} #{entry.seq}: {problem}" for problem in _problems(entry, seq + 1, head))
        seq, head = entry.seq, entry.hash


def _problems(entry: AuditEntry, seq: int, head: str) -> Iterator[str]:
    if entry.seq != seq:
        yield f"the entries from {seq} to the one before it are missing"
    elif entry.prev != head:
        yield "it does not follow the entry before it"
    if entry.hash != entry_hash(entry.prev, entry.body):
        yield "its text does not fit its hash"
    elif not _columns_agree(entry):
        yield "a column says something else than its text"


def _columns_agree(entry: AuditEntry) -> bool:
    try:
        body: dict[str, Any] = json.loads(entry.body)
        at = datetime.fromisoformat(body["at"])
        said = (body["writer"], body["seq"], at, body["kind"], plain(body["actor"], 150), plain(body["subject"], 200))
    except (KeyError, TypeError, ValueError):
        return False
    return said == (entry.writer, entry.seq, entry.at, entry.kind, entry.actor, entry.subject)


def export() -> Iterator[str]:
    """The whole log as JSON lines: writer, seq, prev, hash and the text that the hash covers."""
    for entry in streamed(AuditEntry.objects.order_by("id"), _PAGE):
        yield json.dumps({name: getattr(entry, name) for name in ("writer", "seq", "prev", "hash", "body")})


def missing_from_log(lines: Iterable[str]) -> Iterator[str]:
    """One sentence for each line of an earlier export that the log no longer holds as it was.

    Raises ValueError, KeyError or TypeError for a line that no export holds.
    """
    entries = (json.loads(line) for line in lines)
    hashes = ((entry["writer"], entry["seq"], entry["hash"]) for entry in entries)
    while page := list(islice(hashes, _PAGE)):
        yield from _compared(page)


def _compared(page: list[tuple[str, int, str]]) -> Iterator[str]:
    near = AuditEntry.objects.filter(writer__in={w for w, _, _ in page}, seq__in={seq for _, seq, _ in page})
    found = {(writer, seq): digest for writer, seq, digest in near.values_list("writer", "seq", "hash")}
    for writer, seq, digest in page:
        if found.get((writer, seq)) != digest:
            yield f"{writer} #{seq}: was exported and {'was changed' if (writer, seq) in found else 'is gone'}"
