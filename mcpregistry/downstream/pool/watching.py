"""Subscriptions to single resources: one at the server however many hosts want it, renewed when its connection is.

``Watches`` belongs to a pool and outlives connections; each connection's owner runs ``Watched.follow``, which tells the
server of its era what is wanted: ``resources/subscribe``, or one ``subscriptions/listen`` stream with all URIs. While
anything is wanted of a server its connection is kept, and made anew when it is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import structlog
from mcp.client.client import Client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated

from mcpregistry.domain.errors import ConnectionFailed, ProtocolError, SlipsnisseError, ToolRefused

log = structlog.get_logger(__name__)

Listener = Callable[[], None]  # called on the event loop for each change, must not block

RETRY_FIRST, RETRY_MOST = 1.0, 30.0  # seconds
SETTLE = 0.02  # seconds in which changes are collected
MOST = 5_000  # URIs of one server


class Live(Protocol):
    """A connection, as far as it is needed here."""

    async def ask(self, method: str, params: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """One request. Raises DownstreamError."""


class Watched:
    """What is wanted of one server, and who is told."""

    def __init__(self) -> None:
        self.wanted: dict[str, dict[object, Listener]] = {}
        self.keeper: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._settled: dict[str, asyncio.Future[None]] = {}
        self._interrupted = False
        self._due: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self.wanted)

    def add(self, uri: str, listener: Listener) -> tuple[Callable[[], None], asyncio.Future[None]]:
        """Returns what ends it (idempotent), and a future: the server has taken it, or its error."""
        if uri not in self.wanted:
            self.wanted[uri] = {}
            self._settled[uri] = asyncio.get_running_loop().create_future()
            self._settled[uri].add_done_callback(_retrieve)
            self._changed.set()
        key = object()
        self.wanted[uri][key] = listener

        def end() -> None:
            listeners = self.wanted.get(uri, {})
            if listeners.pop(key, None) is not None and not listeners:
                del self.wanted[uri]
                self._settled.pop(uri).cancel()
                self._changed.set()

        return end, self._settled[uri]

    def note(self, uri: str) -> None:
        """The server says that a resource has changed. Listeners are called in a moment, once for each resource."""
        if not self.wanted:
            return
        if not self._due:
            asyncio.get_running_loop().call_later(SETTLE, self._tell_due)
        if len(self._due) >= 2 * MOST:  # then everything counts as changed
            self._due = dict.fromkeys(self.wanted)
        self._due[uri] = None

    def _tell_due(self) -> None:
        due, self._due = self._due, {}
        self.updated(*due)

    def updated(self, *uris: str) -> None:
        """These resources, or some below them, have changed."""
        named = defaultdict(list)
        for wanted in self.wanted:
            named[wanted.rstrip("/")].append(wanted)
        changed = dict[str, None]()
        for uri in uris:
            above = (uri[: found.start()] for found in re.finditer("/", uri))
            changed.update(dict.fromkeys([uri, *(wanted for folder in above for wanted in named.get(folder, ()))]))
        for wanted in changed:
            for listener in list(self.wanted.get(wanted, {}).values()):
                listener()

    def _settle(self, uri: str, error: SlipsnisseError | None) -> None:
        future = self._settled.get(uri)
        if future is None or future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    # -- towards the server; run by the connection's owner, and cancelled with it -----------------------------

    async def follow(self, client: Client, connection: Live, *, modern: bool) -> None:
        """Tell the server what is wanted, for as long as this connection lives."""
        if self._interrupted:  # what changed meanwhile was not told
            self.updated(*self.wanted)
        try:
            await (self._listening(client) if modern else self._subscribing(connection))
        finally:
            self._interrupted = bool(self.wanted)

    async def _subscribing(self, connection: Live) -> None:
        told: set[str] = set()
        while True:
            self._changed.clear()
            for uri in told - self.wanted.keys():
                told.discard(uri)
                with contextlib.suppress(SlipsnisseError):
                    await connection.ask("resources/unsubscribe", {"uri": uri})
            for uri in [uri for uri in self.wanted if uri not in told]:
                told.add(uri)
                try:
                    await connection.ask("resources/subscribe", {"uri": uri})
                    self._settle(uri, None)
                except SlipsnisseError as error:
                    self._settle(uri, error)
            await self._changed.wait()

    async def _listening(self, client: Client) -> None:
        """The next stream is open before the last one is closed, so that nothing is missed between them."""
        before: asyncio.Task[None] | None = None
        now: asyncio.Task[None] | None = None
        try:
            while True:
                self._changed.clear()
                now = asyncio.ensure_future(self._stream(client, sorted(self.wanted))) if self.wanted else None
                if now is not None:
                    taken = asyncio.gather(*(self._settled[uri] for uri in self.wanted), return_exceptions=True)
                    await _first(now, taken)
                await _end(before)
                before = now
                await self._changed.wait()
        finally:  # the newer one may not have been taken yet
            await _end(before, now)

    async def _stream(self, client: Client, uris: list[str]) -> None:
        delay, lost = RETRY_FIRST, False
        while True:
            try:
                async with client.listen(resource_subscriptions=uris) as events:
                    honored = set(events.honored.resource_subscriptions or ())
                    for uri in uris:
                        self._settle(uri, None if uri in honored else _not_told())
                        if lost:
                            self.updated(uri)
                    delay = RETRY_FIRST
                    async for event in events:
                        if isinstance(event, ResourceUpdated):
                            self.note(event.uri)
            except (SubscriptionLost, MCPError, TimeoutError) as error:
                for uri in uris:
                    self._settle(uri, _refused(error))
            lost = True
            await asyncio.sleep(delay)
            delay = min(delay * 2, RETRY_MOST)


class Watches:
    """All subscriptions of one pool. ``hold`` connects to a server and returns when that connection has closed."""

    def __init__(self, hold: Callable[[int], Awaitable[None]]) -> None:
        self._hold = hold
        self._servers: dict[int, Watched] = {}

    def of(self, server_id: int) -> Watched:
        """What is wanted of the server; the same object for all its connections."""
        return self._servers.setdefault(server_id, Watched())

    async def add(self, server_id: int, uri: str, listener: Listener, *, patience: float) -> Callable[[], None]:
        """Tell ``listener`` of changes until the returned function is called.

        Raises what the server says against it; one that does not say anything for ``patience`` seconds is told later.
        """
        watched = self.of(server_id)
        if len(watched.wanted) >= MOST and uri not in watched.wanted:
            raise ConnectionFailed("Too many resources of this server are subscribed to.", remedy="End some first.")
        end, taken = watched.add(uri, listener)
        if watched.keeper is None or watched.keeper.done():
            watched.keeper = asyncio.ensure_future(self._keep(server_id, watched))
        try:
            async with asyncio.timeout(patience):
                await asyncio.shield(taken)
        except TimeoutError:
            log.info("subscription.not_taken_yet", server_id=server_id)
        except BaseException:
            end()
            raise
        return end

    async def _keep(self, server_id: int, watched: Watched) -> None:
        """Hold a connection for as long as anything is wanted."""
        delay = RETRY_FIRST
        while watched:
            try:
                began = time.monotonic()
                await self._hold(server_id)
                delay = RETRY_FIRST if time.monotonic() - began > RETRY_MOST else delay
            except SlipsnisseError as error:
                log.info("subscriptions.not_connected", server_id=server_id, code=error.code)
            except Exception:  # the database may be away: what is wanted stays wanted
                log.exception("subscriptions.not_kept", server_id=server_id)
            await asyncio.sleep(delay)
            delay = min(delay * 2, RETRY_MOST)

    async def close(self) -> None:
        """No connection is kept any more."""
        keepers = [each.keeper for each in self._servers.values() if each.keeper is not None]
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)


def _not_told() -> ProtocolError:
    return ProtocolError(
        "The server does not report changes of this resource.", remedy="Read it again when you need it.", sent=True
    )


def _refused(error: Exception) -> SlipsnisseError:
    if isinstance(error, MCPError):
        return ToolRefused(error.message, rpc_code=error.code)
    return ConnectionFailed("The server's stream of changes was lost.", remedy="Subscribe again.")


async def _first(*waiting: asyncio.Future[Any]) -> None:
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)


async def _end(*tasks: asyncio.Task[None] | None) -> None:
    ending = [task for task in tasks if task is not None]
    for task in ending:
        task.cancel()
    if ending:
        await asyncio.wait(ending)


def _retrieve(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()  # whoever waits has seen it; nobody waiting is no error
