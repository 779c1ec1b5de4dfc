"""Reads of the audit log, and the check whether its chains still hold. Nothing here changes a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.db.models import QuerySet

from mcpregistry.db import streamed
from mcpregistry.models import AuditEntry, Invocation
from mcpregistry.models.audit import GENESIS
from mcpregistry.services.records.chains import entry_problem


@dataclass(frozen=True, slots=True)
class Chain:
    """What checking one writer's audit chain found. ``bad_seq`` is the first entry that does not hold."""

    writer: str
    entries: int
    bad_seq: int | None = None
    problem: str = ""


def audit_of_call(call: Invocation) -> QuerySet[AuditEntry]:
    """The audit entries about a call, in the order in which they were written."""
    return AuditEntry.objects.filter(subject=f"call:{call.pk}").order_by("id")


def verify_audit() -> list[Chain]:
    """Check every chain from its first entry on. Reads the whole log: about 100,000 entries a second.

    Entries removed from the end of a chain leave no trace in it: compare the heads with a copy kept elsewhere.
    """
    writers = AuditEntry.objects.order_by("writer").values_list("writer", flat=True).distinct()
    return [_verify(writer) for writer in writers]


def _verify(writer: str) -> Chain:
    count, seq, head = 0, 0, GENESIS
    for entry in _entries(writer):
        count += 1
        problem = entry_problem(entry)
        if entry.seq != seq + 1:
            problem = f"entries from {seq + 1} on are missing before it"
        elif entry.prev != head:
            problem = "it does not follow the entry before it"
        if problem:
            return Chain(writer, count, entry.seq, problem)
        seq, head = entry.seq, entry.hash
    return Chain(writer, count)


def _entries(writer: str) -> Iterator[AuditEntry]:
    return streamed(AuditEntry.objects.filter(writer=writer).order_by("seq"))
