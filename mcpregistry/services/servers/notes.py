"""What happened to a server, as short notes on its page. Only the newest are kept."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from django.utils import timezone

from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.models import ServerEvent

EVENTS_KEPT = 500
ERRORS = (
    "error",
    "reconnecting",
    "call_failed",
    "unavailable",
    "tools_left_out",
)  # kinds of notes that tell of trouble
_QUIET = timedelta(hours=1)


def note_server_event(*, server_id: int, kind: str, message: str, process: str = "") -> None:
    """Add a note to the server's events."""
    ServerEvent.objects.create(
        server_id=server_id,
        kind=kind,
        message=clean_text(message),
        process=process,
        at=timezone.now(),
    )


def warn_once(*, server_id: int, kind: str, message: str) -> None:
    """Note it, unless the same was noted within the hour."""
    since = timezone.now() - _QUIET
    if not ServerEvent.objects.filter(
        server_id=server_id, kind=kind, message=clean_text(message), at__gt=since
    ).exists():
        note_server_event(server_id=server_id, kind=kind, message=message)


def trim_events(server_ids: Iterable[int]) -> int:
    """Keep the newest events of each server. Returns how many went."""
    gone = 0
    for server_id in server_ids:
        events = ServerEvent.objects.filter(server_id=server_id)
        oldest_kept = (
            events.order_by("-id")
            .values_list("id", flat=True)[EVENTS_KEPT - 1 : EVENTS_KEPT]
            .first()
        )
        if oldest_kept is not None:
            gone += events.filter(id__lt=oldest_kept).delete()[0]
    return gone
