"""Hosts' subscriptions to single resources, of both eras: only what the agent may read, for as long as it may.

A host of the older era subscribes within its session, and is told there; a modern one holds a ``subscriptions/listen``
stream. At the server there is one subscription for all of them (``downstream/pool/watching.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import structlog
from mcp import types as t
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourceUpdated
from mcp.shared.exceptions import MCPError

from mcpregistry.calls.call import CallRequest
from mcpregistry.calls.catalog import Catalogue
from mcpregistry.calls.engine import Engine
from mcpregistry.calls.watch.configuration import LiveConfiguration
from mcpregistry.domain.errors import SlipsnisseError, ToolRefused
from mcpregistry.domain.kinds import SUBSCRIPTIONS
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.gateway.identity import Caller

log = structlog.get_logger(__name__)

Context = ServerRequestContext[Any, Any]

MOST = 1_000  # URIs of one session or stream
PATIENCE = 10.0  # seconds for a server to take a subscription
SETTLE = 0.05  # one word for a burst of changes
_NO_RESOURCE = -32002  # MCP 2025-11-25


@dataclass
class _Session:
    """A host of the older era: what it wants, and what it is to be told next."""

    ends: dict[str, Callable[[], None]] = field(default_factory=dict)
    due: set[str] = field(default_factory=set)
    telling: asyncio.Task[None] | None = None

    def close(self) -> None:
        """The session is over."""
        for end in self.ends.values():
            end()
        self.ends.clear()
        if self.telling is not None:
            self.telling.cancel()


class Subscriptions:
    """All of this process's hosts."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sessions: WeakKeyDictionary[Connection, _Session] = WeakKeyDictionary()
        # Of a session that any process serves, rows say what it wants: its id, the URI, and whether it still does.
        self.keep: Callable[[str, str, bool], Awaitable[None]] | None = None

    async def subscribe(self, ctx: Context, caller: Caller, catalogue: Catalogue, uri: str) -> t.EmptyResult:
        """``resources/subscribe``. Raises MCPError for what cannot be read, or not be subscribed to."""
        await self._engine.pipeline.rates.take(catalogue.agent)
        connection = ctx.session._connection  # as in ``Gateway._initialized``
        session = self._sessions.get(connection)
        if connection.session_id is not None and self.keep is not None and session is None:
            # The session's stream is elsewhere, if anywhere: here the server is only asked whether it tells of this.
            (await self._watch(caller, catalogue, uri, _nobody))()
            await self.keep(connection.session_id, uri, True)
            return t.EmptyResult()
        if session is None:
            session = self._sessions[connection] = _Session()
            connection.exit_stack.callback(session.close)
        if uri in session.ends:
            return t.EmptyResult()
        if len(session.ends) >= MOST:
            raise MCPError(t.INVALID_PARAMS, f"A session subscribes to at most {MOST:,} resources. Unsubscribe some.")

        end = await self._watch(caller, catalogue, uri, _telling(connection, session, uri))
        if uri in session.ends:  # asked twice at the same time
            end()
        session.ends.setdefault(uri, end)
        await self._kept(connection, session, uri)
        return t.EmptyResult()

    async def _kept(self, connection: Connection, session: _Session, uri: str) -> None:
        """What its host is told of stands in the rows too, or nowhere."""
        if connection.session_id is None or self.keep is None:
            return
        try:
            await self.keep(connection.session_id, uri, True)
        except BaseException:
            if end := session.ends.pop(uri, None):
                end()
            raise

    async def unsubscribe(self, ctx: Context, uri: str) -> t.EmptyResult:
        """``resources/unsubscribe``; of what was not subscribed to as well."""
        session_id = ctx.session._connection.session_id
        if session_id is not None and self.keep is not None:
            await self.keep(session_id, uri, False)
        session = self._sessions.get(ctx.session._connection)
        if session is not None and (end := session.ends.pop(uri, None)):
            end()
            session.due.discard(uri)
        return t.EmptyResult()

    def stand(self, connection: Connection) -> None:
        """The stream on which its host is told has begun; pair it with ``leave``."""
        self._sessions[connection] = _Session()

    async def follow(self, caller: Caller, connection: Connection, wanted: set[str]) -> bool:
        """Tell the host whose stream is on this connection of exactly these, as its rows say. False: some could not be
        followed, so call it again after a while. Never raises.
        """
        session = self._sessions[connection]
        for uri in session.ends.keys() - wanted:
            session.ends.pop(uri)()
            session.due.discard(uri)
        await asyncio.gather(
            *(self._followed(caller, connection, session, uri) for uri in wanted - session.ends.keys())
        )
        return wanted <= session.ends.keys()

    async def _followed(self, caller: Caller, connection: Connection, session: _Session, uri: str) -> None:
        changed = _telling(connection, session, uri)
        try:
            catalogue = self._engine.catalogue(caller.endpoint, caller.agent)
            end = await self._watch(caller, catalogue, uri, changed)
        except (MCPError, SlipsnisseError) as error:  # it cannot be read any more
            log.info("subscription.not_followed", why=str(error)[:200])
            return
        if uri in session.ends or self._sessions.get(connection) is not session:
            end()
        else:
            session.ends[uri] = end
            changed()  # perhaps it has: between the subscription, or the stream before, and now nobody has listened

    def leave(self, connection: Connection) -> None:
        """The stream on this connection has ended."""
        if session := self._sessions.pop(connection, None):
            session.close()

    @contextlib.asynccontextmanager
    async def streaming(
        self, caller: Caller, catalogue: Catalogue, uris: Iterable[str], changes: InMemorySubscriptionBus
    ) -> AsyncIterator[tuple[list[str], Joined]]:
        """For a modern host's stream: the URIs among these of which it is told, and where it hears of them and of
        ``changes``. Raises MCPError for too many.
        """
        asked = list(dict.fromkeys(uris))
        if len(asked) > MOST:
            raise MCPError(t.INVALID_PARAMS, f"A stream subscribes to at most {MOST:,} resources.")
        bus, ends = Joined(changes), contextlib.ExitStack()
        with ends:
            found = await asyncio.gather(*(self._streamed(caller, catalogue, uri, bus, ends) for uri in asked))
            yield [uri for uri, taken in zip(asked, found, strict=True) if taken], bus

    async def _streamed(
        self, caller: Caller, catalogue: Catalogue, uri: str, bus: Joined, ends: contextlib.ExitStack
    ) -> bool:
        try:
            await self._engine.pipeline.rates.take(catalogue.agent)
            ends.callback(await self._watch(caller, catalogue, uri, lambda: bus.say(ResourceUpdated(uri))))
        except (MCPError, SlipsnisseError):
            return False  # the acknowledgement says which are honoured
        return True

    async def _watch(
        self, caller: Caller, catalogue: Catalogue, uri: str, changed: Callable[[], None]
    ) -> Callable[[], None]:
        """Begin; returns what ends it. Raises MCPError or SlipsnisseError."""
        server_id, own = self._readable(caller, catalogue, uri)

        allowed = Allowed(self._engine.live, lambda: self._still(caller, uri) == (server_id, own))

        def still() -> None:
            if allowed():
                changed()

        try:
            return await self._engine.pool.watches.add(server_id, own, still, patience=PATIENCE)
        except ToolRefused as error:
            raise MCPError(error.rpc_code, error.message, error.data) from None

    def _still(self, caller: Caller, uri: str) -> tuple[int, str] | None:
        """As ``_readable`` at this moment; None where it cannot be read any more."""
        try:
            return self._readable(caller, self._engine.catalogue(caller.endpoint, caller.agent), uri)
        except (SlipsnisseError, MCPError):
            return None

    def _readable(self, caller: Caller, catalogue: Catalogue, uri: str) -> tuple[int, str]:
        """The server, and its own URI, of what this agent could read now; nothing is recorded, and nobody is asked."""
        found, name, own = catalogue.reading(uri)
        judged = self._engine.judge(CallRequest(found, name, {"uri": own}, caller.origin))
        entry = found.find(name)
        if entry is None:
            raise MCPError(_NO_RESOURCE, "Resource not found", {"uri": uri})
        if judged.refusal is not None:
            raise judged.refusal
        if SUBSCRIPTIONS not in entry.offer.server.features:
            raise MCPError(t.INVALID_PARAMS, "The server of this resource does not tell of its changes.", {"uri": uri})
        return entry.offer.server.id, own


class Allowed:
    """An answer that is worked out for each configuration, and each second (rules may go by the time of day): a server
    may tell of changes as fast as it likes.
    """

    def __init__(self, live: LiveConfiguration, look: Callable[[], bool]) -> None:
        self._live, self._look = live, look
        self._known: Snapshot | None = None
        self._until, self._answer = 0.0, False

    def __call__(self) -> bool:
        """The answer."""
        now = time.monotonic()
        if self._known is not self._live.current or now >= self._until:
            self._known, self._until, self._answer = self._live.current, now + 1.0, self._look()
        return self._answer


class Joined(InMemorySubscriptionBus):
    """One stream's own events, together with those of its caller."""

    def __init__(self, common: InMemorySubscriptionBus) -> None:
        super().__init__()
        self._common = common
        self._own: dict[object, Callable[[Any], None]] = {}
        self._due: dict[ResourceUpdated, None] = {}

    def subscribe(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        """As in the SDK, to both."""
        key, unsubscribe = object(), self._common.subscribe(listener)
        self._own[key] = listener

        def end() -> None:
            unsubscribe()
            self._own.pop(key, None)

        return end

    def say(self, event: ResourceUpdated) -> None:
        """An event of this stream alone; of a burst of the same one."""
        if not self._due:
            asyncio.get_running_loop().call_later(SETTLE, self._said)
        self._due[event] = None

    def _said(self) -> None:
        due, self._due = self._due, {}
        for event in due:
            for listener in list(self._own.values()):
                listener(event)


def _nobody() -> None:
    return


def _telling(connection: Connection, session: _Session, uri: str) -> Callable[[], None]:
    def changed() -> None:
        session.due.add(uri)
        if session.telling is None or session.telling.done():
            session.telling = asyncio.ensure_future(_tell(connection, session))

    return changed


async def _tell(connection: Connection, session: _Session) -> None:
    while session.due:
        await asyncio.sleep(SETTLE)
        due, session.due = sorted(session.due), set()
        for uri in due:
            try:
                async with asyncio.timeout(1.0):  # a host that does not read must not hold up the next word
                    await connection.send_resource_updated(uri)
            except TimeoutError:
                log.info("host.does_not_read")
