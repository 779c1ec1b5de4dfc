"""Follows subscribed resources on every connection where they may change, in whichever process that
is.

A server that is shared by agent or session reports changes on the connection of that agent or
session, so the process that owns this connection is followed. To a server that everybody shares,
each process has a connection; where the server is a local program, these are different programs, so
all processes are followed. They subscribe on connections that they have anyway, and open none for
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from django.db import Error

from mcpregistry.calls.connection_placement import Key, Placement
from mcpregistry.db import db_call
from mcpregistry.domain.calls.forwarding import make_channel_ask
from mcpregistry.domain.errors import QueueFullError, SlipsnisseError
from mcpregistry.domain.servers.sessions import EVERYBODY
from mcpregistry.downstream.peers.channels import unpack_host
from mcpregistry.downstream.peers.client import greet
from mcpregistry.downstream.peers.connections import OwnerGoneError, PeerConnections
from mcpregistry.downstream.peers.frames import write_frame
from mcpregistry.downstream.peers.links import ServedLink, follow_at
from mcpregistry.downstream.peers.messages import RelayedWatch
from mcpregistry.downstream.peers.neighbours import announce, list_neighbours
from mcpregistry.downstream.peers.server import NotOwnerError
from mcpregistry.downstream.pool.pool import Pool
from mcpregistry.downstream.pool.resource_subscriptions import Listener, Opener, Watched
from mcpregistry.services.servers.placement import Owner
from mcpregistry.services.upkeep import processes

log = structlog.get_logger(__name__)

PATIENCE = 10.0  # seconds for a server to take what another process has asked for
PAUSE = 0.1  # while a connection moves between processes
LOOK_SECONDS = 10.0  # between looks for processes that were not heard of
KNOWN_SECONDS = 5.0  # for which the processes on other machines are not read again


class ResourceWatches:
    """For use on the event loop of the pool, whose subscriptions it places."""

    def __init__(self, pool: Pool, placement: Placement) -> None:
        self._pool = pool
        self._placement = placement
        self._started: set[asyncio.Event] = set()  # set when another process has started
        self._marker: Path | None = None
        self._elsewhere: list[str] = []
        self._read_again = 0.0  # monotonic
        pool.watches.hold = self._hold_connection
        pool.watches.share = self._follow_all_processes
        placement.serve_watches(self._serve_link, self._handle_greeting)

    async def start(self, marker: Path) -> None:
        """Let the other processes of the machine follow this one: they find it by this file. To be
        called when it listens."""
        self._marker = marker
        await asyncio.to_thread(announce, marker, self._placement.address)
        for address in await self.list_neighbours():
            try:
                await greet(address)
            except (OwnerGoneError, SlipsnisseError):
                # it follows when it looks for processes the next time
                log.info("subscriptions.process_not_greeted", address=address)

    async def close(self) -> None:
        """Follow nothing any more. To be called before this process gives up its connections."""
        await self._pool.watches.close()
        if self._marker is not None:
            await asyncio.to_thread(self._marker.unlink, missing_ok=True)

    async def list_neighbours(self) -> list[str]:
        """Return the addresses of the other processes of this machine, and of other machines if
        they can be reached."""
        if self._marker is None:
            return []
        here = await asyncio.to_thread(list_neighbours, self._marker)
        return list(dict.fromkeys([*here, *await self._list_remote_processes()]))

    async def _list_remote_processes(self) -> list[str]:
        if self._placement.is_for_machines and time.monotonic() >= self._read_again:
            self._read_again = time.monotonic() + KNOWN_SECONDS
            with contextlib.suppress(Error):  # then those of the last time are asked
                found = await db_call(processes.list_process_addresses)
                self._elsewhere = [
                    address for address in found if address != self._placement.address
                ]
        return self._elsewhere

    # -- what hosts of this process want -----------------------------------------------------------

    async def _hold_connection(self, watched: Watched) -> None:
        """Return when the connection has closed, or is another process's. Raises SlipsnisseError,
        and a database error."""
        if watched.session == EVERYBODY or not self._placement.address:
            await self._pool.hold_for(watched)
            return
        key = (watched.server_id, watched.session)
        for attempt in itertools.count():
            owner = await self._placement.find_owner(key)
            if self._placement.is_us(owner):
                break
            try:
                await self._follow_owner(key, owner, watched)
                return
            except OwnerGoneError as gone:
                await self._placement.replace_owner(key, owner, gone, attempt)
            except NotOwnerError:
                await asyncio.sleep(PAUSE)
        try:
            with self._placement.hold_connection(key):
                await self._pool.hold_for(watched)
        finally:
            await asyncio.shield(self._placement.give_back(key))

    async def _follow_owner(self, key: Key, owner: Owner, watched: Watched) -> None:
        """Follow the process that has the connection until it ends the link. Raises as
        ``follow_at``."""
        still_owns = partial(self._placement.is_still_owner, key, owner)
        try:
            await follow_at(
                owner.address, self._pack_watch(owner.process, watched), watched, still_owns
            )
        except OwnerGoneError:
            raise
        except (NotOwnerError, QueueFullError):
            # it may hang: the next try looks whether it still renews its lease
            self._placement.forget(key)
            raise
        self._placement.forget(key)

    def _pack_watch(self, owner: str, watched: Watched) -> RelayedWatch:
        opener = watched.opener
        return RelayedWatch(
            owner=owner,
            server=watched.server_id,
            session=watched.session,
            caller=opener.caller,
            host=self._placement.pack_local_host(opener.host),
            asks=None if opener.asks is None else sorted(opener.asks),
        )

    async def _follow_all_processes(self, watched: Watched) -> None:
        """Follow all other processes, until this is cancelled."""
        links: dict[str, asyncio.Task[None]] = {}
        started = asyncio.Event()
        self._started.add(started)
        try:
            while True:
                started.clear()
                joining = []
                for address in await self.list_neighbours():
                    if address not in links or links[address].done():
                        joined = asyncio.Event()
                        links[address] = asyncio.ensure_future(
                            self._follow_process(address, watched, joined)
                        )
                        joining.append(joined)
                await asyncio.gather(*(each.wait() for each in joining))
                if watched.is_joining:
                    watched.is_joining = False
                    watched.settle()
                await _wait_for_event(started, LOOK_SECONDS)
        finally:
            self._started.discard(started)
            for link in links.values():
                link.cancel()
            await asyncio.gather(*links.values(), return_exceptions=True)

    async def _follow_process(self, address: str, watched: Watched, joined: asyncio.Event) -> None:
        async def is_lasting() -> bool:
            return True

        try:
            await follow_at(address, self._pack_watch("", watched), watched, is_lasting, joined.set)
        except (OwnerGoneError, NotOwnerError, SlipsnisseError) as error:
            log.info(
                "subscriptions.process_not_followed", address=address, error=type(error).__name__
            )
        finally:
            joined.set()

    def _handle_greeting(self) -> None:
        self._read_again = 0.0
        for started in self._started:
            started.set()

    # -- what hosts of other processes want --------------------------------------------------------

    async def _serve_link(
        self, watch: RelayedWatch, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        def is_owner() -> bool:
            return not watch.session or self._placement.is_owner(watch)

        if not is_owner():
            write_frame(writer, {"not_owner": True})
            return
        write_frame(writer, {"taken": True})
        opener = _make_opener(watch, self._placement.connections)

        async def add_watch(uri: str, listener: Listener) -> Any:
            return await self._pool.watches.add(
                watch.server,
                uri,
                listener,
                patience=PATIENCE,
                session=watch.session,
                opener=opener,
                is_ours=False,
            )

        await ServedLink(reader, writer, add_watch, is_owner).run()


def _make_opener(watch: RelayedWatch, connections: PeerConnections) -> Opener | None:
    if not watch.session:
        return None
    host = unpack_host(watch.host, None, connections)
    if watch.host.can_ask:
        host = replace(host, ask=make_channel_ask(host))
    return Opener(watch.caller, host, None if watch.asks is None else frozenset(watch.asks))


async def _wait_for_event(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
