"""Conversations: what belongs together of an agent's calls and runs, whoever made them."""

from __future__ import annotations

from typing import Self

from django.core.validators import MaxLengthValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from mcpregistry.ids import make_ordered_id
from mcpregistry.models.access import Agent
from mcpregistry.models.tracked import TrackedModel
from mcpregistry.models.visibility import VisibleQuerySet

LONGEST_MESSAGE = 20_000  # characters


class ConversationState(models.TextChoices):
    """Where a conversation stands; an ended one stays ended."""

    OPEN = "open", _("open")
    ENDED = "ended", _("ended")


class Conversations(VisibleQuerySet["Conversation"]):
    """Conversations as pages and agents look for them: an agent sees its own."""

    own_by = "agent__slug"

    def open(self) -> Self:
        """Those that have not ended."""
        return self.exclude(state=ConversationState.ENDED)


class Conversation(TrackedModel):
    """One conversation of an agent. Its calls name it; they are kept as long as calls are, whatever
    becomes of it.

    ``servers`` are names, not rows: when the last of them is deleted, nothing is left to be seen,
    instead of everything.
    """

    State = ConversationState

    id = models.CharField(primary_key=True, max_length=32, default=make_ordered_id, editable=False)
    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="conversations")
    title = models.CharField(max_length=200, blank=True)
    state = models.CharField(
        max_length=8, choices=ConversationState, default=ConversationState.OPEN, editable=False
    )
    servers = models.JSONField(
        default=list,
        blank=True,
        help_text=_(
            "Short names of the servers whose tools are visible in the "
            "conversation. If empty, the agent sees all tools that it is granted."
        ),
    )
    snoozed_until = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text=_("The agent does not answer before this time."),
    )
    created_by = models.CharField(max_length=200, blank=True, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    last_used_at = models.DateTimeField(default=timezone.now, editable=False)
    ended_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = Conversations.as_manager()

    class Meta:
        ordering = ["-last_used_at", "-id"]
        indexes = [
            models.Index(fields=["-last_used_at", "-id"], name="conversation_by_use"),
        ]

    def __str__(self) -> str:
        return self.title or f"conversation {self.id[:12]}"


class MessageKind(models.TextChoices):
    """Which way a message goes."""

    IN = "in", _("to the agent")
    OUT = "out", _("from the agent")
    THOUGHT = "thought", _("note from the agent")


class Messages(VisibleQuerySet["Message"]):
    """Messages: an agent sees those of its own conversations."""

    own_by = "conversation__agent__slug"


class Message(models.Model):
    """What somebody has written in a conversation. Its text is erased with the payloads of calls of
    its time."""

    Kind = MessageKind

    conversation = models.ForeignKey(
        Conversation, on_delete=models.CASCADE, related_name="messages"
    )
    kind = models.CharField(max_length=8, choices=MessageKind)
    text = models.TextField(validators=[MaxLengthValidator(LONGEST_MESSAGE)])
    author = models.CharField(
        max_length=200, help_text=_("Who wrote the message, as named in the audit log.")
    )
    author_id = models.BigIntegerField(
        null=True, blank=True, help_text=_("ID of the account of the user who wrote the message.")
    )
    created_at = models.DateTimeField(default=timezone.now)

    objects = Messages.as_manager()

    class Meta:
        ordering = ["id"]
        indexes = [
            models.Index(fields=["conversation", "id"], name="message_by_conversation"),
            models.Index(fields=["created_at"], name="message_with_text", condition=~Q(text="")),
        ]

    def __str__(self) -> str:
        return f"message {self.pk} of {self.conversation_id}"
