"""What a call carries there and back, on every transport and in both eras."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mcpregistry.domain.errors import ConnectionFailed, ProtocolError, ToolRefused
from tests.downstream.conftest import Bench
from tests.fakes.http import Echo, fake_http
from tests.fakes.sdk import sdk_server
from tests.fakes.servers import multi
from tests.fakes.targets import http_target, stdio_target

Make = Callable[..., Bench]
BIN = Path(sys.executable).parent


@pytest.mark.parametrize("protocol", ["auto", "legacy", "modern"])
async def test_arguments_and_meta_arrive_exactly_and_the_result_comes_back_untouched(
    bench: Make, protocol: str
):
    arguments = b'{"z":1,"a":{"\\u0000":"\xc3\xa9"},"n":12345678901234567890123}'
    here = bench(stdio_target("echo", protocol=protocol))
    result = await here.call("echo", arguments, meta={"vendor": 1, "progressToken": "mine"})
    heard = result["structuredContent"]
    assert heard["arguments"] == json.loads(arguments)
    assert heard["meta"]["vendor"] == 1
    assert "progressToken" not in heard["meta"]
    assert result["_meta"] == {"kept": True}
    assert result["unknownKey"] == [1]


async def test_every_kind_of_content_passes_untouched_and_one_of_no_version_as_text(bench: Make):
    *known, unknown = multi.RESULT["content"]
    found = await bench(stdio_target("multi")).call("all")
    assert found | {"content": found["content"][:-1]} == multi.RESULT | {"content": known}
    assert json.loads(found["content"][-1]["text"]) == unknown


async def test_a_json_rpc_error_keeps_its_code_and_data(bench: Make):
    with pytest.raises(ToolRefused) as caught:
        await bench(stdio_target("echo")).call("refuse")
    assert (caught.value.rpc_code, caught.value.data, caught.value.sent) == (
        -32602,
        {"hint": "try echo"},
        True,
    )


@pytest.mark.parametrize(
    "arguments", [b"[]", b"{", b'{"a":NaN}', b'{} ,"x":1', b"", b'{"a":"\\ud800"}']
)
async def test_arguments_that_are_no_json_object_are_never_sent(bench: Make, arguments: bytes):
    here = bench(stdio_target("echo"))
    with pytest.raises(ProtocolError) as caught:
        await here.call("echo", arguments)
    assert not caught.value.sent
    assert not here.events


async def test_pretty_printed_arguments_are_sent_as_one_line(bench: Make):
    result = await bench(stdio_target("echo")).call("echo", b'{\n "a": "x\\ny"\r\n}')
    assert result["structuredContent"]["arguments"] == {"a": "x\ny"}


@pytest.mark.parametrize(
    ("tool", "text"), [("old", '{"x":1}'), ("bare", '{"answer":42}'), ("structured", '{"y":2}')]
)
async def test_an_early_server_is_understood(bench: Make, tool: str, text: str):
    here = bench(stdio_target("legacy"))
    discovery = await here.pool.discover(1)
    assert discovery.era == "legacy"
    assert [definition["inputSchema"]["type"] for definition in discovery.tools] == ["object"] * 3
    assert "x" in discovery.tools[0]["inputSchema"]["properties"]
    assert "parameters" not in discovery.tools[0]
    assert (await here.call(tool))["content"] == [{"type": "text", "text": text}]


@pytest.mark.exhaustive
async def test_the_real_time_server_answers(bench: Make):
    here = bench(stdio_target("time", argv=(str(BIN / "mcp-server-time"),)))
    discovery = await here.pool.discover(1)
    assert {"get_current_time", "convert_time"} <= {tool["name"] for tool in discovery.tools}
    result = await here.call("get_current_time", b'{"timezone":"Europe/Berlin"}')
    assert "Berlin" in result["content"][0]["text"]


async def test_the_real_git_server_answers(bench: Make, tmp_path: Path):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "new.txt").write_text("x")
    here = bench(stdio_target("git", argv=(str(BIN / "mcp-server-git"),)))
    result = await here.call("git_status", json.dumps({"repo_path": str(tmp_path)}).encode())
    assert "new.txt" in result["content"][0]["text"]


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize(
    ("kind", "protocol"),
    [("http", "auto"), ("http", "legacy"), ("http", "modern"), ("sse", "legacy")],
)
async def test_an_sdk_server_serves_calls_and_progress(bench: Make, kind: str, protocol: str):
    with sdk_server(kind) as url:
        here = bench(http_target(url, transport=kind, protocol=protocol))
        discovery = await here.pool.discover(1)
        assert discovery.era == ("legacy" if protocol == "legacy" else "modern")
        assert discovery.instructions == "made with the SDK"
        result = await here.call("add", b'{"a":2,"b":3}')
        assert result["structuredContent"] == {"result": 5}
        seen: list[tuple[float, float | None, str | None]] = []
        await here.call("count", b'{"steps":3}', on_progress=lambda *step: seen.append(step))
        assert seen == [(n, 3, f"step {n}") for n in (1, 2, 3)]
        await here.pool.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_direct_post_carries_what_was_negotiated(bench: Make, era: str, stream: bool):
    schema = {"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "Region"}}}
    async with fake_http(
        Echo(era=era, stream=stream, tools=[{"name": "échø", "inputSchema": schema}])
    ) as server:
        here = bench(http_target(server.url, headers={"Authorization": "Bearer t0ken"}))
        sent: list[int] = []
        result = await here.call("échø", b'{"r":"eu"}', on_sent=lambda: sent.append(1))
        headers = json.loads(result["content"][0]["text"])["headers"]
        assert headers["authorization"] == "Bearer t0ken"
        assert sent == [1]
        if era == "legacy":
            assert headers["mcp-session-id"] == "session-1"
            assert headers["mcp-protocol-version"] == "2025-11-25"
            assert "mcp-name" not in headers
        else:
            assert headers["mcp-method"] == "tools/call"
            assert headers["mcp-name"].startswith("=?base64?")
            assert headers["mcp-param-region"] == "eu"
        await here.pool.close()


async def test_a_forgotten_legacy_session_is_opened_anew_and_the_call_sent_once(bench: Make):
    async with fake_http(Echo(era="legacy")) as server:
        here = bench(http_target(server.url))
        await here.call("echo", b'{"n":1}')
        server.session = "session-2"
        result = await here.call("echo", b'{"n":2}')
        assert json.loads(result["content"][0]["text"])["headers"]["mcp-session-id"] == "session-2"
        await here.pool.close()


async def test_a_server_that_may_never_be_resent_to_is_not(bench: Make):
    async with fake_http(Echo(era="legacy")) as server:
        here = bench(http_target(server.url, resend="never"))
        await here.call("echo", b'{"n":1}')
        server.session = "session-2"
        with pytest.raises(ConnectionFailed) as caught:
            await here.call("echo", b'{"n":2}')
        assert not caught.value.sent
        await here.pool.close()
