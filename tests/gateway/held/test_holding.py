"""Held calls, seen from hosts of every kind: what each is told, when, and what runs in the end."""

from __future__ import annotations

import asyncio
import json

import pytest

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.services.approvals import votes
from tests.fakes.hosts import Lost, http_host, stdio_host
from tests.fakes.stage import MODERN, folder
from tests.gateway.held.conftest import ERAS, LEGACY, SHORT_HOLD, is_pending, words

pytestmark = pytest.mark.e2e


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("era", ERAS)
async def test_a_call_is_held_with_progress_that_names_who_is_asked_and_how_long_is_left(
    site, token, case, era
):
    async with http_host(site, token, era=era) as host:
        calling = asyncio.create_task(host.call("echo__ask", case.arguments))
        told = await host.until_told("Waiting for an approver: ")
        request = await case.request()
        assert told["message"].endswith(f"left. http://127.0.0.1:8000/approvals/{request.pk}/")
        assert "14 min" in told["message"] or "15 min" in told["message"]
        assert request.waiting_as == "progress"
        assert case.sent() == []
        await case.approve()
        result = await calling
    assert result["structuredContent"]["arguments"] == case.arguments
    assert len(case.sent()) == 1
    values = [p["progress"] for p in host.progress()]
    assert values == sorted(set(values))


@pytest.mark.exhaustive(but=("2025-11-25",))
@pytest.mark.parametrize("era", ERAS)
async def test_over_stdio_a_held_call_waits_and_then_runs(stage, token, case, era):
    async with stdio_host(stage, "--cwd", str(folder()), era=era) as host:
        calling = asyncio.create_task(host.call("echo__ask", case.arguments))
        await host.until_told("Waiting for an approver: ")
        await case.approve()
        result = await calling
        assert result["structuredContent"]["arguments"] == case.arguments
        await host.leave()
    assert len(case.sent()) == 1


@pytest.mark.parametrize("era", ERAS)
async def test_a_refusal_reaches_the_model_with_its_reason_in_text_and_in_structure(
    site, token, case, era
):
    async with http_host(site, token, era=era) as host:
        calling = asyncio.create_task(host.call("echo__ask", case.arguments))
        await case.request()
        await case.reject("not on a Friday")
        result = await calling
    assert result["isError"] is True
    for said in (words(result), json.dumps(result["structuredContent"])):
        assert "REJECTED by Ann Lee: not on a Friday" in said
        assert "Do not retry" in said
    assert case.sent() == []


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("era", ERAS)
async def test_an_edit_runs_instead_and_the_agent_reads_of_it_in_text_and_in_structure(
    site, token, case, era
):
    edited = case.arguments | {"amount": 5}
    case.arguments["amount"] = 900
    async with http_host(site, token, era=era) as host:
        calling = asyncio.create_task(host.call("echo__ask", case.arguments))
        await case.request()
        await case.approve(arguments=edited)
        result = await calling
    assert result["structuredContent"]["arguments"] == edited
    for said in (words(result), result["structuredContent"]["slipsnisse/approval"]):
        assert "Ann Lee approved this call with changed arguments" in said
        assert "amount: 900 -> 5" in said
    (sent,) = case.sent()
    assert sent["params"]["arguments"] == edited


@pytest.mark.exhaustive(but=("True-2025-11-25",))
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("progress", [True, False])
async def test_when_the_host_can_wait_no_longer_it_is_told_pending_completely_in_both_forms(
    brisk, token, case, era, progress
):
    async with http_host(brisk, token, era=era) as host:
        result = await host.call("echo__ask", case.arguments, progress=progress)
    request = await case.request()
    assert result.get("isError") is not True  # no reason to try another way
    for said in (words(result), result["structuredContent"]["message"]):
        for part in (
            request.pk,
            f"http://127.0.0.1:8000/approvals/{request.pk}/",
            "exactly the same arguments",
            "mcp_approval_status",
            "has not run",
            "an approver",
        ):
            assert part in said
    assert result["structuredContent"] | {"message": ""} == {
        "status": "pending",
        "message": "",
        "approval": request.pk,
        "call": request.call_id,
        "state": "pending",
        "asked_of": "an approver",
        "url": f"http://127.0.0.1:8000/approvals/{request.pk}/",
        "decide_by": request.decide_by.isoformat(timespec="seconds").replace("+00:00", "Z"),
    }
    assert request.waiting_as == "away"


async def test_pending_of_a_tool_with_an_output_schema_is_text_alone_so_that_no_client_drops_it(
    brisk, token, case
):
    """The SDK's client raises for structured content that does not fit the schema it was shown."""
    for mode in ("legacy", MODERN):
        async with brisk.client(token, mode) as client:
            result = await client.call_tool("echo__typed", case.arguments)
        assert result.structured_content is None
        assert "PENDING APPROVAL" in result.content[0].text


@pytest.mark.exhaustive(but=("2026-07-28",))
@pytest.mark.parametrize("era", ERAS)
async def test_the_identical_call_joins_and_once_approved_runs_once_and_gives_the_result(
    brisk, site, token, case, era
):
    async with http_host(brisk, token, era=era) as host:
        assert is_pending(await host.call("echo__ask", case.arguments))
        assert is_pending(await host.call("echo__ask", case.arguments, progress=False))
        await case.approve()
        assert case.sent() == []  # nobody is there to whom it could be told
        result = await host.call("echo__ask", case.arguments)
        assert result["structuredContent"]["arguments"] == case.arguments
        assert len(await case.calls()) == 1
        # told once; the next one is a new one
        assert is_pending(await host.call("echo__ask", case.arguments))
    assert len(case.sent()) == 1
    assert len(await case.calls()) == 2


@pytest.mark.exhaustive
async def test_other_arguments_and_other_agents_do_not_join(brisk, stage, token, case):
    brisk.wait_known(stage.tokens["other"])
    async with http_host(brisk, token) as host, http_host(brisk, stage.tokens["other"]) as stranger:
        assert is_pending(await host.call("echo__ask", case.arguments))
        await case.approve()
        assert is_pending(await host.call("echo__ask", case.arguments | {"more": 1}))
        assert is_pending(await stranger.call("echo__ask", case.arguments))
    assert case.sent() == []
    assert len(await case.calls()) == 3


@pytest.mark.exhaustive
async def test_everybody_who_waits_for_the_same_call_gets_the_one_result(site, stage, token, case):
    """Two hosts over HTTP, in both eras, and one over stdio, which is another process."""
    async with (
        http_host(site, token) as one,
        http_host(site, token, era=LEGACY) as two,
        stdio_host(stage, "--cwd", str(folder())) as three,
    ):
        calling = [
            asyncio.create_task(host.call("echo__ask", case.arguments))
            for host in (one, two, three)
        ]
        for host in (one, two, three):
            await host.until_told("Waiting")
        await case.approve()
        results = await asyncio.gather(*calling)
    assert {json.dumps(r["structuredContent"]["arguments"]) for r in results} == {
        json.dumps(case.arguments)
    }
    assert len(case.sent()) == len(await case.calls()) == 1


# Leaving


@pytest.mark.exhaustive(but=("True-http-2025-11-25",))
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("door", ["http", "stdio"])
@pytest.mark.parametrize("progress", [True, False])
async def test_a_host_that_cancels_before_the_decision_ends_the_request(
    site, stage, token, case, era, door, progress
):
    opened = (
        http_host(site, token, era=era)
        if door == "http"
        else stdio_host(stage, "--cwd", str(folder()), era=era)
    )
    async with opened as host:
        calling = asyncio.create_task(
            host.call("echo__ask", case.arguments, request_id=77, progress=progress)
        )
        await case.request()
        await host.cancel(77)
        request = await case.until(InvocationState.CANCELLED)
        calling.cancel()
    assert "disconnected" in request.call.reason
    with pytest.raises(votes.AlreadyDecided):
        await case.approve()
    assert case.sent() == []


@pytest.mark.parametrize("era", ERAS)
async def test_a_connection_that_is_lost_over_http_ends_the_request_in_both_eras(
    site, token, case, era
):
    """The older era says that this is no cancellation; but nobody is left to whom the result could
    be told."""
    async with http_host(site, token, era=era) as host:
        calling = asyncio.create_task(host.call("echo__ask", case.arguments))
        await host.until_told("Waiting")
        await host.kill()
        await case.until(InvocationState.CANCELLED)
        with pytest.raises(Lost):
            await calling
    assert case.sent() == []


async def test_a_host_that_closes_its_pipe_ends_the_request(stage, token, case):
    async with stdio_host(stage, "--cwd", str(folder())) as host:
        calling = asyncio.create_task(host.call("echo__ask", case.arguments))
        await host.until_told("Waiting")
        await host.leave()
        await case.until(InvocationState.CANCELLED)
        calling.cancel()
    assert case.sent() == []


async def test_a_killed_runmcp_leaves_the_request_to_the_next_identical_call(stage, token, case):
    """Our own death is no word of the caller's: whoever comes back joins, and gets the one
    result."""
    async with stdio_host(stage, "--cwd", str(folder())) as host:
        calling = asyncio.create_task(host.call("echo__ask", case.arguments))
        await host.until_told("Waiting")
        host.crash()
        calling.cancel()
    await case.approve()
    async with stdio_host(stage, "--cwd", str(folder())) as host:
        assert (await host.call("echo__ask", case.arguments))["structuredContent"][
            "arguments"
        ] == case.arguments
    assert len(case.sent()) == len(await case.calls()) == 1


async def test_a_joiner_that_leaves_takes_nothing_from_those_who_stay(site, token, case):
    async with http_host(site, token) as stays, http_host(site, token) as leaves:
        staying = asyncio.create_task(stays.call("echo__ask", case.arguments))
        await stays.until_told("Waiting")
        leaving = asyncio.create_task(leaves.call("echo__ask", case.arguments, request_id=9))
        await leaves.until_told("Waiting")
        await leaves.cancel(9)
        with pytest.raises(Lost):
            await leaving
        # long enough for a wrong cancel to show; the approval below would fail then
        await asyncio.sleep(0.3)
        await case.approve()
        assert (await staying)["structuredContent"]["arguments"] == case.arguments
    assert len(case.sent()) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("era", ERAS)
async def test_a_cancel_that_comes_after_the_answer_is_ignored(stage, token, case, era):
    """opencode sends one after every result; the request that is pending must survive it."""
    async with stdio_host(
        stage, "--cwd", str(folder()), era=era, env={"SLIPSNISSE_HOLD": SHORT_HOLD}
    ) as host:
        assert is_pending(await host.call("echo__ask", case.arguments, request_id=5))
        for _ in range(2):
            await host.cancel(5)
        assert "echo__ask" in await host.tools()
        await case.approve()
        result = await host.call("echo__ask", case.arguments, request_id=6)
        await host.cancel(6)
        assert result["structuredContent"]["arguments"] == case.arguments
        assert "echo__ask" in await host.tools()
    assert [call.state for call in await case.calls()] == [InvocationState.SUCCEEDED]
