"""Lets requests of this process wait for their turn in the queue of a headend."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from django.db import Error

from mcpregistry.calls.approvals.waiter_leases import WaiterLeases
from mcpregistry.calls.watch.changes import Feed
from mcpregistry.calls.watch.state_watch import StateWatch
from mcpregistry.db import db_call
from mcpregistry.domain.errors import QueueFullError
from subagents.models import HEADEND_TOPIC
from subagents.services.headends import queue_places
from subagents.services.headends.configuring import HeadendSpec
from subagents.services.headends.queue_places import QueuePlace

log = structlog.get_logger(__name__)

# concurrency by interface, replaces that of the headends; set by ``runheadends``
LIMITS: dict[str, int] = {}
_LOOK_AGAIN = 5.0  # seconds; the end of a lease is not announced


class Queue:
    """For use on the event loop. ``process`` is the name of this process."""

    def __init__(self, feed: Feed, process: str) -> None:
        self._process = process
        self._watch: StateWatch[tuple[int, ...]] = StateWatch(
            feed, HEADEND_TOPIC, queue_places.read_queues
        )
        self._seats = WaiterLeases(queue_places.renew)

    async def join(
        self,
        headend: HeadendSpec,
        *,
        agent: str,
        fingerprint: str,
        key: str = "",
        is_retry: bool = False,
    ) -> QueuePlace:
        """Add a request to the queue. Raises as ``queue_places.join_queue``."""
        place = await db_call(
            queue_places.join_queue,
            headend=headend.id,
            agent=agent,
            fingerprint=fingerprint,
            process=self._process,
            concurrency=get_limit(headend),
            longest_queue=headend.longest_queue,
            key=key,
            is_retry=is_retry,
        )
        self._seats.add_waiter(str(place.id))
        return place

    async def wait_for_turn(
        self,
        headend: HeadendSpec,
        place: QueuePlace,
        on_position: Callable[[int], None] | None = None,
    ) -> None:
        """Wait until the request may run. ``on_position`` is called with the number of requests
        that must end first.

        Raises Busy if the site stops, and PlaceTaken.
        """
        kept: tuple[int, ...] = ()
        while True:
            kept = await self._watch.wait_for_change(str(headend.id), kept, _LOOK_AGAIN)
            if self._watch.stopping:
                raise QueueFullError("The site is shutting down.", remedy="Try again in a moment.")
            most = get_limit(headend)
            if place.id in kept[:most]:
                return
            if place.id not in kept:
                await db_call(queue_places.check_place, place.id)
            elif on_position is not None:
                on_position(kept.index(place.id) - most + 1)

    async def leave(self, place: QueuePlace, *, joinable: bool = False) -> None:
        """Release the place. If the database is unavailable, the place ends with its lease."""
        self._seats.remove_waiter(str(place.id))
        try:
            await db_call(queue_places.release, place.id, joinable=joinable)
        except Error:
            log.exception("headend.place_not_given_back", place=place.id)

    def begin_stop(self) -> None:
        """Refuse all requests that wait."""
        self._watch.stop()

    async def close(self) -> None:
        """Stop waiting, and stop renewing leases."""
        self._watch.stop()
        await self._seats.close()


def get_limit(headend: HeadendSpec) -> int:
    """Return how many runs of the headend may be in progress at the same time."""
    return LIMITS.get(headend.kind, headend.concurrency)
