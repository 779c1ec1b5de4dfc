"""Sessions of hosts of the older era, as rows: begun, found by any web process, ended everywhere.

The id is a host's to keep and to name; it opens nothing without a token of its agent. Times are the database's.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import transaction

from mcpregistry.db import database_now
from mcpregistry.models import HostMessage, HostSession

MOST = 1_000  # of one agent; one more ends the one that was idle for longest
IDLE = timedelta(minutes=30)  # without a request or an open stream
_AT_ONCE = 200  # messages, each of up to some megabytes
_TOLD_FOR = timedelta(minutes=5)  # how long ends and messages stay for processes that look late


class News(NamedTuple):
    """What has happened since somebody last looked: sessions that ended, and messages as (key, session, body)."""

    ended: list[str]
    messages: list[tuple[int, str, str]]
    more: bool = False  # messages are there besides these


@transaction.atomic
def begin(*, session_id: str, agent: str, endpoint: str, version: str, client: str) -> HostSession:
    """A host has shaken hands. ``client`` is JSON, ``version`` that of the protocol, as negotiated."""
    now = database_now()
    running = HostSession.objects.filter(agent_slug=agent, ended_at=None)
    if (surplus := running.count() + 1 - MOST) > 0:
        oldest = list(running.order_by("seen_at").values_list("pk", flat=True)[:surplus])
        HostSession.objects.filter(pk__in=oldest).update(ended_at=now)
    said = {
        "agent_slug": agent, "endpoint_slug": endpoint, "protocol_version": version, "client": client,
        "created_at": now, "seen_at": now,
    }  # fmt: skip
    return HostSession.objects.update_or_create(id=session_id, defaults=said)[0]  # some shake hands twice


def running(session_id: str) -> HostSession | None:
    """The session, unless it has ended or was idle for too long."""
    since = database_now() - IDLE
    return HostSession.objects.filter(pk=session_id, ended_at=None, seen_at__gt=since).first()


def seen(session_ids: Iterable[str]) -> None:
    """Their hosts have been here, or hold a stream open."""
    HostSession.objects.filter(pk__in=list(session_ids), ended_at=None).update(seen_at=database_now())


def end(session_id: str) -> bool:
    """The host needs it no longer. False: it had ended already."""
    return bool(HostSession.objects.filter(pk=session_id, ended_at=None).update(ended_at=database_now()))


def send(session_id: str, body: str) -> None:
    """Hand a message to the process that serves what it concerns, whichever that is."""
    HostMessage.objects.create(session_id=session_id, body=body, created_at=database_now())


def news(since: datetime, told: Container[object] = ()) -> News:
    """See ``News``; of messages without those whose keys are among ``told``. It may tell of an end twice, so whoever asks
    remembers what they were told.
    """
    ended = HostSession.objects.filter(ended_at__gt=since).values_list("pk", flat=True)
    recent = HostMessage.objects.filter(created_at__gt=since).order_by("pk")
    keys = [key for key in recent.values_list("pk", flat=True) if key not in told][:_AT_ONCE]
    messages = HostMessage.objects.filter(pk__in=keys).order_by("pk") if keys else recent.none()
    return News(list(ended), list(messages.values_list("pk", "session_id", "body")), more=len(keys) == _AT_ONCE)


def sweep(now: datetime) -> int:
    """End what has idled and forget what ended a while ago; for the clock. Returns how many have ended."""
    idle = HostSession.objects.filter(ended_at=None, seen_at__lt=now - IDLE).update(ended_at=now)
    HostMessage.objects.filter(created_at__lt=now - _TOLD_FOR).delete()
    HostSession.objects.filter(ended_at__lt=now - _TOLD_FOR).delete()
    return idle
