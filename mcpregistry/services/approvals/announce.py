"""Tells the rest of this process what has become of a held call, without knowing who listens.

The subscribers (the notifications' outbox, and the handles that hosts poll) are connected when
Django starts, in ``mcpregistry.apps``. They write in the transaction of what happened, so one that
fails undoes it.
"""

from __future__ import annotations

from datetime import datetime

from django.dispatch import Signal

from mcpregistry.domain.notifications.events import NotificationEvent
from mcpregistry.models import ApprovalRequest

# Sent with ``event`` (an Event), ``request`` (with its call) and ``now``, in the order of
# connecting.
announced = Signal()


def announce(event: NotificationEvent, request: ApprovalRequest, now: datetime) -> None:
    """Called within the transaction that held or moved the call. What was decided is read anew for
    the listeners."""
    if event is not NotificationEvent.ASKED:  # it was made a moment ago, and nothing is decided
        request.refresh_from_db(fields=["decided_at", "decided_reason"])
    announced.send(sender=ApprovalRequest, event=event, request=request, now=now)
