"""What a server says in an HTTP error reaches the caller, and a session that it has forgotten is
opened again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from mcpregistry.domain.errors import (
    AuthFailed,
    ConnectionFailed,
    DownstreamError,
    ProtocolError,
    ToolRefused,
)
from mcpregistry.downstream.transports.messages import read_reply
from tests.downstream.conftest import Bench
from tests.fakes.http import Echo, Request, fake_http, head
from tests.fakes.targets import http_target

Make = Callable[..., Bench]
RPC = {
    "jsonrpc": "2.0",
    "error": {
        "code": -32603,
        "message": "Blueprint not found: collections/articles, key hush-hush",
    },
}


class Errors(Echo):
    """Answers calls with an HTTP error."""

    status = 500
    body: bytes = b""
    kind = "application/json"
    more: dict[str, str] = {}

    async def answer(
        self, request: Request, message: dict[str, Any], writer: asyncio.StreamWriter
    ) -> bool:
        if message["method"] != "tools/call":
            return await super().answer(request, message, writer)
        body = self.body.replace(b"ID", json.dumps(message["id"]).encode())
        size = str(len(body))
        writer.write(
            head(self.status, content_type=self.kind, content_length=size, **self.more) + body
        )
        return True


async def refused(
    bench: Make, status: int, body: Any, kind: str = "application/json", **more: str
) -> DownstreamError:
    server = Errors()
    server.status = status
    server.kind = kind
    server.more = more
    server.body = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with fake_http(server):
        here = bench(http_target(server.url, secrets=frozenset({"hush-hush"})))
        with pytest.raises(DownstreamError) as caught:
            await here.call("echo")
        assert len(server.calls()) == 1
        await here.pool.close()
    return caught.value


@pytest.mark.fault
@pytest.mark.parametrize("status", [200, 400, 403, 404, 409, 422, 429, 500, 503])
@pytest.mark.parametrize("named", [{"id": None}, {}], ids=["id null", "no id"])
async def test_the_words_of_an_error_reach_the_caller_whatever_its_status_is(
    bench: Make, status: int, named: Any
):
    error = await refused(bench, status, RPC | named)
    assert isinstance(error, ToolRefused)
    assert "Blueprint not found: collections/articles" in error.message
    assert "hush-hush" not in str(error)


@pytest.mark.fault
@pytest.mark.parametrize(
    ("status", "body", "kind", "words", "made"),
    [
        (
            500,
            {"message": "disk is full hush-hush"},
            "application/json",
            "disk is full",
            ConnectionFailed,
        ),
        (502, b"upstream timed out", "text/plain", "upstream timed out", ConnectionFailed),
        (
            403,
            {"error": "insufficient_scope", "error_description": "scope repo:write is missing"},
            "application/json",
            "repo:write",
            AuthFailed,
        ),
        (
            401,
            {"error": {"message": "token expired"}},
            "application/json",
            "token expired",
            AuthFailed,
        ),
        (
            409,
            {"detail": "someone else edits it"},
            "application/json",
            "someone else edits it",
            ConnectionFailed,
        ),
        (500, b"<html><h1>Oops</h1></html>", "text/html", "HTTP 500", ConnectionFailed),
        (500, b"z" * 100_000, "text/plain", "zzz", ConnectionFailed),
        (500, b"", "application/json", "HTTP 500", ConnectionFailed),
        (429, b"", "application/json", "too many requests (HTTP 429).", ToolRefused),
    ],
)
async def test_other_bodies_of_errors_are_told_bounded_and_without_secrets(
    bench: Make, status: int, body: Any, kind: str, words: str, made: type[DownstreamError]
):
    error = await refused(bench, status, body, kind)
    assert isinstance(error, made)
    assert words in error.message
    assert "hush-hush" not in error.message
    assert "<html>" not in error.message
    assert len(error.message) < 500


@pytest.mark.fault
async def test_a_pause_that_the_server_asks_for_is_told_and_kept(bench: Make):
    server = Errors()
    server.status = 429
    server.more = {"retry_after": "30"}
    server.body = b'{"message":"quota used up until 10:00"}'
    async with fake_http(server):
        here = bench(http_target(server.url))
        with pytest.raises(ToolRefused, match="quota used up until 10:00") as caught:
            await here.call("echo")
        assert "30 s" in caught.value.remedy
        with pytest.raises(ConnectionFailed, match="asked this site to wait") as kept:
            await here.call("echo")
        assert not kept.value.sent
        assert len(server.calls()) == 1
        await here.pool.close()


@pytest.mark.parametrize(
    ("code", "rpc_code", "words"),
    [
        ("ENOENT", -32603, "gone (ENOENT)"),
        (-32000.0, -32000, "gone"),
        (None, -32603, "gone"),
        (2**70, -32603, "gone"),
    ],
)
def test_an_error_without_a_whole_number_as_its_code_is_read(code: Any, rpc_code: int, words: str):
    with pytest.raises(ToolRefused, match=words.replace("(", r"\(").replace(")", r"\)")) as caught:
        read_reply({"error": {"code": code, "message": "gone"}})
    assert caught.value.rpc_code == rpc_code


@pytest.mark.parametrize("result", [None, [], "text", 5])
def test_an_answer_that_cannot_be_read_says_that_the_request_ran(result: Any):
    with pytest.raises(ProtocolError, match="executed the request, but its answer") as caught:
        read_reply({"result": result})
    assert caught.value.sent


class Forgets(Echo):
    """Has a new session after each call that it has answered."""

    async def answer(
        self, request: Request, message: dict[str, Any], writer: asyncio.StreamWriter
    ) -> bool:
        done = await super().answer(request, message, writer)
        if message["method"] == "tools/call":
            self.session = f"session-{len(self.requests)}"
        return done


@pytest.mark.fault
@pytest.mark.parametrize("connect", ["lazy", "eager"])
async def test_a_call_that_meets_a_forgotten_session_runs_in_a_new_one(bench: Make, connect: str):
    async with fake_http(Forgets(era="legacy")) as server:
        here = bench(http_target(server.url, connect=connect))
        for _ in range(4):
            assert (await here.call("echo"))["content"]
        await here.pool.close()


@pytest.mark.fault
async def test_a_second_forgotten_session_in_a_row_costs_no_call(bench: Make):
    server = Echo(era="legacy")
    async with fake_http(server):
        here = bench(http_target(server.url))
        for session in ("session-2", "session-3"):
            await here.pool.connect(1)
            server.session = session
            if session == "session-2":
                with pytest.raises(ConnectionFailed):
                    await here.pool.ping(1)
        assert (await here.call("echo"))["content"]
        await here.pool.close()


class Never(Echo):
    """Knows no session for a call, ever."""

    async def answer(
        self, request: Request, message: dict[str, Any], writer: asyncio.StreamWriter
    ) -> bool:
        if message["method"] != "tools/call":
            return await super().answer(request, message, writer)
        writer.write(head(404, content_length="0"))
        return True


@pytest.mark.fault
async def test_a_session_is_opened_again_once_for_a_call(bench: Make):
    async with fake_http(Never(era="legacy")) as server:
        here = bench(http_target(server.url))
        with pytest.raises(ConnectionFailed, match="no longer knows this session") as caught:
            await here.call("echo")
        assert not caught.value.sent
        assert len(server.calls()) == 2
        await here.pool.close()


@pytest.mark.fault
async def test_a_pause_that_the_server_asks_for_in_the_handshake_is_kept(bench: Make):
    class Busy(Errors):
        async def answer(
            self, request: Request, message: dict[str, Any], writer: asyncio.StreamWriter
        ) -> bool:
            writer.write(head(429, content_length="0", retry_after="30"))
            return True

    async with fake_http(Busy()) as server:
        here = bench(http_target(server.url))
        with pytest.raises(DownstreamError, match="too many requests") as caught:
            await here.call("echo")
        assert "30 s" in caught.value.remedy
        asked = len(server.requests)
        with pytest.raises(ConnectionFailed, match="The server is down"):
            await here.call("echo")
        assert len(server.requests) == asked
        assert here.pool.list_states()[1].retry_in > 20
        await here.pool.close()
