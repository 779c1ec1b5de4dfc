"""Who works on a run: one worker at a time, for as long as it says every few seconds that it lives.

The fence rises with every taking-over. Every write of a run checks it, so a worker that was thought
dead and comes back writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.db.models import Case, F, Q, When
from django.db.models.functions import Coalesce
from django.utils import timezone

from mcpregistry.composed import Given, Select, Update
from subagents.domain.lifecycle import RUN_MOVES
from subagents.models import Run

LEASE = timedelta(seconds=30)
RENEW_EVERY = 5.0  # seconds


class LostLease(Exception):
    """Another worker has taken the run over, or it has ended; write nothing more."""


@dataclass(frozen=True, slots=True)
class Lease:
    run: str
    fence: int


_OURS = Run.objects.filter(id=Given("id"), fence=Given("fence"), finished_at=None)
_RENEW = Update(_OURS, "lease_until")
# Of a row that holds whole answers, read several times in every step.
_HELD = Select(
    _OURS.values_list(
        "id", "state", "cost", "reserved_cost", "final_reason", "waiting_since", "cancel_requested", "call_id",
        "parent_id", "expert_name", named=True,
    )
)  # fmt: skip
_TAKE = Update(
    Run.objects.filter(
        Q(lease_until=None) | Q(lease_until__lt=Given("now", like="lease_until")),
        Q(wake_at=None) | Q(wake_at__lte=Given("now", like="wake_at")),
        id=Given("id"), state__in=[*RUN_MOVES],
    ),
    "lease_until", "worker", fence=F("fence") + 1,
    started_at=Coalesce("started_at", Given("now", like="started_at")),
    # Set aside for a request of which nobody heard again: its provider may well charge for it.
    cost=Case(When(reserved_cost__gt=0, then=Coalesce("cost", Decimal(0)) + F("reserved_cost")), default=F("cost")),
    reserved_cost=Decimal(0),
)  # fmt: skip
_FENCE = Select(Run.objects.filter(id=Given("id")).values_list("fence", named=True))


def take(run_id: str, *, worker: str, now: datetime | None = None) -> Lease | None:
    """The lease, or None when the run has ended, is worked on, or has nothing to do yet.

    What a turn that was cut off had set aside counts as spent.
    """
    now = now or timezone.now()
    taken = _TAKE(id=run_id, now=now, lease_until=now + LEASE, worker=worker)
    return Lease(run_id, _FENCE.get(id=run_id).fence) if taken else None


def renew(lease: Lease) -> bool:
    """Keep the lease; True when somebody has asked to cancel the run. Raises LostLease."""
    _renew(lease)
    return bool(look(lease).cancel_requested)


def _renew(lease: Lease) -> None:
    if not _RENEW(id=lease.run, fence=lease.fence, lease_until=timezone.now() + LEASE):
        raise LostLease(lease.run)


def look(lease: Lease) -> Any:
    """A row with what writers need to know of the run that they hold. Raises LostLease."""
    for row in _HELD.rows(id=lease.run, fence=lease.fence):
        return row
    raise LostLease(lease.run)


@contextmanager
def holding(lease: Lease) -> Iterator[Any]:
    """One transaction on the run (as from ``look``) by whoever holds its lease. Raises LostLease, with nothing written."""
    with transaction.atomic():
        _renew(lease)
        yield look(lease)


def release(lease: Lease, *, wake_at: datetime | None = None) -> None:
    """Give the run back; it is looked at again at once, or at ``wake_at``."""
    Run.objects.filter(pk=lease.run, fence=lease.fence, finished_at=None).update(
        lease_until=None, worker="", wake_at=wake_at
    )
