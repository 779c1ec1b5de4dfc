"""Sessions of hosts of the older era, as rows: begun, found by any web process, ended everywhere.

The id is a host's to keep and to name; it opens nothing without a token of its agent. Times are the
database's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Container, Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import structlog
from django.db import transaction
from django.db.models import Count, Sum

from mcpregistry.db import read_database_now
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ConfigInvalid, Conflict, QueueFullError, ResourceLimit
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.models import HostConnection, HostMessage, HostSession, HostSubscription, Server
from mcpregistry.models.sealing import seal, unseal
from mcpregistry.services.records import audit

log = structlog.get_logger(__name__)

MOST = 1_000  # of one agent; one more ends the one that was idle for longest
# Until they are forgotten: messages of one session, their characters, and those of all sessions of
# one agent.
MOST_WAITING = 2_000
MOST_SAID = 32_000_000
MOST_SAID_OF_AGENT = 64_000_000
MOST_SUBSCRIBED = 1_000  # resources of one session
CHANGED = "slipsnisse/changed"  # a message of ours: what the session's row says has changed
IDLE = timedelta(minutes=30)  # without a request or an open stream
_AT_ONCE = 200  # messages, each of up to some megabytes
_TOLD_FOR = timedelta(minutes=5)  # how long ends and messages stay for processes that look late


class News(NamedTuple):
    """What has happened since somebody last looked: sessions that ended, and messages as (key,
    session, body)."""

    ended: list[str]
    messages: list[tuple[int, str, str]]
    more: bool = False  # messages are there besides these


@transaction.atomic
def begin_session(
    *,
    session_id: str,
    agent: str,
    endpoint: str,
    version: str,
    client: str,
    name: str = "",
    said_version: str = "",
) -> HostSession:
    """A host has shaken hands. ``client`` is JSON, ``version`` that of the protocol, as negotiated;
    ``name`` and ``said_version`` are the host's own.
    """
    now = read_database_now()
    running = HostSession.objects.filter(agent_slug=agent, ended_at=None)
    if (surplus := running.count() + 1 - MOST) > 0:
        oldest = list(running.order_by("seen_at").values_list("pk", flat=True)[:surplus])
        HostSession.objects.filter(pk__in=oldest).update(**_make_end_fields(now))
    said = {
        "agent_slug": agent,
        "endpoint_slug": endpoint,
        "protocol_version": version,
        "client": client,
        "created_at": now,
        "seen_at": now,
        "host_name": clean_text(name, 100),
        "host_version": clean_text(said_version, 100),
    }
    # some shake hands twice
    return HostSession.objects.update_or_create(id=session_id, defaults=said)[0]


def record_client_name(session_id: str, name: str, said_version: str) -> None:
    """The host of a connection that lasts has said its name, in the handshake on it."""
    said = {"host_name": clean_text(name, 100), "host_version": clean_text(said_version, 100)}
    HostSession.objects.filter(pk=session_id).update(**said)


def find_running_session(session_id: str) -> HostSession | None:
    """The session, unless it has ended or was idle for too long."""
    since = read_database_now() - IDLE
    return HostSession.objects.filter(pk=session_id, ended_at=None, seen_at__gt=since).first()


def note_seen(session_ids: Iterable[str]) -> None:
    """Their hosts have been here, or hold a stream open."""
    HostSession.objects.filter(pk__in=list(session_ids), ended_at=None).update(
        seen_at=read_database_now()
    )


def end_session(session_id: str) -> bool:
    """The host needs it no longer. False: it had ended already."""
    return bool(
        HostSession.objects.filter(pk=session_id, ended_at=None).update(
            **_make_end_fields(read_database_now())
        )
    )


@transaction.atomic
def end_by_hand(*, session: HostSession, actor: str) -> HostSession:
    """A person ends it, for every process. Its host is told 404 and may shake hands anew. Raises
    Conflict for an ended one."""
    if not end_session(session.pk):
        raise Conflict("The session has already ended.", remedy=error_texts.NOTHING_TO_DO)
    facts = {
        "agent": session.agent_slug,
        "endpoint": session.endpoint_slug,
        "host": session.host_name,
    }
    audit.record_entry(
        kind="host_session.ended", actor=actor, subject=f"host_session:{session.pk[:8]}", **facts
    )
    session.refresh_from_db()
    return session


@transaction.atomic
def note_connections(process: str, own: Collection[tuple[str, int]]) -> None:
    """The connections (session, server) that sessions have for themselves in this process; others
    of it are gone."""
    now = read_database_now()
    HostConnection.objects.filter(process=process).delete()
    sessions = set(
        HostSession.objects.filter(pk__in=[session for session, _ in own]).values_list(
            "pk", flat=True
        )
    )
    servers = set(
        Server.objects.filter(pk__in=[server for _, server in own]).values_list("pk", flat=True)
    )
    found = [pair for pair in own if pair[0] in sessions and pair[1] in servers]
    HostConnection.objects.bulk_create(
        HostConnection(session_id=session, server_id=server, process=process, seen_at=now)
        for session, server in found
    )


def send_host_message(session_id: str, body: str) -> int:
    """Hand a host's message to the process that serves what it concerns, whichever that is. Returns
    the message's key.

    Raises Busy if too much waits.
    """
    sealed = seal(body, place=_make_seal_place(session_id))
    kept = HostMessage.objects.filter(size__gt=0)
    waiting = kept.filter(session_id=session_id).aggregate(
        count=Count("pk"), said=Sum("size", default=0)
    )
    agent = HostSession.objects.filter(pk=session_id).values("agent_slug")
    sessions = HostSession.objects.filter(agent_slug__in=agent).values("pk")
    of_agent = kept.filter(session_id__in=sessions).aggregate(said=Sum("size", default=0))["said"]
    if (
        waiting["count"] >= MOST_WAITING
        or waiting["said"] + len(sealed) > MOST_SAID
        or of_agent + len(sealed) > MOST_SAID_OF_AGENT
    ):
        raise QueueFullError(
            "Too many messages of this session or its agent are waiting to be delivered.",
            remedy=f"Try again in {_TOLD_FOR.seconds // 60} minutes, or send fewer messages at a time.",
        )
    return HostMessage.objects.create(
        session_id=session_id, sealed_body=sealed, size=len(sealed), created_at=read_database_now()
    ).pk


def delete_messages(keys: Collection[int]) -> None:
    """Delete messages that their process has taken, or that none needs."""
    HostMessage.objects.filter(pk__in=keys).delete()


def _tell_changed(session_id: str) -> None:
    """A word of ours to every process, however much waits of the host's. It takes the place of an
    earlier one."""
    HostMessage.objects.filter(session_id=session_id, size=0).delete()
    sealed = seal(json.dumps({"method": CHANGED}), place=_make_seal_place(session_id))
    HostMessage.objects.create(
        session_id=session_id, sealed_body=sealed, created_at=read_database_now()
    )


@transaction.atomic
def set_log_level(session_id: str, level: str) -> None:
    """What its host wants to hear of servers' logs, for every process."""
    if HostSession.objects.filter(pk=session_id).exclude(log_level=level).update(log_level=level):
        _tell_changed(session_id)


def get_log_level(session_id: str) -> str:
    """As it was set; empty for one that was not, or a session that is gone."""
    return (
        HostSession.objects.filter(pk=session_id).values_list("log_level", flat=True).first() or ""
    )


@transaction.atomic
def subscribe(session_id: str, uri: str) -> None:
    """Its host wants to hear of this resource's changes. Raises ResourceLimit for one too many."""
    mine = HostSubscription.objects.filter(session_id=session_id)
    if not mine.get_or_create(
        key=_make_message_key(uri), defaults={"session_id": session_id, "uri": uri}
    )[1]:
        return
    if mine.count() > MOST_SUBSCRIBED:
        raise ResourceLimit(
            f"A session can subscribe to at most {MOST_SUBSCRIBED:,} resources.",
            remedy="Unsubscribe from a resource first.",
        )
    _tell_changed(session_id)


@transaction.atomic
def unsubscribe(session_id: str, uri: str) -> None:
    """Not any more; also of what it had not subscribed to."""
    if HostSubscription.objects.filter(session_id=session_id, key=_make_message_key(uri)).delete()[
        0
    ]:
        _tell_changed(session_id)


def list_subscriptions(session_id: str) -> set[str]:
    """The URIs, as the host names them."""
    return set(HostSubscription.objects.filter(session_id=session_id).values_list("uri", flat=True))


def read_news(since: datetime, told: Container[object] = ()) -> News:
    """See ``News``; of messages without those whose keys are among ``told``. It may tell of an end
    twice, so whoever asks remembers what they were told.
    """
    ended = HostSession.objects.filter(ended_at__gt=since).values_list("pk", flat=True)
    recent = HostMessage.objects.filter(created_at__gt=since).order_by("pk")
    keys = [key for key in recent.values_list("pk", flat=True) if key not in told][:_AT_ONCE]
    messages = HostMessage.objects.filter(pk__in=keys).order_by("pk") if keys else recent.none()
    said = messages.values_list("pk", "session_id", "sealed_body")
    opened = [(key, session, _unseal_message(session, sealed)) for key, session, sealed in said]
    return News(list(ended), opened, more=len(keys) == _AT_ONCE)


def _make_end_fields(now: datetime) -> dict[str, Any]:
    """The fields of a session that has ended. What it said in its handshake may be long, and one
    agent can open and end any number."""
    return {"ended_at": now, "client": ""}


def _unseal_message(session_id: str, sealed: str) -> str:
    try:
        return str(unseal(sealed, place=_make_seal_place(session_id)))
    except ConfigInvalid:
        # by a key that this process does not have: it has not been started anew since
        log.warning("host_message.not_opened", exc_info=True)
        return "{}"


def _make_seal_place(session_id: str) -> str:
    return f"mcpregistry.hostmessage:{session_id}:sealed_body"


def _make_message_key(uri: str) -> str:
    return hashlib.sha256(uri.encode("utf-8", "surrogatepass")).hexdigest()


def end_idle_sessions(now: datetime) -> int:
    """End what has idled and forget what ended a while ago; for the clock. Returns how many have
    ended."""
    idle = HostSession.objects.filter(ended_at=None, seen_at__lt=now - IDLE).update(
        **_make_end_fields(now)
    )
    HostMessage.objects.filter(created_at__lt=now - _TOLD_FOR).delete()
    HostConnection.objects.filter(seen_at__lt=now - _TOLD_FOR).delete()
    HostSession.objects.filter(ended_at__lt=now - _TOLD_FOR).delete()
    return idle
