"""Servers in use that say more, or other things, than a host expects. None of it costs a call or the connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from mcpregistry.domain.errors import ProtocolError, TimedOut, ToolRefused
from mcpregistry.domain.servers.target import Target
from mcpregistry.downstream.transports import nameless
from tests.downstream.conftest import SENDING, Bench
from tests.fakes.http import Echo, Request, event, fake_http, head
from tests.fakes.targets import http_target, stdio_target

Make = Callable[..., Bench]
UNENDING = {"request_timeout": 10_000.0}  # whoever waits for the end of it hangs


def odd(mode: str = "", era: str = "legacy", **changes: Any) -> Target:
    return stdio_target("odd", env={"FAKE_ERA": era, "FAKE_ODD": mode}, **changes)


@pytest.mark.fault
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_call_that_the_server_cancels_ends_at_once_and_may_have_run(bench: Make, era: str):
    here = bench(odd(era=era, limits=UNENDING))
    with pytest.raises(ProtocolError, match="The server cancelled the request") as caught:
        await here.call("cancels")
    assert caught.value.sent
    assert (await here.call("notes"))["content"][0]["text"] == "noted"  # on the same connection
    assert [each.state for each in here.events if each.kind == "state"] == ["connecting", "connected"]


class Cancels(Echo):
    """Says in the stream of a call that it has cancelled it, and keeps the stream open."""

    async def answer(self, request: Request, message: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        if message["method"] != "tools/call":
            return await super().answer(request, message, writer)
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": message["id"]}}
        writer.write(head(200, content_type="text/event-stream") + event(note))
        await writer.drain()
        await asyncio.Event().wait()
        return False


@pytest.mark.fault
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_call_over_http_that_the_server_cancels_ends_at_once(bench: Make, era: str):
    async with fake_http(Cancels(era=era)) as server:
        with pytest.raises(ProtocolError, match="The server cancelled the request") as caught:
            await bench(http_target(server.url, limits=UNENDING)).call("echo")
    assert caught.value.sent


@pytest.mark.parametrize(
    ("tool", "said"), [("notes", "noted"), ("errors", "ran"), ("twice", "first"), ("progress", "ran"), ("logs", "ran")]
)
async def test_what_nobody_asked_for_costs_nothing(bench: Make, tool: str, said: str):
    here = bench(odd(limits=UNENDING))
    heard: list[Any] = []
    for _ in range(2):
        found = await here.call(tool, on_progress=lambda *numbers: heard.append(numbers))
        assert found["content"][0]["text"] == said
    assert heard == ([(2, None, None), (4, None, None)] * 2 if tool == "progress" else [])


async def test_an_error_without_an_id_reaches_the_only_call_that_is_out(bench: Make):
    here = bench(odd(limits=UNENDING))
    await here.pool.connect(1)
    with pytest.raises(ToolRefused, match="Method not found") as refused:
        await here.call("only_nameless")
    assert refused.value.rpc_code == -32601
    assert (await here.call("notes"))["content"][0]["text"] == "noted"


async def test_an_error_without_an_id_ends_none_of_several_calls(bench: Make):
    here = bench(odd())
    await here.pool.connect(1)
    calls = [here.call("only_nameless", timeout=SENDING) for _ in range(2)]
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, TimedOut)
        assert "Method not found" in outcome.message


async def test_an_error_for_a_notification_ends_no_call(bench: Make, monkeypatch: pytest.MonkeyPatch):
    """The server is told that a call is cancelled, and answers that with an error while the next call is out."""
    monkeypatch.setattr(nameless, "GRACE_SECONDS", 0.05)
    here = bench(odd("answers_notes", limits=UNENDING))
    await here.pool.connect(1)
    with pytest.raises(TimedOut):
        await here.call("silent", timeout=SENDING)
    assert (await here.call("slow", b'{"seconds": 0.3}'))["content"][0]["text"] == "ran"


async def test_a_ping_is_answered_while_a_call_waits(bench: Make):
    assert json.loads((await bench(odd(limits=UNENDING)).call("pings"))["content"][0]["text"]) == {}


@pytest.mark.parametrize("mode", ["null_lists", "answers_notes"])
async def test_lists_that_are_null_and_errors_for_notifications_cost_no_tool(bench: Make, mode: str):
    here = bench(odd(mode, limits=UNENDING))
    found = await here.pool.discover(1)
    assert len(found.tools) == 10
    assert (await here.call("notes"))["content"][0]["text"] == "noted"
