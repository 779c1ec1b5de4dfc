"""Conversations: list them, begin one, narrow it, end it, and write in it.

An agent sees, ends and writes in its own; those of others are absent to it.
"""

from __future__ import annotations

from typing import Annotated

from django.http import HttpRequest
from ninja import Path, Query, Status

from mcpregistry.api import lookup
from mcpregistry.api.auth import Principal, actor, person, principal
from mcpregistry.api.idempotent_operations import once
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.basics import Page, Problem, Slug, Text
from mcpregistry.api.schemas.conversations import (
    ConversationChange,
    ConversationMessageOut,
    ConversationNew,
    ConversationOut,
    MessageNew,
    conversation_out,
    message_out,
)
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ArgumentsInvalid, Denied
from mcpregistry.models import Agent, Conversation, Message
from mcpregistry.models.conversation import ConversationState, MessageKind
from mcpregistry.services.conversations import lifecycle, messages

router = PermissionRouter(tags=["conversations"])

ConversationPath = Annotated[Text, Path(min_length=1, max_length=32)]


@router.get("/conversations", response=Page[ConversationOut])
def list_conversations(
    request: HttpRequest,
    *,
    agent: Slug | None = None,
    state: ConversationState | None = None,
    q: Annotated[
        Text | None, Query(max_length=200, description="Text that the title contains.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ConversationOut]:
    """Conversations, newest first."""
    exact = {"agent__slug": agent, "state": state, "title__icontains": q}
    rows = Conversation.objects.visible_to(principal(request).who).select_related("agent")
    rows = rows.filter(**{key: value for key, value in exact.items() if value is not None})
    return read_page(rows, order=("-id",), limit=limit, cursor=cursor, show=conversation_out)


@router.post("/conversations", response={201: ConversationOut, 404: Problem})
@once()
def begin_conversation(request: HttpRequest, payload: ConversationNew) -> Status[ConversationOut]:
    """Start a conversation. Calls that name its id belong to it."""
    given = payload.get_sent_values()
    agent = _agent(principal(request), given.pop("agent", None))
    row = lifecycle.save_conversation(
        conversation=Conversation(agent=agent, **given), actor=actor(request)
    )
    return Status(201, conversation_out(row))


@router.get("/conversations/{conversation_id}", response=ConversationOut)
def get_conversation(request: HttpRequest, conversation_id: ConversationPath) -> ConversationOut:
    """One conversation. Its calls are at /invocations?conversation=ID."""
    return conversation_out(_find_conversation(request, conversation_id))


@router.patch("/conversations/{conversation_id}", response={200: ConversationOut, 409: Problem})
def change_conversation(
    request: HttpRequest, conversation_id: ConversationPath, payload: ConversationChange
) -> ConversationOut:
    """Change the fields that are sent. The others stay as they are. A change of its servers applies
    from the next call on."""
    row = _find_conversation(request, conversation_id).change(**payload.get_sent_values())
    return conversation_out(lifecycle.save_conversation(conversation=row, actor=actor(request)))


@router.post("/conversations/{conversation_id}/end", response={200: ConversationOut, 409: Problem})
def end_conversation(request: HttpRequest, conversation_id: ConversationPath) -> ConversationOut:
    """End the conversation for good. New calls that name it are refused. Calls that are running or
    held continue."""
    return conversation_out(
        lifecycle.end_conversation(
            conversation=_find_conversation(request, conversation_id), actor=actor(request)
        )
    )


@router.get("/conversations/{conversation_id}/messages", response=Page[ConversationMessageOut])
def list_conversation_messages(
    request: HttpRequest,
    conversation_id: ConversationPath,
    *,
    after: Annotated[
        int | None, Query(ge=0, lt=2**63, description="Only messages with a higher id.")
    ] = None,
    thoughts: Annotated[
        bool, Query(description="Include the notes that the agent has kept for itself.")
    ] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ConversationMessageOut]:
    """Messages, oldest first. Use `after` to get the messages that were written since; none is
    missed."""
    rows = Message.objects.visible_to(principal(request).who).filter(
        conversation=_find_conversation(request, conversation_id)
    )
    if not thoughts:
        rows = rows.exclude(kind=MessageKind.THOUGHT)
    if after is not None:
        rows = rows.filter(id__gt=after)
    return read_page(rows, order=("id",), limit=limit, cursor=cursor, show=message_out)


@router.post(
    "/conversations/{conversation_id}/messages",
    response={201: ConversationMessageOut, 409: Problem},
)
@once()
def write_message(
    request: HttpRequest, conversation_id: ConversationPath, payload: MessageNew
) -> Status[ConversationMessageOut]:
    """Write to the agent or, with an agent's own token, as the agent. The answer does not wait for
    the agent."""
    row = messages.add_message(
        conversation=_find_conversation(request, conversation_id),
        kind=_kind(principal(request), payload),
        text=payload.text,
        author=actor(request),
        user=person(request),
    )
    return Status(201, message_out(row))


def _kind(who: Principal, payload: MessageNew) -> MessageKind:
    if who.agent is not None:
        return MessageKind.THOUGHT if payload.thought else MessageKind.OUT
    if payload.thought:
        raise ArgumentsInvalid(
            "Only an agent can save a thought, which is a note for the agent itself.",
            remedy="Leave out the field 'thought'.",
        )
    return MessageKind.IN


def _find_conversation(request: HttpRequest, conversation_id: str) -> Conversation:
    rows = Conversation.objects.visible_to(principal(request).who).select_related("agent")
    return lookup.one(rows, "conversation", pk=conversation_id)


def _agent(who: Principal, named: str | None) -> Agent:
    if who.agent is None:
        if named is None:
            raise ArgumentsInvalid(
                error_texts.say_required("agent"), remedy='Add "agent": "SLUG" to the body.'
            )
        return lookup.find_agent(named)
    if named not in (None, who.agent.slug):
        raise Denied(
            "The token does not belong to the agent in the field 'agent'.",
            remedy="Leave out the field 'agent'. The token already identifies the agent.",
        )
    return who.agent
