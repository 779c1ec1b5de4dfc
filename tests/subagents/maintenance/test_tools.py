"""The four tools: shown where an endpoint has them, quick whatever the sub-agent does, and only
about one's own requests."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from typing import Any

import pytest
from django.utils import timezone

from mcpregistry.calls.call import CallOutcome, CallRequest
from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Agent, Endpoint, Invocation, Server, Tool, ToolUsage
from mcpregistry.services.access import agents
from subagents.domain.maintenance import Kind, RequestMessageKind
from subagents.maintenance import queue
from subagents.maintenance.tools import LISTINGS
from subagents.models import MaintenanceRequest
from tests.calls.conftest import ACTOR, add_server, journal, site, tool
from tests.fault.database import failing
from tests.subagents.maintenance.conftest import FOREVER, ask, ended
from tests.waiting import HANG_LIMIT, until

__all__ = ["journal", "site"]
LIST = "mcp_list_available_tools"
NAMES = {listing["name"] for listing in LISTINGS}


def furnished() -> None:
    add_server("echo", tool("echo"))
    agents.save_agent(agent=Agent(slug="bob"), actor=ACTOR)
    endpoint = Endpoint.objects.get(slug="default")
    endpoint.maintenance_tools = True
    agents.save_endpoint(endpoint=endpoint, actor=ACTOR)


async def call(here: Any, name: str, agent: str = "ann", **arguments: Any) -> CallOutcome:
    return await here.engine.call(
        CallRequest(here.engine.get_catalogue("default", agent), name, arguments, "http")
    )


async def said(here: Any, name: str, agent: str = "ann", **arguments: Any) -> dict[str, Any]:
    outcome = await call(here, name, agent, **arguments)
    assert outcome.result is not None, outcome
    return outcome.result["structuredContent"] | (
        {"failed": True} if outcome.result.get("isError") else {}
    )


async def test_they_are_shown_where_the_endpoint_has_them(site: Any) -> None:
    await db_call(furnished)
    here = await site()
    assert set(here.engine.get_catalogue("default", "ann").entries) >= NAMES
    assert set(here.engine.get_catalogue("default", "bob").entries) >= NAMES, (
        "also with nothing granted: then they are needed"
    )
    await db_call(Endpoint.objects.update, maintenance_tools=False)
    await db_call(here.engine.live.refresh)
    assert not NAMES & set(here.engine.get_catalogue("default", "ann").entries)


async def test_a_server_is_asked_for_watched_and_cancelled(site: Any, manager: Any) -> None:
    await db_call(furnished)
    here = await site()
    made = await said(
        here, "mcp_request_server_addition", serverName="git", purpose="history", priority="high"
    )
    key = made["requestId"]
    assert (made["state"], made["progress"], made["error"]) == ("queued", 0, None)
    row = await db_call(MaintenanceRequest.objects.get)
    assert (row.kind, row.priority, row.agent, row.params["purpose"]) == (
        Kind.ADD,
        3,
        "ann",
        "history",
    )
    assert (await said(here, "mcp_check_subagent_status", agent="bob", requestId=key))[
        "error"
    ] == "NOT_FOUND"
    assert (await said(here, "mcp_cancel_subagent_work", agent="bob", requestId=key, reason="x"))[
        "failed"
    ]
    again = await said(here, "mcp_request_server_addition", serverName="git", purpose="history")
    assert again["requestId"] == key, "asked twice, made once"
    worker = await manager()
    await ended(worker, row)
    await worker.stop()  # nobody takes what is asked from here on
    done = await said(here, "mcp_check_subagent_status", requestId=key)
    assert (done["state"], done["progress"], done["result"]["waits_for"]) == (
        "completed",
        100,
        "a person",
    )
    assert not await db_call(Server.objects.filter(slug="git").exists)
    other = await said(here, "mcp_request_server_addition", serverName="time", purpose="clock")
    over = await said(
        here, "mcp_cancel_subagent_work", requestId=other["requestId"], reason="found another way"
    )
    assert (over["state"], over["error"]) == ("failed", "cancelled: found another way")


async def test_each_agent_is_told_its_own_tools(site: Any) -> None:
    await db_call(furnished)
    here = await site()
    told = {
        agent: {
            each["name"] for each in (await said(here, "mcp_list_available_tools", agent))["tools"]
        }
        for agent in ("ann", "bob")
    }
    assert "echo__echo" in told["ann"]
    assert "echo__echo" not in told["bob"]


async def test_the_list_says_what_a_call_will_cost_and_is_there_without_that_too(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepared() -> None:
        furnished()
        usage = {"seconds": 4.0, "length": 10.0, "median": 4.0, "p95": 4.0}
        ToolUsage.objects.create(
            tool=Tool.objects.get(), calls=195, counted_at=timezone.now(), **usage
        )

    await db_call(prepared)
    here = await site()

    async def costs() -> dict[str, float | None]:
        return {
            each["name"]: each.get("estimatedEnergyCost")
            for each in (await said(here, LIST))["tools"]
        }

    told = await costs()
    assert told["echo__echo"] == pytest.approx(8, abs=0.3), "two units for each of its four seconds"
    assert told[LIST] is None, "ours cost nothing"
    with failing("estimates.estimate_specs"):
        assert set((await costs()).values()) == {None}


async def test_bad_arguments_are_refused_before_anything_is_queued(site: Any) -> None:
    await db_call(furnished)
    here = await site()
    for arguments in (
        {},
        {"serverName": "a b", "purpose": "x"},
        {"serverName": "a", "purpose": "x", "priority": "urgent"},
    ):
        outcome = await call(here, "mcp_request_server_addition", **arguments)
        assert outcome.state is not InvocationState.SUCCEEDED
    assert not await db_call(MaintenanceRequest.objects.exists)


async def test_they_answer_at_once_while_a_server_that_hangs_is_tested(
    site: Any, manager: Any
) -> None:
    await db_call(furnished)
    await db_call(lambda: add_server("mute", connect_timeout=FOREVER))
    here = await site()
    sub_agent = await manager()
    idle = [await _timed(here) for _ in range(20)]
    request = await db_call(ask, Kind.TEST, server="mute")
    sub_agent.look()
    await until(lambda: db_call(MaintenanceRequest.objects.filter(pk=request.pk, step=1).exists))
    busy = [await _timed(here) for _ in range(20)]
    print(
        f"median of an answer: idle {statistics.median(idle):.1f} ms, beside a hanging test {statistics.median(busy):.1f} ms"
    )
    assert (await db_call(MaintenanceRequest.objects.get, pk=request.pk)).finished_at is None
    await db_call(queue.cancel, request_id=request.pk, actor="test")
    await ended(sub_agent, request)


async def _timed(here: Any) -> float:
    began = time.monotonic()
    assert "tools" in await said(here, "mcp_list_available_tools")
    return (time.monotonic() - began) * 1000


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    ("name", "point", "arguments"),
    [
        ("mcp_request_server_addition", "tools._ask", {"serverName": "git", "purpose": "x"}),
        ("mcp_check_subagent_status", "tools._status", {"requestId": "0" * 32}),
        ("mcp_cancel_subagent_work", "tools._cancel", {"requestId": "0" * 32}),
    ],
)
async def test_what_the_database_did_not_take_was_not_sent(
    site: Any, name: str, point: str, arguments: dict[str, Any]
) -> None:
    await db_call(furnished)
    here = await site()
    with failing(point):
        outcome = await call(here, name, **arguments)
    assert outcome.state is InvocationState.NOT_SENT
    assert not await db_call(MaintenanceRequest.objects.exists)


async def test_a_caller_that_leaves_while_its_request_is_written_is_recorded_as_unknown(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await db_call(furnished)
    here = await site()
    began = threading.Event()
    go_on = threading.Event()
    real = queue.ask

    def slow(**facts: Any) -> MaintenanceRequest:
        began.set()
        assert go_on.wait(4 * HANG_LIMIT)
        return real(**facts)

    monkeypatch.setattr(queue, "ask", slow)
    calling = asyncio.ensure_future(
        call(here, "mcp_request_server_addition", serverName="git", purpose="x")
    )
    assert await asyncio.to_thread(began.wait, HANG_LIMIT)
    calling.cancel()
    await asyncio.wait({calling})
    go_on.set()
    await until(lambda: db_call(MaintenanceRequest.objects.exists))
    await until(lambda: db_call(Invocation.objects.filter(state=InvocationState.UNKNOWN).exists))


@pytest.mark.exhaustive
async def test_a_caller_that_leaves_while_it_waits_leaves_the_work_as_it_is(
    site: Any, manager: Any
) -> None:
    await db_call(furnished)
    here = await site()
    ann = await db_call(Agent.objects.get, slug="ann")
    request = await db_call(ask, Kind.SEARCH, query="x", agent=ann)
    heard: list[str] = []
    wait = {"requestId": request.pk, "waitSeconds": 50}
    entry = CallRequest(
        here.engine.get_catalogue("default", "ann"),
        "mcp_check_subagent_status",
        wait,
        "http",
        on_progress=lambda done, total, message: heard.append(str(message)),
    )
    waiting = asyncio.create_task(here.engine.call(entry))
    await db_call(queue.tell, request, RequestMessageKind.STATUS, progress=1, message="Looking.")
    await db_call(MaintenanceRequest.objects.update, message="Looking.")
    await until(lambda: heard == ["Looking."])
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    over = Invocation.objects.exclude(state=InvocationState.DISPATCHED).filter(
        exposed_name="mcp_check_subagent_status"
    )
    call_state = await until(lambda: db_call(over.values_list("state", flat=True).first))
    assert call_state in (InvocationState.CANCELLED, InvocationState.NOT_SENT), (
        "nothing was done by it"
    )
    row = await db_call(MaintenanceRequest.objects.get)
    assert (row.state, row.wish) == ("queued", "")
    soon = await said(here, "mcp_check_subagent_status", requestId=request.pk, waitSeconds=1)
    assert soon["state"] == "queued", "it comes when the time is over, too"
    await ended(await manager(), request)
    assert (await said(here, "mcp_check_subagent_status", requestId=request.pk, waitSeconds=50))[
        "state"
    ] == "completed"
    too_long = await call(here, "mcp_check_subagent_status", requestId=request.pk, waitSeconds=51)
    assert too_long.state == InvocationState.DENIED
