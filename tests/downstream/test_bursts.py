"""A server that sends very many messages at once harms no call on its connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification

from mcpregistry.downstream.pool.resource_subscriptions import Watched
from mcpregistry.downstream.transports import inbox
from mcpregistry.downstream.transports.inbox import Inbox, find_meaning
from tests.downstream.conftest import Bench
from tests.downstream.test_wires import Sse, sse_target
from tests.fakes.http import Echo, Request, event, fake_http, head
from tests.fakes.targets import http_target, stdio_target
from tests.waiting import HANG_LIMIT, until

Make = Callable[..., Bench]
# the SDK reads streams over HTTP itself, more slowly
COUNT = 20_000
HTTP_COUNT = 3_000
SORTS = ("same", "each", "changed", "unknown", "cancelled", "log", "questions")
URI = "docs://one"


def connections(here: Bench) -> int:
    """How many were opened to the server so far."""
    return [each.state for each in here.events if each.kind == "state"].count("connected")


@pytest.mark.exhaustive
@pytest.mark.attack
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_burst_over_stdio_harms_no_call(bench: Make, era: str):
    here = bench(stdio_target("hostile", env={"FAKE_ERA": era}))
    heard: list[str] = []
    watching = asyncio.ensure_future(
        here.pool.watches.add(1, URI, lambda: heard.append(URI), patience=HANG_LIMIT)
    )
    await here.call("big", b'{"size": 1}')
    other = asyncio.ensure_future(here.call("hang", timeout=None))
    sorts = [*SORTS, "listener"] if era == "modern" else SORTS
    for sort in sorts:
        arguments = json.dumps({"sort": sort, "count": COUNT}).encode()
        answer = await here.call("burst", arguments, timeout=HANG_LIMIT)
        assert answer["content"][0]["text"] == "after the burst"
        assert not other.done(), sort
    assert (await here.call("big", b'{"size": 1}', timeout=HANG_LIMIT))["content"]
    assert connections(here) == 1
    other.cancel()
    watching.cancel()
    await asyncio.gather(other, watching, return_exceptions=True)


@pytest.mark.exhaustive
@pytest.mark.attack
async def test_a_burst_over_sse_harms_no_call(bench: Make):
    async with fake_http(Sse()) as server:
        here = bench(sse_target(server.url))
        await here.call("echo")
        assert server.stream is not None
        for method in ("notifications/unknown", "notifications/resources/updated"):
            notes = [
                {"jsonrpc": "2.0", "method": method, "params": {"uri": f"docs://{n}"}}
                for n in range(COUNT)
            ]
            server.stream.write(b"".join(map(event, notes)))
            assert await here.call("echo", timeout=HANG_LIMIT)
        assert connections(here) == 1
        await here.pool.close()


@dataclass
class Speaking(Echo):
    """Keeps the stream on which it speaks without being asked: that of a GET, or of
    ``subscriptions/listen``."""

    stream_out: asyncio.StreamWriter | None = None
    listener: Any = None

    async def respond(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        message = request.message
        if request.method != "GET" and message.get("method") != "subscriptions/listen":
            return await super().respond(request, writer)
        writer.write(head(200, content_type="text/event-stream"))
        self.stream_out = writer
        self.listener = message.get("id")
        if self.listener:
            params = {"_meta": self.meta, "notifications": message["params"]["notifications"]}
            writer.write(
                event(
                    {
                        "jsonrpc": "2.0",
                        "method": "notifications/subscriptions/acknowledged",
                        "params": params,
                    }
                )
            )
        return True

    @property
    def meta(self) -> dict[str, Any]:
        return {inbox.SUBSCRIPTION_ID_META_KEY: self.listener} if self.listener else {}

    def result(self, request: Request, message: dict[str, Any]) -> dict[str, Any] | None:
        found = super().result(request, message)
        if found and "capabilities" in found:
            found["capabilities"] = {
                "tools": {"listChanged": True},
                "resources": {"subscribe": True},
            }
        return {} if message["method"] == "resources/subscribe" else found


@pytest.mark.exhaustive
@pytest.mark.attack
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_burst_over_http_harms_no_call_and_every_change_is_heard(bench: Make, era: str):
    heard: list[str] = []
    async with fake_http(Speaking(era=era)) as server:
        here = bench(http_target(server.url))
        await here.pool.watches.add(1, URI, lambda: heard.append(URI), patience=HANG_LIMIT)
        assert server.stream_out is not None
        for method in ("notifications/unknown", "notifications/resources/updated"):
            for uri in (f"docs://{method}/", URI):
                params = [{"uri": f"{uri}/{n}", "_meta": server.meta} for n in range(HTTP_COUNT)]
                notes = ({"jsonrpc": "2.0", "method": method, "params": each} for each in params)
                server.stream_out.write(b"".join(map(event, notes)))
                assert await here.call("echo", timeout=HANG_LIMIT)
        await until(lambda: heard)
        assert connections(here) == 1
        await here.pool.close()


def note(uri: str, **params: Any) -> dict[str, Any]:
    return {"method": "notifications/resources/updated", "params": {"uri": uri, **params}}


def item(message: dict[str, Any]) -> SessionMessage:
    return SessionMessage(JSONRPCNotification(jsonrpc="2.0", **message))


async def test_an_inbox_merges_what_means_the_same_and_keeps_its_bounds(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(inbox, "MOST_MESSAGES", 3)
    monkeypatch.setattr(inbox, "MOST_BYTES", 100)
    dropped: list[int] = []
    box = Inbox(dropped.append)
    for uri in ("a", "b", "a", "a", "b"):
        box.put(item(note(uri)), 10, find_meaning(note(uri)))
    box.put(item(note("c")), 90, find_meaning(note("c")))  # too many bytes
    box.put(item(note("d")), 10, find_meaning(note("d")))
    for uri in "efg":
        box.put(item(note(uri)), 10, find_meaning(note(uri)))  # too many messages
    box.put(item({"method": "answer"}), 500, keep=True)
    read = [await box.receive() for _ in range(4)]
    assert [each.message.params and each.message.params["uri"] for each in read] == [
        "a",
        "b",
        "d",
        None,
    ]  # type: ignore[union-attr]
    assert dropped == [4]
    box.put(item(note("a")), 10, find_meaning(note("a")))  # it was read: this is news
    box.end()
    assert [each async for each in box]
    with pytest.raises(anyio.EndOfStream):
        await box.receive()
    box.close()
    with pytest.raises(anyio.ClosedResourceError):
        await box.receive()


def test_what_means_something_else_is_not_merged():
    stream = {"_meta": {inbox.SUBSCRIPTION_ID_META_KEY: "listen-1"}}
    notes = [
        note("a"),
        note("b"),
        note("a", **stream),
        {"method": "notifications/cancelled", "params": {"requestId": 1}},
    ]
    assert len({find_meaning(each) for each in notes}) == 4
    assert find_meaning(note("a") | {"id": 7}) is None


async def test_changes_of_many_resources_are_told_once_each():
    watched = Watched()
    heard = list[str]()
    for uri in ("docs://one", "docs://tree/", "docs://other"):
        watched.add(uri, lambda uri=uri: heard.append(uri))  # type: ignore[misc]
    for n in range(4_000):
        watched.note(
            ("docs://one", f"docs://tree/{n}", f"docs://nowhere/{n}", "docs://ones")[n % 4]
        )
    await until(lambda: heard)
    assert sorted(heard) == ["docs://one", "docs://tree/"]
    heard.clear()
    for n in range(COUNT):  # too many to remember: everything may have changed
        watched.note(f"docs://nowhere/{n}")
    await until(lambda: heard)
    assert sorted(heard) == ["docs://one", "docs://other", "docs://tree/"]
