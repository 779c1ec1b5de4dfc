"""Servers in use that say more, or other things, than a host expects. None of it costs a call or
the connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from mcpregistry.domain.calls.forwarding import HostUnansweredError
from mcpregistry.domain.errors import ProtocolError, TimedOut, ToolRefused
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.downstream.transports import nameless
from tests.downstream.conftest import SENDING, Bench
from tests.fakes.http import Echo, Request, event, fake_http, head
from tests.fakes.targets import http_target, stdio_target
from tests.waiting import HANG_LIMIT

Make = Callable[..., Bench]
UNENDING = {"request_timeout": 10_000.0}  # whoever waits for the end of it hangs


def odd(mode: str = "", era: str = "legacy", **changes: Any) -> ServerTarget:
    return stdio_target("odd", env={"FAKE_ERA": era, "FAKE_ODD": mode}, **changes)


@pytest.mark.fault
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_call_that_the_server_cancels_ends_at_once_and_may_have_run(bench: Make, era: str):
    here = bench(odd(era=era, limits=UNENDING))
    with pytest.raises(ProtocolError, match="The server cancelled the request") as caught:
        await here.call("cancels")
    assert caught.value.sent
    assert (await here.call("notes"))["content"][0]["text"] == "noted"  # on the same connection
    assert [each.state for each in here.events if each.kind == "state"] == [
        "connecting",
        "connected",
    ]


class Cancels(Echo):
    """Says in the stream of a call that it has cancelled it, and keeps the stream open."""

    async def answer(
        self, request: Request, message: dict[str, Any], writer: asyncio.StreamWriter
    ) -> bool:
        if message["method"] != "tools/call":
            return await super().answer(request, message, writer)
        note = {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": message["id"]},
        }
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
    ("tool", "said"),
    [
        ("notes", "noted"),
        ("errors", "ran"),
        ("twice", "first"),
        ("progress", "ran"),
        ("logs", "ran"),
    ],
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


@pytest.mark.exhaustive
async def test_an_error_without_an_id_ends_none_of_several_calls(bench: Make):
    here = bench(odd())
    await here.pool.connect(1)
    calls = [here.call("only_nameless", timeout=SENDING) for _ in range(2)]
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, TimedOut)
        assert "Method not found" in outcome.message


@pytest.mark.parametrize("answered", [False, True])
async def test_an_error_that_may_be_for_a_notification_ends_no_call(
    monkeypatch: pytest.MonkeyPatch, answered: bool
):
    """It is, unless the server has answered a request that was sent after the notification."""
    monkeypatch.setattr(nameless, "GRACE_SECONDS", 0.0)
    errors = nameless.NamelessErrors()
    waiting = SimpleNamespace(future=asyncio.Future(), nameless="", number=0)
    errors.count_other()
    number = errors.count_request()
    if answered:
        errors.note_answer(number)
    message = {"error": {"code": 1, "message": "not  known"}}
    errors.receive(message, [waiting])
    assert waiting.nameless == "not known"
    await asyncio.sleep(0.05)
    assert waiting.future.done() is answered


async def test_a_burst_of_changed_resources_ends_no_call(bench: Make):
    here = bench(odd(limits=UNENDING))
    assert (await here.call("updates"))["content"][0]["text"] == "ran"
    assert [each.state for each in here.events if each.kind == "state"] == [
        "connecting",
        "connected",
    ]


class Tells(Echo):
    """Tells of a changed resource, and of a page that is done with, in the stream of a call."""

    async def answer(
        self, request: Request, message: dict[str, Any], writer: asyncio.StreamWriter
    ) -> bool:
        if message["method"] == "resources/subscribe":
            writer.write(
                head(200, content_type="application/json")
                + b'{"jsonrpc":"2.0","id":%d,"result":{}}' % message["id"]
            )
            return False
        if message["method"] != "tools/call":
            return await super().answer(request, message, writer)
        writer.write(head(200, content_type="text/event-stream"))
        for method, params in (
            ("resources/updated", {"uri": "docs://a"}),
            ("elicitation/complete", {"elicitationId": "e1"}),
        ):
            writer.write(
                event({"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params})
            )
        writer.write(
            event({"jsonrpc": "2.0", "id": message["id"], "result": self.result(request, message)})
        )
        return False


class Channel:
    """A host, as far as it hears of pages."""

    def __init__(self) -> None:
        self.done: list[str] = []

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        raise HostUnansweredError("nobody")

    def log(self, server: str, line: Mapping[str, Any]) -> None:
        raise AssertionError

    def complete(self, elicitation_id: str) -> None:
        self.done.append(elicitation_id)


async def test_what_an_older_http_server_tells_in_a_calls_own_stream_is_heard(bench: Make):
    changed = asyncio.Event()
    channel = Channel()
    async with fake_http(Tells(era="legacy")) as server:
        here = bench(http_target(server.url, limits=UNENDING))
        await here.pool.watches.add(1, "docs://a", changed.set, patience=HANG_LIMIT)
        connection = here.pool._slots[1].connection
        assert connection is not None
        connection._questions.completions.expect(["e1"], "a/1", channel)
        await here.call("echo")
        await asyncio.wait_for(changed.wait(), HANG_LIMIT)
        assert channel.done == ["e1"]
        await here.pool.close()


async def test_a_ping_is_answered_while_a_call_waits(bench: Make):
    assert json.loads((await bench(odd(limits=UNENDING)).call("pings"))["content"][0]["text"]) == {}


@pytest.mark.parametrize("mode", ["null_lists", "answers_notes"])
async def test_lists_that_are_null_and_errors_for_notifications_cost_no_tool(
    bench: Make, mode: str
):
    here = bench(odd(mode, limits=UNENDING))
    found = await here.pool.discover(1)
    assert len(found.tools) == 9
    assert (await here.call("notes"))["content"][0]["text"] == "noted"
