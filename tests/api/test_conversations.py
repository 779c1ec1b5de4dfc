"""Conversations over REST: begun, listed, narrowed and ended; an agent's own and nobody else's."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async

from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.models import Agent, AuditEntry, Conversation, Grant, Message
from mcpregistry.services.access import tokens
from mcpregistry.services.conversations import lifecycle
from tests.api.conftest import Caller, new_agent, new_server
from tests.api.test_calls import Site, site

__all__ = ["site"]  # a fixture


@pytest.mark.one_database
def test_an_agent_begins_sees_and_ends_its_own_alone(db, caller) -> None:
    robot = caller("agent")
    other = Caller(tokens.issue_token(agent=new_agent("eve"), name="test", actor="test")[1])
    Grant.objects.create(agent=Agent.objects.get(slug="robot"), server=new_server("git"))
    hidden, absent = (
        robot.post("/conversations", {"servers": [name]})
        for name in (new_server("hidden").slug, "absent")
    )
    assert (hidden.status_code, absent.status_code) == (422, 422)
    assert hidden.json()["message"].replace("hidden", "absent") == absent.json()["message"]
    made = robot.post("/conversations", {"title": "Release", "servers": ["git"]})
    assert made.status_code == 201, made.content
    row = made.json()
    assert (row["agent"], row["state"], row["servers"], row["created_by"]) == (
        "robot",
        "open",
        ["git"],
        "agent:robot",
    )
    assert other.get(f"/conversations/{row['id']}").status_code == 404
    assert other.post(f"/conversations/{row['id']}/end").status_code == 404
    assert other.get("/conversations").json()["items"] == []
    assert [each["id"] for each in robot.get("/conversations").json()["items"]] == [row["id"]]
    assert robot.get(f"/conversations/{row['id']}").json() == row
    assert robot.post("/conversations", {"agent": "eve"}).status_code == 403
    over = robot.post(f"/conversations/{row['id']}/end")
    assert (over.status_code, over.json()["state"]) == (200, "ended")
    again = robot.post(f"/conversations/{row['id']}/end")
    assert (again.status_code, again.json()["code"]) == (409, "CONFLICT")
    kinds = (
        AuditEntry.objects.filter(subject=f"conversation:{row['id']}")
        .order_by("id")
        .values_list("kind", "actor")
    )
    assert list(kinds) == [
        ("conversation.begun", "agent:robot"),
        ("conversation.ended", "agent:robot"),
    ]


@pytest.mark.one_database
def test_a_person_begins_one_for_an_agent_and_narrows_it(db, caller) -> None:
    new_agent("robot")
    new_server("git")
    person = caller("operator")
    assert person.post("/conversations", {}).status_code == 422
    assert person.post("/conversations", {"agent": "nobody"}).status_code == 404
    wrong = person.post("/conversations", {"agent": "robot", "servers": ["nowhere"]})
    assert (wrong.status_code, wrong.json()["message"]) == (422, 'No server named "nowhere".')
    row = person.post("/conversations", {"agent": "robot", "title": "Über alles"}).json()
    changed = person.patch(f"/conversations/{row['id']}", {"servers": ["git"]})
    assert (changed.status_code, changed.json()["servers"], changed.json()["title"]) == (
        200,
        ["git"],
        "Über alles",
    )
    assert [
        each["id"]
        for each in person.get("/conversations?q=ALLES&state=open&agent=robot").json()["items"]
    ] == [row["id"]]
    assert person.get("/conversations?state=ended").json()["items"] == []
    person.post(f"/conversations/{row['id']}/end")
    assert person.patch(f"/conversations/{row['id']}", {"title": "x"}).status_code == 409
    assert Conversation.objects.get().title == "Über alles"


@pytest.mark.one_database
async def test_calls_and_lists_name_one_and_calls_are_found_by_it(site: Site) -> None:
    def begun() -> str:
        row = Conversation(agent=Agent.objects.get(slug="robot"), servers=["echo"])
        return lifecycle.save_conversation(conversation=row, actor="test").pk

    conversation = await sync_to_async(begun)()
    status, answer = await site.call("echo__echo", {"conversation": conversation})
    assert status == 200
    await site.call("echo__echo")
    assert (await site.call("slow__count", {"conversation": conversation}))[0] == 404
    status, problem = await site.call("echo__echo", {"conversation": "nope"})
    assert (status, problem["code"]) == (404, "NOT_FOUND")
    assert "has no conversation 'nope'" in problem["message"]
    status, listing = await site.listing(f"?conversation={conversation}")
    assert {tool["server"] for tool in listing["tools"]} - {"slipsnisse"} == {"echo"}
    assert (await site.listing("?conversation=nope"))[0] == 404
    headers = {"Authorization": f"Bearer {site.tokens['viewer']}"}
    found = await site.client.get(
        f"/api/v1/invocations?conversation={conversation}", headers=headers
    )
    items = found.json()["items"]
    assert [(each["state"], each["conversation"]) for each in items] == [
        ("denied", conversation),
        ("succeeded", conversation),
    ]
    assert items[1]["id"] == answer["mcp"]["invocation_id"]


# Messages


def test_a_person_writes_an_agent_answers_and_its_thoughts_stay_with_it(db, caller) -> None:
    robot = caller("agent")
    person = caller("operator")
    where = f"/conversations/{robot.post('/conversations', {}).json()['id']}/messages"
    asked = person.post(where, {"text": "Wie spät\nist es?"})
    assert asked.status_code == 201, asked.content
    assert (asked.json()["kind"], asked.json()["text"]) == ("in", "Wie spät\nist es?")
    assert asked.json()["author"].startswith("user:operator")
    robot.post(where, {"text": "I look at the clock.", "thought": True})
    answer = robot.post(where, {"text": "Noon."}).json()
    assert (answer["kind"], answer["author"]) == ("out", "agent:robot")
    assert [each["text"] for each in person.get(where).json()["items"]] == [
        "Wie spät\nist es?",
        "Noon.",
    ]
    assert [each["kind"] for each in robot.get(f"{where}?thoughts=true").json()["items"]] == [
        "in",
        "thought",
        "out",
    ]
    assert robot.get(f"{where}?after={asked.json()['id']}").json()["items"] == [answer]
    assert robot.get(f"{where}?after={answer['id']}").json()["items"] == []
    first = person.get(f"{where}?limit=1").json()
    assert [
        each["text"]
        for each in person.get(f"{where}?limit=1&cursor={first['next']}").json()["items"]
    ] == ["Noon."]
    assert Message.objects.filter(author_id__isnull=False).count() == 1
    told = AuditEntry.objects.filter(kind="conversation.message").latest("id")
    assert (told.actor, hash_parts("Noon.") in told.body, "Noon" in told.body) == (
        "agent:robot",
        True,
        False,
    )


def test_what_cannot_be_written_is_refused_and_a_repetition_is_written_once(db, caller) -> None:
    robot = caller("agent")
    person = caller("operator")
    conversation = f"/conversations/{robot.post('/conversations', {}).json()['id']}"
    where = f"{conversation}/messages"
    eve = Caller(tokens.issue_token(agent=new_agent("eve"), name="test", actor="test")[1])
    assert (eve.post(where, {"text": "x"}).status_code, eve.get(where).status_code) == (404, 404)
    assert caller("viewer").post(where, {"text": "x"}).status_code == 403
    for wrong in (
        {"text": ""},
        {"text": " \n"},
        {"text": "x" * 20_001},
        {"text": "x\x00"},
        {},
        {"text": "x", "thought": True},
    ):
        assert person.post(where, wrong).status_code == 422, wrong
    key = {"Idempotency-Key": "k-1"}
    assert (
        person.post(where, {"text": "x"}, **key).json()
        == person.post(where, {"text": "x"}, **key).json()
    )
    assert Message.objects.count() == 1
    robot.post(f"{conversation}/end")
    refused = person.post(where, {"text": "x"})
    assert (refused.status_code, refused.json()["message"].endswith("has ended.")) == (409, True)
    assert len(person.get(where).json()["items"]) == 1, "what was said stays to be read"
