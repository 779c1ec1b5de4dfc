"""Sends each call to the process that has the connection of its agent or session.

A server that is shared by agent or session may keep state for it, so there is one connection for each in the whole site. The first
process that needs it opens it and is its owner (``services.servers.placement``). The others have their calls made by the owner
(``downstream.peers``). Calls to connections that everybody shares are never forwarded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import structlog
from django.conf import settings
from django.db import Error

from mcpregistry.db import db_call
from mcpregistry.domain.calls.forwarding import Forwarding
from mcpregistry.domain.errors import Busy
from mcpregistry.domain.kinds import TOOL
from mcpregistry.downstream.peers.client import OwnerGoneError, Relay
from mcpregistry.downstream.peers.messages import RelayedCall, pack_host
from mcpregistry.downstream.peers.server import Callbacks, NotOwnerError, PeerServer
from mcpregistry.downstream.pool.pool import Pool
from mcpregistry.services.servers import placement
from mcpregistry.services.servers.placement import LEASE, Owner

log = structlog.get_logger(__name__)

Key = tuple[int, str]  # server and session
STATE_IS_NEW = (
    "Note of Slipsnisse: the connection of this session to the server was lost, and this call has a new one. "
    "The server no longer has what it kept for the session."
)
_RENEW_EVERY = LEASE.total_seconds() / 3
_TRIES = 3
_CALLBACKS = ("on_sent", "on_progress", "on_log")
_LONGEST_SOCKET = 100  # bytes; unix(7) allows 107


class Placement:
    """For use on the event loop of the pool. ``process`` is the name of this process."""

    def __init__(self, pool: Pool, process: str) -> None:
        self._pool, self._process = pool, process
        self._address = ""
        self._owners: dict[Key, Owner] = {}
        self._renewed = 0.0  # monotonic
        self._server = PeerServer(self._perform)
        self._renewing: asyncio.Task[None] | None = None
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._background: set[asyncio.Task[None]] = set()

    async def start(self, path: Path) -> None:
        """Take calls of other processes at this socket. Without it, every session has a connection in each process."""
        await self._server.start(path)
        self._address, self._renewed = str(path), time.monotonic()
        self._renewing = asyncio.create_task(self._renew())

    async def close(self) -> None:
        """Stop taking calls, and give up all sessions."""
        if self._renewing is None:
            return
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        await self._server.close()
        self._owners.clear()  # what closes from now on is lost, not given back
        with contextlib.suppress(Error):  # then the leases run out
            await db_call(placement.release_process, self._process)

    async def call(
        self, server_id: int, name: str, arguments_json: bytes, *, session: str, host: Forwarding, **options: Any
    ) -> dict[str, Any]:
        """``Pool.call``, in the process that has the connection. Raises what that raises, and Busy."""
        if not session or not self._address:
            return await self._pool.call(server_id, name, arguments_json, session=session, host=host, **options)
        key, is_lost = (server_id, session), False
        for _ in range(_TRIES):
            owner = await self._owner(key)
            is_lost = is_lost or owner.is_lost
            if owner.process == self._process:
                self._owners[key] = Owner(owner.process, owner.address)
                result = await self._pool.call(server_id, name, arguments_json, session=session, host=host, **options)
                return _with_note(result) if is_lost else result
            try:
                call = _relayed(owner, key, name, arguments_json, host=host, options=options)
                return await Relay(call, host, {each: options.get(each) for each in _CALLBACKS}).run(owner.address)
            except NotOwnerError:
                self._owners.pop(key, None)
            except OwnerGoneError:
                await self._take_over(key, owner.process)
        raise Busy("The connection of this session is moving between processes.", remedy="Call again in a moment.")

    async def _owner(self, key: Key) -> Owner:
        async with self._lock(key):
            owner = self._owners.get(key)
            if owner is not None and (owner.process != self._process or self._leases_hold):
                return owner
            had = owner is not None
            owner = await db_call(placement.claim, **self._us(key))
            if had and owner.process != self._process:  # our leases had run out, and another process was faster
                await self._pool.close_session(*key)
            self._owners[key] = owner
            return owner

    async def _take_over(self, key: Key, dead: str) -> None:
        async with self._lock(key):
            self._owners[key] = await db_call(placement.take_over, dead=dead, **self._us(key))

    def _us(self, key: Key) -> dict[str, Any]:
        return {"server_id": key[0], "session": key[1], "process": self._process, "address": self._address}

    def _lock(self, key: Key) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    @property
    def _leases_hold(self) -> bool:
        return time.monotonic() - self._renewed < LEASE.total_seconds() - 5

    async def _perform(self, call: RelayedCall, host: Forwarding, callbacks: Callbacks) -> dict[str, Any]:
        """Make a call of another process. Raises NotOwnerError, and what ``Pool.call`` raises."""
        key = (call.server, call.session)
        known = self._owners.get(key)
        if call.owner != self._process or known is None or known.process != self._process or not self._leases_hold:
            raise NotOwnerError
        return await self._pool.call(
            call.server, call.name, call.arguments.encode(), session=call.session, host=host, meta=call.meta, timeout=call.timeout,
            max_result_bytes=call.max_result_bytes, idempotent=call.idempotent, revision=call.revision, kind=call.kind,
            definition=call.definition, by=call.by, caller=call.caller, asks=None if call.asks is None else frozenset(call.asks),
            **callbacks,
        )  # fmt: skip

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_EVERY)
            try:
                began = time.monotonic()
                await db_call(placement.renew, self._process)
                self._renewed = began
            except Error:  # tried again; without a lease nothing is called here
                log.exception("placement.not_renewed")

    def release(self, server_id: int, session: str) -> None:
        """The connection of a session has closed here; see ``Pool``."""
        if (server_id, session) in self._owners:
            task = asyncio.ensure_future(self._give_back((server_id, session)))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _give_back(self, key: Key) -> None:
        async with self._lock(key):
            owner = self._owners.get(key)
            if owner is None or owner.process != self._process or self._pool.holds_session(*key):
                return
            try:
                await db_call(placement.release, server_id=key[0], session=key[1], process=self._process)
            except Error:  # it stays ours until its next call, or until this process ends
                log.exception("placement.not_released", server_id=key[0])
            else:
                self._owners.pop(key, None)


def _relayed(
    owner: Owner, key: Key, name: str, arguments_json: bytes, *, host: Forwarding, options: Mapping[str, Any]
) -> RelayedCall:
    """Return the call as the owner gets it. ``options`` are the others of ``Pool.call``."""
    asks = options.get("asks")
    return RelayedCall(
        owner=owner.process, server=key[0], session=key[1], name=name, arguments=arguments_json.decode(), host=pack_host(host),
        caller=options.get("caller", ""), kind=options.get("kind", TOOL), meta=options.get("meta"), timeout=options.get("timeout"),
        max_result_bytes=options.get("max_result_bytes"), idempotent=options.get("idempotent", False),
        revision=options.get("revision"), definition=options.get("definition"), by=options.get("by"),
        asks=None if asks is None else sorted(asks), wants_progress=options.get("on_progress") is not None,
        wants_log=options.get("on_log") is not None,
    )  # fmt: skip


def peer_socket() -> Path:
    """Where this process takes calls of the others: in the site's folder, or elsewhere if the path would be too long."""
    path = Path(settings.VAR_DIR, "run", f"{os.getpid()}.sock")
    if len(os.fsencode(path)) < _LONGEST_SOCKET:
        return path
    return Path(tempfile.mkdtemp(prefix="slipsnisse-"), "peer.sock")


def _with_note(result: dict[str, Any]) -> dict[str, Any]:
    content = result.get("content")
    return (
        result | {"content": [{"type": "text", "text": STATE_IS_NEW}, *content]}
        if isinstance(content, list)
        else result
    )
