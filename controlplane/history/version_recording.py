"""What each version says besides the record: from where the change came; and which versions a
person has just made."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone
from simple_history.models import HistoricalRecords
from simple_history.signals import post_create_historical_record, pre_create_historical_record

from mcpregistry.domain.text.undo_texts import MOST

_PLACES = (
    ("/api/", "REST"),
    ("/admin/", "admin"),
    ("/definitions/", "definitions"),
    ("/approvals/", "approvals"),
)
LATEST = "versions"  # in the session
_because: ContextVar[str] = ContextVar("because", default="")
_noted: ContextVar[list[Any] | None] = ContextVar("noted", default=None)


def listen() -> None:
    """Begin to note; called once, when the app is ready."""
    pre_create_historical_record.connect(_say_from_where)
    post_create_historical_record.connect(_note)


def request_now() -> HttpRequest | None:
    """The request that is being answered."""
    return getattr(HistoricalRecords.context, "request", None)


def source() -> str:
    """From where this process changes something, in a word that people know."""
    request = request_now()
    if request is not None:
        return next((word for start, word in _PLACES if request.path.startswith(start)), "web")
    program = Path(sys.argv[0]).name
    if program == "manage.py" and len(sys.argv) > 1:
        return f"manage.py {sys.argv[1]}"[:60]
    return "worker" if "celery" in program else program[:60]


@contextmanager
def set_reason(reason: str) -> Iterator[None]:
    """Versions that are made inside say this reason behind their place."""
    token = _because.set(reason)
    try:
        yield
    finally:
        _because.reset(token)


@contextmanager
def collect_versions() -> Iterator[list[Any]]:
    """The versions that are made inside, in order; what is only tried is noted here and told to
    nobody else."""
    made: list[Any] = []
    token = _noted.set(made)
    try:
        yield made
    finally:
        _noted.reset(token)


def _say_from_where(history_instance: Any, **_: Any) -> None:
    if not history_instance.history_change_reason:
        reason = _because.get()
        history_instance.history_change_reason = (
            f"{source()}: {reason}"[:100] if reason else source()
        )


def _note(history_instance: Any, **_: Any) -> None:
    made = _noted.get()
    if made is not None:
        made.append(history_instance)
        return
    request = request_now()
    if (
        request is not None
        and request.method == "POST"
        and hasattr(request, "session")
        and source() != "REST"
    ):
        transaction.on_commit(lambda: _remember(request, history_instance))


def _remember(request: HttpRequest, version: Any) -> None:
    """In the session, for the minute in which the person may take it back; only what one request
    has made."""
    made = request.__dict__.setdefault("versions_made", [])
    if len(made) <= MOST:
        made.append([version.instance_type._meta.label_lower, version.history_id])
        request.session[LATEST] = {"at": timezone.now().timestamp(), "made": made}
