"""Places in the queue of a headend: rows, so that they are counted over all processes.

A request takes the next number. It may run while fewer than ``concurrency`` places with smaller numbers are kept, so the
order is that of arrival and needs no further write. A place that is given back, or whose process has not renewed its lease,
is no longer counted. Numbers are given under a lock on the headend's row: on PostgreSQL a smaller one could otherwise become
visible after a larger one had begun to run.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from mcpregistry.db import database_now
from mcpregistry.domain.errors import Busy, Conflict
from mcpregistry.ids import ordered_id
from mcpregistry.models import HostTask
from mcpregistry.services.records.idempotency import KeyReused
from mcpregistry.services.tasks import host_tasks
from subagents.models import Headend, HeadendRequest

LEASE = timedelta(seconds=30)  # of one renewal
LOST = timedelta(seconds=60)  # after the end of its lease the client of a request is taken for gone
KEPT = timedelta(hours=24)  # how long the same request is answered from its first run
_BATCH = 200


class QueueFull(Busy):
    """As many requests wait as may; nothing was started."""


@dataclass(frozen=True, slots=True)
class Place:
    """``call``: the id of the call that the request makes. ``joins``: that call was begun by an earlier request."""

    id: int
    call: str
    joins: bool = False


def kept(headend: int) -> QuerySet[HeadendRequest]:
    """The places that count, in their order."""
    return HeadendRequest.objects.filter(headend=headend, released_at=None, lease_until__gt=database_now()).order_by(
        "id"
    )


@transaction.atomic
def take(
    *, headend: int, agent: str, fingerprint: str, process: str, concurrency: int, longest_queue: int, key: str = ""
) -> Place:
    """Join the end of the queue. Raises QueueFull, and Conflict for a key whose first request is open or asked for
    something else.
    """
    Headend.objects.select_for_update().filter(pk=headend).first()
    now = database_now()
    earlier = _earlier(headend, agent, fingerprint, key)
    if kept(headend).count() >= concurrency + longest_queue:
        raise QueueFull("Too many requests wait already.", remedy="Ask again in a moment.")
    call = earlier.call_id if earlier else ordered_id()
    made = HeadendRequest.objects.create(
        headend_id=headend, agent_slug=agent, fingerprint=fingerprint, idempotency_key=key, call_id=call, process=process,
        lease_until=now + LEASE, created_at=now,
    )  # fmt: skip
    if earlier:
        HeadendRequest.objects.filter(pk=earlier.pk).delete()  # the new row stands for both
    return Place(made.pk, call, joins=earlier is not None)


def _earlier(headend: int, agent: str, fingerprint: str, key: str) -> HeadendRequest | None:
    """The request that this one repeats."""
    mine = HeadendRequest.objects.filter(headend=headend, agent_slug=agent)
    if key and (first := mine.filter(idempotency_key=key).order_by("-id").first()):
        if first.fingerprint != fingerprint:
            raise KeyReused(
                "This Idempotency-Key was used for another request.", remedy="Use a new key for each request."
            )
        if first.released_at is None and first.lease_until > database_now():
            raise Conflict(
                "The first request with this Idempotency-Key has not ended.", remedy="Repeat it in a moment."
            )
        return first
    lost = mine.filter(fingerprint=fingerprint, released_at=None, lease_until__lte=database_now())
    return (mine.filter(fingerprint=fingerprint, joinable=True) | lost).order_by("-id").first()


def queues(headends: Collection[str]) -> dict[str, tuple[int, ...]]:
    """For each of these headends (their keys as text) the numbers of the places that count, in their order."""
    return {key: tuple(kept(int(key)).values_list("pk", flat=True)) for key in headends}


def renew(requests: Collection[str]) -> None:
    """The clients of these requests still wait: their process says so every few seconds."""
    HeadendRequest.objects.filter(pk__in=[int(each) for each in requests], released_at=None).update(
        lease_until=database_now() + LEASE
    )


def give_back(place: int, *, joinable: bool = False) -> None:
    """The request has been answered, or nobody waits for it any more. ``joinable``: the same question gets its answer."""
    HeadendRequest.objects.filter(pk=place, released_at=None).update(released_at=database_now(), joinable=joinable)


def sweep() -> dict[str, int]:
    """Give up what was begun for clients whose process died, and forget what nobody can ask for any more."""
    now = database_now()
    lost = HeadendRequest.objects.filter(released_at=None, lease_until__lt=now - LOST)
    ended = 0
    for request in list(lost.order_by("id")[:_BATCH]):
        ended += _given_up(request)
    old = HeadendRequest.objects.exclude(released_at=None)
    over = old.filter(released_at__lt=now - KEPT) | old.filter(joinable=False, idempotency_key="")
    gone = list(over.values_list("pk", flat=True)[: 5 * _BATCH])
    HeadendRequest.objects.filter(pk__in=gone).delete()
    return {"given_up": ended, "forgotten": len(gone)}


def free(process: str) -> int:
    """A process is known to be dead: the next sweep gives up what it was asked, and nobody waits for its places."""
    mine = HeadendRequest.objects.filter(process=process, released_at=None)
    return mine.update(lease_until=database_now() - LOST - LEASE)


def _given_up(request: HeadendRequest) -> int:
    """Not of a request with a key, whose client will come again for the answer."""
    if not request.idempotency_key:
        withdraw(request.call_id)
    give_back(request.pk)
    return 1


def withdraw(call: str) -> None:
    """Cancel the run that the call has begun; nothing if there is none, or it has ended."""
    task = HostTask.objects.filter(call_id=call).values_list("pk", flat=True).first()
    if task is not None:
        host_tasks.withdraw(task_id=task)


def waiting(headend: Headend) -> dict[str, Any]:
    """How many requests of the headend run and wait now."""
    count = kept(headend.pk).count()
    return {"running": min(count, headend.concurrency), "waiting": max(0, count - headend.concurrency)}
