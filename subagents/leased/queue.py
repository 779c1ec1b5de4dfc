"""The queue of a headend as one process sees it: its own requests wait for their turn, whoever serves those before them."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from django.db import Error

from mcpregistry.calls.approvals.seats import Seats
from mcpregistry.calls.watch.changes import Feed
from mcpregistry.calls.watch.waiting import Watch
from mcpregistry.db import db_call
from subagents.models import HEADEND_TOPIC
from subagents.services.headends import places
from subagents.services.headends.configuring import HeadendSpec
from subagents.services.headends.places import Place

log = structlog.get_logger(__name__)

LIMITS: dict[
    str, int
] = {}  # by interface: how many at the same time, in place of what headends say; set by ``runheadends``
_LOOK_AGAIN = 5.0  # seconds; nobody tells that the lease of a dead process's place is over


class Queue:
    """All on the event loop. ``process`` is the name under which this process is known."""

    def __init__(self, feed: Feed, process: str) -> None:
        self._process = process
        self._watch: Watch[tuple[int, ...]] = Watch(feed, HEADEND_TOPIC, places.queues)
        self._seats = Seats(places.renew)

    async def enter(self, headend: HeadendSpec, *, agent: str, fingerprint: str, key: str = "") -> Place:
        """Join the end of the queue. Raises as ``places.take``."""
        place = await db_call(
            places.take, headend=headend.id, agent=agent, fingerprint=fingerprint, process=self._process,
            concurrency=limit_of(headend), longest_queue=headend.longest_queue, key=key,
        )  # fmt: skip
        self._seats.keep(str(place.id))
        return place

    async def turn(self, headend: HeadendSpec, place: Place, told: Callable[[int], None] | None = None) -> None:
        """Wait until the place is among the first. ``told`` hears how many have to end before."""
        kept: tuple[int, ...] = ()
        while True:
            kept = await self._watch.until_not(str(headend.id), kept, _LOOK_AGAIN)
            most = limit_of(headend)
            if place.id in kept[:most]:
                return
            if told is not None and place.id in kept:
                told(kept.index(place.id) - most + 1)

    async def leave(self, place: Place, *, joinable: bool = False) -> None:
        """Give the place back. Where the database does not take it, the place ends with its lease."""
        self._seats.forget(str(place.id))
        try:
            await db_call(places.give_back, place.id, joinable=joinable)
        except Error:
            log.exception("headend.place_not_given_back", place=place.id)

    async def close(self) -> None:
        """The process stops: nobody waits here any more."""
        self._watch.stop()
        await self._seats.close()


def limit_of(headend: HeadendSpec) -> int:
    """How many of its runs may go on at the same time, as this process sees it."""
    return LIMITS.get(headend.kind, headend.concurrency)
