"""Says in the audit log that a conversation with messages is deleted, so that one removed by hand
is told from it.

By a signal, because conversations are deleted in several places: by retention, and with their
agent.
"""

from __future__ import annotations

from typing import Any

from django.db.models.signals import pre_delete

from mcpregistry.models import Conversation, Message
from mcpregistry.services.access.people import name_current_author
from mcpregistry.services.records import audit
from mcpregistry.services.records.signed_messages import DELETED


def listen() -> None:
    """Begin to note deletions; called once, when the app is ready."""
    pre_delete.connect(_note_deletion, sender=Conversation)


def _note_deletion(sender: type[Conversation], instance: Conversation, **_: Any) -> None:
    """In the transaction that deletes it."""
    if Message.objects.filter(conversation=instance.pk).exists():
        audit.record_entry(
            kind=DELETED, actor=name_current_author(), subject=f"conversation:{instance.pk}"
        )
