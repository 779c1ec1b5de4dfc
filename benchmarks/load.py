"""A small load generator: N keep-alive connections that POST as fast as answers come.

Runs as its own process so that it shares no event loop with what it measures; it speaks raw
HTTP/1.1 on purpose: a client library would cost more than the server. Prints one JSON object.

    python -m benchmarks.load URL TOKEN WHAT CONCURRENCY CALLS [modern|older]

WHAT is the name of a tool, ``prompt:NAME`` or ``resource:URI``. Of the older era (2025-11-25) each
connection is a host with a session of its own.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from urllib.parse import urlsplit

OLDER = "2025-11-25"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "load", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}, "url": {}}},
}
# As real hosts do: each sends a progress token with every call.
CALL_META = META | {"progressToken": 7, "claudecode/toolUseId": "toolu_01"}


def request(
    url: str, token: str, method: str, params: dict[str, object], request_id: int = 1
) -> bytes:
    """One whole HTTP request."""
    parts = urlsplit(url)
    message = {
        "jsonrpc": "2.0",
        "id": request_id,
        "method": method,
        "params": {"_meta": META} | params,
    }
    body = json.dumps(message).encode()
    named = params.get("name", params.get("uri"))
    name = f"Mcp-Name: {named}\r\n" if named else ""
    head = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n"
        f"{name}Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def older(url: str, token: str, message: dict[str, object], session: str = "") -> bytes:
    """One whole HTTP request of the older era; without ``session`` the one that opens it."""
    parts = urlsplit(url)
    body = json.dumps({"jsonrpc": "2.0"} | message).encode()
    named = f"Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: {OLDER}\r\n" if session else ""
    head = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\n{named}"
        f"Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: bytes) -> bytes:
    """Send one request, return the body of its answer (Content-Length or chunked)."""
    return (await _answer(reader, writer, raw))[1]


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: bytes
) -> tuple[dict[bytes, bytes], bytes]:
    writer.write(raw)
    head = await reader.readuntil(b"\r\n\r\n")
    fields = {k.lower(): v for k, _, v in (line.partition(b": ") for line in head.split(b"\r\n"))}
    if b"content-length" in fields:
        body = await reader.readexactly(int(fields[b"content-length"]))
    else:
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 202")):
        raise RuntimeError(f"{head[:60]!r} {body[:300]!r}")
    return fields, body


async def opened(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, url: str, token: str
) -> str:
    """Shake hands as a host of the older era; the session's id."""
    params = {
        "protocolVersion": OLDER,
        "capabilities": {},
        "clientInfo": {"name": "load", "version": "1"},
    }
    first = older(url, token, {"id": 0, "method": "initialize", "params": params})
    session = (await _answer(reader, writer, first))[0][b"mcp-session-id"].decode()
    await exchange(
        reader, writer, older(url, token, {"method": "notifications/initialized"}, session)
    )
    return session


def asked(what: str) -> tuple[str, dict[str, object]]:
    """The method and parameters of WHAT."""
    kind, _, name = what.partition(":")
    if kind == "prompt":
        return "prompts/get", {"name": name}
    if kind == "resource":
        return "resources/read", {"uri": name}
    return "tools/call", {"name": what, "arguments": {"text": "x" * 100}}


async def run(
    url: str, token: str, what: str, concurrency: int, calls: int, era: str = "modern"
) -> dict[str, float]:
    parts = urlsplit(url)
    method, params = asked(what)
    times: list[float] = []
    began: list[float] = []
    ended: list[float] = []
    left = iter(range(calls))

    async def one() -> None:
        reader, writer = await asyncio.open_connection(
            parts.hostname, parts.port, limit=16 * 1024 * 1024
        )
        if era == "modern":
            raw = request(url, token, method, params | {"_meta": CALL_META})
        else:
            session = await opened(reader, writer, url, token)
            told = params | {"_meta": {"progressToken": 7, "claudecode/toolUseId": "toolu_01"}}
            raw = older(url, token, {"id": 1, "method": method, "params": told}, session)
        await go.wait()
        began.append(time.perf_counter())
        for _ in left:
            started = time.perf_counter()
            body = await exchange(reader, writer, raw)
            times.append(time.perf_counter() - started)
            if b'"isError":true' in body or b'"error"' in body[:200]:
                raise RuntimeError(body[:300].decode())
        ended.append(time.perf_counter())
        if era != "modern":
            await exchange(
                reader, writer, older(url, token, {}, session).replace(b"POST", b"DELETE", 1)
            )
        writer.close()

    go = asyncio.Barrier(concurrency)
    async with asyncio.TaskGroup() as hosts:
        for _ in range(concurrency):
            hosts.create_task(one())
    times.sort()
    return {
        "calls_per_second": round(calls / (max(ended) - min(began)), 1),
        "p50_ms": round(statistics.median(times) * 1000, 3),
        "p99_ms": round(times[int(len(times) * 0.99)] * 1000, 3),
        "max_ms": round(times[-1] * 1000, 3),
    }


if __name__ == "__main__":
    url, token, what, concurrency, calls, *era = sys.argv[1:]
    print(json.dumps(asyncio.run(run(url, token, what, int(concurrency), int(calls), *era))))
