"""A host that asks and never reads the answers costs no more than a bounded amount of memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from mcpregistry.gateway.caller_identity import Caller
from mcpregistry.gateway.host_channels import OlderHostChannel
from mcpregistry.gateway.http import duplex_connections
from mcpregistry.models import Grant
from tests.fakes.stage import Stage, outside
from tests.gateway.doors import Corpus, Doors, doors
from tests.gateway.test_fast import rows
from tests.gateway.test_older import Stream
from tests.waiting import until

pytestmark = [pytest.mark.one_database, pytest.mark.attack]
HELLO = {
    "protocolVersion": "2024-11-05",
    "capabilities": {},
    "clientInfo": {"name": "x", "version": "1"},
}
SENT = 300
CHANGES = 50


@pytest.fixture
async def slug(stage: Stage) -> str:
    return await outside(rows, stage)


class Unread(Stream):
    """A stream whose host reads until ``reads`` is cleared, and no more until it is set."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self.reads = asyncio.Event()
        self.reads.set()
        super().__init__(*given, **more)

    async def _send(self, event: dict[str, Any]) -> None:
        await self.reads.wait()
        await super()._send(event)


def message(request_id: int, method: str = "tools/list", **params: Any) -> bytes:
    return json.dumps(
        {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
    ).encode()


async def open_sse(at: Doors, slug: str) -> tuple[Unread, Callable[[bytes], Any]]:
    at.endpoint = f"{slug}/sse"
    stream = Unread(at, "GET", Corpus("tools/list"))
    await until(lambda: "session_id=" in stream.body)
    query = f"session_id={stream.body.split('session_id=')[1].split(chr(13))[0]}"

    async def post(content: bytes) -> Stream:
        sent = Stream(at, "POST", Corpus("ping"), content, query=query)
        await asyncio.wait_for(sent.task, 30)
        return sent

    assert (await post(message(0, "initialize", **HELLO))).status == 202
    await until(lambda: "serverInfo" in stream.body)
    return stream, post


async def test_a_host_that_does_not_read_its_sse_stream_is_told_to_read(stage, slug, monkeypatch):
    monkeypatch.setattr(duplex_connections, "READ_SECONDS", 0.01)
    async with doors(slug, stage.tokens[slug]) as at:
        stream, post = await open_sse(at, slug)
        stream.reads.clear()
        sent = [await post(message(number)) for number in range(1, SENT)]
        taken = [each for each in sent if each.status == 202]
        assert 50 <= len(taken) <= 300
        assert {each.status for each in sent} == {202, 503}
        assert "does not read" in sent[-1].body
        stream.reads.set()
        await until(lambda: len(stream.messages) == len(taken) + 1)
        assert (await post(message(SENT))).status == 202
        await until(lambda: stream.messages[-1]["id"] == SENT)
        await stream.leave()


@pytest.mark.exhaustive
async def test_a_host_that_does_not_read_its_websocket_is_not_heard_any_more(stage, slug):
    """Its next frames wait in the network. A host that reads again gets every answer."""
    reads = asyncio.Event()
    taken = [0]
    said = list[dict[str, Any]]()
    frames = iter(
        [message(0, "initialize", **HELLO), *(message(number) for number in range(1, SENT))]
    )

    async def receive() -> dict[str, Any]:
        if not taken[0]:
            taken[0] = 1
            return {"type": "websocket.connect"}
        data = next(frames, None)
        if data is None:
            await asyncio.Event().wait()
            raise AssertionError
        taken[0] += 1
        return {"type": "websocket.receive", "text": data.decode()}

    async def send(event: dict[str, Any]) -> None:
        if event["type"] == "websocket.send":
            await reads.wait()
            said.append(json.loads(event["text"]))

    headers = [
        (b"host", b"testserver"),
        (b"authorization", f"Bearer {stage.tokens[slug]}".encode()),
    ]
    scope = {
        "type": "websocket",
        "path": f"/mcp/{slug}/ws",
        "headers": headers,
        "subprotocols": ["mcp"],
    }
    async with doors(slug, stage.tokens[slug]) as at:
        serving = asyncio.ensure_future(at.app(scope, receive, send))
        await until(lambda: taken[0] >= duplex_connections.MOST_UNREAD)
        await until(settled(lambda: taken[0]))
        assert taken[0] < 300
        reads.set()
        await until(lambda: len(said) == SENT)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def settled(look: Callable[[], int]) -> Callable[[], bool]:
    """Whether a number stays the same from one look to the next, ten times in a row."""
    seen: list[int] = []

    def is_settled() -> bool:
        seen.append(look())
        return len(seen) > 10 and len(set(seen[-10:])) == 1

    return is_settled


async def test_a_connection_with_too_many_unread_bytes_ends(stage, slug, monkeypatch):
    monkeypatch.setattr(duplex_connections, "FLOOD_BYTES", 2_000)
    async with doors(slug, stage.tokens[slug]) as at:
        stream, post = await open_sse(at, slug)
        stream.reads.clear()
        for number in range(1, 20):
            await post(message(number))
        await until(lambda: not at.app._connections._open)
        stream.reads.set()
        await asyncio.wait_for(stream.task, 30)


@pytest.mark.exhaustive
async def test_one_connection_has_a_bounded_number_of_requests_without_an_answer(
    stage, slug, monkeypatch, tmp_path
):
    monkeypatch.setattr(duplex_connections, "MOST_UNANSWERED", 3)
    async with doors(slug, stage.tokens[slug]) as at:
        stream, post = await open_sse(at, slug)
        for number in range(1, 6):
            arguments = {"until": str(tmp_path / "done")}
            assert (
                await post(
                    message(number, "tools/call", name=f"{slug}-s__count", arguments=arguments)
                )
            ).status == 202
        await until(lambda: len(stream.messages) == 3)
        assert ["not answered yet" in each["error"]["message"] for each in stream.messages[1:]] == [
            True,
            True,
        ]
        (tmp_path / "done").touch()
        await until(lambda: len(stream.messages) == 6)
        assert (await post(message(9))).status == 202
        await until(lambda: stream.messages[-1]["id"] == 9)
        await stream.leave()


@pytest.mark.exhaustive
async def test_a_session_whose_stream_is_not_read_keeps_little_and_delays_nobody(stage, slug):
    async with doors(slug, stage.tokens[slug]) as at:
        unread, read = [await at.opened() for _ in range(2)]
        stuck = Unread(at, "GET", Corpus("tools/list", session=unread))
        heard = Stream(at, "GET", Corpus("tools/list", session=read))
        await until(lambda: stuck.status == heard.status == 200)
        stuck.reads.clear()
        connection = at.app._manager._connections[unread]
        channel = OlderHostChannel(connection, at.app.gateway.levels, at.app.gateway.channels.relay)
        before = len(asyncio.all_tasks())
        for number in range(2_000):
            channel.complete(f"page-{number}")
            channel.log("server", {"level": "error", "logger": "", "data": "x" * 1_000})
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) - before < 300
        await outside(Grant.objects.filter(agent__slug=slug).delete)
        await until(lambda: "tools/list_changed" in heard.body)
        assert "list_changed" not in stuck.body
        stuck.reads.set()
        await until(lambda: "were left out" in stuck.body)
        await asyncio.gather(stuck.leave(), heard.leave())


async def test_host_that_reads_late_hears_of_a_changed_list_once(stage, slug):
    """Both on the stream of a session, whose buffers are full, and on a stream of
    subscriptions/listen."""
    async with doors(slug, stage.tokens[slug]) as at:
        unread, read = [await at.opened() for _ in range(2)]
        listen = Corpus("subscriptions/listen", notifications={"toolsListChanged": True})
        older = Unread(at, "GET", Corpus("ping", session=unread))
        modern = Unread(at, "POST", listen, listen.request())
        heard = Stream(at, "GET", Corpus("ping", session=read))
        await until(lambda: older.status == heard.status == 200 and "acknowledged" in modern.body)
        older.reads.clear()
        modern.reads.clear()
        connection = at.app._manager._connections[unread]
        channel = OlderHostChannel(connection, at.app.gateway.levels, None)
        for number in range(100):
            channel.complete(f"page-{number}")
        for changes in range(1, CHANGES + 1):
            at.app.gateway.changes.mark_outdated(Caller(slug, slug, "http"))
            await until(lambda seen=changes: count_changes(heard) == seen)
        assert count_changes(older) == count_changes(modern) == 0
        older.reads.set()
        modern.reads.set()
        await until(lambda: count_changes(older) and count_changes(modern))
        await until(settled(lambda: count_changes(older) + count_changes(modern)))
        assert count_changes(older) <= 2
        assert count_changes(modern) <= CHANGES // 2
        await asyncio.gather(older.leave(), modern.leave(), heard.leave())


def count_changes(stream: Stream) -> int:
    return stream.body.count("tools/list_changed")
