"""A small load generator: N keep-alive connections that POST modern ``tools/call`` as fast as answers come.

Runs as its own process so that it shares no event loop with what it measures; it speaks raw HTTP/1.1
on purpose: a client library would cost more than the server. Prints one JSON object.

    python -m benchmarks.load URL TOKEN TOOL CONCURRENCY CALLS
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from urllib.parse import urlsplit

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "load", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}, "url": {}}},
}
# As real hosts do: each sends a progress token with every call.
CALL_META = META | {"progressToken": 7, "claudecode/toolUseId": "toolu_01"}


def request(url: str, token: str, method: str, params: dict[str, object], request_id: int = 1) -> bytes:
    """One whole HTTP request."""
    parts = urlsplit(url)
    message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {"_meta": META} | params}
    body = json.dumps(message).encode()
    name = f"Mcp-Name: {params['name']}\r\n" if "name" in params else ""
    head = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n"
        f"{name}Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: bytes) -> bytes:
    """Send one request, return the body of its answer (Content-Length or chunked)."""
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
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{head[:60]!r} {body[:300]!r}")
    return body


async def run(url: str, token: str, tool: str, concurrency: int, calls: int) -> dict[str, float]:
    parts = urlsplit(url)
    raw = request(url, token, "tools/call", {"name": tool, "arguments": {"text": "x" * 100}, "_meta": CALL_META})
    left, times = iter(range(calls)), []

    async def one() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=16 * 1024 * 1024)
        for _ in left:
            started = time.perf_counter()
            body = await exchange(reader, writer, raw)
            times.append(time.perf_counter() - started)
            if b'"isError":true' in body or b'"error"' in body[:200]:
                raise RuntimeError(body[:300].decode())
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(concurrency)))
    wall = time.perf_counter() - started
    times.sort()
    return {
        "calls_per_second": round(calls / wall, 1),
        "p50_ms": round(statistics.median(times) * 1000, 3),
        "p99_ms": round(times[int(len(times) * 0.99)] * 1000, 3),
    }


if __name__ == "__main__":
    url, token, tool, concurrency, calls = sys.argv[1:6]
    print(json.dumps(asyncio.run(run(url, token, tool, int(concurrency), int(calls)))))
