"""Seats: one row for each caller who waits for a held call, so that a dead process's callers are
not waited for.

A caller takes its seat with the request, or by joining it, and gives it back when it goes.
Meanwhile its process renews the seat's lease (``calls/approvals/waiter_leases.py``), by the
database's clock. Whoever leaves may end the call as the last one: that rule is in
``held_calls.leave``, for callers that go and, through the clock, for those whose process died.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from mcpregistry.db import read_database_now
from mcpregistry.models import ApprovalRequest, ApprovalSeat

LEASE = timedelta(seconds=30)  # of one renewal
# for which a seat is kept once its lease is over, for a process that was only slow
DOUBT = timedelta(seconds=30)
_BATCH = 200


def take_seat(request: ApprovalRequest, *, caller: str, process: str) -> None:
    """The caller (the id of the call that it made) waits now. It may have its seat already, also in
    another process.

    Within a transaction that has created or locked the request.
    """
    values = {
        "request": request,
        "process": process,
        "lease_until": read_database_now() + LEASE,
        "doubted": False,
    }
    if not ApprovalSeat.objects.filter(pk=caller).update(**values):
        ApprovalSeat.objects.create(pk=caller, **values)


def give_back(request: ApprovalRequest, *, caller: str, over: datetime | None = None) -> bool:
    """The caller waits no more; again does nothing. ``over``: only if its lease is, then.

    Within a transaction that has locked the request.
    """
    seat = ApprovalSeat.objects.filter(pk=caller, request=request)
    given, _ = (seat.filter(lease_until__lt=over, doubted=True) if over else seat).delete()
    return bool(given)


def forget(caller: str) -> None:
    """The caller was told the end of its call: who else waits matters to nobody any more."""
    ApprovalSeat.objects.filter(pk=caller).delete()


def has_waiting_caller(request: ApprovalRequest) -> bool:
    """Return whether a caller in a living process waits for it."""
    return ApprovalSeat.objects.filter(
        request=request, lease_until__gt=read_database_now()
    ).exists()


def renew(callers: Collection[str]) -> None:
    """These callers still wait: their process says so, every few seconds."""
    ApprovalSeat.objects.filter(pk__in=callers).update(
        lease_until=read_database_now() + LEASE, doubted=False
    )


def list_dead_seats(now: datetime) -> list[tuple[str, str]]:
    """(caller, id of its request) of seats that no process has renewed for long, though it had a
    second chance.

    The second chance is for processes that lived and could not say so: after an outage of the
    database, or a laptop's sleep, everybody's lease is over at once, and who comes first must not
    take the others for dead.
    """
    over = ApprovalSeat.objects.filter(lease_until__lt=now).order_by("lease_until")
    for caller in list(over.filter(doubted=False).values_list("pk", flat=True)[:_BATCH]):
        # One by one: a statement over many rows and a renewal of many could wait for each other.
        unheard = ApprovalSeat.objects.filter(pk=caller, lease_until__lt=now, doubted=False)
        unheard.update(doubted=True, lease_until=now + DOUBT)
    return list(over.filter(doubted=True).values_list("pk", "request_id")[:_BATCH])
