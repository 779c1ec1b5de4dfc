"""Links between processes for subscriptions: one process follows at another what its hosts have
subscribed to.

After ``taken``, the process that follows sends ``add`` and ``drop``, each with a URI. The other one
answers each ``add`` with ``accepted`` (a URI) or ``refused`` (a URI and an error), and sends
``changed`` with the URIs of resources that have changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.downstream.peers.client import confirm_taken
from mcpregistry.downstream.peers.connections import connect_to_process
from mcpregistry.downstream.peers.frames import read_frame, write_frame
from mcpregistry.downstream.peers.messages import RelayedWatch, pack_error, unpack_error
from mcpregistry.downstream.pool.resource_subscriptions import Follower, Listener, Watched

MOST_BYTES = 4 * 1024 * 1024  # of a frame
LOOK_SECONDS = 30.0  # between looks whether the other process still has the connection
GIVE_UP_SECONDS = 1.0  # between looks at this end

# Begins to watch a URI; returns what ends that. Raises SlipsnisseError.
Add = Callable[[str, Listener], Awaitable[Callable[[], None]]]


async def follow_at(
    address: str,
    watch: RelayedWatch,
    watched: Watched,
    still_owns: Callable[[], Awaitable[bool]],
    joined: Callable[[], None] = lambda: None,
) -> None:
    """Follow at another process until it ends the link. ``joined`` is called when the follower has
    joined.

    Raises OwnerGoneError, NotOwnerError and Busy, all before anything is followed.
    """
    async with connect_to_process(address) as (reader, writer):
        write_frame(writer, {"watch": watch})
        await confirm_taken(reader)
        follower = Follower(watched, is_main=bool(watch.session), ours_only=True)
        watched.join(follower)
        joined()
        working = [
            asyncio.ensure_future(_send_wanted(follower, writer)),
            asyncio.ensure_future(_receive_changes(follower, reader)),
        ]
        working.append(asyncio.ensure_future(_watch_ownership(still_owns)))
        try:
            done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            watched.leave(follower)
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)


async def _send_wanted(follower: Follower, writer: asyncio.StreamWriter) -> None:
    """Send what is wanted, and what is not wanted any more."""
    told: set[str] = set()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while True:
            follower.changed.clear()
            wanted = follower.wanted
            for uri in told - set(wanted):
                write_frame(writer, {"drop": uri})
                follower.answers.pop(uri, None)
            for uri in wanted:
                if uri not in told or uri not in follower.answers:
                    write_frame(writer, {"add": uri})
            told = set(wanted)
            await writer.drain()
            await follower.changed.wait()


async def _receive_changes(follower: Follower, reader: asyncio.StreamReader) -> None:
    while (frame := await read_frame(reader, MOST_BYTES)) is not None:
        if "changed" in frame:
            for uri in frame["changed"]:
                follower.watched.note(uri)
        elif "accepted" in frame:
            follower.answer(frame["accepted"], None)
        elif "refused" in frame:
            uri, error = frame["refused"]
            follower.answer(uri, unpack_error(error))


async def _watch_ownership(still_owns: Callable[[], Awaitable[bool]]) -> None:
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if not await still_owns():
            return


class ServedLink:
    """The other end. ``owns``: whether this process still has the connection that the link is
    about."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        add: Add,
        owns: Callable[[], bool],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._add = add
        self._owns = owns
        self._ends: dict[str, Callable[[], None]] = {}
        self._adding: dict[str, asyncio.Task[None]] = {}
        self._changed: dict[str, None] = {}
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Serve until the other process leaves, or this one does not own the connection any
        more."""
        working = [
            asyncio.ensure_future(each)
            for each in (self._receive_requests(), self._send_changes(), self._watch_ownership())
        ]
        try:
            done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            tasks = [*working, *self._adding.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for end in self._ends.values():
                end()

    async def _receive_requests(self) -> None:
        while (frame := await read_frame(self._reader, MOST_BYTES)) is not None:
            if "add" in frame:
                self._begin(frame["add"])
            elif "drop" in frame:
                self._drop(frame["drop"])

    def _begin(self, uri: str) -> None:
        if uri in self._ends:
            self._send_frame({"accepted": uri})
        elif uri not in self._adding:
            task = asyncio.ensure_future(self._add_uri(uri))
            self._adding[uri] = task
            task.add_done_callback(
                lambda done: self._adding.pop(uri) if self._adding.get(uri) is done else None
            )

    async def _add_uri(self, uri: str) -> None:
        try:
            self._ends[uri] = await self._add(uri, lambda: self._note_change(uri))
        except SlipsnisseError as error:
            self._send_frame({"refused": [uri, pack_error(error)]})
        else:
            self._send_frame({"accepted": uri})

    def _drop(self, uri: str) -> None:
        if (adding := self._adding.pop(uri, None)) is not None:
            adding.cancel()
        if (end := self._ends.pop(uri, None)) is not None:
            end()
        self._changed.pop(uri, None)

    def _note_change(self, uri: str) -> None:
        self._changed[uri] = None
        self._news.set()

    async def _send_changes(self) -> None:
        """Send changes as fast as the other process reads them. Each waits once."""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while True:
                await self._news.wait()
                self._news.clear()
                changed = list(self._changed)
                self._changed = {}
                self._send_frame({"changed": changed})
                await self._writer.drain()

    async def _watch_ownership(self) -> None:
        while True:
            await asyncio.sleep(GIVE_UP_SECONDS)
            if not self._owns():
                return

    def _send_frame(self, frame: Mapping[str, Any]) -> None:
        if not self._writer.is_closing():
            write_frame(self._writer, frame)
