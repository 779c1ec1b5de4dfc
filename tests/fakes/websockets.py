"""A WebSocket for the official client, which has none of its own any more."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tests.waiting import HANG_LIMIT


def dial(
    url: str, token: str = "", *, subprotocols: tuple[str, ...] = ("mcp",), **headers: str
) -> connect:
    """``websockets``' own client, with a token."""
    known = {"Authorization": f"Bearer {token}"} if token else {}
    offered = [Subprotocol(name) for name in subprotocols] or None
    return connect(
        url.replace("http", "ws", 1),
        subprotocols=offered,
        additional_headers=known | headers,
        proxy=None,
        open_timeout=HANG_LIMIT,
        ping_timeout=None,  # a busy machine is no dead one
    )


@contextlib.asynccontextmanager
async def websocket_client(url: str, token: str) -> AsyncIterator[tuple[Any, Any]]:
    """The SDK's pair of streams, as its ``websocket_client`` gave them."""
    to_client, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_client = anyio.create_memory_object_stream[SessionMessage](0)

    async def read(socket: ClientConnection) -> None:
        async with to_client:
            with contextlib.suppress(ConnectionClosed):
                async for frame in socket:
                    await to_client.send(
                        SessionMessage(jsonrpc_message_adapter.validate_json(frame, by_name=False))
                    )

    async def write(socket: ClientConnection) -> None:
        async for item in from_client:
            await socket.send(item.message.model_dump_json(by_alias=True, exclude_unset=True))

    async with dial(url, token) as socket, anyio.create_task_group() as tasks:
        assert socket.subprotocol == "mcp"
        tasks.start_soon(read, socket)
        tasks.start_soon(write, socket)
        yield incoming, outgoing
        tasks.cancel_scope.cancel()
