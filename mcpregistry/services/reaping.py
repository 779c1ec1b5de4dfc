"""Ends what nobody will end any more: calls whose process died. Never repeats anything.

A lease that ran out means that the process that held the call is gone or has hung. If the call was
dispatched, it may have taken effect, so its end is unknown; if not, it has never run and never will.
(A call in the state received is never stored: its first record says what was decided.)
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import Q

from mcpregistry.domain.lifecycle import State, may_move
from mcpregistry.models import Invocation
from mcpregistry.services import audit, following

ACTOR = "reaper"
_BATCH = 200

_ENDS: dict[State, tuple[State, str]] = {
    State.DISPATCHED: (State.UNKNOWN, "The process that made this call ended before an answer came."),
    State.READY: (State.CANCELLED, "The process that held this call ended before it was sent."),
    State.PENDING: (State.EXPIRED, "Nobody decided in time."),
}
assert all(may_move(old, new) for old, (new, _) in _ENDS.items())


def reap_calls(now: datetime) -> int:
    """End calls whose lease has run out, at most a batch at a time. Returns how many."""
    expired = Invocation.objects.open().filter(lease_until__lt=now).order_by("lease_until")
    expired = expired.exclude(pk__in=following.left_to_followers(now))
    # Held calls end by their own deadlines (``holding.expire_due``), with all that belongs to it.
    expired = expired.filter(Q(state=State.DISPATCHED) | Q(approval__isnull=True))
    return sum(_end(call, now) for call in expired.only("id", "state", "fence", "received_at", "binding")[:_BATCH])


@transaction.atomic
def _end(call: Invocation, now: datetime) -> bool:
    """By compare-and-set: if its process ends it in the same moment, that end stands."""
    state, reason = _ENDS[State(call.state)]
    held = Invocation.objects.filter(pk=call.pk, state=call.state, fence=call.fence, lease_until__lt=now)
    ended = held.update(
        state=state,
        reason=reason,
        error_code="LEASE_EXPIRED",
        finished_at=now,
        lease_until=None,
        duration_ms=(now - call.received_at).total_seconds() * 1000,
    )
    if ended:
        facts = {"binding": call.binding, "state": state, "error": "LEASE_EXPIRED"}
        audit.record(kind=f"call.{state}", actor=ACTOR, subject=f"call:{call.pk}", **facts)
    return bool(ended)
