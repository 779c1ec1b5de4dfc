"""The lease of a run: who may work on it and write to it, and what writers need to know of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.db.models import Case, F, When
from django.db.models.functions import Coalesce

from mcpregistry.db import read_database_now
from mcpregistry.prepared_queries import Given, Select
from subagents.leased import leases
from subagents.leased.leases import Lease, Leases, LostLease
from subagents.models import Run
from subagents.runs import budgets

RUNS = Leases(
    Run,
    "lost_seconds",
    started_at=Coalesce("started_at", Given("now", like="started_at")),
    # Set aside for a request of which nobody heard again: its provider may well charge for it.
    cost=Case(
        When(reserved_cost__gt=0, then=Coalesce("cost", Decimal(0)) + F("reserved_cost")),
        default=F("cost"),
    ),
    reserved_cost=Decimal(0),
    sleeps_for="",
)
# Of a row that holds whole answers, read several times in every step.
_HELD = Select(
    Run.objects.filter(id=Given("id"), fence=Given("fence"), finished_at=None).values_list(
        "id",
        "state",
        "cost",
        "reserved_cost",
        "final_reason",
        "waiting_since",
        "cancel_requested",
        "call_id",
        "parent_id",
        "expert_name",
        "cache_saved",
        named=True,
    )
)
_FOUND = Select(
    Run.objects.filter(id=Given("id"), finished_at=None).values_list(
        "fence",
        "lease_until",
        "idle_since",
        "lost_seconds",
        "started_at",
        "waiting_since",
        named=True,
    )
)


def take(run_id: str, *, worker: str, now: datetime | None = None) -> Lease | None:
    """The lease, or None when the run has ended, is worked on, or has nothing to do yet.

    What a turn that was cut off had set aside counts as spent.
    """
    now = now or read_database_now()
    for run in _FOUND.fetch_rows(id=run_id):
        lost = run.lost_seconds + _nobodys(run, now)
        with transaction.atomic():
            taken = RUNS.take(run_id, run.fence, worker=worker, now=now, lost_seconds=lost)
            if taken is not None:
                budgets.record_lost_turn(run_id, taken.fence)
            return taken
    return None


def _nobodys(run: Any, now: datetime) -> float:
    """Seconds in which the run was nobody's since its last worker was heard of; waiting for people
    is counted apart."""
    since = run.idle_since or (run.lease_until and run.lease_until - leases.LEASE)
    if since is None or run.started_at is None or run.waiting_since is not None:
        return 0.0
    return max(0.0, (now - since).total_seconds())


def renew(lease: Lease) -> Any:
    """Keep the lease. Returns what ``look`` does. Raises LostLease."""
    RUNS.renew(lease)
    return look(lease)


def look(lease: Lease) -> Any:
    """A row with what writers need to know of the run that they hold. Raises LostLease."""
    for row in _HELD.fetch_rows(id=lease.key, fence=lease.fence):
        return row
    raise LostLease(lease.key)


@contextmanager
def fence_run(lease: Lease) -> Iterator[Any]:
    """One transaction on the run (as from ``look``) by whoever holds its lease. Raises LostLease,
    with nothing written."""
    with transaction.atomic():
        RUNS.renew(lease)
        yield look(lease)


def release(lease: Lease, *, wake_at: datetime | None = None) -> None:
    """Give the run back; it is looked at again at once, or at ``wake_at``."""
    RUNS.release(lease, wake_at=wake_at)


def free(worker: str) -> list[str]:
    """Runs of a worker that is known to have died become anybody's, without waiting for their
    leases to end."""
    return RUNS.free(worker)
