"""Idempotency-Key: a repeated request gets the first one's answer, and nothing runs twice.

Invariants: a key belongs to one caller; it is claimed in the database before anything is sent, so
two requests at once cannot both go on; a claim whose request never ended keeps others out, since
nobody knows what it did.
"""

from __future__ import annotations

from datetime import timedelta

from django.db import IntegrityError, transaction
from django.utils import timezone

from mcpregistry.domain.errors import Conflict
from mcpregistry.models import KeptAnswer

KEPT_FOR = timedelta(hours=24)


def claim(*, caller: str, key: str, fingerprint: str) -> KeptAnswer | None:
    """None: the key is ours, go on. Else the kept answer.

    Raises Conflict when the key was used for another request, or its first request has not ended.
    """
    now = timezone.now()
    KeptAnswer.objects.filter(created_at__lt=now - KEPT_FOR).delete()
    try:
        with transaction.atomic():
            KeptAnswer.objects.create(caller=caller, key=key, fingerprint=fingerprint, created_at=now)
    except IntegrityError:
        return _earlier(KeptAnswer.objects.filter(caller=caller, key=key).first(), fingerprint)
    return None


def keep(*, caller: str, key: str, status: int, body: str) -> None:
    """The answer that every repetition will get."""
    KeptAnswer.objects.filter(caller=caller, key=key, status=None).update(status=status, body=body)


def release(*, caller: str, key: str) -> None:
    """The request was refused before anything was sent: the key may be used again."""
    KeptAnswer.objects.filter(caller=caller, key=key, status=None).delete()


def _earlier(kept: KeptAnswer | None, fingerprint: str) -> KeptAnswer:
    if kept is None or (kept.status is None and kept.fingerprint == fingerprint):
        raise Conflict(
            "The first request with this Idempotency-Key has not ended.",
            remedy="Repeat it in a moment; if it never ends, look for the call under /api/v1/invocations.",
        )
    if kept.fingerprint != fingerprint:
        raise Conflict(
            "This Idempotency-Key was used for another request.", remedy="Use a new key for each different request."
        )
    return kept
