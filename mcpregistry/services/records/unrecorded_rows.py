"""Finds calls, messages and permits without an entry in the audit log: they were inserted into the
database by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import (
    CharField,
    Count,
    Exists,
    IntegerField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
)
from django.db.models.functions import Coalesce, Concat

from mcpregistry.db import stream_rows
from mcpregistry.domain.text.display import number_of
from mcpregistry.models import Conversation, Invocation
from mcpregistry.models.audit import AuditArchive, AuditEntry
from mcpregistry.services.records import signed_permits
from mcpregistry.services.records.signed_messages import WRITTEN


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The rows after ``after`` up to ``upto``, by their key; an empty text is no bound."""

    after: str = ""
    upto: str = ""

    def select_rows(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """These of ``rows``."""
        bounds = Q(pk__gt=self.after) & (Q(pk__lte=self.upto) if self.upto else Q())
        return rows.filter(bounds).order_by("pk")


def find_next_part(model: type[Invocation] | type[Conversation], after: str, most: int) -> KeyRange:
    """The next ``most`` rows behind ``after``; without an end if fewer are left."""
    last = (
        model.objects.filter(pk__gt=after)
        .order_by("pk")
        .values_list("pk", flat=True)[most - 1 : most]
    )
    return KeyRange(after, next(iter(last), ""))


def find_unrecorded_calls(part: KeyRange) -> Iterator[str]:
    """One sentence for each call without an entry. The archive takes no entry of a call that is
    still recorded."""
    entries = _select_entries("call:").filter(kind__startswith="call.")
    rows = part.select_rows(Invocation.objects.filter(~Exists(entries))).values_list(
        "pk", flat=True
    )
    yield from (f"call {call}: it has no audit entry" for call in stream_rows(rows))


def find_unrecorded_messages(part: KeyRange) -> Iterator[str]:
    """One sentence for each conversation with more messages than entries about them.

    ``bound_messages`` compares what the entries say. If entries were archived, nothing can be
    concluded.
    """
    if AuditArchive.objects.exists():
        return
    grouped = (
        _select_entries("conversation:")
        .filter(kind=WRITTEN)
        .order_by()
        .values("subject")
        .annotate(n=Count("pk"))
    )
    written = Coalesce(Subquery(grouped.values("n"), output_field=IntegerField()), 0)
    rows = part.select_rows(Conversation.objects.annotate(rows=Count("messages"), entries=written))
    for pk, messages, entries in stream_rows(rows.values_list("pk", "rows", "entries")):
        if messages > entries:
            yield (
                f"conversation {pk}: it has {number_of(messages, 'message')}, "
                f"but only {number_of(entries, 'audit entry', 'audit entries')} for them"
            )


def find_unrecorded_permits(now: datetime) -> Iterator[str]:
    """One sentence for each permit that could be used and is not as the log says."""
    return signed_permits.find_differences(now)


def _select_entries(kind: str) -> QuerySet[AuditEntry]:
    """The entries about the outer query's row."""
    return AuditEntry.objects.filter(
        subject=Concat(Value(kind), OuterRef("pk"), output_field=CharField())
    )
