"""Begin a conversation, change what it may see, end it. An ended one takes no calls, and stays to
be read."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Agent, Conversation, Server
from mcpregistry.services.configuration.saving import save_checked, take_current
from mcpregistry.services.records import audit


@transaction.atomic
def save_conversation(*, conversation: Conversation, actor: str) -> Conversation:
    """Begin or change a conversation. Raises ConfigInvalid for servers that there are not, Conflict
    for an ended one."""
    before = take_current(conversation, own=("state", "ended_at", "last_used_at"))
    if before is not None and before.state == Conversation.State.ENDED:
        raise make_ended_conflict(conversation)
    conversation.servers = _check_known_servers(
        conversation.servers, conversation.agent if actor.startswith("agent:") else None
    )
    conversation.created_by = conversation.created_by or actor[:200]
    save_checked(conversation)
    kind = "conversation.begun" if before is None else "conversation.changed"
    audit.record_entry(
        kind=kind,
        actor=actor,
        subject=f"conversation:{conversation.pk}",
        **_describe_conversation(conversation),
    )
    return conversation


@transaction.atomic
def end_conversation(*, conversation: Conversation, actor: str) -> Conversation:
    """End it, for good. Raises Conflict when it has ended already. Calls that are out or held go
    on."""
    now = timezone.now()
    if (
        not Conversation.objects.filter(pk=conversation.pk)
        .open()
        .update(state=Conversation.State.ENDED, ended_at=now, last_used_at=now)
    ):
        raise make_ended_conflict(conversation)
    audit.record_entry(
        kind="conversation.ended",
        actor=actor,
        subject=f"conversation:{conversation.pk}",
        **_describe_conversation(conversation),
    )
    conversation.refresh_from_db()
    return conversation


def _check_known_servers(servers: Any, asking: Agent | None) -> list[str]:
    """The same names, each once. Raises ConfigInvalid for any other value, and for a server that
    there is not.

    An ``asking`` agent does not learn whether servers exist of which it is granted nothing.
    """
    if not isinstance(servers, list) or not all(isinstance(slug, str) for slug in servers):
        raise ConfigInvalid(
            "The servers of a conversation must be a list of short names.",
            remedy=error_texts.advise_form("a list", '["github"], or [] for all servers'),
        )
    named = list(dict.fromkeys(servers))
    rows = Server.objects.filter(slug__in=named)
    if asking is not None:
        rows = rows.filter(Q(grants__agent=asking) | Q(tools__grants__agent=asking))
    there = set(rows.values_list("slug", flat=True))
    if missing := [slug for slug in named if slug not in there]:
        raise ConfigInvalid(
            error_texts.say_not_found("server", show_invisible_characters(missing[0], 63)),
            remedy="Use names of existing servers, or [] for all servers.",
        )
    return named


def make_ended_conflict(conversation: Conversation) -> Conflict:
    """What whoever wants something of an ended conversation is told."""
    return Conflict(
        f"The conversation {conversation.pk} has ended.", remedy="Start another conversation."
    )


def _describe_conversation(conversation: Conversation) -> dict[str, Any]:
    return {"agent": conversation.agent.slug, "servers": conversation.servers}
