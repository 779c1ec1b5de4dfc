"""``mcp_approval_status``: how its own held call stands, asked by an agent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mcpregistry.models import PolicyRule
from mcpregistry.services.approvals import held_calls
from tests.fakes.hosts import Host, http_host
from tests.fakes.stage import listed, outside
from tests.gateway.held.conftest import ERAS, is_pending, words

pytestmark = [pytest.mark.e2e, pytest.mark.one_database]


@pytest.mark.exhaustive(but=("2026-07-28",))
@pytest.mark.parametrize("era", ERAS)
async def test_the_status_tool_tells_an_agent_how_its_own_call_stands(
    brisk, stage, token, case, era
):
    brisk.wait_known(stage.tokens["other"])
    async with (
        http_host(brisk, token, era=era) as host,
        http_host(brisk, stage.tokens["other"], era=era) as stranger,
    ):
        assert (await host.tools())["mcp_approval_status"]["annotations"]["readOnlyHint"] is True
        assert is_pending(await host.call("echo__ask", case.arguments))
        request = await case.request()

        async def status(asker: Host, held_id: str) -> dict[str, Any]:
            return await asker.call("mcp_approval_status", {"id": held_id})

        for held_id in (request.pk, request.call_id):
            assert (await status(host, held_id))["structuredContent"]["status"] == "pending"
        by_its_other_name = await host.call("mcp_approval_status", {"approval": request.pk})
        assert by_its_other_name["structuredContent"]["status"] == "pending"
        foreign = await status(stranger, request.pk)
        unknown = await status(stranger, "0" * 32)
        assert foreign["isError"] is unknown["isError"] is True
        assert {**foreign, "_meta": 0} == {**unknown, "_meta": 0}
        await case.approve()
        assert "has not run yet" in (await status(host, request.pk))["structuredContent"]["message"]
        assert case.sent() == []  # asking how it stands runs nothing
        await outside(
            held_calls.cancel, request_id=request.pk, reason="changed my mind", actor="agent:local"
        )
        ended = await status(host, request.pk)
        assert ended["structuredContent"]["state"] == "cancelled"
        assert "changed my mind" in words(ended)


@pytest.mark.exhaustive
async def test_the_status_tool_gives_the_result_that_nobody_has_fetched(site, token, case):
    async with http_host(site, token) as host:
        calling = asyncio.create_task(host.call("echo__anyway", case.arguments, request_id=3))
        await host.until_told("Waiting")
        await case.approve()
        assert (await calling)["structuredContent"]["arguments"] == case.arguments
        said = await host.call("mcp_approval_status", {"id": (await case.request()).pk})
    assert said["structuredContent"]["status"] == "done"
    assert said["structuredContent"]["result"]["structuredContent"]["arguments"] == case.arguments


@pytest.mark.exhaustive
async def test_no_tool_of_a_server_takes_the_name_of_ours_and_agents_that_are_never_held_see_no_clutter(
    stage, site, token
):
    def rows() -> str:
        stage.endpoint(slug="plain", naming_style="plain")
        thief = stage.fake("multi", listed("mcp_approval_status"), slug="thief")
        PolicyRule.objects.create(
            name="of another agent", outcome="ask", agent=stage.token("other").agent
        )
        return stage.agent("thieves", thief)

    found = await outside(rows)
    await asyncio.to_thread(site.wait_known, found)
    async with http_host(site, found, endpoint="plain") as host:
        (name,) = [name for name in await host.tools() if name != "mcp_approval_status"]
        assert name.startswith("mcp_approval_status_")
