"""Places in the queue of a headend. They are rows, so the limit applies to all processes together.

Places are ordered by round, then by number. A request may run while fewer than ``concurrency``
active places come before its own, which needs no further write. A place is active until it is
released, or until its process stops renewing its lease.

Agents take turns: each request of an agent is one round after the agent's request before it. The
first one is in the round that runs now, so it waits for at most one request of each other agent
(start-time fair queueing). Requests of one agent keep the order of arrival. A new place never comes
before one that may run already. The headend's row is locked while a place is assigned, because
otherwise that would not hold on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from mcpregistry.db import read_database_now
from mcpregistry.domain.errors import Conflict, QueueFullError
from mcpregistry.domain.lifecycle import SUPPOSED, InvocationState
from mcpregistry.ids import make_ordered_id
from mcpregistry.models import HostTask, Invocation
from mcpregistry.services.records.idempotency import KeyReused
from mcpregistry.services.tasks import host_tasks
from subagents.domain.lifecycle import RunState
from subagents.models import Headend, HeadendRequest, Run

LEASE = timedelta(seconds=30)  # length of a lease
LOST = timedelta(seconds=60)  # after the end of the lease, the client counts as disconnected
KEPT = timedelta(hours=24)  # how long a repeated request gets the answer of the first run
# How long after a failed run the same question gets its error. Clients such as Claude Code repeat a
# request after any error.
REPEATED = timedelta(seconds=10)
_BATCH = 200


class QueueFull(QueueFullError):
    """The queue is full. Nothing was started."""


class PlaceTaken(Conflict):
    """A later attempt of the same request has taken the place."""


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A place. ``call`` is the id of the request's call; ``joins``: an earlier request has started
    that call."""

    id: int
    call: str
    joins: bool = False


def query_active_places(headend: int) -> QuerySet[HeadendRequest]:
    """Return the active places, in their order."""
    active = HeadendRequest.objects.filter(
        headend=headend, released_at=None, lease_until__gt=read_database_now()
    )
    return active.order_by("queue_round", "id")


@transaction.atomic
def join_queue(
    *,
    headend: int,
    agent: str,
    fingerprint: str,
    process: str,
    concurrency: int,
    longest_queue: int,
    key: str = "",
    is_retry: bool = False,
) -> QueuePlace:
    """Add a request to the queue.

    ``is_retry``: the client got no answer to an earlier attempt, so a request that seems to be in
    progress has lost its client. If the queue is full, an agent without a request in it still gets
    a place. Raises QueueFull, and Conflict if the first request with this key is in progress or was
    a different one.
    """
    Headend.objects.select_for_update().filter(pk=headend).first()
    now = read_database_now()
    earlier = _find_earlier_request(headend, agent, fingerprint, key, is_retry=is_retry)
    active = list(query_active_places(headend).values_list("agent_slug", "queue_round"))
    own = [number for slug, number in active if slug == agent]
    if len(active) >= concurrency + longest_queue and (own or not longest_queue):
        raise QueueFull("The queue of this headend is full.", remedy="Try again in a moment.")
    joins = earlier is not None and not was_lost(earlier.call_id)
    call = earlier.call_id if earlier and joins else make_ordered_id()
    made = HeadendRequest.objects.create(
        headend_id=headend,
        agent_slug=agent,
        fingerprint=fingerprint,
        idempotency_key=key,
        call_id=call,
        process=process,
        queue_round=_next_round([number for _, number in active], own, concurrency),
        lease_until=now + LEASE,
        created_at=now,
    )
    if earlier:
        HeadendRequest.objects.filter(pk=earlier.pk).delete()  # the new row replaces it
    return QueuePlace(made.pk, call, joins=joins)


def was_lost(call: str) -> bool:
    """Whether a call ended before its run was started, which can no longer start: its process died,
    or it was not sent.

    The run is started only while the call is open, so the order of the two queries matters.
    """
    given_up = Q(state=InvocationState.UNKNOWN, error_code=SUPPOSED) | Q(
        state=InvocationState.NOT_SENT
    )
    return (
        Invocation.objects.filter(given_up, pk=call).exists()
        and not Run.objects.filter(call_id=call).exists()
    )


def _next_round(active: list[int], own: list[int], concurrency: int) -> int:
    """Return the round of a new place. ``active`` and ``own``: rounds of all active places and of
    the agent's, in order."""
    running = active[:concurrency]
    return max([*running[-1:], *(number + 1 for number in own[-1:])], default=0)


def _find_earlier_request(
    headend: int, agent: str, fingerprint: str, key: str, *, is_retry: bool
) -> HeadendRequest | None:
    """Return the earlier request that this one repeats, or None."""
    mine = HeadendRequest.objects.filter(headend=headend, agent_slug=agent)
    if key and (first := mine.filter(idempotency_key=key).order_by("-id").first()):
        if first.fingerprint != fingerprint:
            raise KeyReused(
                "This Idempotency-Key was used for a different request.",
                remedy="Use a new key for each request.",
            )
        if first.released_at is None and first.lease_until > read_database_now() and not is_retry:
            raise Conflict(
                "The first request with this Idempotency-Key is still in progress.",
                remedy="Try again in a moment.",
            )
        return first
    same = mine.filter(fingerprint=fingerprint, idempotency_key="")
    lost = (
        same.filter(released_at=None)
        if is_retry
        else same.filter(released_at=None, lease_until__lte=read_database_now())
    )
    return (same.filter(joinable=True) | lost).order_by("-id").first() or _find_just_failed(same)


def _find_just_failed(same: QuerySet[HeadendRequest]) -> HeadendRequest | None:
    """Return the last of these requests if its run has just failed."""
    last = same.exclude(released_at=None).order_by("-id").first()
    if last is None:
        return None
    failed = Run.objects.filter(
        call_id=last.call_id, state=RunState.FAILED, finished_at__gt=read_database_now() - REPEATED
    )
    return last if failed.exists() else None


def read_queues(headends: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Return the numbers of the active places by headend. Keys are primary keys as text."""
    return {
        key: tuple(query_active_places(int(key)).values_list("pk", flat=True)) for key in headends
    }


def check_place(place: int) -> None:
    """Raise PlaceTaken if the place no longer exists. A place with an expired lease exists until
    the sweep releases it."""
    if not HeadendRequest.objects.filter(pk=place, released_at=None).exists():
        raise PlaceTaken(
            "A later attempt of the same request has replaced this attempt in the queue.",
            remedy="Wait for the answer to that attempt.",
        )


def renew(requests: Collection[str]) -> None:
    """Renew the leases of these requests."""
    HeadendRequest.objects.filter(pk__in=[int(each) for each in requests], released_at=None).update(
        lease_until=read_database_now() + LEASE
    )


def release(place: int, *, joinable: bool = False) -> None:
    """Release a place. ``joinable``: the same question gets the answer of its run later."""
    HeadendRequest.objects.filter(pk=place, released_at=None).update(
        released_at=read_database_now(), joinable=joinable
    )


def sweep() -> dict[str, int]:
    """Cancel the runs of lost clients, and delete rows that are no longer needed. Returns
    counts."""
    now = read_database_now()
    lost = HeadendRequest.objects.filter(released_at=None, lease_until__lt=now - LOST)
    ended = 0
    for request in list(lost.order_by("id")[:_BATCH]):
        ended += _give_up(request)
    old = HeadendRequest.objects.exclude(released_at=None)
    short = old.filter(joinable=False, idempotency_key="", released_at__lt=now - REPEATED)
    over = old.filter(released_at__lt=now - KEPT) | short
    gone = list(over.values_list("pk", flat=True)[: 5 * _BATCH])
    HeadendRequest.objects.filter(pk__in=gone).delete()
    return {"given_up": ended, "forgotten": len(gone)}


def release_process(process: str) -> int:
    """Release the places of a dead process. The next sweep cancels its runs. Returns the number of
    places."""
    mine = HeadendRequest.objects.filter(process=process, released_at=None)
    return mine.update(lease_until=read_database_now() - LOST - LEASE)


def _give_up(request: HeadendRequest) -> int:
    """Cancel the run of a lost client, unless the request has a key: then the client can still get
    the answer."""
    if not request.idempotency_key:
        cancel_run(request.call_id)
    release(request.pk)
    return 1


def abandon(place: QueuePlace) -> None:
    """Cancel the run of a client that has disconnected, unless another request has joined it."""
    if HeadendRequest.objects.filter(pk=place.id, released_at=None).exists():
        cancel_run(place.call)


def cancel_run(call: str) -> None:
    """Cancel the run of a call, if it is in progress."""
    task = HostTask.objects.filter(call_id=call).values_list("pk", flat=True).first()
    if task is not None:
        host_tasks.withdraw_task(task_id=task)


def count_requests(headend: Headend) -> dict[str, Any]:
    """Count the running and the waiting requests of a headend."""
    count = query_active_places(headend.pk).count()
    return {
        "running": min(count, headend.concurrency),
        "waiting": max(0, count - headend.concurrency),
    }
