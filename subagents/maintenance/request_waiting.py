"""Waiting for a request to end, for callers that want to: what the sub-agent tells meanwhile
reaches them as progress.

Nothing is handed out by that: messages stay to be polled, and a caller that goes away leaves the
work as it is.
"""

from __future__ import annotations

import time

from django.db.models import Max

from mcpregistry.calls.call import OnProgress
from mcpregistry.calls.watch.changes import Feed
from mcpregistry.calls.watch.state_watch import StateWatch
from mcpregistry.db import db_call
from subagents.domain.maintenance import RequestMessageKind
from subagents.models import MAINTENANCE_TOPIC, MaintenanceMessage, MaintenanceRequest

LONGEST = 50  # seconds; the most impatient host gives up on a call after 60
Seen = tuple[int, bool]  # the number of the newest message, and whether the request has ended


class RequestWaiter:
    """One per engine, on its event loop."""

    def __init__(self, feed: Feed) -> None:
        self._watch: StateWatch[Seen] = StateWatch(feed, MAINTENANCE_TOPIC, _read_progress)

    async def wait_until_ended(
        self, key: str, seconds: float, on_progress: OnProgress | None
    ) -> None:
        """Return when the request has ended, or after ``seconds``. ``on_progress`` hears each
        status_update, of 100."""
        until = time.monotonic() + min(seconds, LONGEST)
        seen = (-1, False)
        told = 0
        while not seen[1] and (left := until - time.monotonic()) > 0:
            before = seen
            seen = await self._watch.wait_for_change(key, seen, left)
            if seen == before:
                return  # nothing more came in time, or this process ends
            if on_progress is not None and seen[0] > told:
                for progress, message in await db_call(_read_updates, key, told, seen[0]):
                    on_progress(progress, 100.0, message)
                told = seen[0]


def _read_progress(keys: list[str]) -> dict[str, Seen]:
    rows = MaintenanceRequest.objects.filter(pk__in=keys).annotate(newest=Max("messages__id"))
    return {
        key: (newest or 0, ended is not None)
        for key, newest, ended in rows.values_list("pk", "newest", "finished_at")
    }


def _read_updates(key: str, after: int, to: int) -> list[tuple[float, str]]:
    told = MaintenanceMessage.objects.filter(
        request=key, kind=RequestMessageKind.STATUS, id__gt=after, id__lte=to
    )
    return [
        (float(data.get("progress", 0)), str(data.get("message", "")))
        for data in told.values_list("data", flat=True)
    ]
