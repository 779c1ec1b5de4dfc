"""What a call or list that names a conversation may see: asked once for each request that names
one, never for others."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils import timezone

from mcpregistry.domain.errors import Conflict, NotFound
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Conversation, Invocation
from mcpregistry.prepared_queries import Given, Select

# how exact "last used" is: a write for each call would cost more than the look
_NOTED = timedelta(minutes=1)
_ONE = Select(
    Conversation.objects.filter(id=Given("id"), agent__slug=Given("agent", like="id"))
    .order_by()
    .values_list("state", "servers", "last_used_at", named=True)
)


def enter_conversation(conversation: str, agent: str) -> frozenset[str]:
    """The slugs of the servers that the agent's conversation is narrowed to; empty: it is not
    narrowed.

    Raises NotFound, the same for an absent one and another agent's, and Conflict for one that has
    ended.
    """
    found = _ONE.fetch_rows(id=conversation[:33], agent=agent)
    if not found:
        raise NotFound(
            f"The agent '{agent}' has no conversation '{show_invisible_characters(conversation, 40)}'.",
            remedy="Start one with POST /api/v1/conversations, or call without a conversation.",
        )
    if found[0].state == Conversation.State.ENDED:
        raise Conflict(
            f"The conversation {conversation} has ended.",
            remedy="Start another conversation, or call without a conversation.",
        )
    _note_use(conversation, found[0].last_used_at)
    return frozenset(found[0].servers)


def explain_conversation_limit(call: Invocation) -> str:
    """Why a held call's conversation would not let it run now; empty when it would, or there is
    none.

    What a run calls for another agent's conversation is said by the whitelist of its expert tool
    alone.
    """
    if call.conversation_id is None:
        return ""
    rows = Conversation.objects.filter(pk=call.conversation_id).values_list(
        "agent__slug", "servers"
    )
    speaker, servers = rows.first() or ("", None)
    if call.origin == "run" and speaker not in ("", call.agent_slug):
        return ""
    seen = servers is not None and (not servers or call.server_slug in servers)
    return "" if seen else "the conversation of the call can no longer use the server"


def _note_use(conversation: str, before: datetime) -> None:
    now = timezone.now()
    if before < now - _NOTED:
        Conversation.objects.filter(pk=conversation, last_used_at__lt=now).update(last_used_at=now)
