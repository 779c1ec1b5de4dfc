"""Several web processes: one connection for each agent or session, whichever process takes the
request."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import httpx2
import psutil
import pytest

from mcpregistry.calls.connection_placement import STATE_IS_NEW
from mcpregistry.models import Invocation, SessionOwner
from tests.fakes.hosts import http_host
from tests.fakes.stage import PLAIN, Stage, Web, fresh, listed, outside, web
from tests.gateway.test_sessions import rows
from tests.waiting import HANG_LIMIT

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]
CALLS = 24
# as if each process were on a machine of its own
SEVERAL = {"SLIPSNISSE_PEER_ADDRESS": "127.0.0.1"}


class Host:
    """A host of the older era that opens a connection for each request."""

    def __init__(self, site: Web, endpoint: str, token: str) -> None:
        self._url = site.url(endpoint)
        self._headers = {
            "authorization": f"Bearer {token}",
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            "connection": "close",
        }

    async def handshake(self) -> None:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"},
        }
        answer = await self._send({"id": 1, "method": "initialize", "params": params})
        self._headers |= {
            "mcp-session-id": answer.headers["mcp-session-id"],
            "mcp-protocol-version": "2025-11-25",
        }
        await self._send({"method": "notifications/initialized"})

    async def call(self, tool: str) -> list[str]:
        answer = await self._send(
            {"id": 2, "method": "tools/call", "params": {"name": tool, "arguments": {}}}
        )
        # a stream, if it took longer than a second
        answered = answer.text.rpartition("\ndata: ")[2]
        return [part["text"] for part in json.loads(answered)["result"]["content"]]

    async def _send(self, message: dict[str, Any]) -> httpx2.Response:
        async with httpx2.AsyncClient(headers=self._headers, timeout=HANG_LIMIT, **PLAIN) as client:
            return await client.post(self._url, json={"jsonrpc": "2.0"} | message)


def processes_of_calls(server: str) -> set[str]:
    calls = Invocation.objects.filter(server_slug__startswith=server)
    return {writer.rpartition(":")[0] for writer in calls.values_list("writer", flat=True)}


def owner_of(server: str) -> int:
    """The web process that has started this process of a server."""
    parents = [each.pid for each in psutil.Process(int(server)).parents()]
    owners = {
        int(process.rpartition(":")[2])
        for process in SessionOwner.objects.values_list("process", flat=True)
    }
    return next(pid for pid in parents if pid in owners)


@pytest.mark.parametrize("machines", [{}, SEVERAL], ids=["one", "several"])
async def test_a_session_has_one_connection_over_two_processes_and_survives_its_owner(
    stage: Stage, machines: dict[str, str]
) -> None:
    slug, _ = await outside(rows, stage)
    with web(stage.env | machines, processes=2) as site:
        host, other = (Host(site, slug, stage.tokens[slug]) for _ in range(2))
        for each in (host, other):
            await each.handshake()
        told = [await host.call(f"{slug}-session__pid") for _ in range(CALLS)]
        others = [await other.call(f"{slug}-session__pid") for _ in range(CALLS)]
        by_agent = [
            await each.call(f"{slug}-agent__pid") for each in (host, other) for _ in range(CALLS)
        ]
        assert len(await outside(processes_of_calls, slug)) == 2
        assert [len({pid for (pid,) in each}) for each in (told, others, by_agent)] == [1, 1, 1]
        assert told[0] != others[0]
        owner = await outside(owner_of, told[0][0])
        os.kill(owner, signal.SIGKILL)
        after = [await host.call(f"{slug}-session__pid") for _ in range(6)]
    assert after[0][0] == STATE_IS_NEW
    assert {each[-1] for each in after} == {after[0][1]} != {told[0][0]}
    assert [len(each) for each in after] == [2, 1, 1, 1, 1, 1]


def asker(stage: Stage) -> str:
    """An endpoint, an agent and a server of the older era that asks the person at the host."""
    slug = fresh("ask")
    stage.endpoint(slug)
    server = stage.fake("asker", listed("ask"), slug=slug, FAKE_ERA="legacy")
    stage.agent(slug, server)
    return slug


@pytest.mark.parametrize("machines", [{}, SEVERAL], ids=["one", "several"])
async def test_the_answer_to_a_question_finds_the_process_that_has_the_call(
    stage: Stage, machines: dict[str, str]
) -> None:
    slug = await outside(asker, stage)

    async def person(_: Any) -> dict[str, Any]:
        return {"action": "accept", "content": {"ok": True}}

    options: dict[str, Any] = {"abilities": {"elicitation": {"form": {}}}, "person": person}
    with web(stage.env | machines, processes=2) as site:
        async with http_host(site, stage.tokens[slug], slug, **options) as host:
            host._client.headers["connection"] = "close"
            told = [await host.call(f"{slug}__ask", {}) for _ in range(10)]
    assert len(host.asked) == 10
    assert all("accept" in each["content"][0]["text"] for each in told), told
    assert await outside(
        lambda: {*Invocation.objects.filter(server_slug=slug).values_list("state", flat=True)}
    ) == {"succeeded"}
    assert len(await outside(processes_of_calls, slug)) == 2
