"""A connection that carries whole messages both ways (a pipe, HTTP+SSE, a WebSocket), as the SDK's
pair of streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectSendStream
from mcp import types as t
from mcp.shared.message import MessageMetadata, SessionMessage

from mcpregistry.gateway.jsonrpc import (
    check_parser_depth,
    explain_cut,
    find_message_error,
    replace_invalid_text,
    run_in_thread_if_large,
)

Say = Callable[[bytes], Awaitable[None]]
Spoken = Callable[[t.JSONRPCMessage], bytes | None]
Refuse = Callable[[t.JSONRPCMessage], "dict[str, Any] | None"]


class SendBacklog:
    """Messages that were made for a host and wait until it has read the ones before. It is full
    from ``most_messages`` or ``most_bytes`` on; then nothing more of the host is taken.
    ``on_flood`` is called beyond ``flood`` bytes.
    """

    def __init__(
        self, most_messages: int, most_bytes: int, flood: int, on_flood: Callable[[], None]
    ) -> None:
        self._most = (most_messages, most_bytes)
        self._flood = flood
        self._on_flood = on_flood
        self.messages = 0
        self.bytes = 0
        self._news = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether its host must read before it sends more."""
        return self.messages >= self._most[0] or self.bytes >= self._most[1]

    async def wait(self) -> None:
        """Wait until it is not full."""
        while self.is_full:
            self._news.clear()
            await self._news.wait()

    @contextlib.contextmanager
    def count_message(self, size: int) -> Iterator[None]:
        """While a message of this size waits."""
        self.messages += 1
        self.bytes += size
        if self.bytes > self._flood:
            self._on_flood()
        try:
            yield
        finally:
            self.messages -= 1
            self.bytes -= size
            self._news.set()


@dataclass
class _EncodedMessage(SessionMessage):
    data: bytes | None = None


class _CountingStream:
    """The server's write stream, whose waiting messages are counted."""

    def __init__(
        self, stream: MemoryObjectSendStream[SessionMessage], spoken: Spoken, backlog: SendBacklog
    ) -> None:
        self._stream = stream
        self._spoken = spoken
        self._backlog = backlog

    async def send(self, item: SessionMessage, /) -> None:
        data = self._spoken(item.message)
        with self._backlog.count_message(len(data or b"")):
            await self._stream.send(_EncodedMessage(item.message, item.metadata, data))

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


@asynccontextmanager
async def open_streams(
    heard: AsyncIterable[bytes],
    say: Say,
    spoken: Spoken,
    *,
    refused: Refuse = lambda _: None,
    saying: Callable[[t.JSONRPCMessage], None] = lambda _: None,
    metadata: MessageMetadata = None,
    backlog: SendBacklog | None = None,
) -> AsyncIterator[tuple[Any, Any]]:
    """``heard`` yields what the host sends, until it leaves; ``say`` sends one message to it and
    returns when it is sent.

    ``spoken`` turns a message of the server into bytes, or None for one that the host does not get.
    ``refused`` sees every message of the host and may have an answer to it that the server is not
    asked for. ``saying`` sees every message of the server just before it is sent. ``backlog``
    counts what waits to be sent; nothing more of the host is taken while it is full.
    """

    spoken = _explain_errors(spoken)
    to_server, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_server = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with to_server:
            async for data in heard:
                if backlog is not None:
                    await backlog.wait()
                message, refusal = await run_in_thread_if_large(data, _parse_message)
                if message is not None:
                    refusal = refused(message.message)
                if refusal is not None:
                    await say(msgspec.json.encode(refusal))
                elif message is not None:
                    message.metadata = metadata
                    await to_server.send(message)

    async def write() -> None:
        async with from_server:
            async for item in from_server:
                if data := item.data if isinstance(item, _EncodedMessage) else spoken(item.message):
                    saying(item.message)
                    await say(data)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        try:
            yield (
                incoming,
                outgoing if backlog is None else _CountingStream(outgoing, spoken, backlog),
            )
        finally:
            tasks.cancel_scope.cancel()


def _explain_errors(spoken: Spoken) -> Spoken:
    """The same, with errors that say what a request that was cut off may have done."""

    def encode_explained(message: t.JSONRPCMessage) -> bytes | None:
        if isinstance(message, t.JSONRPCError):
            message = message.model_copy(update={"error": explain_cut(message.error)})
        return spoken(message)

    return encode_explained


def _parse_message(data: bytes) -> tuple[SessionMessage | None, dict[str, Any] | None]:
    """The message, or what to say of it; neither for a host's answer with a result that is no
    object: nobody waits."""
    data = replace_invalid_text(data)
    if refusal := find_message_error(data) or check_parser_depth(data):
        return None, refusal
    try:
        return SessionMessage(t.jsonrpc_message_adapter.validate_json(data, by_name=False)), None
    except ValueError:
        return None, None
