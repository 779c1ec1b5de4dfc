"""Has a call made by the process that owns the session's connection."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec
import structlog

from mcpregistry.domain.calls.forwarding import Forwarding, Unanswered
from mcpregistry.domain.errors import Busy, ConnectionFailed
from mcpregistry.downstream.peers.frames import read_frame, write_frame
from mcpregistry.downstream.peers.messages import (
    RelayedCall,
    RelayedEvent,
    RelayedNotice,
    RelayedRequest,
    unpack_error,
    unpack_event,
)
from mcpregistry.downstream.peers.server import MOST_BYTES, NotOwnerError
from mcpregistry.downstream.peers.sockets import dial

log = structlog.get_logger(__name__)

TAKEN_SECONDS = 10.0  # for the owner to take a call
LOOK_SECONDS = 10.0  # without an event, before it is checked whether the owner still has the session


class OwnerGoneError(Exception):
    """The owner does not listen at its address. Nothing was sent to the server. ``is_dead``: another process does."""

    def __init__(self, *, is_dead: bool = False) -> None:
        super().__init__()
        self.is_dead = is_dead


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to the process that listens at this address. Raises OwnerGoneError, and Busy if it may be alive."""
    try:
        reader, writer = await dial(address)
    except (FileNotFoundError, ConnectionError):
        raise OwnerGoneError from None
    except ssl.SSLError:
        raise _other_keys() from None
    except OSError as error:  # too many files are open, its queue is full, or its machine is away
        raise _busy(f"cannot be reached ({error.strerror or 'no answer'})") from None
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


class Relay:
    """One call. ``callbacks`` are those of ``Pool.call``; ``still_owns`` returns whether the owner still has the session."""

    def __init__(
        self, call: RelayedCall, host: Forwarding, callbacks: Mapping[str, Callable[..., None] | None],
        still_owns: Callable[[], Awaitable[bool]],
    ) -> None:  # fmt: skip
        self._call, self._host, self._callbacks, self._still_owns = call, host, callbacks, still_owns
        self._asking: set[asyncio.Task[None]] = set()

    async def run(self, address: str) -> dict[str, Any]:
        """Return the result. Raises OwnerGoneError, NotOwnerError, Busy, and the errors of ``Pool.call``."""
        async with connected(address) as (reader, writer):
            write_frame(writer, {"call": self._call})
            await confirm_taken(reader)
            write_frame(writer, {"go": True})
            try:
                return await self._follow(reader, writer)
            finally:
                for task in self._asking:
                    task.cancel()
                await asyncio.gather(*self._asking, return_exceptions=True)

    async def _follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, Any]:
        while (frame := await self._next(reader)) is not None:
            if "result" in frame:
                found: dict[str, Any] = frame["result"]
                return found
            if "error" in frame:
                raise unpack_error(frame["error"])
            self._hear(frame, writer)
        # Even without ``sent``: the owner may have died between that word and the server.
        raise ConnectionFailed(
            "The process of the site that had this session's connection has ended, or does not answer.",
            remedy="The next call gets a new connection, without what the server kept for this session.",
            sent=True,
        )

    async def _next(self, reader: asyncio.StreamReader) -> Any:
        """Return the next frame, or None at the end of the stream, or when another process may have the session."""
        reading = asyncio.ensure_future(read_frame(reader, MOST_BYTES))
        try:
            while not (await asyncio.wait({reading}, timeout=LOOK_SECONDS))[0]:
                if not await self._still_owns():
                    return None
            return reading.result()
        except ssl.SSLError:
            return None
        finally:
            reading.cancel()

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
        except Exception:
            log.exception("peer.question_crashed")
            answer["unanswered"] = "The question could not be put to the host."
        write_frame(writer, {"answer": answer})
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.drain()


async def greet(address: str) -> None:
    """Tell another process that this one has started. Raises OwnerGoneError and Busy."""
    async with connected(address) as (_, writer):
        write_frame(writer, {"hello": True})
        await writer.drain()


async def send_notice(address: str, notice: RelayedNotice) -> bool:
    """Have a notification sent by the process that has the stream of its session. False if that is not this process."""
    async with connected(address) as (reader, writer):
        write_frame(writer, {"notice": notice})
        async with asyncio.timeout(TAKEN_SECONDS):
            answer = await read_frame(reader, MOST_BYTES)
    return isinstance(answer, dict) and bool(answer.get("sent"))


async def relay_request(
    address: str, request: RelayedRequest, send: Callable[[dict[str, Any]], Awaitable[None]]
) -> None:
    """Have a request answered by another process. Raises OwnerGoneError and Busy, both before the first event of the answer.

    If that process dies during the answer, the answer ends there.
    """
    async with connected(address) as (reader, writer):
        write_frame(writer, {"request": request})
        begun = False
        with contextlib.suppress(ssl.SSLError):
            while (frame := await read_frame(reader, MOST_BYTES)) is not None:
                begun = True
                await send(unpack_event(msgspec.convert(frame["event"], RelayedEvent)))
        if not begun:
            raise OwnerGoneError


async def confirm_taken(reader: asyncio.StreamReader) -> None:
    """Wait until the owner has taken a call or a watch. Raises OwnerGoneError, NotOwnerError and Busy."""
    try:
        async with asyncio.timeout(TAKEN_SECONDS):
            frame = await read_frame(reader, MOST_BYTES)
    except TimeoutError:
        raise _busy("does not answer") from None
    except ssl.SSLError:
        raise _other_keys() from None
    if frame is None or "other_process" in frame:
        raise OwnerGoneError(is_dead=frame is not None)
    if "not_owner" in frame:
        raise NotOwnerError


def _busy(what: str) -> Busy:
    return Busy(
        f"The process of the site that has this session's connection {what}.",
        remedy="Call again in a moment. If the process hangs, another one replaces it after half a minute.",
    )


def _other_keys() -> Busy:
    return Busy(
        "The process of the site that has this session's connection does not accept this one, or the other way round.",
        remedy="All machines of the site need the same keys: an operator compares SLIPSNISSE_KEYS and runs `manage.py doctor`.",
    )
