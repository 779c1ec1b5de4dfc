"""Sends each call to the process that has the connection of its agent or session.

A server that is shared by agent or session may keep state for it, so there is one connection for
each: on a machine, or in the whole site if its machines can reach each other
(``SLIPSNISSE_PEER_ADDRESS``). The first process that needs it opens it and is its owner
(``services.servers.placement``). The others have their calls made by the owner
(``downstream.peers``). Calls to connections that everybody shares are never forwarded.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import structlog
from django.conf import settings
from django.db import Error

from mcpregistry.calls.peer_addresses import get_machine_name, is_running_here
from mcpregistry.db import db_call
from mcpregistry.domain import error_texts
from mcpregistry.domain.calls.forwarding import Ask, Forwarding
from mcpregistry.domain.errors import ConnectionFailed, QueueFullError
from mcpregistry.domain.servers.sessions import parse_session_name
from mcpregistry.downstream.peers.channels import Channels, unpack_host
from mcpregistry.downstream.peers.client import Relay, notify_process
from mcpregistry.downstream.peers.connections import OwnerGoneError, PeerConnections
from mcpregistry.downstream.peers.messages import (
    RelayedCall,
    RelayedHost,
    RelayedNotice,
    RelayedRequest,
    RelayedWatch,
    pack_call,
    pack_host,
    unpack_call,
)
from mcpregistry.downstream.peers.server import (
    AskHost,
    Callbacks,
    Handlers,
    NotOwnerError,
    PeerServer,
    Watch,
)
from mcpregistry.downstream.peers.sockets import PeerAddress, identify
from mcpregistry.downstream.pool.pool import Pool
from mcpregistry.downstream.server_call import ServerCall
from mcpregistry.services.servers import placement
from mcpregistry.services.servers.placement import LEASE, ConnectionPlace, Owner

log = structlog.get_logger(__name__)

Key = tuple[int, str]  # server and session
STATE_IS_NEW = (
    "Note from Slipsnisse: this session's connection to the server was lost, and this call used a new one. "
    "The server has lost what it stored for the session."
)
MOST_REMEMBERED = 5_000  # owners of connections elsewhere
_RENEW_EVERY = LEASE.total_seconds() / 3
# while a process leaves and its connections find another
_TRIES = 20
_PAUSE = 0.1
# after which a process of another machine, which refuses connections, counts as dead
_REFUSALS = 10
ALL_MACHINES = "all"  # in the place of a machine's name


class Placement:
    """For use on the event loop of the pool. ``process`` is the name of this process."""

    def __init__(self, pool: Pool, process: str) -> None:
        self._pool = pool
        self._us = Owner(process, "")
        self._machine = get_machine_name()
        self._owners: dict[Key, Owner] = {}
        self._renewed = 0.0  # monotonic
        self._uses: Counter[Key] = Counter()
        self._unwanted: set[Key] = set()  # connections that have closed while they were used
        # connections that others may have replaced while our leases had run out
        self._unchecked: set[Key] = set()
        self._channels = Channels()
        self.connections = PeerConnections()
        self._server = PeerServer(
            Handlers(
                process,
                owns=self.is_owner,
                perform=self._perform_call,
                hear=self._channels.deliver_word,
                end_session=pool.end_session,
                tell_roots_changed=pool.notify_roots_changed,
                using=lambda call: self.hold_connection((call.server, call.session)),
            )
        )
        self._renewing: asyncio.Task[None] | None = None
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._background: set[asyncio.Task[None]] = set()

    async def start(self, place: Path | PeerAddress) -> None:
        """Take calls of other processes here. Without it, every session has a connection in each
        process. Raises OSError."""
        if isinstance(place, PeerAddress):
            identify(settings.SLIPSNISSE_KEYS.values())
            self._machine = ALL_MACHINES
        self._us = replace(self._us, address=await self._server.start(place))
        self._renewed = time.monotonic()
        self._renewing = asyncio.create_task(self._renew())

    async def close(self) -> None:
        """Stop taking calls, and give up all sessions."""
        if self._renewing is None:
            return
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        await asyncio.gather(self._server.close(), self.connections.close())
        self._owners.clear()  # what closes from now on is lost, not given back
        with contextlib.suppress(Error):  # then the leases run out
            await db_call(placement.release_process, self._us.process)

    async def call(self, call: ServerCall) -> dict[str, Any]:
        """``Pool.call``, in the process that has the connection. Raises what that raises, and
        Busy."""
        if not call.session or not self._us.address:
            return await self._call_here(call)
        key = (call.server_id, call.session)
        for attempt in range(_TRIES):
            owner = await self.find_owner(key)
            if self.is_us(owner):
                return await self._call_here(call)
            try:
                return await self._relay_call(owner, call)
            except NotOwnerError:
                # it has just given the connection up, or looks first whether it still has it
                self._owners.pop(key, None)
                await asyncio.sleep(_PAUSE if attempt else 0)
            except OwnerGoneError as gone:
                await self.replace_owner(key, owner, gone, attempt)
        raise QueueFullError(
            "This session's connection is being moved to another process.",
            remedy=error_texts.TRY_AGAIN_SOON,
        )

    async def _call_here(self, call: ServerCall) -> dict[str, Any]:
        """``Pool.call``. After a connection was lost, the first result of the new connection gets a
        note about it.

        If the loss was known when the call was sent, the call was sent on the new connection. A
        loss that becomes known later is noted in the result of the next call.
        """
        if not call.session:
            return await self._pool.call(call)
        key = (call.server_id, call.session)
        at_sending = self._us

        def note_owner() -> None:
            nonlocal at_sending
            at_sending = self._owners.get(key, self._us)
            if call.on_sent is not None:
                call.on_sent()

        with self.hold_connection(key):
            result = await self._pool.call(msgspec.structs.replace(call, on_sent=note_owner))
            if not at_sending.is_lost:
                return result
            if self._owners.get(key) is at_sending:
                self._owners[key] = replace(at_sending, is_lost=False)
            return _add_state_note(result)

    @contextlib.contextmanager
    def hold_connection(self, key: Key) -> Iterator[None]:
        """This process does not give up this connection meanwhile, even if it closes or is not open
        yet."""
        self._uses[key] += 1
        try:
            yield
        finally:
            self._uses[key] -= 1
            if not self._uses[key]:
                del self._uses[key]
                if key in self._unwanted:
                    self._spawn(self.give_back(key))

    @property
    def address(self) -> str:
        """Where this process takes calls and requests of others; empty if it does not."""
        return self._us.address

    @property
    def is_for_machines(self) -> bool:
        """Whether processes on other machines can reach this one."""
        return self._machine == ALL_MACHINES

    def serve_requests(self, serve: Callable[[RelayedRequest, Any, Any], Awaitable[None]]) -> None:
        """Let other processes send requests of hosts here; see
        ``downstream.peers.server.Handlers``."""
        self._server.handlers = msgspec.structs.replace(self._server.handlers, serve=serve)

    def end_session(self, session: str) -> None:
        """``Pool.end_session``, also in the other processes that are known to have connections of
        this session."""
        self._pool.end_session(session)
        elsewhere = [
            key
            for key, owner in self._owners.items()
            if parse_session_name(key[1]) == session and not self.is_us(owner)
        ]
        for address in {self._owners.pop(key).address for key in elsewhere}:
            self._spawn(notify_process(address, {"end_session": session}, self.connections))

    async def notify_roots_changed(self, caller: str) -> None:
        """``Pool.notify_roots_changed``, in all processes that have connections of this host. Never
        raises."""
        self._pool.notify_roots_changed(caller)
        if not self._us.address:
            return
        # its servers then read the folders when they connect the next time
        with contextlib.suppress(Error):
            addresses = await db_call(placement.list_session_addresses, self._machine, caller)
            for address in addresses - {self._us.address}:
                self._spawn(notify_process(address, {"roots_changed": caller}, self.connections))

    def serve_watches(self, watch: Watch, greet: Callable[[], None]) -> None:
        """Let other processes follow resources here; see ``downstream.peers.server.Handlers``."""
        self._server.handlers = msgspec.structs.replace(
            self._server.handlers, watch=watch, greet=greet
        )

    def serve_streams(
        self, notify: Callable[[RelayedNotice], Awaitable[bool]], ask_host: AskHost
    ) -> None:
        """Let other processes use the streams of hosts here; see
        ``downstream.peers.server.Handlers``."""
        self._server.handlers = msgspec.structs.replace(
            self._server.handlers, notify=notify, ask_host=ask_host
        )

    def is_us(self, owner: Owner) -> bool:
        """Whether this is this process."""
        return owner.process == self._us.process

    def forget(self, key: Key) -> None:
        """The owner that is known may not have this connection any more."""
        self._owners.pop(key, None)

    async def is_still_owner(self, key: Key, owner: Owner) -> bool:
        """Whether this process still has the connection; true if the database does not answer."""
        try:
            return await db_call(placement.is_owner, self._make_place(key), owner.process)
        except Error:
            return True

    def pack_local_host(self, host: Forwarding) -> RelayedHost:
        """What another process needs to know of a host of this process."""
        return pack_host(host, self._channels.get_name(host.channel), self._us.address)

    async def _relay_call(self, owner: Owner, call: ServerCall) -> dict[str, Any]:
        key = (call.server_id, call.session)
        relayed = pack_call(call, owner.process, self.pack_local_host(call.host))
        still_owns = partial(self.is_still_owner, key, owner)
        try:
            return await Relay(relayed, call, still_owns).run(owner.address, self.connections)
        except (QueueFullError, ConnectionFailed):
            # it may hang: the next call looks whether it still renews its lease
            self._owners.pop(key, None)
            raise

    async def find_owner(self, key: Key) -> Owner:
        """The process that has this connection, or opens it; this one, if none has. Raises a
        database error."""
        async with self._get_lock(key):
            owner = self._owners.get(key)
            if owner is not None and (not self.is_us(owner) or self._has_lease(key)):
                return owner
            was_ours = owner is not None
            is_lost = owner is not None and owner.is_lost
            owner = await db_call(placement.claim_connection, self._make_place(key), self._us)
            if is_lost and self.is_us(owner):
                owner = replace(owner, is_lost=True)
            self._unchecked.discard(key)
            self._remember(key, owner)
            # our leases had run out, and another process was faster
            if was_ours and not self.is_us(owner):
                await self._pool.sessions.close(*key)
            return owner

    def _is_dead(self, owner: Owner, refusals: int) -> bool:
        """Whether a process that refused a connection, after others that it refused for this call,
        has ended."""
        return (
            refusals >= _REFUSALS
            if self._machine == ALL_MACHINES
            else not is_running_here(owner.process)
        )

    async def replace_owner(
        self, key: Key, gone: Owner, error: OwnerGoneError, attempt: int
    ) -> None:
        """The owner could not be reached at this attempt, counted from 0.

        If it has not ended, it is leaving and gives up its sessions in a moment, so this waits for
        a moment.
        """
        if not (error.is_dead or self._is_dead(gone, attempt)):
            self._owners.pop(key, None)
            await asyncio.sleep(_PAUSE)
            return
        async with self._get_lock(key):
            self._remember(
                key,
                await db_call(
                    placement.take_over_connection, self._make_place(key), self._us, gone.process
                ),
            )

    def _remember(self, key: Key, owner: Owner) -> None:
        if len(self._owners) >= MOST_REMEMBERED:
            self._owners = {key: owner for key, owner in self._owners.items() if self.is_us(owner)}
        self._owners[key] = owner

    def _make_place(self, key: Key) -> ConnectionPlace:
        return ConnectionPlace(key[0], self._machine, key[1])

    def _get_lock(self, key: Key) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    @property
    def _leases_hold(self) -> bool:
        return time.monotonic() - self._renewed < LEASE.total_seconds() - 5

    def _has_lease(self, key: Key) -> bool:
        return self._leases_hold and key not in self._unchecked

    def is_owner(self, asked: RelayedCall | RelayedWatch) -> bool:
        """Whether this process has the connection for which another one asks."""
        known = self._owners.get((asked.server, asked.session))
        return (
            asked.owner == self._us.process
            and known is not None
            and self.is_us(known)
            and self._has_lease((asked.server, asked.session))
        )

    async def _perform_call(
        self, call: RelayedCall, ask: Ask | None, callbacks: Callbacks
    ) -> dict[str, Any]:
        """Make a call of another process. Raises what ``Pool.call`` raises."""
        host = unpack_host(call.host, ask, self.connections)
        return await self._call_here(unpack_call(call, host, callbacks))

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_EVERY)
            try:
                began = time.monotonic()
                had_lapsed = not self._leases_hold
                await db_call(placement.renew, self._us.process)
                self._renewed = began
                if had_lapsed:
                    self._unchecked.update(
                        key for key, owner in self._owners.items() if self.is_us(owner)
                    )
                await self._close_lost()
            except Error:  # tried again; without a lease nothing is called here
                log.exception("placement.not_renewed")

    async def _close_lost(self) -> None:
        """After this process did not renew its leases in time: close the connections that others
        have replaced.

        One for which the database fails is looked at again after the next renewal, and the others
        are looked at now.
        """
        for key in [*self._unchecked]:
            try:
                await self._close_if_lost(key)
            except Error:
                log.exception("placement.not_checked", server_id=key[0])

    async def _close_if_lost(self, key: Key) -> None:
        async with self._get_lock(key):
            owner = self._owners.get(key)
            if owner is None or not self.is_us(owner):
                self._unchecked.discard(key)
            elif key in self._unchecked:
                is_ours = await db_call(placement.is_owner, self._make_place(key), self._us.process)
                self._unchecked.discard(key)
                if not is_ours:
                    self._owners.pop(key, None)
                    await self._pool.sessions.close(*key)

    def release(self, server_id: int, session: str, *, is_lost: bool = False) -> None:
        """The connection of a session has closed here; see ``Pool``. ``is_lost``: its server has
        ended, or forgotten the session."""
        key = (server_id, session)
        owner = self._owners.get(key)
        if not self._us.address:
            if is_lost:
                self._remember(key, replace(self._us, is_lost=True))
        elif owner is not None and self.is_us(owner):
            self._owners[key] = replace(owner, is_lost=owner.is_lost or is_lost)
            self._spawn(self.give_back(key))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def give_back(self, key: Key) -> None:
        """Give up a connection that this process owns but has not opened, unless it is used: then
        when its last use ends."""
        async with self._get_lock(key):
            if self._uses[key]:
                self._unwanted.add(key)
                return
            self._unwanted.discard(key)
            owner = self._owners.get(key)
            if owner is None or not self.is_us(owner) or self._pool.sessions.has_connection(*key):
                return
            del self._owners[key]  # first, so that no call of another process is let in meanwhile
            try:
                await db_call(
                    placement.release,
                    self._make_place(key),
                    self._us.process,
                    is_lost=owner.is_lost,
                )
            except Error:  # it stays ours until its next call, or until this process ends
                log.exception("placement.not_released", server_id=key[0])
                self._owners[key] = owner


def _add_state_note(result: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(content := result.get("content"), list):
        return result
    return result | {"content": [{"type": "text", "text": STATE_IS_NEW}, *content]}
