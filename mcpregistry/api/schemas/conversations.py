"""Conversations: what goes in and what comes out."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.access import Name
from mcpregistry.api.schemas.basics import Slug, StrictInput, Text
from mcpregistry.models import Conversation, Message
from mcpregistry.models.conversation import LONGEST_MESSAGE

Servers = Annotated[
    list[Slug],
    Field(
        max_length=1000,
        description="Servers whose tools are visible in the conversation. Use [] for all.",
    ),
]


class ConversationChange(StrictInput):
    """Changes of a conversation. You can leave out any key."""

    title: Name | None = None
    servers: Servers | None = None


class ConversationNew(ConversationChange):
    """A new conversation. With an agent's token it belongs to this agent; a user names the
    agent."""

    agent: Slug | None = Field(
        default=None, description="Only with a user's token: the agent of the conversation."
    )


class ConversationOut(Schema):
    """A conversation. Calls refer to it by ``id``."""

    id: str
    agent: str
    title: str
    state: str = Field(description="State of the conversation: open or ended.")
    servers: list[str] = Field(
        description="Servers whose tools are visible in the conversation. If empty, the "
        "agent sees all tools that it is granted."
    )
    created_by: str
    created_at: datetime
    last_used_at: datetime
    ended_at: datetime | None


class MessageNew(StrictInput):
    """A new message."""

    text: Annotated[Text, Field(min_length=1, max_length=LONGEST_MESSAGE)]
    thought: bool = Field(
        default=False,
        description="Only for agents: a note for the agent itself, which is shown only on request.",
    )


class ConversationMessageOut(Schema):
    """A message. Its text is empty if retention has erased it."""

    id: int
    kind: str = Field(
        description="Kind of message: in (to the agent), out (from the agent) or thought."
    )
    text: str
    author: str = Field(description="Author: user:NAME or agent:SLUG.")
    created_at: datetime


def message_out(row: Message) -> ConversationMessageOut:
    """The row as its answer."""
    return ConversationMessageOut(
        id=row.pk, kind=row.kind, text=row.text, author=row.author, created_at=row.created_at
    )


def conversation_out(row: Conversation) -> ConversationOut:
    """The row as its answer."""
    return ConversationOut(
        id=row.pk,
        agent=row.agent.slug,
        title=row.title,
        state=row.state,
        servers=row.servers,
        created_by=row.created_by,
        created_at=row.created_at,
        last_used_at=row.last_used_at,
        ended_at=row.ended_at,
    )
