"""HTTP for all interfaces: reads JSON bodies, sends JSON bodies or streams of events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from mcpregistry.domain.errors import ResourceLimit
from mcpregistry.domain.text.unique_keys import RepeatedKeyError, build_unique_object
from mcpregistry.gateway.http.body import read_whole
from mcpregistry.gateway.http.eventstream import STREAM
from mcpregistry.gateway.jsonrpc import replace_invalid_text
from subagents.headends.errors import HeadendError

KEEP_ALIVE = 10.0  # seconds without an event; clients and proxies wait longer
MAX_BODY = 4 * 1024 * 1024  # bytes
Headers = list[tuple[bytes, bytes]]
JSON_TYPE = (b"content-type", b"application/json")


@dataclass
class HttpExchange:
    """One HTTP request and its response. ``left`` is set when the client disconnects."""

    scope: dict[str, Any]
    receive: Callable[[], Awaitable[dict[str, Any]]]
    send: Callable[[dict[str, Any]], Awaitable[None]]
    left: asyncio.Event = field(default_factory=asyncio.Event)
    streaming: bool = False

    def header(self, name: bytes) -> str:
        """Return the value of a header, or "" if it is missing or repeated."""
        found = [value for key, value in self.scope["headers"] if key == name]
        return found[0].decode("latin-1").strip() if len(found) == 1 else ""

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def query(self) -> dict[str, str]:
        """The query parameters. If one is repeated, the last one counts."""
        return dict(
            parse_qsl(self.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        )

    async def read_body(self) -> bytes:
        """Read the whole body. Raises HeadendError (413)."""
        try:
            found, whole = await read_whole(self.receive, MAX_BODY)
        except ResourceLimit as error:
            raise HeadendError(413, "too_large", error.message) from None
        if not whole:
            self.left.set()
        return found

    async def read_json(self) -> dict[str, Any]:
        """Read the body as a JSON object. Raises HeadendError (400, 413)."""
        try:
            found = json.loads(
                replace_invalid_text(await self.read_body()), object_pairs_hook=build_unique_object
            )
        except RepeatedKeyError as error:
            raise HeadendError(400, "invalid_request", f"{error} {error.remedy}") from None
        except (ValueError, RecursionError):
            raise HeadendError(
                400, "invalid_request", "The body of the request is not valid JSON."
            ) from None
        if not isinstance(found, dict):
            raise HeadendError(
                400, "invalid_request", "The body of the request must be a JSON object."
            )
        return found

    async def watch(self) -> None:
        """Set ``left`` when the client disconnects. To be run as a task after the body was read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.left.set()

    async def answer(
        self, status: int, body: Any, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Send the whole response: a JSON value, or bytes with their type in ``headers``."""
        data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        kind = [] if isinstance(body, bytes) else [JSON_TYPE]
        length = (b"content-length", b"%d" % len(data))
        await self.send(
            {"type": "http.response.start", "status": status, "headers": [*kind, length, *headers]}
        )
        await self.send(
            {"type": "http.response.body", "body": b"" if self.method == "HEAD" else data}
        )

    async def begin(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send the head of a stream of events."""
        self.streaming = True
        await self.send(
            {"type": "http.response.start", "status": 200, "headers": [*STREAM, *headers]}
        )

    async def write(self, data: bytes) -> None:
        """Send a part of the stream. Empty data is not sent."""
        if data:
            await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last part of the stream."""
        await self.send({"type": "http.response.body", "body": data, "more_body": False})


async def keep_alive(work: asyncio.Future[Any], write: Callable[[], Awaitable[None]]) -> None:
    """Wait for the work, and call ``write`` every ``KEEP_ALIVE`` seconds."""
    while not work.done():
        await asyncio.wait({work}, timeout=KEEP_ALIVE)
        if not work.done():
            await write()


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancel it and wait until it has cancel_and_wait."""
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task
