"""Has a call made by the process that owns the session's connection."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import structlog

from mcpregistry.domain.calls.forwarding import HostUnansweredError
from mcpregistry.domain.errors import ConnectionFailed, QueueFullError
from mcpregistry.downstream.peers.connections import (
    OwnerGoneError,
    PeerConnection,
    PeerConnections,
    connect_to_process,
    make_busy_error,
    make_other_keys_error,
)
from mcpregistry.downstream.peers.frames import read_frame, write_frame
from mcpregistry.downstream.peers.messages import (
    RelayedCall,
    RelayedEvent,
    RelayedNotice,
    RelayedQuestion,
    RelayedRequest,
    unpack_error,
    unpack_event,
)
from mcpregistry.downstream.peers.server import MOST_BYTES, NotOwnerError
from mcpregistry.downstream.server_call import ServerCall

log = structlog.get_logger(__name__)

TAKEN_SECONDS = 10.0  # for the owner to take a call
# without an event, before it is checked whether the owner still has the session
LOOK_SECONDS = 10.0


class Relay:
    """One call of this process. ``relayed`` is what its owner gets of it; ``still_owns`` returns
    whether the owner still has the session."""

    def __init__(
        self,
        relayed: RelayedCall,
        call: ServerCall,
        still_owns: Callable[[], Awaitable[bool]],
    ) -> None:
        self._relayed = relayed
        self._call = call
        self._still_owns = still_owns
        self._asking: set[asyncio.Task[None]] = set()
        self._has_asked = False

    async def run(self, address: str, connections: PeerConnections) -> dict[str, Any]:
        """Return the result. Raises OwnerGoneError, NotOwnerError, Busy, and the errors of
        ``Pool.call``.

        A kept connection may turn out to be closed. Then another one is used. The call cannot be
        made twice by this, because the owner does nothing before ``go``, which is sent once.
        """
        while True:
            async with connections.borrow_connection(address) as connection:
                if not await self._is_taken(connection, connections):
                    continue
                write_frame(connection.writer, {"go": True})
                try:
                    return await self._follow(connection)
                finally:
                    for task in self._asking:
                        task.cancel()
                    await asyncio.gather(*self._asking, return_exceptions=True)

    async def _is_taken(self, connection: PeerConnection, connections: PeerConnections) -> bool:
        """Offer the call. False if the connection is an old one that does not work any more."""
        write_frame(connection.writer, {"call": self._relayed})
        try:
            await confirm_taken(connection.reader, is_new=connection.is_new)
        except (OwnerGoneError, QueueFullError) as error:
            connections.drop(connection.address)
            if connection.is_new or isinstance(error, QueueFullError) or error.is_dead:
                raise
            return False
        return True

    async def _follow(self, connection: PeerConnection) -> dict[str, Any]:
        while (frame := await self._read_next_frame(connection.reader)) is not None:
            connection.is_reusable = ("result" in frame or "error" in frame) and not self._has_asked
            if "result" in frame:
                found: dict[str, Any] = frame["result"]
                return found
            if "error" in frame:
                raise unpack_error(frame["error"])
            self._handle_frame(frame, connection.writer)
        # Even without ``sent``: the owner may have died between that word and the server.
        raise ConnectionFailed(
            "The process of this site that had the session's connection has ended or does not answer.",
            remedy="The next call opens a new connection. The server has lost what it stored for this session.",
            sent=True,
        )

    async def _read_next_frame(self, reader: asyncio.StreamReader) -> Any:
        """Return the next frame, or None at the end of the stream, or when another process may have
        the session."""
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

    def _handle_frame(self, frame: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
        call = self._call
        if "sent" in frame:
            if call.on_sent is not None:
                call.on_sent()
        elif "progress" in frame:
            if call.on_progress is not None:
                call.on_progress(*frame["progress"])
        elif "log" in frame:
            if call.on_log is not None:
                call.on_log(frame["log"])
        elif "ask" in frame:
            self._has_asked = True  # an answer may still be on its way when the call ends
            task = asyncio.ensure_future(self._ask(frame["ask"], writer))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask(self, asked: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
        ask = self._call.host.ask
        assert ask is not None
        answer: dict[str, Any] = {"number": asked["number"]}
        try:
            answer["result"] = await ask(asked["method"], asked["params"])
        except HostUnansweredError as reason:
            answer["unanswered"] = str(reason)
        except Exception:
            log.exception("peer.question_crashed")
            answer["unanswered"] = "The question could not be sent to the host."
        write_frame(writer, {"answer": answer})
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.drain()


async def greet(address: str) -> None:
    """Tell another process that this one has started. Raises OwnerGoneError and Busy."""
    async with connect_to_process(address) as (_, writer):
        write_frame(writer, {"hello": True})
        await writer.drain()


async def send_notice(address: str, notice: RelayedNotice, connections: PeerConnections) -> bool:
    """Have a notification sent by the process that has the stream of its session. False if that is
    not this process."""
    async with asyncio.timeout(TAKEN_SECONDS):
        answer = await exchange_frames(address, {"notice": notice}, connections)
    return isinstance(answer, dict) and bool(answer.get("sent"))


async def ask_host_at(
    address: str, question: RelayedQuestion, connections: PeerConnections, seconds: float
) -> dict[str, Any] | None:
    """Have a host asked by the process that has the stream of its session. None if that is not this
    process.

    Raises Unanswered, OwnerGoneError, Busy, ssl.SSLError, and TimeoutError after this number of
    seconds.
    """
    async with asyncio.timeout(seconds):
        answer = await exchange_frames(address, {"question": question}, connections)
    if not isinstance(answer, dict) or "elsewhere" in answer:
        return None
    if "unanswered" in answer:
        raise HostUnansweredError(str(answer["unanswered"]))
    found: dict[str, Any] = answer["result"]
    return found


async def notify_process(
    address: str, frame: Mapping[str, str], connections: PeerConnections
) -> None:
    """Send ``end_session`` or ``roots_changed`` to another process. Never raises."""
    try:
        await exchange_frames(address, frame, connections)
    except (OwnerGoneError, QueueFullError, ssl.SSLError):
        log.info("peer.not_notified", address=address, what=[*frame])


async def exchange_frames(
    address: str, frame: Mapping[str, Any], connections: PeerConnections
) -> Any:
    """Send one frame and return the one that answers it; None if the process has ended. Raises as
    ``connected``, and ssl.SSLError."""
    async with connections.borrow_connection(address) as connection:
        write_frame(connection.writer, frame)
        answer = await read_frame(connection.reader, MOST_BYTES)
        connection.is_reusable = answer is not None
        return answer


async def relay_request(
    address: str, request: RelayedRequest, send: Callable[[dict[str, Any]], Awaitable[None]]
) -> None:
    """Have a request answered by another process. Raises OwnerGoneError and Busy, both before the
    first event of the answer.

    If that process dies during the answer, the answer ends there.
    """
    async with connect_to_process(address) as (reader, writer):
        write_frame(writer, {"request": request})
        begun = False
        with contextlib.suppress(ssl.SSLError):
            while (frame := await read_frame(reader, MOST_BYTES)) is not None:
                begun = True
                await send(unpack_event(msgspec.convert(frame["event"], RelayedEvent)))
        if not begun:
            raise OwnerGoneError


async def confirm_taken(reader: asyncio.StreamReader, *, is_new: bool = True) -> None:
    """Wait until the owner has taken a call or a watch. Raises OwnerGoneError, NotOwnerError and
    Busy.

    ``is_new``: the connection was made for it, so that an error of TLS is the answer of the other
    process to the handshake.
    """
    try:
        async with asyncio.timeout(TAKEN_SECONDS):
            frame = await read_frame(reader, MOST_BYTES)
    except TimeoutError:
        raise make_busy_error("does not answer") from None
    except ssl.SSLError:
        raise (make_other_keys_error() if is_new else OwnerGoneError()) from None
    if frame is None or "other_process" in frame:
        raise OwnerGoneError(is_dead=frame is not None)
    if "not_owner" in frame:
        raise NotOwnerError
