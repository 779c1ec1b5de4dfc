"""Calls keep the conversation that they belong to, and see in it what it is narrowed to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User

from mcpregistry.calls.call import CallRequest
from mcpregistry.calls.conversations import narrow_to_conversation
from mcpregistry.db import db_call
from mcpregistry.domain.errors import ConfigInvalid, Conflict, NotFound
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Agent, AuditEntry, Conversation, Invocation, Server
from mcpregistry.services.access import agents
from mcpregistry.services.approvals import votes
from mcpregistry.services.conversations import lifecycle
from mcpregistry.services.conversations.conversation_scope import (
    enter_conversation,
    explain_conversation_limit,
)
from tests.calls.conftest import ACTOR, Site, add_server, journal, site, tool
from tests.calls.test_approvals import asking, bob, held

__all__ = ["asking", "bob", "journal", "site"]  # fixtures
Make = Callable[..., Any]
CALL = ("echo__echo", {"n": 1})


def begun(*servers: str, agent: str = "ann", **fields: Any) -> Conversation:
    row = Conversation(agent=Agent.objects.get(slug=agent), servers=list(servers), **fields)
    return lifecycle.save_conversation(conversation=row, actor=ACTOR)


def ended(row: Conversation) -> None:
    lifecycle.end_conversation(conversation=row, actor=ACTOR)


def narrowed(row: Conversation, *servers: str) -> None:
    row.servers = list(servers)
    lifecycle.save_conversation(conversation=row, actor=ACTOR)


def two_servers() -> None:
    add_server("echo", tool("echo"))
    add_server("multi", tool("all"))
    agents.save_agent(agent=Agent(slug="eve"), actor=ACTOR)


async def test_a_narrowed_conversation_lists_and_calls_its_servers_alone(site: Make) -> None:
    await db_call(two_servers)
    here: Site = await site()
    whole = here.engine.get_catalogue("default", "ann")
    opened = await db_call(begun, "echo")
    seen = await narrow_to_conversation(whole, opened.pk)
    assert {e.offer.server.slug for e in whole.entries.values() if not e.offer.own} == {
        "echo",
        "multi",
    }
    assert {e.offer.server.slug for e in seen.entries.values() if not e.offer.own} == {"echo"}
    assert seen.version != whole.version, "a cursor of one list is none of the other"
    assert await narrow_to_conversation(whole, opened.pk) is seen, "the list is made once"

    async def call(name: str, catalogue: Any) -> Any:
        return await here.engine.call(_request(catalogue, name, opened.pk))

    answered = await call("echo__echo", seen)
    assert answered.state == InvocationState.SUCCEEDED
    refused = await call("multi__all", seen)
    assert (refused.state, refused.error_code) == (InvocationState.DENIED, "NOT_FOUND")
    without = await here.call("echo__echo")
    rows = await db_call(lambda: dict(Invocation.objects.values_list("pk", "conversation")))
    assert rows == {
        answered.invocation_id: opened.pk,
        refused.invocation_id: opened.pk,
        without.invocation_id: None,
    }
    told = await db_call(lambda: [json.loads(e.body).get("conversation") for e in _beginnings()])
    assert told == [opened.pk, opened.pk, None], "the audit log says it too"


def _request(catalogue: Any, name: str, conversation: str) -> Any:
    return CallRequest(catalogue, name, {}, "http", conversation=conversation)


def _beginnings() -> list[AuditEntry]:
    return [
        e
        for e in AuditEntry.objects.filter(kind__startswith="call.").order_by("id")
        if "row" in json.loads(e.body)
    ]


@pytest.mark.one_database
async def test_a_foreign_an_unknown_and_an_ended_conversation_are_refused_in_words(
    site: Make,
) -> None:
    await db_call(two_servers)
    here: Site = await site()
    whole = here.engine.get_catalogue("default", "ann")
    foreign = await db_call(begun, agent="eve")
    over = await db_call(begun)
    await db_call(ended, over)
    for named in (foreign.pk, "nope", "x" * 4000, "\u202e"):
        with pytest.raises(NotFound, match="The agent 'ann' has no conversation"):
            await narrow_to_conversation(whole, named)
    with pytest.raises(
        Conflict, match=f"The conversation {over.pk} has ended. Start another conversation"
    ):
        await narrow_to_conversation(whole, over.pk)


@pytest.mark.one_database
async def test_a_call_that_names_none_asks_the_database_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcpregistry.calls.conversations.db_call", None)
    catalogue: Any = object()
    assert await narrow_to_conversation(catalogue, "") is catalogue


async def test_identical_calls_of_two_conversations_are_two_requests(
    site: Make, asking: Server, bob: User
) -> None:
    here: Site = await site()
    one = await db_call(begun)
    other = await db_call(begun)
    calls = [
        asyncio.ensure_future(here.call(*CALL, conversation=each.pk)) for each in (one, one, other)
    ]
    requests = await held(2)
    assert sorted(str(each.call.conversation_id) for each in requests) == sorted([one.pk, other.pk])
    for each in requests:
        await db_call(votes.vote, request_id=each.pk, user=bob, approve=True, via="web")
    assert {(await call).state for call in calls} == {InvocationState.SUCCEEDED}
    assert len(here.sent()) == 2


async def test_what_was_approved_does_not_run_in_a_conversation_that_sees_the_server_no_longer(
    site: Make, asking: Server, bob: User
) -> None:
    here: Site = await site()
    await db_call(add_server, "multi", tool("all"))
    opened = await db_call(begun)
    call = asyncio.ensure_future(here.call(*CALL, conversation=opened.pk))
    (request,) = await held()
    await db_call(narrowed, opened, "multi")
    await db_call(votes.vote, request_id=request.pk, user=bob, approve=True, via="web")
    outcome = await call
    assert (outcome.state, "can no longer use the server" in outcome.message) == (
        InvocationState.VOID,
        True,
    )
    assert here.sent() == []


@pytest.mark.one_database
def test_a_runs_held_call_is_bound_by_a_conversation_of_its_own_agent_alone(live_db: None) -> None:
    two_servers()
    call = Invocation(
        conversation=begun("multi"), origin="run", agent_slug="ann", server_slug="echo"
    )
    assert "can no longer use" in explain_conversation_limit(call)
    call.server_slug = "multi"
    assert explain_conversation_limit(call) == ""
    call.server_slug = "echo"
    call.agent_slug = "of-the-expert"
    assert explain_conversation_limit(call) == "", (
        "the whitelist of an expert tool says what its runs call"
    )
    call.origin = "http"
    assert "can no longer use" in explain_conversation_limit(call)


@pytest.mark.one_database
def test_a_server_that_is_not_there_and_an_ended_conversation_are_told(live_db: None) -> None:
    two_servers()
    with pytest.raises(ConfigInvalid, match='No server named "nowhere"'):
        begun("echo", "nowhere")
    row = begun("echo", "echo", title="x")
    assert row.servers == ["echo"]
    ended(row)
    for again in (ended, narrowed):
        with pytest.raises(Conflict, match="has ended"):
            again(row)


@pytest.mark.one_database
def test_when_its_last_server_is_deleted_nothing_is_left_to_see(live_db: None) -> None:
    two_servers()
    Server.objects.create(slug="brief", command=["x"])
    row = begun("brief")
    Server.objects.filter(slug="brief").delete()
    assert enter_conversation(row.pk, "ann") == {"brief"}
