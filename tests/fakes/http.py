"""Fake HTTP MCP servers on 127.0.0.1:0: one that works in both eras, and a family that misbehaves.

``async with fake_http(Echo(...)) as server`` gives ``server.url``; ``server.requests`` is the
journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
B = TypeVar("B", bound="Behaviour")


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader

    @property
    def message(self) -> dict[str, Any]:
        return json.loads(self.body) if self.body else {}


@dataclass
class Behaviour:
    """What a server does. Override ``respond`` to write raw bytes; return False to close."""

    requests: list[Request] = field(default_factory=list)
    url: str = ""
    connections: int = 0

    async def respond(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        raise NotImplementedError

    def calls(self) -> list[dict[str, Any]]:
        messages = [request.message for request in self.requests if request.method == "POST"]
        return [message for message in messages if message.get("method") == "tools/call"]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while request := await read_request(reader):
                self.requests.append(request)
                if not await self.respond(request, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body, reader)


def head(status: int = 200, /, **headers: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status} X",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def json_reply(value: Any, status: int = 200, /, **headers: str) -> bytes:
    body = json.dumps(value).encode()
    return (
        head(status, content_type="application/json", content_length=str(len(body)), **headers)
        + body
    )


def event(value: Any) -> bytes:
    return b"event: message\r\ndata: " + json.dumps(value).encode() + b"\r\n\r\n"


@dataclass
class Echo(Behaviour):
    """Works: JSON or event-stream answers (``stream``), legacy with a session, or modern."""

    era: str = "both"
    stream: bool = False
    session: str = "session-1"
    tools: list[dict[str, Any]] = field(
        default_factory=lambda: [{"name": "echo", "inputSchema": {"type": "object"}}]
    )

    async def respond(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        if request.method != "POST":
            writer.write(head(405, content_length="0"))
            return True
        message = request.message
        if "id" not in message or "method" not in message:
            writer.write(head(202, content_length="0"))
            return True
        modern = request.headers.get("mcp-protocol-version") == MODERN
        if (
            not modern
            and message["method"] != "initialize"
            and request.headers.get("mcp-session-id") != self.session
        ):
            writer.write(
                json_reply(
                    {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "s"}}, 404
                )
            )
            return True
        return await self.answer(request, message, writer)

    async def answer(
        self, request: Request, message: dict[str, Any], writer: asyncio.StreamWriter
    ) -> bool:
        result = self.result(request, message)
        # as servers do that know no other ids
        known = message["id"] if type(message["id"]) is int else None
        reply = {"jsonrpc": "2.0", "id": known}
        reply |= (
            {"result": result}
            if result is not None
            else {"error": {"code": -32601, "message": "no method"}}
        )
        headers = {"mcp_session_id": self.session} if message["method"] == "initialize" else {}
        if not self.stream:
            writer.write(json_reply(reply, **headers))
            return True
        token = message.get("params", {}).get("_meta", {}).get("progressToken")
        note = {
            "jsonrpc": "2.0",
            "method": "notifications/progress",
            "params": {"progressToken": token, "progress": 1},
        }
        body = b": hello\r\n\r\n" + event({"jsonrpc": "2.0", "id": "q1", "method": "ping"})
        body += (event(note) if token else b"") + event(reply)
        writer.write(
            head(200, content_type="text/event-stream", content_length=str(len(body)), **headers)
            + body
        )
        return True

    def result(self, request: Request, message: dict[str, Any]) -> dict[str, Any] | None:
        method = message["method"]
        params = message.get("params", {})
        capabilities: dict[str, Any] = {"tools": {}}
        info = {"name": "http", "version": "1"}
        cached = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        if method == "initialize" and self.era != "modern":
            return {"protocolVersion": LEGACY, "capabilities": capabilities, "serverInfo": info}
        if method == "server/discover" and self.era != "legacy":
            return {"supportedVersions": [MODERN], "capabilities": capabilities} | cached
        if method == "tools/list":
            return {"tools": self.tools} | cached
        if method == "tools/call":
            body = {
                "arguments": params["arguments"],
                "headers": request.headers,
                "meta": params.get("_meta", {}),
            }
            return {"content": [{"type": "text", "text": json.dumps(body)}], "_meta": {"kept": 1}}
        return {} if method == "ping" else None


@dataclass
class Raw(Echo):
    """Works until ``tools/call``, which is answered with these bytes; then the connection is
    cut."""

    raw: bytes = b""
    pause: float = 0.0

    async def answer(
        self, request: Request, message: dict[str, Any], writer: asyncio.StreamWriter
    ) -> bool:
        if message["method"] != "tools/call":
            return await super().answer(request, message, writer)
        writer.write(self.raw)
        await writer.drain()
        await asyncio.sleep(self.pause)
        return False


@dataclass
class Always(Behaviour):
    """Answers every request with the same bytes."""

    raw: bytes = b""

    async def respond(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        writer.write(self.raw)
        await writer.drain()
        return False


@dataclass
class Hang(Echo):
    """Takes ``tools/call`` (or everything) and never answers; notes when the caller goes away."""

    everything: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def respond(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        if self.everything or request.message.get("method") == "tools/call":
            while not request.reader.at_eof():
                await asyncio.sleep(0.01)
            self.gone.set()
            return False
        return await super().respond(request, writer)


def gzip_bomb(size: int) -> bytes:
    body = gzip.compress(
        b'{"jsonrpc":"2.0","id":1000001,"result":{"content":[{"type":"text","text":"' + b"x" * size,
        9,
    )
    kind = {
        "content_type": "application/json",
        "content_encoding": "gzip",
        "content_length": str(len(body)),
    }
    return head(200, **kind) + body


@contextlib.asynccontextmanager
async def fake_http(behaviour: B) -> AsyncIterator[B]:
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(behaviour.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    behaviour.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    try:
        yield behaviour
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
