"""What every interface does with HTTP: a JSON body in, one JSON body or a stream of events out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from mcpregistry.domain.errors import ResourceLimit
from mcpregistry.gateway.http.body import read_whole
from mcpregistry.gateway.http.eventstream import STREAM
from subagents.headends.errors import Refused

KEEP_ALIVE = 10.0  # seconds of silence in a stream; proxies and clients give up later
MOST = 4 * 1024 * 1024  # bytes of a body
Headers = list[tuple[bytes, bytes]]
JSON_TYPE = (b"content-type", b"application/json")


@dataclass
class Exchange:
    """One HTTP request and its answer. ``left`` is set when the client's connection is gone."""

    scope: dict[str, Any]
    receive: Callable[[], Awaitable[dict[str, Any]]]
    send: Callable[[dict[str, Any]], Awaitable[None]]
    left: asyncio.Event = field(default_factory=asyncio.Event)
    streaming: bool = False

    def header(self, name: bytes) -> str:
        """The value of a header that is there once, else ""."""
        found = [value for key, value in self.scope["headers"] if key == name]
        return found[0].decode("latin-1").strip() if len(found) == 1 else ""

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the address; of one that is there twice the last."""
        return dict(parse_qsl(self.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))

    async def body(self) -> bytes:
        """The whole body. Raises Refused (413)."""
        try:
            found, whole = await read_whole(self.receive, MOST)
        except ResourceLimit as error:
            raise Refused(413, "too_large", error.message) from None
        if not whole:
            self.left.set()
        return found

    async def json(self) -> dict[str, Any]:
        """The body as a JSON object. Raises Refused (400, 413)."""
        try:
            found = json.loads(await self.body())
        except (ValueError, RecursionError):
            raise Refused(400, "invalid_request", "The body is not JSON.") from None
        if not isinstance(found, dict):
            raise Refused(400, "invalid_request", "The body must be a JSON object.")
        return found

    async def watch(self) -> None:
        """Set ``left`` when the client goes away. Run it beside the work, once the body has been read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.left.set()

    async def answer(self, status: int, body: Any, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """The whole answer: JSON, or bytes whose type is in ``headers``."""
        data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        kind = [] if isinstance(body, bytes) else [JSON_TYPE]
        length = (b"content-length", b"%d" % len(data))
        await self.send({"type": "http.response.start", "status": status, "headers": [*kind, length, *headers]})
        await self.send({"type": "http.response.body", "body": b"" if self.method == "HEAD" else data})

    async def begin(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """The head of a stream of events."""
        self.streaming = True
        await self.send({"type": "http.response.start", "status": 200, "headers": [*STREAM, *headers]})

    async def write(self, data: bytes) -> None:
        """A part of the stream; nothing where there is nothing to say."""
        if data:
            await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """The last part of the stream."""
        await self.send({"type": "http.response.body", "body": data, "more_body": False})


async def kept_alive(work: asyncio.Future[Any], write: Callable[[], Awaitable[None]]) -> None:
    """Wait for the work; ``write`` something whenever it has been silent for ``KEEP_ALIVE``."""
    while not work.done():
        await asyncio.wait({work}, timeout=KEEP_ALIVE)
        if not work.done():
            await write()


async def stopped(task: asyncio.Future[Any]) -> None:
    """Cancel it and wait until it has stopped."""
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task
