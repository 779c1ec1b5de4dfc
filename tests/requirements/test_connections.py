"""What passes between us and a server from the first message on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.downstream.conftest import Bench
from tests.downstream.test_wires import Sse, sse_target
from tests.fakes.http import fake_http
from tests.fakes.targets import stdio_target

Make = Callable[..., Bench]


async def heard(make: Make, journal: Path, protocol: str) -> list[dict]:
    here = make(stdio_target("echo", protocol=protocol, env={"FAKE_JOURNAL": str(journal)}))
    await here.pool.connect(1)
    return [json.loads(line) for line in journal.read_text().splitlines()]


async def test_a_legacy_server_is_greeted_in_order_by_name_and_with_no_client_capability(
    bench: Make, tmp_path: Path
):
    messages = await heard(bench, tmp_path / "journal", "legacy")
    assert [message["method"] for message in messages[:3]] == [
        "initialize",
        "notifications/initialized",
        "tools/list",
    ]
    opening = messages[0]["params"]
    assert opening["protocolVersion"] == "2025-11-25"
    assert opening["clientInfo"]["name"] == "slipsnisse"
    assert opening["clientInfo"]["version"]
    assert opening["capabilities"] == {}


async def test_a_modern_server_is_told_name_and_version_with_every_request(
    bench: Make, tmp_path: Path
):
    messages = await heard(bench, tmp_path / "journal", "modern")
    methods = [message["method"] for message in messages]
    assert "initialize" not in methods
    assert {"server/discover", "tools/list"} <= set(methods)
    for message in messages:
        meta = message["params"]["_meta"]
        assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "slipsnisse"
        assert meta["io.modelcontextprotocol/clientCapabilities"] == {}


async def test_a_request_timeout_of_zero_means_none(bench: Make):
    here = bench(stdio_target("slow", limits={"request_timeout": 0.0}))
    assert (await here.call("count", b'{"steps":5}'))["content"][0]["text"] == "5 steps"


async def test_disconnecting_a_server_that_is_not_connected_changes_nothing(bench: Make):
    here = bench(stdio_target("echo"))
    await here.pool.disconnect(1)
    await here.call("echo")
    await here.pool.disconnect(1)
    await here.pool.disconnect(1)
    assert await here.call("echo")


async def test_headers_go_to_an_sse_server_too(bench: Make):
    async with fake_http(Sse()) as server:
        here = bench(sse_target(server.url, headers={"Authorization": "Bearer t0ken"}))
        answer = json.loads((await here.call("echo"))["content"][0]["text"])
        assert answer["headers"]["authorization"] == "Bearer t0ken"
        await here.pool.close()


@pytest.mark.parametrize("protocol", ["legacy", "modern"])
async def test_nothing_is_started_before_the_first_call(bench: Make, tmp_path: Path, protocol: str):
    journal = tmp_path / "journal"
    here = bench(stdio_target("echo", protocol=protocol, env={"FAKE_JOURNAL": str(journal)}))
    assert not here.pool.list_states()
    assert not journal.exists()
    await here.call("echo")
    assert here.pool.list_states()[1].state == "connected"
