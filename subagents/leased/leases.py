"""Leases of rows that are worked on: one worker at a time, for as long as it says every few seconds
that it lives.

The fence rises with every taking-over. Every write by whoever works checks it, so a worker that was
thought dead and comes back writes nothing. Runs of expert tools and maintenance requests are worked
on so.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db import models
from django.db.models import F, Q

from mcpregistry.db import read_database_now
from mcpregistry.prepared_queries import Given, Update

LEASE = timedelta(seconds=10)
RENEW_EVERY = 3.0  # seconds
AT_RISK = timedelta(seconds=2)  # before its end, a lease that could not be renewed is given up


class LostLease(Exception):
    """Another worker has taken the work over, or it has ended; write nothing more."""


Rows = TypeVar("Rows", bound="models.QuerySet[Any]")


def filter_unclaimed(rows: Rows, before: datetime) -> Rows:
    """Return those of ``rows`` that no worker has held since ``before``, although there was
    something to do."""
    free = Q(lease_until=None) | Q(lease_until__lt=before)
    due = Q(wake_at=None) | Q(wake_at__lt=before)
    given_back = Q(idle_since=None) | Q(idle_since__lt=before)
    return rows.filter(free, due, given_back)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write to the row with this key, as long as its fence is still ``fence``."""

    key: str
    fence: int


class Leases:
    """Takes and keeps leases of the rows of a model with the columns of
    ``models.leased.Leased``."""

    def __init__(self, model: type[models.Model], *also: str, **set_when_taken: Any) -> None:
        """``also``: columns that ``take`` is given values for; ``set_when_taken``: columns and
        their expressions."""
        self._open = model._default_manager.filter(finished_at=None)
        ours = self._open.filter(id=Given("id"), fence=Given("fence"))
        # Once given back it is not renewed: a renewal that came late would keep everybody from it
        # until it had run out.
        self._renew = Update(ours.filter(lease_until__isnull=False), "lease_until")
        # One UPDATE decides who works: the lease is free or over, the row is due and not ended. The
        # fence rises with it.
        self._take = Update(
            self._open.filter(
                Q(lease_until=None) | Q(lease_until__lt=Given("now", like="lease_until")),
                Q(wake_at=None) | Q(wake_at__lte=Given("now", like="wake_at")),
                id=Given("id"),
                fence=Given("fence"),
            ),
            "lease_until",
            "worker",
            *also,
            fence=F("fence") + 1,
            idle_since=None,
            **set_when_taken,
        )

    def take(
        self, key: str, fence: int, *, worker: str, now: datetime, **also: Any
    ) -> Lease | None:
        """The lease, or None when the row has moved on since its fence was read, is worked on, or
        is not due yet."""
        taken = self._take(
            id=key, fence=fence, now=now, lease_until=now + LEASE, worker=worker, **also
        )
        return Lease(key, fence + 1) if taken else None

    def renew(self, lease: Lease) -> None:
        """Keep it for another ``LEASE``. Raises LostLease."""
        if not self._renew(
            id=lease.key, fence=lease.fence, lease_until=read_database_now() + LEASE
        ):
            raise LostLease(lease.key)

    def release(self, lease: Lease, *, wake_at: datetime | None = None, **values: Any) -> bool:
        """Give the work back; it is looked at again at once, or at ``wake_at``. False: it was no
        longer ours."""
        ours = self._open.filter(pk=lease.key, fence=lease.fence)
        return bool(
            ours.update(
                lease_until=None,
                worker="",
                wake_at=wake_at,
                idle_since=read_database_now(),
                **values,
            )
        )

    def free(self, worker: str) -> list[str]:
        """The work of a worker that is known to have died becomes anybody's, without waiting for
        its leases to end."""
        held = self._open.filter(worker=worker, lease_until__isnull=False)
        return [
            key
            for key, fence, until in held.values_list("pk", "fence", "lease_until")
            if until
            and self._open.filter(pk=key, fence=fence, worker=worker).update(
                lease_until=None, worker="", idle_since=min(until - LEASE, read_database_now())
            )
        ]
