"""An expert tool as hosts meet it: listed for whom it is meant, answered by a run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.db import OperationalError

from mcpregistry.db import db_call
from mcpregistry.models import Agent, Conversation, Endpoint, Invocation, PolicyRule, Tool
from mcpregistry.services.access import agents, grants
from subagents.domain.lifecycle import RunState
from subagents.leased import driver
from subagents.llm.client import complete
from subagents.models import Provider, Run, ToolCall
from subagents.queries import list_timeline
from subagents.runs import lease
from tests.calls.conftest import add_server, tool
from tests.logs import logged
from tests.subagents.kit import Bench, call, calls, offered
from tests.waiting import until


async def test_a_host_calls_one_tool_and_gets_the_answer(bench: Bench, working: Any) -> None:
    await db_call(offered, bench)
    told: list[str] = []

    async def once_told(*given: Any, **more: Any) -> Any:
        """The model answers when the host has heard that it thinks: a state that is over is told to
        nobody."""
        await until(lambda: any("thinking" in each for each in told))
        return await complete(*given, **more)

    here = await working(complete=once_told)
    outcome = await call(here, on_progress=lambda done, total, message: told.append(message))
    assert outcome.result == {"content": [{"type": "text", "text": "It said hello."}]}
    run = await db_call(Run.objects.get)
    assert (run.call_id, run.caller, run.endpoint_slug) == (outcome.invocation_id, "ann", "default")


@pytest.mark.exhaustive
async def test_what_a_run_calls_belongs_to_the_conversation_of_the_call_that_started_it(
    bench: Bench, working: Any
) -> None:
    """Also where that is narrowed to other servers: what the run may call is said by the tool's own
    whitelist."""

    def begun() -> str:
        offered(bench)
        elsewhere = add_server("multi", tool("all"))
        return Conversation.objects.create(
            agent=Agent.objects.get(slug="ann"), servers=[elsewhere.slug]
        ).pk

    conversation = await db_call(begun)
    outcome = await call(await working(), conversation=conversation)
    assert outcome.result == {"content": [{"type": "text", "text": "It said hello."}]}
    made = await db_call(
        lambda: sorted(Invocation.objects.values_list("exposed_name", "conversation"))
    )
    assert made == [("echo__echo", conversation), ("expert", conversation)]
    assert (await db_call(Run.objects.get)).conversation_id == conversation


@pytest.mark.exhaustive
async def test_the_links_of_a_result_are_kept_for_the_page_of_the_run(
    bench: Bench, working: Any
) -> None:
    def prepare() -> None:
        server = bench.server("multi", "all")
        turns = calls(("multi__all", {})), {"text": "It said {{ last.text }}."}
        expert = bench.expert(bench.model("m", *turns), uses=[server])
        expert.users.add(Agent.objects.get(slug="ann"))
        expert.endpoints.add(Endpoint.objects.get(slug="default"))

    await db_call(prepare)
    outcome = await call(await working())
    assert outcome.result is not None
    assert "[resource_link: file:///b]" in outcome.result["content"][0]["text"]
    made = await db_call(ToolCall.objects.get)
    assert made.details == {"links": [{"uri": "file:///b", "name": "b", "mimeType": ""}]}
    (shown,) = [
        link for line in await db_call(lambda: list_timeline(made.run)) for link in line.links
    ]
    assert (shown.uri, shown.name, shown.address) == ("file:///b", "b", "")


async def test_it_is_listed_for_whom_it_is_meant(bench: Bench, working: Any) -> None:
    def prepare() -> None:
        offered(bench)
        bob = agents.save_agent(agent=Agent(slug="bob"), actor="test")
        grants.grant_access(agent=bob, tool=Tool.objects.get(name="pid"), actor="test")
        agents.save_endpoint(endpoint=Endpoint(slug="other"), actor="test")

    await db_call(prepare)
    here = await working()
    assert "expert" in here.engine.get_catalogue("default", "ann").entries
    assert "expert" not in here.engine.get_catalogue("other", "ann").entries
    assert "expert" not in here.engine.get_catalogue("default", "bob").entries
    outcome = await call(here, agent="bob")
    assert outcome.error_code == "NOT_FOUND"


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize(
    ("confirmed", "read_only", "destructive", "open_world"),
    [
        ({}, False, True, True),
        ({"read_only": True, "open_world": False}, True, False, False),
        ({"read_only": False, "destructive": False, "open_world": False}, False, False, False),
    ],
)
async def test_its_annotations_follow_from_what_it_may_use(
    bench: Bench,
    working: Any,
    confirmed: dict[str, bool],
    read_only: bool,
    destructive: bool,
    open_world: bool,
) -> None:
    def prepare() -> None:
        offered(bench)
        Tool.objects.update(**confirmed)

    await db_call(prepare)
    listing = (await working()).engine.get_catalogue("default", "ann").entries["expert"].listing
    hints = listing["annotations"]
    assert (hints["readOnlyHint"], hints["destructiveHint"], hints["openWorldHint"]) == (
        read_only,
        destructive,
        open_world,
    )


@pytest.mark.exhaustive
async def test_what_goes_wrong_is_a_tool_execution_error(bench: Bench, working: Any) -> None:
    await db_call(offered, bench, {"text": "x", "attempts": [{"status": 401, "message": "no"}]})
    outcome = await call(await working())
    assert outcome.result is not None
    assert outcome.result["isError"]
    assert outcome.result["content"][0]["text"].startswith(
        "ToolExecutionError: No model answered. scripts/m: auth (no)."
    )


async def test_a_key_that_its_worker_does_not_get_is_named(bench: Bench, working: Any) -> None:
    def prepare() -> None:
        offered(bench)
        provider = Provider.objects.get()
        provider.key = "${OAI_KEY}"
        provider.save()

    await db_call(prepare)
    outcome = await call(await working())
    assert outcome.result is not None
    assert (
        "refers to a value that does not exist: ${OAI_KEY}" in outcome.result["content"][0]["text"]
    )


async def test_a_caller_that_leaves_cancels_down_to_the_server(bench: Bench, working: Any) -> None:
    def prepare() -> None:
        server = bench.server("slow", "count")
        model = bench.model("m", calls(("slow__count", {"steps": 1000, "pause": 0.1})))
        expert = bench.expert(model, uses=[server])
        expert.users.add(Agent.objects.get(slug="ann"))
        expert.endpoints.add(Endpoint.objects.get(slug="default"))

    await db_call(prepare)
    here = await working()
    calling = asyncio.ensure_future(call(here))
    await until(lambda: bench.sent())
    calling.cancel()
    await until(lambda: db_call(Run.objects.exclude(finished_at=None).exists))
    run = await db_call(Run.objects.get)
    assert run.state == RunState.CANCELLED
    await bench.until_told_to_stop()
    await until(lambda: db_call(lambda: not Invocation.objects.filter(finished_at=None).exists()))


async def test_an_expert_may_use_another_but_not_itself(bench: Bench, working: Any) -> None:
    def prepare() -> None:
        outer = offered(
            bench, calls(("inner", {"text": "deep"})), {"text": "inner said: {{ last.text }}"}
        )
        inner = bench.expert(
            bench.model("i", calls(("expert", {"text": "back"})), {"text": "{{ last.text }}"}),
            name="inner",
        )
        inner.users.add(outer.agent)
        outer.users.add(inner.agent)

    await db_call(prepare)
    outcome = await call(await working())
    assert outcome.result is not None
    assert "calls itself" in outcome.result["content"][0]["text"]
    assert "inner" in bench.models.journal[0]["tools"]
    assert await db_call(Run.objects.count) == 2


@pytest.mark.exhaustive
async def test_a_run_that_a_busy_database_made_us_leave_is_found_by_the_clock(
    bench: Bench, working: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await db_call(offered, bench)
    refusals = [OperationalError("database is locked")]
    take = lease.take

    def busy_once(*args: Any, **options: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return take(*args, **options)

    monkeypatch.setattr(lease, "take", busy_once)
    with logged(driver) as said:
        outcome = await call(await working())
    assert outcome.result == {"content": [{"type": "text", "text": "It said hello."}]}
    assert [each["log_level"] for each in said if each["event"] == "run.given_back"] == ["warning"]


async def test_a_servers_tool_an_expert_tool_and_our_own_are_listed_and_called_alike(
    bench: Bench, working: Any
) -> None:
    def prepare() -> None:
        offered(bench)
        add_server("slow", tool("count"))
        PolicyRule.objects.create(name="Ask", condition='tool.name == "count"', outcome="ask")

    await db_call(prepare)
    here = await working()
    entries = here.engine.get_catalogue("default", "ann").entries
    asked = {
        "echo__echo": {"text": "x"},
        "expert": {"text": "hello"},
        "mcp_approval_status": {"id": "none"},
    }
    for name, arguments in asked.items():
        assert entries[name].listing["name"] == name
        assert entries[name].listing["inputSchema"]["type"] == "object"
        outcome = await call(here, name, arguments=arguments)
        assert outcome.result is not None
        record = await db_call(Invocation.objects.get, pk=outcome.invocation_id)
        assert (record.exposed_name, record.agent_slug, bool(record.finished_at)) == (
            name,
            "ann",
            True,
        )
