"""Compares permits with what the audit log says of them. Each entry of a permit has all of it, so
the newest is enough."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime

from django.db.models import CharField, Exists, OuterRef, QuerySet, Value
from django.db.models.functions import Cast, Concat

from mcpregistry.domain.text.canonical import encode_lossy_json, hash_parts
from mcpregistry.models.approval import Permit
from mcpregistry.models.audit import AuditEntry
from mcpregistry.services.records.chains import explain_entry_problem
from mcpregistry.services.records.signed_approvals import format_moment

OVER = frozenset({"permit.revoked", "permit.unproven"})  # kinds of entries that end a permit
_TRIES = 10  # while a permit is used as it is looked at


def build_permit_facts(permit: Permit) -> dict[str, object]:
    """Facts of each entry about a permit, as it is after what the entry says."""
    words = (
        str(permit.agent_id),
        str(permit.tool_id),
        permit.definition_hash,
        str(permit.server_revision),
        encode_lossy_json(permit.argument_pins),
        format_moment(permit.expires_at),
        str(permit.created_by_id),
        str(permit.request_id),
        permit.request.rule_fingerprint if permit.request else "",
    )
    return {"permit": hash_parts(*words), "left": permit.uses_left, "request": permit.request_id}


def find_difference(permit: Permit) -> str:
    """Why the log does not prove that this permit was given as it is, and may still be used; empty
    if it does. One query."""
    newest = _select_permit_entries(permit).first()
    if newest is None:
        return "it has no audit entry about its creation"
    if problem := explain_entry_problem(newest):
        return f"its latest audit entry was changed: {problem}"
    said = json.loads(newest.body)
    if newest.kind in OVER:
        return "it was revoked"
    if any(said.get(name) != value for name, value in build_permit_facts(permit).items()):
        return "it was changed since it was created or last used"
    return ""


def find_differences(now: datetime) -> Iterator[str]:
    """One sentence for each permit that could be used at this time and is not as the log says."""
    for key in list(select_live_permits(now).order_by("pk").values_list("pk", flat=True)):
        if problem := _find_stable_difference(key, now):
            yield f"permit {key}: {problem}"


def select_live_permits(now: datetime) -> QuerySet[Permit]:
    """The permits that could be used at this time. Without its request or its giver, none can."""
    there = Permit.objects.filter(request__isnull=False, created_by__isnull=False)
    return there.filter(revoked_at=None, expires_at__gt=now).exclude(uses_left=0)


def match_live_permit_entries(now: datetime) -> Exists:
    """Whether the audit entry of the outer query is about a permit that could be used at this
    time."""
    subject = Concat(Value("permit:"), Cast("pk", CharField()), output_field=CharField())
    return Exists(
        select_live_permits(now)
        .order_by()
        .annotate(subject=subject)
        .filter(subject=OuterRef("subject"))
    )


def _find_stable_difference(key: int, now: datetime) -> str:
    """Of a permit that may be used at the same time: an entry that came in between makes it be read
    again."""
    problem = ""
    seen = None
    for _ in range(_TRIES):
        permit = select_live_permits(now).select_related("request").filter(pk=key).first()
        newest = (
            _select_permit_entries(permit).values_list("pk", flat=True).first() if permit else None
        )
        problem = find_difference(permit) if permit else ""
        if not problem or (newest, problem) == seen:
            break
        seen = (newest, problem)
    return problem


def _select_permit_entries(permit: Permit) -> QuerySet[AuditEntry]:
    return AuditEntry.objects.filter(subject=f"permit:{permit.pk}").order_by("-id")
