"""Reads of the audit log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.db.models import Count, F, Max, Min, QuerySet, Sum

from mcpregistry.models import AuditArchive, AuditEntry, Invocation

_FILES = 100


def audit_of_call(call: Invocation) -> QuerySet[AuditEntry]:
    """The audit entries about a call, in the order in which they were written."""
    return AuditEntry.objects.filter(subject=f"call:{call.pk}").order_by("id")


def archived() -> Sequence[Mapping[str, object]]:
    """The newest files of archived entries: when each was made, how many entries of how many chains, its SHA-256."""
    found = AuditArchive.objects.order_by().values("file").annotate(
        made=Min("at"), entries=Sum(F("to_seq") - F("from_seq") + 1), chains=Count("writer", distinct=True),
        sha256=Min("digest"), last=Max("number"),
    )  # fmt: skip
    return list(found.order_by("-last")[:_FILES])
