"""The lease of a run: one worker at a time works on it, for as long as it says every few seconds that it lives.

The fence rises with every taking-over. Every write of a run checks it, so a worker that was thought dead and comes back
writes nothing.
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

from mcpregistry.db import database_now
from mcpregistry.prepared_queries import Given, Select, Update
from subagents.domain.lifecycle import RUN_MOVES
from subagents.models import Run

LEASE = timedelta(seconds=10)
RENEW_EVERY = 3.0  # seconds
AT_RISK = timedelta(seconds=2)  # before its end, a lease that could not be renewed is given up


class LostLease(Exception):
    """Another worker has taken the run over, or it has ended; write nothing more."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write to a run, as long as its fence is still ``fence``."""

    run: str
    fence: int


_OURS = Run.objects.filter(id=Given("id"), fence=Given("fence"), finished_at=None)
# Once given back it is not renewed: a renewal that came late would keep everybody from it until it had run out.
_RENEW = Update(_OURS.filter(lease_until__isnull=False), "lease_until")
# Of a row that holds whole answers, read several times in every step.
_HELD = Select(
    _OURS.values_list(
        "id", "state", "cost", "reserved_cost", "final_reason", "waiting_since", "cancel_requested", "call_id",
        "parent_id", "expert_name", "cache_saved", named=True,
    )
)  # fmt: skip
# One UPDATE decides who works: the lease is free or over, the run is due and not ended. The fence rises with it.
_TAKE = Update(
    Run.objects.filter(
        Q(lease_until=None) | Q(lease_until__lt=Given("now", like="lease_until")),
        Q(wake_at=None) | Q(wake_at__lte=Given("now", like="wake_at")),
        id=Given("id"), fence=Given("fence"), state__in=[*RUN_MOVES],
    ),
    "lease_until", "worker", "lost_seconds", fence=F("fence") + 1, idle_since=None,
    started_at=Coalesce("started_at", Given("now", like="started_at")),
    # Set aside for a request of which nobody heard again: its provider may well charge for it.
    cost=Case(When(reserved_cost__gt=0, then=Coalesce("cost", Decimal(0)) + F("reserved_cost")), default=F("cost")),
    reserved_cost=Decimal(0),
)  # fmt: skip
_FOUND = Select(
    Run.objects.filter(id=Given("id"), finished_at=None).values_list(
        "fence", "lease_until", "idle_since", "lost_seconds", "started_at", "waiting_since", named=True
    )
)


def take(run_id: str, *, worker: str, now: datetime | None = None) -> Lease | None:
    """The lease, or None when the run has ended, is worked on, or has nothing to do yet.

    What a turn that was cut off had set aside counts as spent.
    """
    now = now or database_now()
    for run in _FOUND.rows(id=run_id):
        lost = run.lost_seconds + _nobodys(run, now)
        if _TAKE(id=run_id, fence=run.fence, now=now, lease_until=now + LEASE, worker=worker, lost_seconds=lost):
            return Lease(run_id, run.fence + 1)
    return None


def _nobodys(run: Any, now: datetime) -> float:
    """Seconds in which the run was nobody's since its last worker was heard of; waiting for people is counted apart."""
    since = run.idle_since or (run.lease_until and run.lease_until - LEASE)
    if since is None or run.started_at is None or run.waiting_since is not None:
        return 0.0
    return max(0.0, (now - since).total_seconds())


def renew(lease: Lease) -> Any:
    """Keep the lease. Returns what ``look`` does. Raises LostLease."""
    _renew(lease)
    return look(lease)


def _renew(lease: Lease) -> None:
    if not _RENEW(id=lease.run, fence=lease.fence, lease_until=database_now() + LEASE):
        raise LostLease(lease.run)


def look(lease: Lease) -> Any:
    """A row with what writers need to know of the run that they hold. Raises LostLease."""
    for row in _HELD.rows(id=lease.run, fence=lease.fence):
        return row
    raise LostLease(lease.run)


@contextmanager
def fenced(lease: Lease) -> Iterator[Any]:
    """One transaction on the run (as from ``look``) by whoever holds its lease. Raises LostLease, with nothing written."""
    with transaction.atomic():
        _renew(lease)
        yield look(lease)


def release(lease: Lease, *, wake_at: datetime | None = None) -> None:
    """Give the run back; it is looked at again at once, or at ``wake_at``."""
    Run.objects.filter(pk=lease.run, fence=lease.fence, finished_at=None).update(
        lease_until=None, worker="", wake_at=wake_at, idle_since=database_now()
    )


def free(worker: str) -> list[str]:
    """Runs of a worker that is known to have died become anybody's, without waiting for their leases to end."""
    held = Run.objects.open().filter(worker=worker, lease_until__isnull=False)
    return [
        run
        for run, fence, until in held.values_list("pk", "fence", "lease_until")
        if until
        and Run.objects.filter(pk=run, fence=fence, worker=worker).update(
            lease_until=None, worker="", idle_since=min(until - LEASE, database_now())
        )
    ]
