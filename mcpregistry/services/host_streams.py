"""Answers that take a while, kept for hosts of the older era whose connection may break meanwhile.

A host reads on with ``Last-Event-ID``, at any web process. Where the one that served it died, the
record of the call says how it ended.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

import structlog
from django.db.models import Q

from mcpregistry.db import read_database_now
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.lifecycle import TERMINAL
from mcpregistry.models import HostStream, Invocation
from mcpregistry.models.sealing import seal, unseal

log = structlog.get_logger(__name__)

MOST = 100  # of one session; the answers to more than that cannot be read again
LARGEST = 1_000_000  # characters; of a larger answer the record of the call tells what was kept
ANSWERED = "answered"
RECORDED = "recorded"
LOST = "lost"
_KEPT = timedelta(hours=1)
_KEPT_OPEN = timedelta(days=1)
_LOST_AFTER = timedelta(minutes=1)  # without an answer or the record of a call


def begin_stream(*, session_id: str, request: str, call_id: str) -> str:
    """A request takes a while. Returns what its event ids begin with, or "" where the session has
    too many."""
    if HostStream.objects.filter(session_id=session_id).count() >= MOST:
        return ""
    stream = HostStream(
        id=secrets.token_hex(16),
        session_id=session_id,
        request=request,
        call_id=call_id,
        asked_at=read_database_now(),
    )
    stream.save(force_insert=True)
    return stream.pk


def store_answer(stream_id: str, message: str) -> None:
    """The whole JSON-RPC message that ends it; sealed, as it may hold anything that servers say."""
    kept = seal(message, place=_make_seal_place(stream_id)) if len(message) <= LARGEST else ""
    HostStream.objects.filter(pk=stream_id, answered_at=None).update(
        answered_at=read_database_now(), sealed_answer=kept
    )


def read_kept_answer(stream: HostStream) -> str:
    """Return the message that was kept; empty if none was, or its key is gone."""
    if not stream.sealed_answer:
        return ""
    try:
        return str(unseal(stream.sealed_answer, place=_make_seal_place(stream.pk)))
    except ConfigInvalid:
        log.warning("stream.answer_not_opened", exc_info=True)
        return ""


def _make_seal_place(stream_id: str) -> str:
    return f"mcpregistry.hoststream:{stream_id}:sealed_answer"


def find_stream_by_event(session_id: str, event_id: str) -> HostStream | None:
    """The stream of this session that an event's id belongs to."""
    return HostStream.objects.filter(session_id=session_id, pk=event_id.partition(".")[0]).first()


def load_stream_states(stream_ids: list[str]) -> dict[str, str]:
    """How their answers can be had: from the row, from the call's record, not at all, or, if "",
    not yet."""
    streams = {
        stream.pk: stream
        for stream in HostStream.objects.filter(pk__in=stream_ids).defer("sealed_answer")
    }
    calls = [
        stream.call_id
        for stream in streams.values()
        if stream.call_id and stream.answered_at is None
    ]
    found = dict(Invocation.objects.filter(pk__in=calls).values_list("pk", "state"))
    return {key: _find_answer_state(streams.get(key), found) for key in stream_ids}


def _find_answer_state(stream: HostStream | None, calls: dict[str, str]) -> str:
    if stream is None:
        return LOST
    if stream.answered_at is not None:
        return ANSWERED
    if stream.call_id in calls:
        return RECORDED if calls[stream.call_id] in TERMINAL else ""
    return LOST if stream.asked_at < read_database_now() - _LOST_AFTER else ""


def delete_old_streams(now: datetime) -> int:
    """Forget what was read, or can be, for long enough; for the clock. Returns how many."""
    old = Q(answered_at__lt=now - _KEPT) | Q(asked_at__lt=now - _KEPT_OPEN)
    return HostStream.objects.filter(old).delete()[0]
