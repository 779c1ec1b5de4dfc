"""A message of a conversation cannot be changed or removed unnoticed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from mcpregistry.domain.caller_rights import grant_all_rights
from mcpregistry.models import Agent, Configuration, Conversation, Message
from mcpregistry.services.access import agents
from mcpregistry.services.conversations import messages
from mcpregistry.services.conversations.lifecycle import save_conversation
from mcpregistry.services.upkeep import retention
from tests.fakes.tampered import seal, sealed_anew, unguarded, verify

pytestmark = [pytest.mark.attack, pytest.mark.django_db]


@pytest.fixture
def message() -> Message:
    sealed_anew()
    agent = agents.save_agent(agent=Agent(slug="ann"), actor="test")
    talk = save_conversation(conversation=Conversation(agent=agent), actor="test")
    made = messages.add_message(
        conversation=talk, kind=Message.Kind.IN, text="Pay 10 to Bob.", author="user:bob"
    )
    messages.add_message(conversation=talk, kind=Message.Kind.OUT, text="Done.", author="agent:ann")
    seal()
    return made


def problems(*, full: bool = True) -> list[str]:
    return list(verify(full=full).problems)


def test_messages_as_written_fit(message: Message) -> None:
    assert problems() == []
    assert problems(full=False) == []


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"text": "Pay 1000 to Eve."}, "was changed"),
        ({"text": ""}, "was changed"),
        (
            {"author": "user:eve"},
            "has another author, direction or conversation than its audit entry",
        ),
        ({"kind": "out"}, "has another author, direction or conversation than its audit entry"),
    ],
)
def test_changed_message_is_found(message: Message, columns: dict[str, Any], said: str) -> None:
    assert problems() == []
    with unguarded():
        Message.objects.filter(pk=message.pk).update(**columns)
    told = [f"message {message.pk} of conversation {message.conversation_id} {said}"]
    assert (problems(full=False), problems()) == (told, told)


def test_removed_message_is_found(message: Message) -> None:
    with unguarded():
        Message.objects.filter(pk=message.pk).delete()
    assert problems() == [
        f"message {message.pk} of conversation {message.conversation_id} is missing"
    ]


def test_text_that_retention_erased_is_no_problem(message: Message) -> None:
    Configuration.objects.update(keep_calls_days=30, keep_payloads_days=1)
    retention.prune(timezone.now() + timedelta(days=1, hours=2))
    message.refresh_from_db()
    assert message.text == ""
    assert problems() == []


def test_conversation_that_goes_with_its_agent_is_no_problem(message: Message) -> None:
    agents.delete_agent(agent=Agent.objects.get(), actor="test", rights=grant_all_rights)
    assert not Message.objects.exists()
    assert problems() == []


def test_conversation_that_was_deleted_by_hand_is_found(message: Message) -> None:
    with unguarded(), connection.cursor() as cursor:
        for model in (Message, Conversation):
            cursor.execute(f"DELETE FROM {model._meta.db_table}")
    gone = f"conversation {message.conversation_id}: it is missing with its messages, and the site did not delete it"
    assert (problems(full=False), problems()) == ([gone], [gone])


def test_conversation_that_retention_deleted_is_no_problem(message: Message) -> None:
    retention.prune(timezone.now() + timedelta(days=5_000))
    assert not Conversation.objects.exists()
    assert problems() == []


def test_inserted_message_is_found(message: Message) -> None:
    with unguarded():
        Message.objects.create(
            conversation=message.conversation, kind="in", text="Pay Eve.", author="user:bob"
        )
    told = [
        f"conversation {message.conversation_id}: it has 3 messages, but only 2 audit entries for them"
    ]
    assert (problems(full=False), problems()) == (told, told)


def test_message_that_was_swapped_for_another_is_found(message: Message) -> None:
    """As many messages as entries: the one that is missing tells."""
    with unguarded():
        Message.objects.filter(pk=message.pk).delete()
        Message.objects.create(
            conversation=message.conversation, kind="in", text="Pay Eve.", author="user:bob"
        )
    assert problems() == [
        f"message {message.pk} of conversation {message.conversation_id} is missing"
    ]
