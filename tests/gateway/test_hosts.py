"""Raw hosts that open, call and leave exactly as the real ones were seen to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.stage import MODERN, Stage, Web, envelope, folder, listed, outside, raw_host

pytestmark = [pytest.mark.e2e, pytest.mark.one_database]
CODEX = {"elicitation": {"form": {}, "url": {}}, "experimental": {"codex/auth-change": {}}}
CLAUDE = {"roots": {"listChanged": True}, "elicitation": {"form": {}, "url": {}}}
PREFIX = "io.modelcontextprotocol/"


@pytest.fixture(scope="module")
def token(stage: Stage, site: Web) -> str:
    stage.endpoint()
    token = stage.agent(
        "local", stage.fake("echo", listed("echo", annotations={"readOnlyHint": True}))
    )
    site.wait_known(token)
    return token


def claude(**more: Any) -> dict[str, Any]:
    info = {"name": "claude-code", "title": "Claude Code", "version": "2.1.329"}
    return envelope(**{f"{PREFIX}clientInfo": info, f"{PREFIX}clientCapabilities": CLAUDE}, **more)


def initialize(version: str, name: str, capabilities: dict[str, Any]) -> dict[str, Any]:
    params = {
        "protocolVersion": version,
        "capabilities": capabilities,
        "clientInfo": {"name": name, "version": "1"},
    }
    return {"id": 0, "method": "initialize", "params": params}


async def test_codex_opens_with_an_older_handshake_and_lists_at_once(stage, token):
    async with raw_host(stage.runmcp("--cwd", str(folder()))) as host:
        host.send(
            initialize("2025-06-18", "codex-mcp-client", CODEX),
            {"method": "notifications/initialized"},
            {"id": 1, "method": "tools/list", "params": {"_meta": {"progressToken": 1}}},
        )
        assert (await host.answer(0))["result"]["protocolVersion"] == "2025-06-18"
        (tool,) = (await host.answer(1))["result"]["tools"]
        # without it Codex asks, and in exec nobody answers
        assert tool["annotations"] == {"readOnlyHint": True}
        meta = {
            "callId": "call_77",
            "threadId": "t",
            "x-codex-turn-metadata": {"session_id": "s"},
            "progressToken": 2,
        }
        answer = await host.ask(
            2, "tools/call", name="echo__echo", arguments={"from": "codex"}, _meta=meta
        )
        assert "session_id" not in json.dumps(answer)
        assert await host.end() == 0
    (record,) = await outside(stage.calls, arguments__contains="codex")
    assert record.host_name.startswith("codex-mcp-client")
    assert record.request_id == "call_77"


async def test_claude_code_probes_listens_discovers_again_lists_and_calls(stage, token):
    async with raw_host(stage.runmcp("--cwd", str(folder())), forked=True) as host:
        host.send(
            {
                "id": "server-discover-probe-1",
                "method": "server/discover",
                "params": {"_meta": claude()},
            },
        )
        probe = await host.answer("server-discover-probe-1")
        assert probe["result"]["capabilities"]["tools"] == {"listChanged": True}
        wanted = {"notifications": {"toolsListChanged": True}, "_meta": claude()}
        host.send(
            {"id": "listen:0", "method": "subscriptions/listen", "params": wanted},
            {"id": 0, "method": "server/discover", "params": {"_meta": claude()}},
            {"id": 1, "method": "tools/list", "params": {"_meta": claude()}},
        )
        assert (await host.answer(0))["result"]["supportedVersions"] == [MODERN]
        assert [tool["name"] for tool in (await host.answer(1))["result"]["tools"]] == [
            "echo__echo"
        ]
        await host.until(lambda m: m.get("method") == "notifications/subscriptions/acknowledged")
        meta = claude(**{"claudecode/toolUseId": "toolu_9", "progressToken": 2})
        answer = await host.ask(
            2, "tools/call", name="echo__echo", arguments={"from": "claude"}, _meta=meta
        )
        assert "toolu_9" not in json.dumps(answer)
        assert await host.end() == 0
    (record,) = await outside(stage.calls, arguments__contains="claude")
    assert record.host_name.startswith("claude-code")
    assert record.request_id == "toolu_9"


@pytest.mark.exhaustive
async def test_copilot_cancels_its_listen_id_when_it_leaves(stage, token):
    async with raw_host(stage.runmcp("--cwd", str(folder())), forked=True) as host:
        await host.ask(1, "server/discover", _meta=claude())
        wanted = {"notifications": {"toolsListChanged": True}, "_meta": claude(progressToken="l")}
        host.send({"id": "listen", "method": "subscriptions/listen", "params": wanted})
        await host.until(lambda m: m.get("method") == "notifications/subscriptions/acknowledged")
        for _ in range(2):
            host.send({"method": "notifications/cancelled", "params": {"requestId": "listen"}})
        assert "tools" in (await host.ask(2, "tools/list", _meta=claude(progressToken=3)))["result"]
        assert await host.end() == 0
        assert all("error" not in message for message in host.messages)
