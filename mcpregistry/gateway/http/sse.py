"""The older HTTP door, ``/mcp/<endpoint>/sse`` (HTTP+SSE of MCP 2024-11-05): a GET opens the stream on which the server
speaks and is told on it where to post; each message of the host is a POST there, answered 202.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qs, quote

from mcpregistry.gateway.http.eventstream import PING, PING_SECONDS, STREAM, as_event
from mcpregistry.gateway.http.lasting import Arrival, Connections, Lasting, Scope
from mcpregistry.gateway.identity import Caller

SESSION = "session_id"


async def opened(connections: Connections, arrival: Arrival) -> None:
    """Answer a GET: a stream that lasts until either side ends it."""
    scope, receive, send = arrival.scope, arrival.receive, arrival.send

    async def say(data: bytes) -> None:
        await _write(send, as_event(data))

    async def listen() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        connection.end()

    async def speak() -> None:
        await _write(send, as_event(address.encode(), b"endpoint"))
        while connections.still_welcome(connection):  # a token may run out without any change
            await asyncio.sleep(PING_SECONDS)
            await _write(send, PING)
        connection.end()

    connection = connections.make(arrival, say)
    await send({"type": "http.response.start", "status": 200, "headers": STREAM})
    address = f"{quote(scope.get('root_path', '') + scope['path'])}?{SESSION}={connection.id}"
    await connections.serve(connection, listen, speak)
    await _write(send, b"", more=False)


def session_of(connections: Connections, caller: Caller, scope: Scope) -> Lasting | None:
    """The connection that a POST belongs to, if it is open here and this caller's."""
    named = parse_qs(scope.get("query_string", b"").decode("latin-1")).get(SESSION, [""])
    return connections.find(named[0], caller)


async def _write(send: Any, data: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})
