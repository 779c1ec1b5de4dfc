"""Who works on a run: one worker at a time, for as long as it says every few seconds that it lives.

The fence rises with every taking-over. Every write of a run checks it, so a worker that was thought
dead and comes back writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Coalesce
from django.utils import timezone

from subagents.domain.lifecycle import RUN_MOVES
from subagents.models import Run

LEASE = timedelta(seconds=30)
RENEW_EVERY = 5.0  # seconds


# Of a row that holds whole answers, read several times in every step.
_NEEDED = "state", "cost", "final_reason", "waiting_since", "call_id", "parent_id", "expert_name"


class LostLease(Exception):
    """Another worker has taken the run over, or it has ended; write nothing more."""


@dataclass(frozen=True, slots=True)
class Lease:
    run: str
    fence: int


def take(run_id: str, *, worker: str, now: datetime | None = None) -> Lease | None:
    """The lease, or None when the run has ended, is worked on, or has nothing to do yet."""
    now = now or timezone.now()
    free = Q(lease_until=None) | Q(lease_until__lt=now)
    due = Q(wake_at=None) | Q(wake_at__lte=now)
    taken = Run.objects.filter(free, due, pk=run_id, state__in=[*RUN_MOVES]).update(
        fence=F("fence") + 1, lease_until=now + LEASE, worker=worker, started_at=Coalesce("started_at", now)
    )
    return Lease(run_id, Run.objects.values_list("fence", flat=True).get(pk=run_id)) if taken else None


def renew(lease: Lease) -> bool:
    """Keep the lease; True when somebody has asked to cancel the run. Raises LostLease."""
    held = Run.objects.filter(pk=lease.run, fence=lease.fence, finished_at=None)
    if not held.update(lease_until=timezone.now() + LEASE):
        raise LostLease(lease.run)
    return Run.objects.values_list("cancel_requested", flat=True).get(pk=lease.run)


@contextmanager
def holding(lease: Lease) -> Iterator[Run]:
    """One transaction on the run by whoever holds its lease. Raises LostLease, with nothing written."""
    with transaction.atomic():
        if not Run.objects.filter(pk=lease.run, fence=lease.fence, finished_at=None).update(
            lease_until=timezone.now() + LEASE
        ):
            raise LostLease(lease.run)
        yield Run.objects.only(*_NEEDED).get(pk=lease.run)


def release(lease: Lease, *, wake_at: datetime | None = None) -> None:
    """Give the run back; it is looked at again at once, or at ``wake_at``."""
    Run.objects.filter(pk=lease.run, fence=lease.fence, finished_at=None).update(
        lease_until=None, worker="", wake_at=wake_at
    )
