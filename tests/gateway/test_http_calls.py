"""Tool calls through ``/mcp/<endpoint>`` with the official client in both eras."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from mcp import MCPError
from mcp import types as t

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.services.servers import lifecycle
from tests.fakes.journals import cancelled
from tests.fakes.servers.multi import RESULT
from tests.fakes.stage import ACTOR, MODERN, Stage, Web, envelope, folder, fresh, listed, outside
from tests.waiting import HANG_LIMIT, until

pytestmark = [pytest.mark.e2e, pytest.mark.one_database]
ERAS = ["legacy", "2026-07-28"]
NOT_AN_OBJECT = {"type": "array", "items": {"type": "integer"}}


@pytest.fixture(scope="module")
def journal() -> Path:
    return folder() / "journal"


@pytest.fixture(scope="module", autouse=True)
def token(stage: Stage, site: Web, journal: Path) -> str:
    stage.endpoint(instructions="Ask for the time first.")
    echo = stage.fake("echo", listed("echo", "refuse", "pid"))
    multi = stage.fake("multi", listed("all"))
    slow = stage.fake("slow", listed("count"), FAKE_JOURNAL=str(journal))
    odd = stage.fake("shapes", [*listed("number"), *listed("array", outputSchema=NOT_AN_OBJECT)])
    crash = stage.fake("crash", listed("crash", "pid"))
    token = stage.agent("local", echo, multi, slow, odd, crash)
    site.wait_known(token)
    return token


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.exhaustive(one_in=2)
async def test_the_list_holds_the_granted_tools_sorted_and_the_endpoints_own_instructions(
    site, token, era
):
    async with site.client(token, "auto" if era != "legacy" else era) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == sorted(names)
        assert {"echo__echo", "multi__all", "slow__count"} <= set(names)
        assert client.instructions == "Ask for the time first."
        assert client.server_info.name == "slipsnisse"
        assert client.server_capabilities.tools.list_changed is True


async def test_a_call_reaches_the_server_and_its_whole_answer_comes_back(site, token, era):
    async with site.client(token, era) as client:
        result = await client.call_tool(
            "echo__echo", {"text": "grüß 漢字", "big": 12345678901234567890123}
        )
    assert result.structured_content["arguments"] == {
        "text": "grüß 漢字",
        "big": 12345678901234567890123,
    }
    assert json.loads(result.content[0].text)["name"] == "echo"
    assert result.meta["kept"] is True
    assert result.is_error is not True


async def test_every_kind_of_content_passes_through_as_it_came(site, token, era):
    """As JSON: what this SDK's models would make of it is not our business."""
    async with site.raw(token) as http:
        result = await rpc(http, site, era, "multi__all")
    sieved = era == "legacy"
    *known, unknown = RESULT["content"]  # the last is of a type that no version of the protocol has
    assert result["content"] == [*known, {"type": "text", "text": result["content"][-1]["text"]}]
    assert json.loads(result["content"][-1]["text"]) == unknown
    assert result["structuredContent"] == RESULT["structuredContent"]
    assert result["_meta"]["vendor/key"] == {"z": 1}
    assert sieved or result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "slipsnisse"


async def test_structured_content_that_is_no_object_is_wrapped_for_older_hosts_only(
    site, token, era
):
    async with site.client(token, era) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        number = await client.call_tool("shapes__number")
        array = await client.call_tool("shapes__array")
    if era == "legacy":
        assert tools["shapes__array"].output_schema is None
        assert (number.structured_content, array.structured_content) == (
            {"result": 7},
            {"result": [1, 2]},
        )
    else:
        assert tools["shapes__array"].output_schema == NOT_AN_OBJECT
        assert (number.structured_content, array.structured_content) == (7, [1, 2])


async def test_a_servers_refusal_and_a_crash_reach_the_model_as_text_and_as_structure(
    site, token, era
):
    async with site.client(token, era) as client:
        refused = await client.call_tool("echo__refuse")
        crashed = await client.call_tool("crash__crash")
    for result, code in ((refused, "TOOL_"), (crashed, "")):
        said = result.structured_content
        assert result.is_error is True
        assert said["error"].startswith(code)
        assert said["message"] in result.content[0].text
        assert said["call"] in result.content[0].text
    assert crashed.structured_content["state"] == InvocationState.UNKNOWN


async def test_progress_passes_through_in_order(site, token, era):
    heard: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async with site.client(token, era) as client:
        result = await client.call_tool(
            "slow__count", {"steps": 4, "pause": 0.05}, progress_callback=note
        )
        assert result.content[0].text == "4 steps"
        await until(lambda: len(heard) == 4)
    assert sorted(heard) == [(step, 4, f"step {step}") for step in (1, 2, 3, 4)]


async def test_a_cancelled_call_is_cancelled_at_the_server_and_recorded_as_unknown(
    site, stage, token, era, journal
):
    mark = fresh("cancel")
    started = asyncio.Event()

    async def note(*_: object) -> None:
        started.set()

    async with site.client(token, era) as client:
        arguments = {"steps": 1000, "pause": 0.05, "mark": mark}
        call = asyncio.create_task(
            client.call_tool("slow__count", arguments, progress_callback=note)
        )
        await asyncio.wait_for(started.wait(), HANG_LIMIT)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: cancelled(journal, mark))
        (record,) = await eventually_called(stage, mark)
        assert (record.state, record.error_code) == (InvocationState.UNKNOWN, "CANCELLED")
        assert (await client.call_tool("slow__count", {"steps": 1})).content[0].text == "1 steps"


async def test_an_unknown_tool_is_a_protocol_error(site, token, era):
    async with site.client(token, era) as client:
        with pytest.raises(MCPError) as refusal:
            await client.call_tool("echo__nothing")
    assert refusal.value.code == t.INVALID_PARAMS


@pytest.mark.exhaustive(one_in=2)
async def test_arguments_are_checked_before_anything_is_sent(site, stage, era):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    slug = fresh("strict")
    server = await outside(stage.fake, "echo", listed("echo", inputSchema=schema), slug=slug)
    token = await outside(stage.agent, fresh("agent"), server)
    await outside(site.wait_known, token)
    async with site.client(token, era) as client:
        result = await client.call_tool(f"{slug}__echo", {"n": "seven"})
    assert result.is_error
    assert result.structured_content["state"] == InvocationState.DENIED
    assert "n" in result.structured_content["message"]


@pytest.mark.exhaustive
async def test_equal_request_ids_of_two_agents_never_cross(site, stage, token):
    """Two hundred at once, all with the same JSON-RPC id, through one shared downstream pipe."""
    other = await outside(stage.agent, fresh("agent"), *await outside(servers, stage, "echo"))
    await outside(site.wait_known, other)
    async with site.raw(token) as ours, site.raw(other) as theirs:
        nonces = [fresh("nonce") for _ in range(200)]
        answers = await asyncio.gather(
            *(
                rpc(
                    ours if number % 2 else theirs,
                    site,
                    "2026-07-28",
                    "echo__echo",
                    {"nonce": nonce},
                )
                for number, nonce in enumerate(nonces)
            )
        )
    assert [answer["structuredContent"]["arguments"]["nonce"] for answer in answers] == nonces


async def test_equal_request_ids_in_two_legacy_sessions_never_cross(site, stage, token):
    other = await outside(stage.agent, fresh("agent"), *await outside(servers, stage, "echo"))
    await outside(site.wait_known, other)
    async with site.client(token, "legacy") as one, site.client(other, "legacy") as two:
        pairs = [(one, fresh("one")) for _ in range(100)] + [
            (two, fresh("two")) for _ in range(100)
        ]
        answers = await asyncio.gather(
            *(client.call_tool("echo__echo", {"nonce": n}) for client, n in pairs)
        )
    assert [a.structured_content["arguments"]["nonce"] for a in answers] == [
        nonce for _, nonce in pairs
    ]


async def test_nothing_of_the_hosts_meta_or_headers_reaches_the_server_but_trace_context(
    site, token
):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    meta = {"threadId": "secret-thread", "claudecode/toolUseId": "toolu_1", "traceparent": trace}
    async with site.raw(token) as http:
        result = await rpc(http, site, "2026-07-28", "echo__echo", {}, **meta)
    seen = result["structuredContent"]["meta"]
    assert "secret-thread" not in json.dumps(seen)
    assert "toolu_1" not in json.dumps(seen)
    assert token not in json.dumps(result)
    assert seen.get("traceparent") == trace


@pytest.mark.exhaustive
async def test_a_long_silence_is_kept_alive_by_pings_and_with_a_token_by_progress(site, stage):
    """Node drops a silent stream after 300 s, and some hosts a call without progress after 60 s."""

    def rows() -> tuple[str, str]:
        slug = fresh("patient")
        server = stage.fake("slow", listed("count"), slug=slug)
        server.request_timeout = 2 * HANG_LIMIT
        server = lifecycle.save_server(server=server, actor=ACTOR)
        lifecycle.confirm_launch(server=server, actor=ACTOR, launch_hash=server.launch_hash())
        return slug, stage.agent(slug, server)

    slug, token = await outside(rows)
    await outside(site.wait_known, token)
    arguments = {"steps": 1, "pause": 20}
    async with site.raw(token) as http:
        modern, legacy, reported = await asyncio.gather(
            stream(http, site, MODERN, f"{slug}__count", arguments),
            stream(http, site, "legacy", f"{slug}__count", arguments),
            stream(http, site, MODERN, f"{slug}__count", arguments, progressToken="p"),
        )
    for text in (modern, legacy, reported):
        assert "1 steps" in text
    assert ": ping" in modern
    assert ": ping" in legacy
    assert re.search(r"Still running after (1[5-9]|[2-9]\d) s\.", reported)


def servers(stage: Stage, *slugs: str) -> list:
    from mcpregistry.models import Server

    return list(Server.objects.filter(slug__in=slugs))


async def eventually_called(stage: Stage, mark: str) -> list:
    return await until(
        lambda: outside(stage.calls, arguments__contains=mark, finished_at__isnull=False)
    )


async def stream(http, site: Web, era: str, name: str, arguments: dict, **meta) -> str:
    """The whole body that answers one ``tools/call`` by hand, always with id 1."""
    params: dict = {"name": name, "arguments": arguments}
    headers = {"mcp-protocol-version": era if era != "legacy" else "2025-11-25"}
    if era == "legacy":
        opening = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "raw", "version": "1"},
        }
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": opening}
        answer = await http.post(site.url(), json=body)
        headers["mcp-session-id"] = answer.headers["mcp-session-id"]
    else:
        params["_meta"] = envelope(**meta)
        headers |= {"mcp-method": "tools/call", "mcp-name": name}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return (await http.post(site.url(), json=body, headers=headers)).text


async def rpc(http, site: Web, era: str, name: str, arguments: dict | None = None, **meta) -> dict:
    text = await stream(http, site, era, name, arguments or {}, **meta)
    if not text.startswith("{"):
        text = [line[6:] for line in text.splitlines() if line.startswith("data: {")][-1]
    message = json.loads(text)
    assert message["id"] == 1
    return message["result"]
