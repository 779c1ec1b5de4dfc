"""The lease of a maintenance request: who works on it, and what its work costs while they do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from django.db import IntegrityError, transaction
from django.db.models import F
from django.db.models.functions import Coalesce

from mcpregistry.db import read_database_now
from mcpregistry.prepared_queries import Given
from subagents.domain.maintenance import (
    ControlRequest,
    Kind,
    RequestMessageKind,
    State,
    Substate,
    energy_for,
)
from subagents.leased.leases import Lease, Leases
from subagents.maintenance import queue, supervision
from subagents.models import MaintenanceRequest

REQUESTS = Leases(
    MaintenanceRequest,
    "working_on",
    state=State.IN_PROGRESS.value,
    substate="",
    started_at=Coalesce("started_at", Given("now", like="started_at")),
)


class Meter:
    """Measures the seconds of work on one request by the steady clock, so that nobody's clock makes
    energy."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def take_lap(self) -> float:
        """Seconds since the last lap."""
        now = time.monotonic()
        since = self._since
        self._since = now
        return now - since

    @contextmanager
    def restore_on_failure(self) -> Iterator[None]:
        """A lap whose charge was taken back is measured again."""
        since = self._since
        try:
            yield
        except BaseException:
            self._since = since
            raise


def take(request_id: str, *, worker: str) -> Lease | None:
    """The lease, or None: it has ended, is worked on, or somebody works on its server."""
    row = (
        MaintenanceRequest.objects.open()
        .filter(pk=request_id)
        .values_list("fence", "server_slug")
        .first()
    )
    if row is None:
        return None
    try:
        with transaction.atomic():
            now = read_database_now()
            if not _seat_is_free(request_id, row[1], now):
                return None
            return REQUESTS.take(
                request_id, row[0], worker=worker, now=now, working_on=row[1] or None
            )
    except IntegrityError:  # the column is unique: two of one server at the same time
        return None


def _seat_is_free(request_id: str, slug: str, now: datetime) -> bool:
    """Whether this request may have the server now. One that nobody holds leaves its seat, once its
    run has ended."""
    if not slug:  # of a search, say; any number of these go on at once
        return True
    seats = MaintenanceRequest.objects.filter(working_on=slug).exclude(pk=request_id)
    held = seats.select_for_update().first()
    if held is None:
        return True
    if held.finished_at is None and held.lease_until and held.lease_until >= now:
        return False
    if queue.seat(held):
        if supervision.explain_pause(
            held
        ):  # nobody goes on with it, so nobody else would stop its run
            queue.cut_run(held, "its request is paused")
        return False
    return bool(
        MaintenanceRequest.objects.filter(pk=held.pk, fence=held.fence).update(working_on=None)
    )


@contextmanager
def fence_request(lease: Lease, meter: Meter) -> Iterator[MaintenanceRequest]:
    """One transaction on the request by whoever holds its lease; the work until now is charged.
    Raises LostLease."""
    with meter.restore_on_failure(), transaction.atomic():
        REQUESTS.renew(lease)
        request = MaintenanceRequest.objects.get(pk=lease.key)
        charge(request, energy_for(Kind(request.kind), meter.take_lap(), request.energy_total))
        yield request


def charge(request: MaintenanceRequest, units: float) -> None:
    """Add to what the request has used, and to what nobody has taken yet."""
    request.energy_total += units
    MaintenanceRequest.objects.filter(pk=request.pk).update(
        energy_total=F("energy_total") + units, energy_unreported=F("energy_unreported") + units
    )


def renew(lease: Lease, meter: Meter) -> ControlRequest:
    """Keep the lease; what somebody wishes by now. Raises LostLease."""
    with fence_request(lease, meter) as request:
        return ControlRequest(request.wish) or (
            ControlRequest.HALT if supervision.explain_pause(request) else ControlRequest.NONE
        )


def release(lease: Lease) -> None:
    """Give it back: another worker goes on after the last step that was done."""
    for request in MaintenanceRequest.objects.filter(pk=lease.key):
        REQUESTS.release(lease, working_on=queue.seat(request))


def cut_run(lease: Lease, meter: Meter) -> str:
    """Stop the run of the model that works on it. Returns its id, which ends within a second, or
    ""."""
    with fence_request(lease, meter) as request:
        return queue.cut_run(request, "its request was stopped")


def pause_request(lease: Lease, meter: Meter) -> None:
    """It stands still until somebody resumes it."""
    with fence_request(lease, meter) as request:
        message = f"Paused after step {request.step}."
        still = MaintenanceRequest.objects.filter(pk=request.pk, wish=ControlRequest.PAUSE)
        still.update(substate=Substate.PAUSED, message=message)
        REQUESTS.release(lease, working_on=queue.seat(request))


def halt_request(lease: Lease, meter: Meter) -> None:
    """It is put down as it is: whoever may go on with it does, once the sub-agent may work
    again."""
    with fence_request(lease, meter) as request:
        why = supervision.explain_pause(request)
        if why and request.message != why:
            queue.tell(request, RequestMessageKind.STATUS, progress=request.progress, message=why)
        MaintenanceRequest.objects.filter(pk=request.pk).update(message="Waiting for a worker.")
        REQUESTS.release(lease, working_on=queue.seat(request))


def cancel_request(lease: Lease, meter: Meter) -> None:
    """It ends here. It pays for the time that it took, no less."""
    with fence_request(lease, meter) as request:
        error = f"cancelled: {request.wish_reason}"
        queue.end(request, State.FAILED, substate=Substate.CANCELLED, error=error)


def fail_request(lease: Lease, meter: Meter, error: str) -> None:
    """It ends with this reason. Raises LostLease."""
    with fence_request(lease, meter) as request:
        queue.end(request, State.FAILED, error=error)


def free(worker: str) -> list[str]:
    """Requests of a worker that is known to have died become anybody's."""
    return REQUESTS.free(worker)
