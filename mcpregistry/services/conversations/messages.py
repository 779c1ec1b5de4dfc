"""Write into a conversation. Nothing is waited for: whoever answers reads it by itself."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.models import Conversation, Message
from mcpregistry.models.conversation import MessageKind
from mcpregistry.services.configuration.saving import save_checked
from mcpregistry.services.conversations.lifecycle import make_ended_conflict
from mcpregistry.services.records import audit


@transaction.atomic
def add_message(
    *,
    conversation: Conversation,
    kind: MessageKind,
    text: str,
    author: str,
    user: User | None = None,
) -> Message:
    """Add a message. Raises Conflict when the conversation has ended, ConfigInvalid for a text that
    cannot be kept.

    The conversation's row is locked, so its messages get their numbers in the order in which they
    can be read: who has read up to one misses none.
    """
    if not text.strip():
        raise ConfigInvalid("The message is empty.", remedy="Enter a message.")
    now = timezone.now()
    if not Conversation.objects.filter(pk=conversation.pk).open().update(last_used_at=now):
        raise make_ended_conflict(conversation)
    message = Message(
        conversation=conversation,
        kind=kind,
        text=text,
        author=author[:200],
        author_id=user.pk if user else None,
        created_at=now,
    )
    save_checked(message)
    audit.record_entry(
        kind="conversation.message",
        actor=author,
        subject=f"conversation:{conversation.pk}",
        said=str(kind),
        message=message.pk,
        text=hash_parts(text),
    )
    return message
