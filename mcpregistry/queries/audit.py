"""Reads of the audit log."""

from __future__ import annotations

from django.db.models import QuerySet

from mcpregistry.models import AuditEntry, Invocation


def audit_of_call(call: Invocation) -> QuerySet[AuditEntry]:
    """The audit entries about a call, in the order in which they were written."""
    return AuditEntry.objects.filter(subject=f"call:{call.pk}").order_by("id")
