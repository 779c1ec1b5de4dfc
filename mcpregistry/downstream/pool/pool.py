"""All connections of one event loop. One server's trouble stays its own.

Invariants:
* A connection is opened, kept and closed by one owner task per server; nobody else enters it.
* A call waits at most in its own server's bounded queue; beyond it the answer is Busy at once.
* A server that is down answers at once with the reason until its next try is due (the breaker).
* A call is sent again only if nothing of it was sent, and then once; after it was sent only where
  the operator chose ``resend="always"`` for the server and marked the tool idempotent, and then
  only if the connection broke.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import structlog

from mcpregistry.domain.calls.forwarding import NOTHING, Forwarding
from mcpregistry.domain.errors import (
    ConnectionFailed,
    DefinitionChanged,
    DownstreamError,
    SlipsnisseError,
    StaleRevision,
    ToolRefused,
)
from mcpregistry.domain.offer_kinds import RESOURCE
from mcpregistry.domain.servers import health
from mcpregistry.domain.servers.health import State
from mcpregistry.domain.servers.sessions import EVERYBODY
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.downstream.limits import check_arguments, check_depth
from mcpregistry.downstream.pool import redact
from mcpregistry.downstream.pool.connection import ServerConnection
from mcpregistry.downstream.pool.connection_eviction import list_crowds, make_room
from mcpregistry.downstream.pool.discovery import Discovery
from mcpregistry.downstream.pool.events import ConnectionEvent, ServerState
from mcpregistry.downstream.pool.handshakes import RememberedEras
from mcpregistry.downstream.pool.resource_subscriptions import Watched, Watches
from mcpregistry.downstream.pool.routes import ConnectionRoutes
from mcpregistry.downstream.pool.session_slots import OnEvent, OnSessionOver, SessionSlots
from mcpregistry.downstream.pool.slot import ServerSlot, compute_seconds_left
from mcpregistry.downstream.pool.slot_requests import (
    can_resend,
    check_definition,
    enter_slot,
    open_slot,
    redact_result,
    send_slot_request,
)
from mcpregistry.downstream.server_call import ServerCall

log = structlog.get_logger(__name__)

MOST = 200  # live connections at once, unless told otherwise
JUST_GREETED = 1.0  # seconds in which a server need not be greeted again
_TASK_SECONDS = 30.0  # for a question about a task, where the server's calls have no limit


class Pool:
    """The downstream connections of one event loop; every method belongs to that loop.

    ``targets`` gives the current target of a server (a SlipsnisseError says why there is none);
    ``on_event`` takes facts, must not block and must not raise. At most ``most`` connections live
    at once. ``on_session_over`` hears that a session's own connection has closed. ``sessions`` has
    these connections.
    """

    def __init__(
        self,
        targets: Callable[[int], Awaitable[ServerTarget]],
        on_event: Callable[[ConnectionEvent], None],
        *,
        most: int = MOST,
        on_session_over: OnSessionOver = lambda server_id, session, is_lost: None,
    ) -> None:
        self._most = most
        self._targets = RememberedEras(targets)
        self._on_event = on_event
        self._slots: dict[int, ServerSlot] = {}
        self.sessions = SessionSlots(
            self._make_session_slot, on_event, self._get_state, on_session_over
        )
        self._routes = ConnectionRoutes(
            self._get_slot, lambda slot: self._retire(slot, again=False)
        )
        self._closed = False
        self._background: set[asyncio.Task[None]] = set()
        self.watches = Watches(self.hold_for)

    async def hold_for(self, watched: Watched) -> None:
        """Connect for what is watched, and return when that connection has closed. Raises
        DownstreamError."""
        opener = watched.opener
        subscription = ServerCall(
            watched.server_id,
            "",
            kind=RESOURCE,
            session=watched.session,
            caller=opener.caller,
            host=opener.host,
            asks=opener.asks,
        )
        slot = self._get_current_slot(subscription)
        await self._load_target(slot)
        if slot.session:
            slot = await self._routes.choose(slot, subscription, None)
        try:
            await open_slot(slot, subscription)
        finally:
            self._tidy(slot)
        await slot.wait_until_closed()

    async def _connect_slot(self, server_id: int) -> ServerConnection:
        slot = self._get_slot(server_id)
        await slot.load()
        return await slot.ensure_connected()

    async def call(self, call: ServerCall) -> dict[str, Any]:
        """Make the call. Returns the server's result, untouched but for our secrets.

        Cancelling the awaiting task tells the server. Raises Busy, or DownstreamError whose
        ``sent`` says whether the call may have taken effect.
        """
        call = msgspec.structs.replace(call, arguments=check_arguments(call.arguments))
        slot = self._get_current_slot(call)
        target = slot.target or await self._load_target(slot)
        limit = target.limits.request_timeout if call.timeout is None else call.timeout
        deadline = time.monotonic() + limit if limit else None
        # again only if nothing was sent, or the operator vouches for repeating
        for last in (False, True):
            if last:
                slot = self._get_current_slot(call)
                await self._load_target(slot)
            slot = await self._routes.choose(slot, call, deadline)
            connection = slot.enter_now() or await self._enter_slot(slot, call, deadline)
            try:
                return await self._call_connection(slot, connection, call, deadline)
            except DefinitionChanged:
                if last or not self._retire_outdated(slot, connection):
                    raise
            except DownstreamError as error:
                if last or not can_resend(error, target, idempotent=call.idempotent):
                    raise
            finally:
                self._leave(slot)
        raise AssertionError("unreachable")

    async def _call_connection(
        self,
        slot: ServerSlot,
        connection: ServerConnection,
        call: ServerCall,
        deadline: float | None,
    ) -> dict[str, Any]:
        """Call once, on a connection with a place for it. The result and every error leave without
        the server's secrets, and the slot learns what they say about the server."""
        try:
            await check_definition(connection, call)
            result = await connection.call(
                msgspec.structs.replace(
                    call,
                    timeout=compute_seconds_left(deadline),
                    on_progress=redact.clean_progress(call.on_progress, connection.redactor),
                    host=self._routes.wrap_host(slot, call),
                )
            )
        except ToolRefused as error:
            error = self._routes.note_refusal(slot, connection, call, error)
            refusal, found = redact.clean_refusal(error, connection.redactor)
            slot.report_secrets(call.name, found)
            slot.report_failure(refusal)
            raise refusal from None
        except (StaleRevision, DefinitionChanged):
            raise
        except DownstreamError as error:
            redact.clean_failure(error, connection.redactor)
            slot.report_failure(error)
            raise
        slot.health = health.record_served_call(slot.health)
        self._routes.note_result(connection, call, result)
        return await redact_result(result, slot, connection, call.name)

    async def request_task(
        self,
        server_id: int,
        method: str,
        task_id: str,
        params: Mapping[str, Any],
        *,
        host: Forwarding = NOTHING,
    ) -> dict[str, Any]:
        """One ``tasks/*`` request about a task that this server made. Raises Busy or
        DownstreamError."""
        slot = self._get_slot(server_id)
        target = slot.target or await slot.load()

        async def request(connection: ServerConnection, deadline: float) -> dict[str, Any]:
            return await connection.request_task(
                method, task_id, params, timeout=compute_seconds_left(deadline), host=host
            )

        return await send_slot_request(
            slot, method, target.limits.request_timeout or _TASK_SECONDS, request
        )

    async def ask(
        self, about: ServerCall, method: str, params: dict[str, Any], *, seconds: float
    ) -> dict[str, Any]:
        """One small request about an approved offer, which ``about`` names.

        It takes a place as a call does, is never sent twice, and is over in ``seconds``. Raises
        Busy or DownstreamError.
        """
        slot = self._get_current_slot(about)
        await slot.load()

        async def request(connection: ServerConnection, deadline: float) -> dict[str, Any]:
            await check_definition(connection, about)
            return check_depth(
                await connection.ask(method, params, timeout=compute_seconds_left(deadline))
            )

        return await send_slot_request(slot, about.name, seconds, request)

    def is_asking_in_answers(self, server_id: int, key: tuple[str, str]) -> bool:
        """Whether this tool (kind and name) asks in its answer and never while a call waits: the
        shared connection is of the modern era, and the tool needs no other. False before it is
        connected."""
        slot = self._slots.get(server_id)
        connection = slot.connection if slot is not None else None
        if connection is None or not connection.usable or connection.era != "modern":
            return False
        return not self._routes.is_asking_by_request(server_id, key)

    def hold(self, server_id: int) -> Callable[[], None]:
        """Keep the server's connection open, however idle, until the returned function is
        called."""
        slot = self._slots.get(server_id)
        connection = slot.connection if slot is not None else None
        if connection is None:
            return lambda: None
        connection.in_flight += 1

        def release() -> None:
            connection.in_flight -= 1

        return release

    async def discover(self, server_id: int) -> Discovery:
        """Read what the server offers now. Raises DownstreamError."""
        return await (await self._connect_slot(server_id)).offers.read()

    async def ping(self, server_id: int) -> float:
        """Milliseconds that the server takes to answer a probe of its era. Raises
        DownstreamError."""
        connection = await self._connect_slot(server_id)
        started = time.monotonic()
        await connection.ping()
        return (time.monotonic() - started) * 1000

    # -- management ---------------------------------------------------------------------------

    async def connect(self, server_id: int, *, by_hand: bool = True) -> None:
        """Connect now; ``by_hand``: whatever the breaker says, and if only people connect it.
        Raises DownstreamError."""
        slot = self._get_slot(server_id)
        await slot.load()
        await slot.ensure_connected(by_hand=by_hand)

    async def disconnect(self, server_id: int) -> None:
        """Close the server's connection and forget its failures."""
        gone = [
            slot
            for slot in self.sessions.list_server_slots(server_id)
            if self.sessions.forget_slot(slot)
        ]
        if slot := self._slots.pop(server_id, None):
            gone.append(slot)
        await asyncio.gather(*(slot.stop() for slot in gone))

    def end_session(self, session: str) -> None:
        """A host's or a run's session has ended (its name, unique in the site): what it had of its
        own closes by and by."""
        self.watches.end_session(session)
        for slot in self.sessions.forget_session(session):
            self._spawn(slot.stop())

    def notify_roots_changed(self, caller: str) -> None:
        """The folders of the host with this session have changed: tell the servers whose connection
        is its alone."""
        for slot in self._list_slots():
            if slot.connection is not None:
                self._spawn(slot.connection.notify_roots_changed(caller))

    async def reconnect(self, server_id: int) -> None:
        """Close the connection and open a new one. Raises DownstreamError."""
        await self.disconnect(server_id)
        await self.connect(server_id)

    def reconfigure(self, revisions: Mapping[int, int]) -> None:
        """Retire the connections of servers that changed or are gone; calls in flight may end
        first."""
        for slot in self._list_slots():
            server_id = slot.server_id
            if slot.target is None or revisions.get(server_id) == slot.target.revision:
                continue
            was_eager = (
                not slot.session and server_id in revisions and slot.target.connect == "eager"
            )
            self._retire(slot, again=was_eager)

    def _retire(self, slot: ServerSlot, *, again: bool) -> None:
        if slot.session:
            self.sessions.forget_slot(slot)
        else:
            del self._slots[slot.server_id]
        self._spawn(self._replace(slot, again=again))

    async def _replace(self, slot: ServerSlot, *, again: bool) -> None:
        await slot.drain()
        if again and not self._closed:
            try:
                await self.connect(slot.server_id)
            except SlipsnisseError as error:
                log.info("not_reconnected", server_id=slot.server_id, code=error.code)

    def list_states(self) -> dict[int, ServerState]:
        """The state of every server in this pool, by its id."""
        found = {server_id: slot.describe() for server_id, slot in self._slots.items()}
        for server_id in self.sessions.list_servers():
            one = found.get(server_id) or self.sessions.list_server_slots(server_id)[0].describe()
            state = self.sessions.compute_state(server_id)
            count = self.sessions.count_open(server_id)
            found[server_id] = replace(one, state=state, sessions=count)
        return found

    def read_stderr_tail(self, server_id: int) -> str:
        """The end of a local server's log, without secrets; empty for a server that is not in the
        pool."""
        slot = self._slots.get(server_id)
        if slot is None:
            return ""
        tail = slot.connection.read_stderr_tail() if slot.connection else slot.tail
        return tail.decode(errors="replace")

    async def close(self) -> None:
        """Close every connection, all at the same time."""
        self._closed = True
        await self.watches.close()
        slots = self._list_slots()
        self._slots.clear()
        for slot in slots:
            self.sessions.forget_slot(slot)
        await asyncio.gather(*(slot.stop() for slot in slots))
        for task in list(self._background):
            await asyncio.wait([task])

    def _get_slot(self, server_id: int, session: str = EVERYBODY) -> ServerSlot:
        if self._closed:
            raise ConnectionFailed(
                "This process is shutting down.", remedy="Try again in a moment."
            )
        if session:
            return self.sessions.get_slot(server_id, session)
        slot = self._slots.get(server_id)
        if slot is None:
            slot = ServerSlot(
                server_id,
                self._targets,
                self._forward_event,
                self._make_room,
                self.watches.get_watched(server_id),
                note=self._targets.note,
            )
            self._slots[server_id] = slot
        return slot

    async def _load_target(self, slot: ServerSlot) -> ServerTarget:
        """The slot's target. Raises DownstreamError, or what says why there is none."""
        # another call that fails meanwhile must not have this one's slot forgotten
        slot.expected += 1
        try:
            target = await slot.load()
        except BaseException:
            slot.expected -= 1
            self._tidy(slot)
            raise
        slot.expected -= 1
        return target

    async def _enter_slot(
        self, slot: ServerSlot, call: ServerCall, deadline: float | None
    ) -> ServerConnection:
        try:
            return await enter_slot(slot, call, deadline)
        except BaseException:
            self._tidy(slot)  # its owner has ended while we were inside, or there never was one
            raise

    def _leave(self, slot: ServerSlot) -> None:
        slot.leave()
        self._tidy(slot)

    def _tidy(self, slot: ServerSlot) -> None:
        if slot.session:
            self.sessions.tidy(slot)

    def _get_current_slot(self, call: ServerCall) -> ServerSlot:
        """The slot for the call. One older than the call's revision is retired here if nobody has
        done it yet."""
        slot = self._get_slot(call.server_id, call.session)
        if (
            call.revision is not None
            and slot.target is not None
            and slot.target.revision < call.revision
        ):
            self._retire(slot, again=False)
            slot = self._get_slot(call.server_id, call.session)
        # what a server is told of its host is told once, when it is connected to
        if call.session and not slot.alive:
            slot.bears = call.host.questions if call.asks is None else call.asks
            slot.apps = call.host.apps
        return slot

    def _retire_outdated(self, slot: ServerSlot, connection: ServerConnection) -> bool:
        """The server says something else than was approved: whether a connection that greets it
        anew is to be asked.

        Instructions come with the handshake alone, so an older connection may hold what its server
        says no longer. Not if others use it, if people connect it, or if it has only just greeted.
        """
        manual = slot.target is not None and slot.target.connect == "manual"
        if manual or connection.in_flight or time.monotonic() - slot.health.since < JUST_GREETED:
            return False
        if self._get_slot(slot.server_id, slot.session) is slot:
            self._retire(slot, again=False)
        return True

    async def _make_room(self, slot: ServerSlot) -> None:
        """Before ``slot`` opens a connection. Raises Busy."""
        own = partial(self.sessions.list_server_slots, slot.server_id)
        await make_room(slot, lambda: list_crowds(slot, own(), self._list_slots(), self._most))

    def _list_slots(self) -> list[ServerSlot]:
        return [*self._slots.values(), *self.sessions.list_slots()]

    def _make_session_slot(
        self, server_id: int, session: str, on_event: OnEvent, on_over: Callable[[ServerSlot], None]
    ) -> ServerSlot:
        return ServerSlot(
            server_id,
            self._targets,
            on_event,
            self._make_room,
            self.watches.get_watched(server_id, session),
            note=self._targets.note,
            session=session,
            on_over=on_over,
        )

    def _get_state(self, server_id: int) -> State | None:
        return slot.health.state if (slot := self._slots.get(server_id)) else None

    def _forward_event(self, event: ConnectionEvent) -> None:
        self._on_event(
            replace(event, sessions=count)
            if (count := self.sessions.count_open(event.server_id))
            else event
        )

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
