"""The older HTTP door, ``/mcp/<endpoint>/sse`` (HTTP+SSE of MCP 2024-11-05): a GET opens the stream
on which the server speaks and is told on it where to post; each message of the host is a POST
there, answered 202.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qs, quote

import msgspec

from mcpregistry.gateway.http.access import Arrival
from mcpregistry.gateway.http.duplex_connections import DuplexConnections
from mcpregistry.gateway.http.eventstream import PING, PING_SECONDS, STREAM, format_event
from mcpregistry.gateway.http.fastpath.calls import CALL_PARAMS
from mcpregistry.gateway.http.fastpath.older_sessions import Count
from mcpregistry.gateway.http.session_cache import SSE_VERSION, HostSessionCache

SESSION = "session_id"


async def serve_stream(
    connections: DuplexConnections, sessions: HostSessionCache, arrival: Arrival
) -> None:
    """Answer a GET: a stream that lasts until either side ends it. Raises Busy without a
    database."""
    scope = arrival.scope
    receive = arrival.receive
    send = arrival.send

    async def send_message(data: bytes) -> None:
        await _write(send, format_event(data))

    async def listen() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        connection.end()

    async def send_address_and_pings() -> None:
        await _write(send, format_event(address.encode(), b"endpoint"))
        while True:
            await asyncio.sleep(PING_SECONDS)
            await _write(send, PING)

    connection = connections.make(arrival, send_message)
    async with sessions.record_connection(connection.id, arrival.caller, SSE_VERSION):
        await send({"type": "http.response.start", "status": 200, "headers": STREAM})
        address = f"{quote(scope.get('root_path', '') + scope['path'])}?{SESSION}={connection.id}"
        await connections.serve(connection, listen, send_address_and_pings)
        await _write(send, b"", more=False)


async def post_message(
    connections: DuplexConnections,
    sessions: HostSessionCache,
    arrival: Arrival,
    body: bytes,
    count: Count,
) -> bool:
    """Hand on what was posted, to whichever process has the stream; False if there is none, or not
    this caller's. Raises Busy without a database, and RateLimited."""
    caller = arrival.caller
    named = parse_qs(arrival.scope.get("query_string", b"").decode("latin-1")).get(SESSION, [""])[0]
    if connection := connections.find(named, caller):
        return await connection.take_soon(body)
    if not named:
        return False
    # a call is counted where it is made
    if msgspec.json.decode(body).get("method") not in CALL_PARAMS:
        await count(caller.agent)
    return await sessions.pass_on(named, caller, body)


async def _write(send: Any, data: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})
