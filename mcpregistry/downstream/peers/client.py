"""Has a call made by the process that owns the session's connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from mcpregistry.domain.calls.forwarding import Forwarding, Unanswered
from mcpregistry.domain.errors import ConnectionFailed
from mcpregistry.downstream.peers.frames import read_frame, write_frame
from mcpregistry.downstream.peers.messages import RelayedCall, unpack_error
from mcpregistry.downstream.peers.server import MOST_BYTES, NotOwnerError


class OwnerGoneError(Exception):
    """The process cannot be reached, because it has ended. Nothing of the call was sent to the server."""


class Relay:
    """One call. ``callbacks`` are those of ``Pool.call``."""

    def __init__(
        self, call: RelayedCall, host: Forwarding, callbacks: Mapping[str, Callable[..., None] | None]
    ) -> None:
        self._call, self._host, self._callbacks = call, host, callbacks
        self._asking: set[asyncio.Task[None]] = set()

    async def run(self, path: str) -> dict[str, Any]:
        """Return the result. Raises OwnerGoneError, NotOwnerError, and the errors of ``Pool.call``."""
        try:
            reader, writer = await asyncio.open_unix_connection(path)
        except OSError:
            raise OwnerGoneError from None
        try:
            write_frame(writer, self._call)
            return await self._follow(reader, writer)
        finally:
            for task in self._asking:
                task.cancel()
            await asyncio.gather(*self._asking, return_exceptions=True)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, Any]:
        if await read_frame(reader, MOST_BYTES) is None:
            raise OwnerGoneError
        while (frame := await read_frame(reader, MOST_BYTES)) is not None:
            if "result" in frame:
                found: dict[str, Any] = frame["result"]
                return found
            if "error" in frame:
                raise unpack_error(frame["error"])
            if "not_owner" in frame:
                raise NotOwnerError
            self._hear(frame, writer)
        # Even without ``sent``: the owner may have died between that word and the server.
        raise ConnectionFailed(
            "The process of the site that had this session's connection has ended.",
            remedy="The next call gets a new connection, without what the server kept for this session.",
            sent=True,
        )

    def _hear(self, frame: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
        if "sent" in frame:
            self._tell("on_sent")
        elif "progress" in frame:
            self._tell("on_progress", *frame["progress"])
        elif "log" in frame:
            self._tell("on_log", frame["log"])
        elif "ask" in frame:
            task = asyncio.ensure_future(self._ask(frame["ask"], writer))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    def _tell(self, name: str, *said: Any) -> None:
        if (callback := self._callbacks.get(name)) is not None:
            callback(*said)

    async def _ask(self, asked: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
        assert self._host.ask is not None
        answer: dict[str, Any] = {"number": asked["number"]}
        try:
            answer["result"] = await self._host.ask(asked["method"], asked["params"])
        except Unanswered as reason:
            answer["unanswered"] = str(reason)
        write_frame(writer, {"answer": answer})
        with contextlib.suppress(ConnectionError):
            await writer.drain()
