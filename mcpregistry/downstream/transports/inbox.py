"""What a server has sent for the SDK's session and the session has not read yet, in order and
within bounds.

It is the read stream of the SDK's transport. A burst of notifications must not end the connection,
because calls of other agents are in flight on it: a notification that means the same as one that
waits is left out, and beyond the bounds notifications and requests of the server are dropped.
Answers to the SDK's own requests are never dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.lowlevel
from mcp.shared.message import SessionMessage
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY

from mcpregistry.domain.offer_kinds import CHANGED

MOST_MESSAGES = 4_096
MOST_BYTES = 16 * 1024 * 1024
UPDATED = "notifications/resources/updated"
CANCELLED = "notifications/cancelled"
# The only notifications that mean something to the session. All others need nobody.
MEANT_FOR_SESSION = CHANGED | {UPDATED, CANCELLED, "notifications/subscriptions/acknowledged"}

Item = SessionMessage | Exception
Meaning = tuple[str, ...]


def find_meaning(message: Mapping[str, Any]) -> Meaning | None:
    """What a notification says, if it may be said once for all of the same; None for any other
    message."""
    method = message.get("method")
    params = message.get("params")
    if method not in MEANT_FOR_SESSION or "id" in message:
        return None
    params = params if isinstance(params, dict) else {}
    meta = params.get("_meta")
    stream = meta.get(SUBSCRIPTION_ID_META_KEY) if isinstance(meta, dict) else None
    return str(method), repr(params.get("uri")), repr(params.get("requestId")), repr(stream)


class Inbox:
    """The read stream of one connection. ``on_dropped`` is told how many were dropped, once the
    burst has been read."""

    def __init__(self, on_dropped: Callable[[int], None]) -> None:
        self._on_dropped = on_dropped
        self._waiting: deque[tuple[Item, int, Meaning | None]] = deque()
        self._meanings: set[Meaning] = set()
        self._bytes = 0
        self._dropped = 0
        self._news = asyncio.Event()
        self._ended = False
        self._closed = False

    def put(
        self, item: Item, size: int, meaning: Meaning | None = None, *, keep: bool = False
    ) -> None:
        """Add a message of this many bytes. ``keep``: it is an answer that the session waits
        for."""
        if self._ended or self._closed or meaning in self._meanings:
            return
        if not keep and (len(self._waiting) >= MOST_MESSAGES or self._bytes + size > MOST_BYTES):
            self._dropped += 1
            return
        if meaning is not None:
            self._meanings.add(meaning)
        self._bytes += size
        self._waiting.append((item, size, meaning))
        self._news.set()

    def end(self) -> None:
        """The server says nothing more. What waits can still be read."""
        self._ended = True
        self._news.set()

    def close(self) -> None:
        """Nobody reads it any more."""
        self._closed = True
        self._waiting.clear()
        self._news.set()

    async def receive(self) -> Item:
        """The next message. Raises EndOfStream, or ClosedResourceError after ``close``."""
        await anyio.lowlevel.checkpoint()  # a burst must leave time for everything else on the loop
        while not self._waiting:
            if self._closed:
                raise anyio.ClosedResourceError
            if self._ended:
                raise anyio.EndOfStream
            self._news.clear()
            await self._news.wait()
        item, size, meaning = self._waiting.popleft()
        self._bytes -= size
        if meaning is not None:
            self._meanings.discard(meaning)
        if self._dropped and not self._waiting:
            count = self._dropped
            self._dropped = 0
            self._on_dropped(count)
        return item

    async def aclose(self) -> None:
        """As ``close``."""
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
