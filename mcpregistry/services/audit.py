"""Append configuration facts to the audit log, in the caller's transaction.

Configuration changes of all processes share one chain, ``configuration``; they are rare, so a lock
is cheap. Calls are chained per process by the recorder (see ``calls.recorder``).
"""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from mcpregistry.domain.canonical import plain, stored
from mcpregistry.models.audit import GENESIS, AuditEntry, entry_hash

CHAIN = "configuration"
_LOCK = 0x51155  # one number for pg_advisory_xact_lock, held until the transaction ends


@transaction.atomic
def record(*, kind: str, actor: str, subject: str, **facts: Any) -> AuditEntry:
    """Add one entry. ``facts`` must be JSON values and hold no secret."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    last = AuditEntry.objects.filter(writer=CHAIN).order_by("-seq").first()
    seq, prev, now = (last.seq + 1 if last else 1), (last.hash if last else GENESIS), timezone.now()
    body = stored(
        {"writer": CHAIN, "seq": seq, "at": now.isoformat(), "kind": kind, "actor": actor, "subject": subject} | facts
    )
    return AuditEntry.objects.create(
        writer=CHAIN, seq=seq, at=now, kind=kind, actor=plain(actor, 150), subject=plain(subject, 200),
        body=body, prev=prev, hash=entry_hash(prev, body),
    )  # fmt: skip
