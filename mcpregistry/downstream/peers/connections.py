"""Connections to other processes of the site. Those that carried a call are kept for the next
one."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass

from mcpregistry.domain.errors import QueueFullError
from mcpregistry.downstream.peers.sockets import Streams, dial

MOST_IDLE = 64  # to all processes together
IDLE_SECONDS = (
    # less than a listener waits for the next frame, so that the end that uses a connection also
    # closes it
    30.0
)


class OwnerGoneError(Exception):
    """The owner does not listen at its address. Nothing was sent to the server. ``is_dead``:
    another process does."""

    def __init__(self, *, is_dead: bool = False) -> None:
        super().__init__()
        self.is_dead = is_dead


@contextlib.asynccontextmanager
async def connect_to_process(address: str) -> AsyncIterator[Streams]:
    """Connect to the process that listens at this address. Raises OwnerGoneError, and Busy if it
    may be alive."""
    connection = await _connect(address)
    try:
        yield connection.reader, connection.writer
    finally:
        await connection.close()


@dataclass(eq=False)
class PeerConnection:
    """``is_new``: it was made for this exchange. Set ``is_reusable`` when the exchange has ended
    and neither side sends more."""

    address: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_new: bool = True
    is_reusable: bool = False

    async def close(self) -> None:
        """Close it. Never raises."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


class PeerConnections:
    """The connections of this process that wait for their next exchange."""

    def __init__(self) -> None:
        # each with what closes it, the oldest first
        self._idle: dict[PeerConnection, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @contextlib.asynccontextmanager
    async def borrow_connection(self, address: str) -> AsyncIterator[PeerConnection]:
        """Use an idle connection to this process, or a new one. Raises as
        ``connect_to_process``."""
        connection = await self._take(address) or await _connect(address)
        try:
            yield connection
        finally:
            if connection.is_reusable and not (self._is_closed or connection.writer.is_closing()):
                self._keep(connection)
            else:
                await connection.close()

    def drop(self, address: str) -> None:
        """Close the idle connections to a process that does not answer."""
        for connection in [each for each in self._idle if each.address == address]:
            self._close_idle(connection)

    async def close(self) -> None:
        """Close all idle connections, and keep no more."""
        self._is_closed = True
        for connection in list(self._idle):
            self._close_idle(connection)
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _take(self, address: str) -> PeerConnection | None:
        while (found := self._find_newest(address)) is not None:
            watching = self._idle.pop(found)
            watching.cancel()
            try:
                await asyncio.wait({watching})
            except asyncio.CancelledError:
                found.writer.close()
                raise
            if not found.reader.at_eof() and not found.writer.is_closing():
                found.is_new = False
                found.is_reusable = False
                return found
            await found.close()
        return None

    def _find_newest(self, address: str) -> PeerConnection | None:
        return next((each for each in reversed(self._idle) if each.address == address), None)

    def _keep(self, connection: PeerConnection) -> None:
        if len(self._idle) >= MOST_IDLE:
            self._close_idle(next(iter(self._idle)))
        self._idle[connection] = asyncio.ensure_future(self._watch(connection))

    async def _watch(self, connection: PeerConnection) -> None:
        """Close it when the other process closes it or sends something, or when it was idle for too
        long."""
        with contextlib.suppress(OSError):
            async with asyncio.timeout(IDLE_SECONDS):
                await connection.reader.read(1)
        self._idle.pop(connection, None)
        await connection.close()

    def _close_idle(self, connection: PeerConnection) -> None:
        self._idle.pop(connection).cancel()
        task = asyncio.ensure_future(connection.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _connect(address: str) -> PeerConnection:
    try:
        return PeerConnection(address, *await dial(address))
    except (FileNotFoundError, ConnectionError):
        raise OwnerGoneError from None
    except ssl.SSLError:
        raise make_other_keys_error() from None
    except OSError as error:  # too many files are open, its queue is full, or its machine is away
        raise make_busy_error(f"cannot be reached ({error.strerror or 'no answer'})") from None


def make_busy_error(what: str) -> QueueFullError:
    """Return the error for a process that may be alive."""
    return QueueFullError(
        f"The process of this site that has the session's connection {what}.",
        remedy="Try again in a moment. If the process hangs, another process replaces it after 30 seconds.",
    )


def make_other_keys_error() -> QueueFullError:
    """Return the error for a process that does not accept this one's certificate, or the other way
    round."""
    return QueueFullError(
        "Two processes of this site do not accept each other's keys, so the session's connection cannot be used.",
        remedy="Use the same SLIPSNISSE_KEYS on all machines of the site, and run `manage.py doctor`.",
    )
