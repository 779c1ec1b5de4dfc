"""Reading a server's tools: one reading at a time, and its change stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from mcpregistry.domain.errors import DefinitionChanged, ProtocolError
from mcpregistry.downstream.pool import handshakes, offers
from tests.downstream.conftest import Bench
from tests.fakes.http import MODERN, Echo, Request, event, fake_http, head
from tests.fakes.targets import http_target
from tests.waiting import until

Make = Callable[..., Bench]


def tool(text: str) -> dict[str, Any]:
    return {"name": "echo", "description": text, "inputSchema": {"type": "object"}}


@dataclass
class Edited(Echo):
    """Its tool list changes with every reading, and ``slow`` readings (by number) take as long as
    ``release``."""

    era: str = "legacy"
    slow: tuple[int, ...] = ()
    broken: tuple[int, ...] = ()
    lists: int = 0
    release: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(
        self, request: Request, message: dict[str, Any], writer: asyncio.StreamWriter
    ) -> bool:
        if message["method"] == "tools/list":
            self.lists += 1
            number = self.lists
            self.tools = [tool(f"text {number}")]
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"tools": self.tools}}
            if number in self.broken:
                answer["result"] = {"tools": "none"}
            if number in self.slow:
                await self.release.wait()
            writer.write(head(200, content_type="text/event-stream") + event(answer))
            return False
        return await super().answer(request, message, writer)


def execution(support: str) -> dict[str, Any]:
    return {
        "name": support,
        "inputSchema": {"type": "object"},
        "execution": {"taskSupport": support},
    }


def mirrored(name: str, header: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": header}},
    }
    return {"name": name, "inputSchema": schema}


async def test_a_tool_that_runs_only_as_an_older_task_is_left_out_and_said(bench: Make):
    tools = [execution("required"), execution("optional"), execution("forbidden")]
    async with fake_http(Echo(era="legacy", tools=tools)) as server:
        here = bench(http_target(server.url))
        found = await here.pool.discover(1)
        assert [each["name"] for each in found.tools] == ["optional", "forbidden"]
        assert found.tools[0]["execution"] == {"taskSupport": "optional"}
        assert found.problems == (
            "Tool required runs only as a task of MCP 2025-11-25, which is not supported.",
        )
        await here.pool.close()


@pytest.mark.attack
@pytest.mark.parametrize("header", ["", "a b", "Ré", 7, None, ["a"], {"a": 1}, "X-A\r\nB: c"])
async def test_a_tool_with_an_invalid_header_is_not_used_over_modern_http(bench: Make, header: Any):
    tools = [mirrored("bad", header), mirrored("good", "Region")]
    async with fake_http(Echo(era="modern", tools=tools)) as server:
        here = bench(http_target(server.url))
        found = await here.pool.discover(1)
        assert [each["name"] for each in found.tools] == ["good"]
        (said,) = found.problems
        assert said.startswith("Tool bad has an invalid x-mcp-header: ")
        await here.pool.close()


async def test_an_older_server_may_say_what_it_likes_about_headers(bench: Make):
    async with fake_http(Echo(era="legacy", tools=[mirrored("bad", "a b")])) as server:
        here = bench(http_target(server.url))
        assert [each["name"] for each in (await here.pool.discover(1)).tools] == ["bad"]
        await here.pool.close()


def description(here: Bench) -> str:
    live = here.pool._slots[1].connection
    assert live is not None
    assert live.discovery is not None
    return str(live.discovery.tools[0]["description"])


async def test_an_older_list_never_replaces_a_newer_one(bench: Make):
    async with fake_http(Edited(slow=(2,))) as server:
        here = bench(http_target(server.url))
        await here.pool.connect(1)
        older = asyncio.create_task(here.pool.discover(1))
        await until(lambda: server.lists == 2)
        newer = asyncio.create_task(here.pool.discover(1))
        # time enough for the newer to be answered
        asyncio.get_running_loop().call_later(0.3, server.release.set)
        await asyncio.gather(older, newer)
        assert newer.result().tools[0]["description"] == "text 3"
        assert description(here) == "text 3"
        await here.pool.close()


async def test_many_calls_of_a_changed_tool_read_the_list_twice_at_most(bench: Make):
    async with fake_http(Edited(slow=(2,))) as server:
        here = bench(http_target(server.url))
        await here.pool.connect(1)
        calls = [asyncio.create_task(here.call("echo", definition="approved")) for _ in range(8)]
        await until(lambda: server.lists == 2)
        server.release.set()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(end) for end in ends} == {DefinitionChanged}
        assert server.lists == 3
        assert not server.calls()
        await here.pool.close()


@pytest.mark.fault
async def test_a_reading_that_fails_fails_for_all_who_share_it_and_the_next_one_heals(bench: Make):
    async with fake_http(Edited(slow=(2,), broken=(2, 3))) as server:
        here = bench(http_target(server.url))
        await here.pool.connect(1)
        readings = [asyncio.create_task(here.pool.discover(1)) for _ in range(3)]
        await until(lambda: server.lists == 2)
        server.release.set()
        ends = await asyncio.gather(*readings, return_exceptions=True)
        assert {type(end) for end in ends} == {ProtocolError}
        assert server.lists == 3
        assert (await here.pool.discover(1)).tools[0]["description"] == "text 4"
        await here.pool.close()


@pytest.mark.fault
async def test_a_reader_that_leaves_takes_nobody_along(bench: Make):
    async with fake_http(Edited(slow=(2,))) as server:
        here = bench(http_target(server.url))
        await here.pool.connect(1)
        first = asyncio.create_task(here.pool.discover(1))
        await until(lambda: server.lists == 2)
        second = asyncio.create_task(here.pool.discover(1))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).tools[0]["description"] == "text 3"
        await here.pool.close()


@dataclass
class Drops(Echo):
    """Modern; accepts the change stream and ends it at once."""

    era: str = "modern"
    listens: int = 0

    def result(self, request: Request, message: dict[str, Any]) -> dict[str, Any] | None:
        found = super().result(request, message)
        if message["method"] == "server/discover":
            assert found is not None
            found["capabilities"] = {"tools": {"listChanged": True}}
        return found

    async def answer(
        self, request: Request, message: dict[str, Any], writer: asyncio.StreamWriter
    ) -> bool:
        if message["method"] != "subscriptions/listen":
            return await super().answer(request, message, writer)
        self.listens += 1
        meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
        params = {"_meta": meta, "notifications": {"toolsListChanged": True}}
        ack = {
            "jsonrpc": "2.0",
            "method": "notifications/subscriptions/acknowledged",
            "params": params,
        }
        writer.write(head(200, content_type="text/event-stream") + event(ack))
        return False


@pytest.mark.fault
async def test_a_stream_that_is_dropped_at_once_is_asked_for_ever_more_rarely(
    bench: Make, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(offers, "LISTEN_RETRY_FIRST", 0.05)
    monkeypatch.setattr(offers, "LISTEN_RETRY_MOST", 3600.0)
    pauses: list[float] = []
    real = offers.anyio.sleep

    async def sleep(seconds: float) -> None:
        if seconds not in (offers.SETTLE_SECONDS, offers.REREAD_SECONDS):
            pauses.append(seconds)
        await real(min(seconds, 0.06))

    monkeypatch.setattr(offers.anyio, "sleep", sleep)
    async with fake_http(Drops()) as server:
        here = bench(http_target(server.url, protocol="modern"))
        await here.pool.connect(1)
        await until(lambda: server.listens >= 5)
        here.pool.list_states()
        assert [pause for pause in pauses if pause > 0.05][:3] == [0.1, 0.2, 0.4]
        await here.pool.close()


def test_the_modern_era_is_the_one_that_the_fakes_speak():
    assert handshakes.LATEST_MODERN_VERSION == MODERN
