"""Calling tools over REST: the real pipeline, a real server process, real records."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient
from django.utils import timezone

from mcpregistry.api.call_answers import content_type, failure, plain_result
from mcpregistry.calls.call import CallOutcome
from mcpregistry.calls.engine import Engine, get_current_engine, set_current_engine
from mcpregistry.db import db_call
from mcpregistry.domain.calls.outcome_texts import LOOK_FIRST, NOT_SENT
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import (
    Agent,
    Budget,
    Configuration,
    Endpoint,
    Invocation,
    KeptAnswer,
    Server,
)
from mcpregistry.services.access import grants, tokens
from mcpregistry.services.budgets import books
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.records import idempotency
from mcpregistry.services.servers import lifecycle
from tests.api.conftest import ROOT, new_agent, new_server, new_user
from tests.fakes.remembered import remembered
from tests.fakes.targets import SERVERS

TOOLS = ("echo", "refuse", "pid")


def serve(slug: str, script: str, tools: tuple[str, ...], **fields: Any) -> Server:
    """An active server with approved tools, as after a confirmed launch and a test."""
    listed = [{"name": name, "inputSchema": {"type": "object"}} for name in tools]
    says = listed + [NARROW] * (slug == "echo")  # approved a moment later
    fields["env"] = {"FAKE_LISTED": json.dumps(says)} | fields.get("env", {})
    server = new_server(
        slug, command=[sys.executable, "-S", str(SERVERS / f"{script}.py")], **fields
    )
    lifecycle.confirm_launch(server=server, actor="test", launch_hash=server.launch_hash())
    observe.observe(server=server, listed=listed)
    decisions.approve_waiting(server=server, actor="test")
    return server


NARROW = {"name": "narrow", "inputSchema": {"type": "object", "required": ["a"]}}


def set_up() -> dict[str, str]:
    """A site with a working server and three that fail in their own ways; tokens by name."""
    echo = serve("echo", "echo", TOOLS)
    observe.observe(
        server=echo,
        listed=[*({"name": n, "inputSchema": {"type": "object"}} for n in TOOLS), NARROW],
    )
    decisions.approve_waiting(server=echo, actor="test")
    others = [
        serve("down", "crash", ("pid",), env={"FAKE_CRASH": "start"}),
        serve("falls", "crash", ("crash",)),
        serve("slow", "slow", ("count",), request_timeout=0.3),
    ]
    Endpoint.objects.create(slug="default")
    Configuration.objects.update(default_outcome="allow")
    robot = new_agent("robot")
    idle = new_agent("idle")
    for server in (echo, *others):
        grants.grant_access(agent=robot, actor="test", server=server)
    return {
        "robot": tokens.issue_token(agent=robot, name="t", actor="test")[1],
        "idle": tokens.issue_token(agent=idle, name="t", actor="test")[1],
        "operator": tokens.issue_token(user=new_user("operator"), name="t", actor="test")[1],
        "viewer": tokens.issue_token(user=new_user("viewer"), name="t", actor="test")[1],
    }


class Site:
    def __init__(self, tokens: dict[str, str]) -> None:
        self.tokens = tokens
        self.client = AsyncClient()

    async def call(
        self, name: str, body: Any = None, *, who: str = "robot", query: str = "", **extra: str
    ) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"} | extra
        response = await self.client.post(
            f"{ROOT}/tools/{name}/call{query}",
            json.dumps({} if body is None else body),
            content_type="application/json",
            headers=headers,
        )
        return response.status_code, response.json()

    async def listing(self, query: str = "", *, who: str = "robot") -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        response = await self.client.get(f"{ROOT}/endpoints/default/tools{query}", headers=headers)
        return response.status_code, response.json()


@pytest.fixture
async def site(live_db: None) -> AsyncIterator[Site]:
    tokens = await db_call(remembered, "tests/api/test_calls.py", set_up)
    engine = Engine("web")
    await engine.start()
    set_current_engine(engine)
    try:
        yield Site(tokens)
    finally:
        set_current_engine(None)
        await engine.stop()
        await sync_to_async(connections.close_all)()  # the thread in which plain views ran


async def test_a_call_answers_with_value_raw_result_and_record(site):
    status, answer = await site.call(
        "echo__echo", {"params": {"a": 1}, "mcp": {"request_id": "r-1"}}
    )
    assert status == 200
    assert sorted(answer) == ["error", "mcp", "result", "success", "tool_name"]
    assert (answer["success"], answer["error"], answer["tool_name"]) == (True, None, "echo__echo")
    assert answer["result"]["arguments"] == {"a": 1}
    meta = answer["mcp"]
    assert (meta["server_name"], meta["tool_name"], meta["content_type"]) == (
        "echo",
        "echo",
        "json",
    )
    assert meta["content"]["unknownKey"] == [1]  # untouched
    assert meta["response_time"] > 0
    record = await db_call(Invocation.objects.get, request_id="r-1")
    assert (record.id, record.origin, record.agent_slug) == (meta["invocation_id"], "rest", "robot")
    assert record.state == "succeeded"


async def test_the_internal_key_names_the_same_tool(site):
    status, answer = await site.call("echo::echo")
    assert (status, answer["tool_name"]) == (200, "echo__echo")


async def test_a_person_acts_for_a_named_agent_and_is_on_record(site):
    assert (await site.call("echo__echo", who="operator"))[0] == 422
    status, _ = await site.call("echo__echo", {"agent": "robot"}, who="operator")
    assert status == 200
    record = await db_call(Invocation.objects.get, state="succeeded")
    assert record.host_name.startswith("user:operator")
    assert (await site.call("echo__echo", {"agent": "robot"}, who="viewer"))[0] == 403


@pytest.mark.attack
async def test_an_agent_cannot_borrow_another_agents_grants(site):
    status, problem = await site.call("echo__echo", {"agent": "robot"}, who="idle")
    assert (status, problem["code"]) == (403, "DENIED")
    assert (await site.listing("?agent=robot", who="idle"))[0] == 404


@pytest.mark.attack
async def test_what_is_not_granted_looks_like_what_is_not_there(site):
    hidden = await site.call("echo__echo", who="idle")
    absent = await site.call("nope__nope", who="idle")
    assert hidden[0] == absent[0] == 404
    assert hidden[1]["message"].replace("echo__echo", "X") == absent[1]["message"].replace(
        "nope__nope", "X"
    )


async def test_the_callers_faults_are_4xx(site):
    assert (await site.call("echo__narrow"))[0] == 422
    assert (await site.call("echo__echo", {"params": []}))[0] == 422
    assert (await site.call("echo__echo", {"endpoint": "nowhere"}))[0] == 404
    assert (await site.call("echo__echo", {"mcp": {"server_name": "other"}}))[0] == 422
    assert (await site.call("echo__echo", {"mcp": {"tool_name": "other"}}))[0] == 422
    good = {"mcp": {"server_name": "echo", "tool_name": "echo"}}
    assert (await site.call("echo__echo", good))[0] == 200


async def test_too_many_calls_a_minute_are_429(site):
    await db_call(Agent.objects.filter(slug="robot").update, calls_per_minute=1)
    from mcpregistry.calls.engine import get_current_engine

    await db_call(get_current_engine().live.refresh)
    assert (await site.call("echo__echo"))[0] == 200
    status, problem = await site.call("echo__echo")
    assert (status, problem["code"]) == (429, "RATE_LIMITED")


async def test_a_call_beyond_a_budget_is_429(site):
    def add_budget() -> None:
        agent = Agent.objects.get(slug="robot")
        row = Budget(agent=agent, slug="b", unit="calls", period="month", hard=Decimal(1))
        books.save_budget(budget=row, actor="test")

    await db_call(add_budget)
    await db_call(get_current_engine().live.refresh)
    assert (await site.call("echo__echo"))[0] == 200
    status, problem = await site.call("echo__echo")
    assert (status, problem["code"]) == (429, "BUDGET_SPENT")
    assert "resets" in f"{problem['message']} {problem['remedy']}"


async def test_a_server_that_is_down_is_an_answer_unless_strict(site):
    status, answer = await site.call("down__pid")
    assert (status, answer["success"], answer["result"]) == (200, False, None)
    assert answer["error"].startswith("Server not connected: ")
    assert answer["mcp"]["state"] == "not_sent"
    assert (await site.call("down__pid", query="?strict=1"))[0] == 502


async def test_a_server_that_falls_over_in_the_call_leaves_the_end_unknown(site):
    status, answer = await site.call("falls__crash")
    assert (status, answer["success"], answer["mcp"]["state"]) == (200, False, "unknown")
    assert answer["error"].startswith("Tool execution failed: ")


async def test_a_server_that_is_too_slow_is_504_when_strict(site):
    body = {"params": {"steps": 100, "pause": 0.1}}
    status, answer = await site.call("slow__count", body, query="?strict=1")
    assert (status, answer["success"], answer["mcp"]["error_code"]) == (504, False, "TIMEOUT")


async def test_a_refusal_by_the_tool_is_an_answer_in_its_own_words(site):
    status, answer = await site.call("echo__refuse")
    assert (status, answer["success"]) == (200, False)
    assert answer["error"].startswith("Tool execution failed: ")
    assert "no such thing" in answer["error"]
    assert answer["mcp"]["error_code"] == "TOOL_CALL_FAILED"


async def test_a_listing_is_what_the_hosts_of_the_agent_see(site):
    status, listing = await site.listing()
    assert status == 200
    names = [tool["name"] for tool in listing["tools"]]
    assert names == sorted(
        [
            *(f"echo__{name}" for name in (*TOOLS, "narrow")),
            "down__pid",
            "falls__crash",
            "slow__count",
        ]
    )
    assert (await site.listing(who="idle"))[1]["tools"] == []
    assert (await site.listing("?agent=robot", who="viewer"))[1]["tools"] == listing["tools"]
    assert (await site.listing(who="viewer"))[0] == 422


async def test_odd_arguments_neither_crash_nor_vanish(site):
    status, answer = await site.call("echo__echo", {"params": {"s": "\x00\ud800", "n": 10**30}})
    assert status in (200, 422), answer
    assert await db_call(Invocation.objects.filter(tool_name="echo").exists)


RESULTS = [
    ({"content": []}, None, "json"),
    ({"content": [], "structuredContent": {"a": 1}}, {"a": 1}, "json"),
    (
        {"content": [{"type": "text", "text": "1"}], "structuredContent": {"result": [1]}},
        [1],
        "json",
    ),
    ({"content": [], "structuredContent": {"result": "x"}}, "x", "text"),
    (
        {"content": [{"type": "text", "text": "one"}, {"type": "text", "text": "2"}]},
        ["one", 2],
        "json",
    ),
    ({"content": [{"type": "text", "text": '{"a":1}'}]}, {"a": 1}, "json"),
    ({"content": [{"type": "text", "text": "abc"}]}, "abc", "text"),
    ({"content": [{"type": "text", "text": "007"}]}, "007", "text"),
    ({"content": [{"type": "text", "text": "NaN"}]}, "NaN", "text"),
    ({"content": [{"type": "text", "text": "[" * 100_000}]}, "[" * 100_000, "text"),
    (
        {"content": [{"type": "image", "data": "AA=="}]},
        {"type": "image", "data": "AA=="},
        "binary",
    ),
    (
        {"content": [{"type": "resource", "resource": {"uri": "f:/x", "text": "inside"}}]},
        {"type": "resource", "resource": {"uri": "f:/x", "text": "inside"}},
        "text",
    ),
    (
        {"content": [{"type": "resource", "resource": {"uri": "f:/x", "blob": "AA=="}}]},
        {"type": "resource", "resource": {"uri": "f:/x", "blob": "AA=="}},
        "binary",
    ),
    (
        {"content": [{"type": "resource_link", "uri": "f:/x"}]},
        {"type": "resource_link", "uri": "f:/x"},
        "json",
    ),
    ({"content": "broken"}, None, "json"),
    ({}, None, "json"),
]


@pytest.mark.parametrize(("result", "value", "kind"), RESULTS)
def test_a_result_becomes_one_value(result, value, kind):
    assert plain_result(result) == value
    assert content_type(result) == kind


def test_failures_speak_with_the_words_of_whoever_failed():
    def outcome(**fields: Any) -> CallOutcome:
        return CallOutcome(
            "i", **({"state": InvocationState.TOOL_ERROR, "message": "Gone."} | fields)
        )

    two = {
        "isError": True,
        "content": [{"type": "text", "text": "first"}, {"type": "text", "text": "second"}],
    }
    assert failure(outcome(result=two)) == "first"
    assert failure(outcome(result={"isError": True, "content": []})) == "Unknown error"
    inside = {
        "isError": True,
        "content": [{"type": "resource", "resource": {"uri": "f:/x", "text": "full disk"}}],
    }
    assert failure(outcome(result=inside)) == "full disk"
    picture = {
        "isError": True,
        "content": [{"type": "image", "data": "A" * 10_000, "mimeType": "image/png"}],
    }
    assert failure(outcome(result=picture)).startswith('{"type": "image"')
    assert len(failure(outcome(result=picture))) < 5_000
    assert content_type(None) == "text", "the sentence of the failure"
    down = outcome(state=InvocationState.NOT_SENT, error_code="CONNECTION_FAILED")
    assert failure(down) == f"Server not connected: Gone. {NOT_SENT}"
    unknown = outcome(state=InvocationState.UNKNOWN, error_code="TIMEOUT", remedy=LOOK_FIRST)
    assert failure(unknown) == f"Tool execution failed: OUTCOME UNKNOWN: Gone. {LOOK_FIRST}"


async def test_a_repeated_key_answers_from_the_first_call(site):
    keyed = {"Idempotency-Key": "k-1"}
    first = await site.call("echo__echo", {"params": {"a": 1}}, **keyed)
    again = await site.call("echo__echo", {"params": {"a": 1}}, **keyed)
    assert first == again
    assert first[0] == 200
    assert await db_call(Invocation.objects.count) == 1
    other = await site.call("echo__echo", {"params": {"a": 2}}, **keyed)
    assert (other[0], other[1]["code"]) == (409, "CONFLICT")
    person = await site.call(
        "echo__echo", {"params": {"a": 1}, "agent": "robot"}, who="operator", **keyed
    )
    assert person[1]["mcp"]["invocation_id"] != first[1]["mcp"]["invocation_id"]


async def test_a_call_that_may_have_happened_is_not_repeated(site):
    first = await site.call("falls__crash", **{"Idempotency-Key": "k-1"})
    assert first[1]["mcp"]["state"] == "unknown"
    assert await site.call("falls__crash", **{"Idempotency-Key": "k-1"}) == first
    assert await db_call(Invocation.objects.count) == 1


async def died(**changes: Any) -> None:
    """As a process leaves a key that dies before the answer is kept."""
    await db_call(lambda: KeptAnswer.objects.update(**({"status": None, "body": ""} | changes)))


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize("name", ["echo__echo", "falls__crash", "echo__refuse"])
async def test_after_a_crash_a_key_answers_from_the_record_of_its_call(site, name: str):
    keyed = {"Idempotency-Key": "k-1"}
    status, first = await site.call(name, **keyed)
    await died()
    again = await site.call(name, **keyed)
    assert (again[0], again[1]["success"], again[1]["result"]) == (
        status,
        first["success"],
        first["result"],
    )
    for fact in ("invocation_id", "state", "error_code", "content"):
        assert again[1]["mcp"][fact] == first["mcp"][fact]
    assert await db_call(Invocation.objects.count) == 1


@pytest.mark.exhaustive
async def test_after_a_crash_a_key_whose_call_was_never_begun_makes_it_under_its_id(site):
    keyed = {"Idempotency-Key": "k-1"}
    await site.call("echo__echo", **keyed)
    await died(call_id="c" * 32)
    status, problem = await site.call("echo__echo", **keyed)
    assert (status, "c" * 32 in problem["remedy"]) == (409, True), "it may be about to begin"
    await died(created_at=timezone.now() - idempotency.BEGINS_WITHIN)
    status, answer = await site.call("echo__echo", **keyed)
    assert (status, answer["mcp"]["invocation_id"]) == (200, "c" * 32)
    assert await site.call("echo__echo", **keyed) == (status, answer)


async def test_of_two_requests_at_once_with_one_key_only_one_runs(site):
    body = {"params": {"steps": 2, "pause": 0.05}}
    keyed = {"Idempotency-Key": "k-1"}
    answers = await asyncio.gather(*(site.call("slow__count", body, **keyed) for _ in range(5)))
    assert {status for status, _ in answers} <= {200, 409}
    assert await db_call(Invocation.objects.count) == 1


async def test_a_refused_request_gives_its_key_back(site):
    keyed = {"Idempotency-Key": "k-1"}
    assert (await site.call("nope__nope", **keyed))[0] == 404
    assert (await site.call("echo__echo", {"endpoint": "nowhere"}, **keyed))[0] == 404
    assert (await site.call("echo__echo", **keyed))[0] == 200


async def test_a_call_during_the_stop_is_told_to_come_again_and_keeps_no_key(site):
    get_current_engine().begin_stop()
    headers = {"Authorization": f"Bearer {site.tokens['robot']}", "Idempotency-Key": "k-1"}
    path = f"{ROOT}/tools/echo__echo/call"
    answer = await site.client.post(path, "{}", content_type="application/json", headers=headers)
    assert (answer.status_code, answer.headers["Retry-After"], answer.json()["code"]) == (
        503,
        "1",
        "BUSY",
    )
    assert await db_call(lambda: (Invocation.objects.count(), KeptAnswer.objects.count())) == (0, 0)


async def test_a_key_is_forgotten_after_a_day(site):
    keyed = {"Idempotency-Key": "k-1"}
    await site.call("echo__echo", **keyed)
    await db_call(KeptAnswer.objects.update, created_at=timezone.now() - timedelta(hours=25))
    await site.call("echo__echo", **keyed)
    assert await db_call(Invocation.objects.count) == 2
