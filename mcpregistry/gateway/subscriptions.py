"""Hosts' subscriptions to single resources, of both eras: only what the agent may read, for as long
as it may.

A host of the older era subscribes within its session, and is told there; a modern one holds a
``subscriptions/listen`` stream. At the server there is one subscription for all of them
(``downstream/pool/resource_subscriptions.py``). Of a server that is shared by agent or session, it
is on the connection of the host's own calls, in whichever process that is
(``calls/resource_watches.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
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
from mcpregistry.calls.sampling import SAMPLING
from mcpregistry.calls.watch.configuration import LiveConfiguration
from mcpregistry.domain.calls.forwarding import Forwarding, make_channel_ask
from mcpregistry.domain.errors import SlipsnisseError, ToolRefused
from mcpregistry.domain.offer_kinds import SUBSCRIPTIONS
from mcpregistry.domain.servers.sessions import make_host_session_key, make_session_key
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.domain.snapshot_specs import ServerSpec
from mcpregistry.downstream.pool.resource_subscriptions import Opener
from mcpregistry.gateway.caller_identity import Caller, find_mcp_session, name_session
from mcpregistry.gateway.host_channels import HostChannels
from mcpregistry.gateway.host_questions import build_declared_host
from mcpregistry.gateway.sdk.requests import get_connection

log = structlog.get_logger(__name__)

Context = ServerRequestContext[Any, Any]

MOST = 1_000  # URIs of one session or stream
PATIENCE = 10.0  # seconds for a server to take a subscription
SETTLE = 0.05  # one word for a burst of changes
_NO_RESOURCE = -32002  # MCP 2025-11-25


@dataclass
class _SubscribedSession:
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


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A host that subscribes. ``session``: what its session is called, as with its calls."""

    caller: Caller
    session: str
    forwarding: Forwarding

    def make_opener(self, server: ServerSpec) -> Opener:
        """What a connection to this server is told of the host if it is opened for the
        subscription."""
        host = self.forwarding.allow_questions(server.questions).drop_tasks()
        if not server.mcp_apps:
            host = host.drop_apps()
        asks = host.questions | ({SAMPLING} if server.sampling_expert else frozenset())
        if host.questions:
            host = replace(host, ask=make_channel_ask(host))
        return Opener(make_host_session_key(self.caller.agent, self.session), host, asks)


def make_subscriber(
    ctx: Context, caller: Caller, conversation: str, channels: HostChannels
) -> Subscriber:
    """The host of this request. Raises ArgumentsInvalid for what is no name of a session."""
    said = ctx.session.client_params
    info = said.client_info if said else None
    host = build_declared_host(
        ctx.protocol_version, info, ctx.session.client_capabilities, caller.origin
    )
    session = name_session(caller, ctx.meta or {}, conversation, find_mcp_session(ctx))
    return Subscriber(caller, session, channels.attach_channel(ctx, host).forwarding)


@dataclass(frozen=True, slots=True)
class _ResourcePlace:
    """Where a resource is read: the server, its own URI there, and the key of the connection."""

    server: ServerSpec
    uri: str
    session: str

    def is_like(self, other: _ResourcePlace | None) -> bool:
        return other is not None and (self.server.id, self.uri) == (other.server.id, other.uri)


class Subscriptions:
    """All of this process's hosts."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sessions: WeakKeyDictionary[Connection, _SubscribedSession] = WeakKeyDictionary()
        # Of a session that any process serves, rows say what it wants: its id, the URI, and whether
        # it still does.
        self.keep: Callable[[str, str, bool], Awaitable[None]] | None = None

    async def subscribe(
        self, ctx: Context, who: Subscriber, catalogue: Catalogue, uri: str
    ) -> t.EmptyResult:
        """``resources/subscribe``. Raises MCPError for what cannot be read, or not be subscribed
        to."""
        await self._engine.pipeline.rates.take(catalogue.agent)
        connection = get_connection(ctx)  # as in ``Gateway._note_initialized``
        session = self._sessions.get(connection)
        if connection.session_id is not None and self.keep is not None and session is None:
            # The session's stream is elsewhere, if anywhere: here the server is only asked whether
            # it tells of this.
            (await self._watch_resource(who, catalogue, uri, _ignore_change))()
            await self.keep(connection.session_id, uri, True)
            return t.EmptyResult()
        if session is None:
            session = _SubscribedSession()
            self._sessions[connection] = session
            connection.exit_stack.callback(session.close)
        if uri in session.ends:
            return t.EmptyResult()
        if len(session.ends) >= MOST:
            raise MCPError(
                t.INVALID_PARAMS,
                f"A session can subscribe to at most {MOST:,} resources. Unsubscribe from a resource first.",
            )

        end = await self._watch_resource(
            who, catalogue, uri, _make_notifier(connection, session, uri)
        )
        if uri in session.ends:  # asked twice at the same time
            end()
        session.ends.setdefault(uri, end)
        await self._record_subscription(connection, session, uri)
        return t.EmptyResult()

    async def _record_subscription(
        self, connection: Connection, session: _SubscribedSession, uri: str
    ) -> None:
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
        session_id = get_connection(ctx).session_id
        if session_id is not None and self.keep is not None:
            await self.keep(session_id, uri, False)
        session = self._sessions.get(get_connection(ctx))
        if session is not None and (end := session.ends.pop(uri, None)):
            end()
            session.due.discard(uri)
        return t.EmptyResult()

    def begin_stream(self, connection: Connection) -> None:
        """The stream on which its host is told has begun; pair it with ``end_stream``."""
        self._sessions[connection] = _SubscribedSession()

    async def follow_resources(
        self, who: Subscriber, connection: Connection, wanted: set[str]
    ) -> bool:
        """Tell the host whose stream is on this connection of exactly these, as its rows say.
        False: some could not be followed, so call it again after a while. Never raises.
        """
        session = self._sessions[connection]
        for uri in session.ends.keys() - wanted:
            session.ends.pop(uri)()
            session.due.discard(uri)
        await asyncio.gather(
            *(
                self._follow_resource(who, connection, session, uri)
                for uri in wanted - session.ends.keys()
            )
        )
        return wanted <= session.ends.keys()

    async def _follow_resource(
        self, who: Subscriber, connection: Connection, session: _SubscribedSession, uri: str
    ) -> None:
        changed = _make_notifier(connection, session, uri)
        try:
            catalogue = self._engine.get_catalogue(who.caller.endpoint, who.caller.agent)
            end = await self._watch_resource(who, catalogue, uri, changed)
        except (MCPError, SlipsnisseError) as error:  # it cannot be read any more
            log.info("subscription.not_followed", why=str(error)[:200])
            return
        if uri in session.ends or self._sessions.get(connection) is not session:
            end()
        else:
            session.ends[uri] = end
            # perhaps it has: between the subscription, or the stream before, and now nobody has
            # listened
            changed()

    def end_stream(self, connection: Connection) -> None:
        """The stream on this connection has ended."""
        if session := self._sessions.pop(connection, None):
            session.close()

    @contextlib.asynccontextmanager
    async def open_stream(
        self,
        who: Subscriber,
        catalogue: Catalogue,
        uris: Iterable[str],
        changes: InMemorySubscriptionBus,
    ) -> AsyncIterator[tuple[list[str], JoinedBus]]:
        """For a modern host's stream: the URIs among these of which it is told, and where it hears
        of them and of ``changes``. Raises MCPError for too many.
        """
        asked = list(dict.fromkeys(uris))
        if len(asked) > MOST:
            raise MCPError(
                t.INVALID_PARAMS, f"A stream can subscribe to at most {MOST:,} resources."
            )
        bus = JoinedBus(changes)
        ends = contextlib.ExitStack()
        with ends:
            found = await asyncio.gather(
                *(self._subscribe_stream(who, catalogue, uri, bus, ends) for uri in asked)
            )
            yield [uri for uri, taken in zip(asked, found, strict=True) if taken], bus

    async def _subscribe_stream(
        self,
        who: Subscriber,
        catalogue: Catalogue,
        uri: str,
        bus: JoinedBus,
        ends: contextlib.ExitStack,
    ) -> bool:
        try:
            await self._engine.pipeline.rates.take(catalogue.agent)
            ends.callback(
                await self._watch_resource(
                    who, catalogue, uri, lambda: bus.publish_own(ResourceUpdated(uri))
                )
            )
        except (MCPError, SlipsnisseError):
            return False  # the acknowledgement says which are honoured
        return True

    async def _watch_resource(
        self, who: Subscriber, catalogue: Catalogue, uri: str, changed: Callable[[], None]
    ) -> Callable[[], None]:
        """Begin; returns what ends it. Raises MCPError or SlipsnisseError."""
        place = self._find_place(who, catalogue, uri)
        allowed = CachedPermission(
            self._engine.live, lambda: place.is_like(self._find_place_again(who, uri))
        )

        def notify_if_allowed() -> None:
            if allowed():
                changed()

        try:
            return await self._engine.pool.watches.add(
                place.server.id,
                place.uri,
                notify_if_allowed,
                patience=PATIENCE,
                session=place.session,
                opener=who.make_opener(place.server),
            )
        except ToolRefused as error:
            raise MCPError(error.rpc_code, error.message, error.data) from None

    def _find_place_again(self, who: Subscriber, uri: str) -> _ResourcePlace | None:
        """As ``_find_place`` at this moment; None where it cannot be read any more."""
        try:
            return self._find_place(
                who, self._engine.get_catalogue(who.caller.endpoint, who.caller.agent), uri
            )
        except (SlipsnisseError, MCPError):
            return None

    def _find_place(self, who: Subscriber, catalogue: Catalogue, uri: str) -> _ResourcePlace:
        """The place of what this agent could read now; nothing is recorded, and nobody is asked."""
        found, name, own = catalogue.find_reader(uri)
        judged = self._engine.judge(CallRequest(found, name, {"uri": own}, who.caller.origin))
        entry = found.find(name)
        if entry is None:
            raise MCPError(_NO_RESOURCE, "Resource not found", {"uri": uri})
        if judged.refusal is not None:
            raise judged.refusal
        if SUBSCRIPTIONS not in entry.offer.server.features:
            raise MCPError(
                t.INVALID_PARAMS,
                "The server of this resource does not send change notifications.",
                {"uri": uri},
            )
        server = entry.offer.server
        return _ResourcePlace(
            server, own, make_session_key(server.shared_by, who.caller.agent, who.session)
        )


class CachedPermission:
    """An answer that is worked out for each configuration, and each second (rules may go by the
    time of day): a server may tell of changes as fast as it likes.
    """

    def __init__(self, live: LiveConfiguration, look: Callable[[], bool]) -> None:
        self._live = live
        self._look = look
        self._known: Snapshot | None = None
        self._until = 0.0
        self._answer = False

    def __call__(self) -> bool:
        """The answer."""
        now = time.monotonic()
        if self._known is not self._live.current or now >= self._until:
            # read before the look: a change during the look is looked at again
            known = self._live.current
            answer = self._look()
            self._known = known
            self._until = now + 1.0
            self._answer = answer
        return self._answer


class JoinedBus(InMemorySubscriptionBus):
    """One stream's own events, together with those of its caller."""

    def __init__(self, common: InMemorySubscriptionBus) -> None:
        super().__init__()
        self._common = common
        self._own: dict[object, Callable[[Any], None]] = {}
        self._due: dict[ResourceUpdated, None] = {}

    def subscribe(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        """As in the SDK, to both."""
        key = object()
        unsubscribe = self._common.subscribe(listener)
        self._own[key] = listener

        def end() -> None:
            unsubscribe()
            self._own.pop(key, None)

        return end

    def publish_own(self, event: ResourceUpdated) -> None:
        """An event of this stream alone; of a burst of the same one."""
        if not self._due:
            asyncio.get_running_loop().call_later(SETTLE, self._publish_due)
        self._due[event] = None

    def _publish_due(self) -> None:
        due = self._due
        self._due = {}
        for event in due:
            for listener in list(self._own.values()):
                listener(event)


def _ignore_change() -> None:
    return


def _make_notifier(
    connection: Connection, session: _SubscribedSession, uri: str
) -> Callable[[], None]:
    def notify_host() -> None:
        session.due.add(uri)
        if session.telling is None or session.telling.done():
            session.telling = asyncio.ensure_future(_send_updates(connection, session))

    return notify_host


async def _send_updates(connection: Connection, session: _SubscribedSession) -> None:
    while session.due:
        await asyncio.sleep(SETTLE)
        for uri in sorted(session.due):
            session.due.discard(uri)
            await connection.send_resource_updated(uri)  # waits while the host does not read
