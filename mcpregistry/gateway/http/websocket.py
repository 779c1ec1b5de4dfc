"""The WebSocket door, ``/mcp/<endpoint>/ws``: one text frame for each message, subprotocol ``mcp``.

MCP's specification has no such transport; it is what its SDKs spoke under this name. The token is
in the handshake's Authorization header; it is looked at again with each message.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from mcpregistry.gateway.http.access import ENDED, REVOKED, Arrival, Scope
from mcpregistry.gateway.http.duplex_connections import STOPPED, UNREAD, DuplexConnections
from mcpregistry.gateway.http.session_cache import HostSessionCache

SUBPROTOCOL = "mcp"
_CODES = {  # RFC 6455, 7.4.1
    ENDED: (1000, "The session was ended."),
    STOPPED: (1001, "The site is shutting down."),
    REVOKED: (1008, "Access has ended."),
    UNREAD: (1008, "The host does not read its answers."),
}
_TOO_BIG = 1009


def is_mcp_offered(scope: Scope) -> bool:
    """Whether the host offers our subprotocol; one that offers none at all is taken to mean it."""
    return not scope.get("subprotocols") or SUBPROTOCOL in scope["subprotocols"]


def make_denying_send(scope: Scope, send: Any) -> Any:
    """A ``send`` whose HTTP answer refuses the handshake."""
    told = "websocket.http.response" in scope.get("extensions", {})

    async def send_denial(event: dict[str, Any]) -> None:
        if told:
            await send(event | {"type": f"websocket.{event['type']}"})
        elif event["type"] == "http.response.start":
            # the server makes a plain 403 of it
            await send({"type": "websocket.close", "code": 1008, "reason": ""})

    return send_denial


async def serve_socket(
    connections: DuplexConnections, sessions: HostSessionCache, arrival: Arrival, most: int
) -> None:
    """Take the handshake and serve until either side ends it. ``most`` bytes in a message. Raises
    Busy without a database."""
    scope = arrival.scope
    receive = arrival.receive
    send = arrival.send
    codes = dict(_CODES)

    async def send_message(data: bytes) -> None:
        # the host is gone, as ``listen`` hears; the web server would log a traceback
        with suppress(OSError):
            await send({"type": "websocket.send", "text": data.decode()})

    async def listen() -> None:
        while (event := await receive())["type"] != "websocket.disconnect":
            if event["type"] != "websocket.receive":
                continue
            data = event["text"].encode() if event.get("text") is not None else event["bytes"]
            if not connections.is_still_welcome(connection):
                connection.end(REVOKED)
            elif len(data) > most:
                codes["too big"] = (_TOO_BIG, f"A message can have at most {most:,} bytes.")
                connection.end("too big")
            else:
                await connection.take(data)
        connection.end()

    connection = connections.make(arrival, send_message)
    async with sessions.record_connection(connection.id, arrival.caller):
        await send(
            {
                "type": "websocket.accept",
                "subprotocol": SUBPROTOCOL if scope.get("subprotocols") else None,
            }
        )
        why = await connections.serve(connection, listen)
    if why in codes:
        code, reason = codes[why]
        with suppress(OSError):  # the host was faster
            await send({"type": "websocket.close", "code": code, "reason": reason})
