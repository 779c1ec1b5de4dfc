"""Bytes of servers that are not quite those of the protocol: half characters, byte order marks,
heartbeats, batches of one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from mcpregistry.domain.errors import ProtocolError, ToolRefused
from mcpregistry.domain.text.almost_json import repair_text
from mcpregistry.downstream.transports.eventstream import EventReader
from mcpregistry.downstream.transports.messages import parse_message
from tests.downstream.conftest import Bench
from tests.fakes.http import Echo, Request, event, fake_http, head
from tests.fakes.targets import http_target, stdio_target
from tests.waiting import until

Make = Callable[..., Bench]
BOM = b"\xef\xbb\xbf"
HALF = "cut \N{REPLACEMENT CHARACTER}"

REPAIRED = {
    rb'{"a":"\ud83d"}': {"a": "\ufffd"},
    rb'{"a":"\ude00 \ud83d\ude00 \ud83dx"}': {"a": "\ufffd \U0001f600 \ufffdx"},
    rb'{"\ud83d":"\\ud83d"}': {"\ufffd": "\\ud83d"},
    b'{"a":"\xed\xa0\xbd","b":1.0}': {"a": "\ufffd\ufffd\ufffd", "b": 1.0},
    b'{"a":"\xb0\xa1","n":12345678901234567890123}': {
        "a": "\ufffd\ufffd",
        "n": 12345678901234567890123,
    },
}


@pytest.mark.parametrize("data", REPAIRED)
def test_characters_that_are_not_unicode_are_replaced_and_the_rest_stays(data: bytes):
    repaired = repair_text(data)
    assert repaired is not None
    assert json.loads(repaired) == REPAIRED[data]


@pytest.mark.attack
@pytest.mark.parametrize(
    "data", [b"{", b"NaN", b'{"a":Infinity}', b"", b"\xff\xfe", b'{"a":1}x', b'{"a":1e400}']
)
def test_what_is_not_json_stays_unreadable(data: bytes):
    assert repair_text(data) is None
    with pytest.raises(ProtocolError):
        parse_message(data)


def test_a_byte_order_mark_and_a_batch_of_one_are_read():
    message = {"jsonrpc": "2.0", "id": 1, "result": {}}
    text = json.dumps([message]).encode()
    assert parse_message(BOM + text) == message
    with pytest.raises(ProtocolError):
        parse_message(json.dumps([message, message]).encode())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"])
def test_streams_are_read_whatever_their_line_ends_are(ends: bytes, size: int):
    lines = [b"event: one", b"data: 1", b"data: 2", b"", b": word", b"id: 7", b"data: 3", b"", b""]
    stream = BOM + ends.join(lines)
    reader = EventReader(100)
    found = []
    for start in range(0, len(stream), size):
        found += reader.feed(stream[start : start + size])
    assert [(each.kind, each.data) for each in found] == [("one", b"1\n2"), ("message", b"3")]
    assert reader.last_id == "7"


HALVES = [
    "halves in a list",
    "halves in instructions",
    "halves in a result",
    "halves in an error",
    "other bytes",
]


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.fault
@pytest.mark.parametrize("where", HALVES)
async def test_half_a_character_costs_no_tool_and_no_answer(bench: Make, where: str):
    here = bench(stdio_target("opening", env={"FAKE_ERA": "legacy", "FAKE_OPENING": where}))
    found = await here.pool.discover(1)
    assert [each["name"] for each in found.tools] == ["pid"]
    if where == "halves in a list":
        assert found.tools[0]["description"] == HALF
    if where == "halves in instructions":
        assert found.instructions == HALF
    if where == "halves in an error":
        with pytest.raises(ToolRefused, match=HALF):
            await here.call("pid")
    if where in ("halves in a result", "other bytes"):
        text = (await here.call("pid"))["content"][0]["text"]
        assert "\N{REPLACEMENT CHARACTER}" in text
    await until(
        lambda: any(
            "not valid Unicode" in each.detail for each in here.events if each.kind == "log"
        )
    )


HEARTBEATS = {
    "json": b'data: {"type":"heartbeat"}\n\n',
    "text": b"data: ping\n\n",
    "done": b"data: [DONE]\n\n",
    "a list": b"data: [1]\n\n",
    "half": b'data: {"jsonrpc":\n\n',
    "empty": b"data:\n\n",
    "an event": b"event: ping\ndata: {}\n\n",
}


class Stream(Echo):
    """Answers in streams, with other events in front of each message and behind it."""

    before: bytes = b""

    async def answer(
        self, request: Request, message: dict[str, Any], writer: asyncio.StreamWriter
    ) -> bool:
        reply = {"jsonrpc": "2.0", "id": message["id"], "result": self.result(request, message)}
        if reply["result"] is None:
            reply = {
                "jsonrpc": "2.0",
                "id": message["id"],
                "error": {"code": -32601, "message": "none"},
            }
        body = self.before + event(reply) + self.before
        headers = {"mcp_session_id": self.session} if message["method"] == "initialize" else {}
        writer.write(
            head(200, content_type="text/event-stream", content_length=str(len(body)), **headers)
            + body
        )
        return True


@pytest.mark.fault
@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("beat", HEARTBEATS)
async def test_heartbeats_in_a_stream_cost_neither_the_handshake_nor_a_call(
    bench: Make, beat: str, era: str
):
    server = Stream(era=era)
    server.before = HEARTBEATS[beat]
    async with fake_http(server):
        assert (await bench(http_target(server.url)).call("echo"))["content"]


class Bytes(Echo):
    """Answers with whole JSON, written by ``write``, which a test chooses."""

    write: Callable[[bytes], bytes] = staticmethod(lambda body: body)
    kind = "application/json"

    async def answer(
        self, request: Request, message: dict[str, Any], writer: asyncio.StreamWriter
    ) -> bool:
        result = self.result(request, message)
        reply = (
            {"result": result}
            if result is not None
            else {"error": {"code": -32601, "message": "none"}}
        )
        body = self.write(json.dumps({"jsonrpc": "2.0", "id": message["id"]} | reply).encode())
        headers = {"mcp_session_id": self.session} if message["method"] == "initialize" else {}
        writer.write(
            head(200, content_type=self.kind, content_length=str(len(body)), **headers) + body
        )
        return True


WAYS: dict[str, Callable[[bytes], bytes]] = {
    "a byte order mark": lambda body: BOM + body,
    "a batch of one": lambda body: b"[" + body + b"]",
    "version 2024-10-07": lambda body: body.replace(b"2025-11-25", b"2024-10-07"),
    "half a character": lambda body: body.replace(b'"http"', rb'"h\ud83d"'),
}


@pytest.mark.fault
@pytest.mark.parametrize("way", WAYS)
async def test_odd_bodies_are_read_as_the_official_clients_read_them(bench: Make, way: str):
    server = Bytes(era="legacy")
    server.write = WAYS[way]
    async with fake_http(server):
        assert (await bench(http_target(server.url)).call("echo"))["content"]


@pytest.mark.fault
@pytest.mark.parametrize("ends", [b"\r", b"\r\n"])
async def test_a_stream_with_a_byte_order_mark_and_other_line_ends_is_read(
    bench: Make, ends: bytes
):
    server = Bytes(era="legacy")
    server.kind = "text/event-stream"
    server.write = lambda body: BOM + b"data: " + body + ends + ends
    async with fake_http(server):
        assert (await bench(http_target(server.url)).call("echo"))["content"]


async def test_the_oldest_version_of_the_protocol_is_taken_from_a_local_server(bench: Make):
    here = bench(stdio_target("opening", env={"FAKE_ERA": "legacy", "FAKE_OPENING": "oldest"}))
    assert (await here.pool.discover(1)).protocol_version == "2024-11-05"
