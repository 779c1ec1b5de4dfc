"""A connection that carries whole messages both ways (a pipe, HTTP+SSE, a WebSocket), as the SDK's pair of streams."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
from mcp import types as t
from mcp.shared.message import MessageMetadata, SessionMessage

from mcpregistry.gateway.jsonrpc import in_thread_if_large, objection, too_deep, with_valid_text

Say = Callable[[bytes], Awaitable[None]]
Refuse = Callable[[t.JSONRPCMessage], "dict[str, Any] | None"]


@asynccontextmanager
async def streams(
    heard: AsyncIterable[bytes],
    say: Say,
    spoken: Callable[[t.JSONRPCMessage], bytes | None],
    *,
    refused: Refuse = lambda _: None,
    metadata: MessageMetadata = None,
) -> AsyncIterator[tuple[Any, Any]]:
    """``heard`` yields what the host sends, until it leaves; ``say`` sends one message to it and returns when it is sent.

    ``spoken`` turns a message of the server into bytes, or None for one that the host does not get. ``refused`` sees
    every message of the host and may have an answer to it that the server is not asked for.
    """
    to_server, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_server = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with to_server:
            async for data in heard:
                message, refusal = await in_thread_if_large(data, _parsed)
                if message is not None:
                    refusal = refused(message.message)
                if refusal is not None:
                    await say(msgspec.json.encode(refusal))
                elif message is not None:
                    message.metadata = metadata
                    await to_server.send(message)

    async def write() -> None:
        async with from_server:
            async for message in from_server:
                if data := spoken(message.message):
                    await say(data)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        try:
            yield incoming, outgoing
        finally:
            tasks.cancel_scope.cancel()


def _parsed(data: bytes) -> tuple[SessionMessage | None, dict[str, Any] | None]:
    """The message, or what to say of it; neither for a host's answer with a result that is no object: nobody waits."""
    data = with_valid_text(data)
    if refusal := objection(data) or too_deep(data):
        return None, refusal
    try:
        return SessionMessage(t.jsonrpc_message_adapter.validate_json(data, by_name=False)), None
    except ValueError:
        return None, None
