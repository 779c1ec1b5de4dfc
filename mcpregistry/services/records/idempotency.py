"""Idempotency-Key: a repeated request gets the first one's answer, and nothing runs twice.

Invariants: a key belongs to one caller; it is claimed in the database, with the id that the call
will have, before anything is sent, so two requests at once cannot both go on. When the process of
the first request died, its call's record answers; a call that has no record was never sent, and is
made under the same id, which one alone can have.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef
from django.utils import timezone

from mcpregistry.domain.errors import Conflict
from mcpregistry.domain.lifecycle import TERMINAL, InvocationState
from mcpregistry.models import Invocation, KeptAnswer

KEPT_FOR = timedelta(hours=24)
# a request whose call has no record after so long will not make it any more
BEGINS_WITHIN = timedelta(seconds=60)
_HELD = {InvocationState.PENDING, InvocationState.READY}  # the identical call joins
_MAY_HAVE_RUN = [
    InvocationState.DISPATCHED,
    InvocationState.SUCCEEDED,
    InvocationState.TOOL_ERROR,
    InvocationState.UNKNOWN,
]


class KeyReused(Conflict):
    """The key belongs to a request that asked for something else; a new one may ask for this."""


@dataclass(frozen=True, slots=True)
class KeyUse:
    """What a request does that came with a key: answer from ``kept`` or from the record ``ended``,
    if there is one of them; else make the call, under this id."""

    call_id: str
    kept: KeptAnswer | None = None
    ended: Invocation | None = None


def claim(*, caller: str, key: str, fingerprint: str, call_id: str = "") -> KeyUse:
    """Take the key for a call that will have this id (if it is for a call), or find what became of
    the request that has it.

    Raises Conflict when the key was used for another request, or its call is under way.
    """
    now = timezone.now()
    KeptAnswer.objects.filter(created_at__lt=now - KEPT_FOR).delete()
    fields = {"fingerprint": fingerprint, "call_id": call_id, "created_at": now}
    try:
        with transaction.atomic():
            KeptAnswer.objects.create(caller=caller, key=key, **fields)
    except IntegrityError:
        return _find_earlier_use(
            KeptAnswer.objects.filter(caller=caller, key=key).first(), fingerprint, call_id, now
        )
    return KeyUse(call_id)


def keep(*, caller: str, key: str, status: int, body: str) -> None:
    """The answer that every repetition will get."""
    KeptAnswer.objects.filter(caller=caller, key=key, status=None).update(status=status, body=body)


def release(*, caller: str, key: str) -> None:
    """The request was refused before anything was sent: the key may be used again. Not if its call
    may have run."""
    ran = Invocation.objects.filter(pk=OuterRef("call_id"), state__in=_MAY_HAVE_RUN)
    KeptAnswer.objects.filter(~Exists(ran), caller=caller, key=key, status=None).delete()


def _find_earlier_use(
    kept: KeptAnswer | None, fingerprint: str, call_id: str, now: datetime
) -> KeyUse:
    if kept is None:
        raise _make_in_progress_error("")
    if kept.fingerprint != fingerprint:
        raise KeyReused(
            "This Idempotency-Key was already used for another request.",
            remedy="Use a new key for each different request.",
        )
    if kept.status is not None:
        return KeyUse(kept.call_id, kept=kept)
    call = Invocation.objects.filter(pk=kept.call_id).first()
    if call is None:
        return _retake_unused_key(kept, now)
    if call.state in TERMINAL:
        return KeyUse(call.pk, ended=call)
    if call.state in _HELD:
        return KeyUse(call_id)
    raise _make_in_progress_error(call.pk)


def _retake_unused_key(kept: KeptAnswer, now: datetime) -> KeyUse:
    """By compare-and-set, so that of two who find it one goes on."""
    abandoned = KeptAnswer.objects.filter(pk=kept.pk, status=None, created_at=kept.created_at)
    if (
        not kept.call_id
        or now - kept.created_at < BEGINS_WITHIN
        or not abandoned.update(created_at=now)
    ):
        raise _make_in_progress_error(kept.call_id)
    return KeyUse(kept.call_id)


def _make_in_progress_error(call_id: str) -> Conflict:
    named = (
        f" To see the call of the first request, use GET /api/v1/invocations/{call_id}."
        if call_id
        else ""
    )
    return Conflict(
        "The first request with this Idempotency-Key is still in progress.",
        remedy=f"Send this request again in a moment.{named}",
    )
