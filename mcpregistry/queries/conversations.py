"""Reads of conversations for their pages. Nothing here changes a row."""

from __future__ import annotations

from mcpregistry.models import Conversation, Message

SHOWN = 100


def list_latest_messages(conversation: Conversation, limit: int = SHOWN) -> list[Message]:
    """The newest messages, the oldest of them first."""
    return list(Message.objects.filter(conversation=conversation).order_by("-id")[:limit])[::-1]
