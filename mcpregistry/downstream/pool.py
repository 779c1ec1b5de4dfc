"""All connections of one event loop. One server's trouble stays its own.

Invariants:
* A connection is opened, kept and closed by one owner task per server; nobody else enters it.
* A call waits at most in its own server's bounded queue; beyond it the answer is Busy at once.
* A server that is down answers at once with the reason until its next try is due (the breaker).
* A call is sent again only if nothing of it was sent, and then once; after it was sent only where
  the operator marked the server ``resend="always"``, and then only if the connection broke.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import structlog

from mcpregistry.domain import health
from mcpregistry.domain.errors import Busy, ConnectionFailed, DownstreamError, SlipsnisseError, TimedOut
from mcpregistry.domain.health import Health, State
from mcpregistry.domain.targets import Target
from mcpregistry.downstream.connection import Connection, Discovery, Era, open_connection
from mcpregistry.downstream.limits import parse_arguments
from mcpregistry.downstream.wire import ProgressCallback

log = structlog.get_logger(__name__)

QUEUE_PER_SLOT = 32
DRAIN_SECONDS = 10.0

EventKind = Literal["state", "tools_changed", "stderr"]


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """A fact for the outside. ``discovery`` comes with state connected and with tools_changed.

    ``detail`` is the reason of a state, or the tail of standard error of a server that ended.
    ``at`` is seconds since the epoch.
    """

    server_id: int
    kind: EventKind
    state: State
    detail: str
    code: str
    pid: int | None
    era: Era | None
    at: float
    discovery: Discovery | None = None


@dataclass(frozen=True, slots=True)
class ServerState:
    """One row of ``Pool.states()``. ``retry_in`` and ``for_seconds`` are seconds."""

    state: State
    detail: str
    code: str
    pid: int | None
    era: Era | None
    in_flight: int
    failures: int
    retry_in: float
    for_seconds: float


@dataclass(frozen=True, slots=True)
class TestReport:
    """One test with a connection of its own. Timings are milliseconds."""

    __test__ = False

    ok: bool
    error: SlipsnisseError | None
    discovery: Discovery | None
    result: dict[str, Any] | None
    stderr: str
    timings: dict[str, float]

    @property
    def listed(self) -> bool:
        """The server told its tools, whatever happened afterwards."""
        return self.discovery is not None and "list" in self.discovery.timings


class Gate:
    """At most ``limit`` at once, first come first served, and a bounded queue behind."""

    def __init__(self, limit: int) -> None:
        self._limit = max(1, limit)
        self._queue: deque[asyncio.Future[None]] = deque()
        self.inside = 0
        self.empty = asyncio.Event()
        self.empty.set()

    async def enter(self) -> None:
        """Raises Busy when the queue is full."""
        if self.inside < self._limit:
            self.inside += 1
            self.empty.clear()
            return
        if len(self._queue) >= self._limit * QUEUE_PER_SLOT:
            raise Busy("Too many calls are waiting for this server.", remedy="Try again in a moment.")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn  # the one who leaves hands its place over, so ``inside`` stays as it is
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            else:
                self._queue.remove(turn)
            raise

    def leave(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.inside -= 1
        if not self.inside:
            self.empty.set()


class Slot:
    """One server: its owner task, its health, its gate."""

    def __init__(self, server_id: int, pool: Pool) -> None:
        self.server_id = server_id
        self.health = Health()
        self.gate: Gate | None = None
        self.target: Target | None = None
        self.connection: Connection | None = None
        self.tail = b""
        self._pool = pool
        self._owner: asyncio.Task[None] | None = None
        self._stopping = False
        self._up: asyncio.Future[None] | None = None
        self._over = asyncio.Event()

    # -- calls --------------------------------------------------------------------------------

    async def connected(self, *, by_hand: bool = False) -> Connection:
        """The live connection, opened if need be. Raises DownstreamError, at once while it is down."""
        connection = self.connection
        if connection is not None and connection.usable:
            return connection
        if not by_hand and self._manual:
            raise ConnectionFailed("The server is only connected by hand.", remedy="Connect it on its page.")
        if connection is not None and connection.ended:
            await self._over.wait()
        self._refuse(by_hand)
        if self._up is None or self._up.done():
            self._up = _new_future()
        if self._owner is None or self._owner.done():
            self._owner = asyncio.create_task(self._own(), name=f"mcp-server-{self.server_id}")
        await asyncio.shield(self._up)
        connection = self.connection
        if connection is None or not connection.usable:
            raise ConnectionFailed("The server ended right after it had started.", remedy="Its log may say why.")
        return connection

    @property
    def _manual(self) -> bool:
        return self.target is not None and self.target.connect == "manual"

    def _refuse(self, by_hand: bool) -> None:
        if self._stopping:
            raise ConnectionFailed("The server is being disconnected.", remedy="Try again in a moment.")
        left = 0.0 if by_hand else health.refusal_seconds(self.health, now=time.monotonic())
        if left:
            raise ConnectionFailed(
                f"The server is down: {self.health.detail}", remedy=f"The next try is due in {left:.0f} seconds."
            )

    async def load(self) -> Target:
        if self.target is None:
            self.target = await self._pool.load_target(self.server_id)
            self.gate = self.gate or Gate(self.target.limits.max_concurrency)
        return self.target

    # -- the owner ----------------------------------------------------------------------------

    async def _own(self) -> None:
        try:
            while not self._stopping:
                if not await self._once() or self._stopping:
                    return
                await self._pause()
        finally:
            self._settle_up(ConnectionFailed("The server was disconnected."))

    async def _once(self) -> bool:
        """One connection from start to end. Returns whether it is to be brought back."""
        self._move(health.move(self.health, "connecting", now=time.monotonic()))
        target: Target | None = None
        connection: Connection | None = None
        try:
            target = self.target = await self._pool.load_target(self.server_id)
            connection = self.connection = await open_connection(target, self._tools_changed)
            self._over.clear()
            await connection.run(self._ready)
        except DownstreamError as error:
            returns = target is not None and target.connect == "eager" and not self._stopping
            self._fell(error, returns=returns)
            return returns
        finally:
            self._keep_tail(connection)
        self._move(health.stopped(self.health, now=time.monotonic()))
        return False

    def _ready(self) -> None:
        self._move(health.connected(self.health, now=time.monotonic()))
        self._settle_up(None)

    def _fell(self, error: DownstreamError, *, returns: bool) -> None:
        self._move(
            health.fallen(
                self.health,
                now=time.monotonic(),
                chance=random.random(),  # noqa: S311  jitter, not a secret
                returns=returns,
                code=error.code,
                detail=str(error),
            )
        )
        self._settle_up(error)

    def _settle_up(self, error: DownstreamError | None) -> None:
        if self._up is None or self._up.done():
            return
        if error is None:
            self._up.set_result(None)
        else:
            self._up.set_exception(unsent(error))

    def _keep_tail(self, connection: Connection | None) -> None:
        """What is left of a connection once it has closed."""
        self.connection = None
        self._over.set()
        if connection is None:
            return
        self.tail = connection.stderr_tail()
        if self.tail:
            self._emit("stderr", detail=self.tail.decode(errors="replace"))

    async def _pause(self) -> None:
        left = health.refusal_seconds(self.health, now=time.monotonic())
        await asyncio.sleep(left)

    def _move(self, after: Health) -> None:
        self.health = after
        found = self.connection.discovery if self.connection and after.state == "connected" else None
        self._emit("state", detail=after.detail, discovery=found)

    def _tools_changed(self, discovery: Discovery) -> None:
        self._emit("tools_changed", discovery=discovery)

    def _emit(self, kind: EventKind, *, detail: str = "", discovery: Discovery | None = None) -> None:
        connection = self.connection
        self._pool.emit(
            ConnectionEvent(
                server_id=self.server_id,
                kind=kind,
                state=self.health.state,
                detail=detail,
                code=self.health.code,
                pid=connection.pid if connection else None,
                era=connection.era if connection else None,
                at=time.time(),
                discovery=discovery,
            )
        )

    async def stop(self) -> None:
        """Close for good. A connection that will not end is cancelled; its processes die all the same."""
        self._stopping = True
        owner = self._owner
        if owner is None:
            return
        if self.connection is not None:
            self.connection.stop()
        else:
            owner.cancel()  # it waits for its next try or for its target: nothing to close
        await asyncio.wait([owner])
        if self.health.state != "disconnected":
            self._move(health.stopped(self.health, now=time.monotonic()))

    async def drain(self) -> None:
        """Let calls in flight end, then stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                if self.gate is not None:
                    await self.gate.empty.wait()
        await self.stop()

    def describe(self) -> ServerState:
        now = time.monotonic()
        connection = self.connection
        return ServerState(
            state=self.health.state,
            detail=self.health.detail,
            code=self.health.code,
            pid=connection.pid if connection else None,
            era=connection.era if connection else None,
            in_flight=self.gate.inside if self.gate else 0,
            failures=self.health.failures,
            retry_in=health.refusal_seconds(self.health, now=now),
            for_seconds=now - self.health.since if self.health.since else 0.0,
        )


class Pool:
    """The downstream connections of one event loop; every method belongs to that loop.

    ``targets`` gives the current target of a server (a SlipsnisseError says why there is none);
    ``on_event`` takes facts, must not block and must not raise.
    """

    def __init__(
        self, targets: Callable[[int], Awaitable[Target]], on_event: Callable[[ConnectionEvent], None]
    ) -> None:
        self._targets = targets
        self._on_event = on_event
        self._slots: dict[int, Slot] = {}
        self._closed = False
        self._background: set[asyncio.Task[None]] = set()

    async def call(
        self,
        server_id: int,
        tool_name: str,
        arguments_json: bytes,
        *,
        meta: dict[str, Any] | None = None,
        timeout: float | None = None,
        on_progress: ProgressCallback | None = None,
        on_sent: Callable[[], None] | None = None,
        max_result_bytes: int | None = None,
    ) -> dict[str, Any]:
        """One ``tools/call``; the raw result dict, untouched.

        ``timeout`` in seconds spans queueing, connecting and the answer (None: the server's own;
        0: none). Cancelling the awaiting task tells the server. Raises Busy, or DownstreamError
        whose ``sent`` says whether the call may have taken effect.
        """
        arguments = parse_arguments(arguments_json)
        slot = self._slot(server_id)
        target = slot.target or await slot.load()
        limit = target.limits.request_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit if limit else None
        for last in (False, True):
            async with self._place(slot, deadline) as connection:
                try:
                    result = await connection.call(
                        tool_name,
                        arguments,
                        meta=meta,
                        timeout=_left(deadline),
                        on_progress=on_progress,
                        on_sent=on_sent,
                        max_result_bytes=max_result_bytes,
                    )
                except DownstreamError as error:
                    if last or not may_resend(error, target):
                        raise
                else:
                    slot.health = health.served(slot.health)
                    return result
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def _place(self, slot: Slot, deadline: float | None) -> AsyncIterator[Connection]:
        """A place among the server's calls, and its connection."""
        assert slot.gate is not None
        gate = slot.gate
        try:
            async with asyncio.timeout(_left(deadline)):
                await gate.enter()
        except TimeoutError:
            raise TimedOut("The call waited too long for its turn at this server.", remedy="Try again later.") from None
        try:
            try:
                async with asyncio.timeout(_left(deadline)):
                    connection = await slot.connected()
            except TimeoutError:
                raise TimedOut("The server was not ready in time.", remedy="Try again later.") from None
            yield connection
        finally:
            gate.leave()

    async def discover(self, server_id: int) -> Discovery:
        """Read the server's tools now. Raises DownstreamError."""
        slot = self._slot(server_id)
        await slot.load()
        return await (await slot.connected()).read_tools()

    async def ping(self, server_id: int) -> float:
        """Milliseconds that the server takes to answer a probe of its era. Raises DownstreamError."""
        slot = self._slot(server_id)
        await slot.load()
        connection = await slot.connected()
        started = time.monotonic()
        await connection.ping()
        return (time.monotonic() - started) * 1000

    async def test(self, target: Target, *, call: tuple[str, bytes] | None = None) -> TestReport:
        """Connect afresh, list, perhaps call one tool with the given arguments, close. Never raises."""
        started = time.monotonic()
        ready = asyncio.Event()
        connection = await open_connection(target, lambda _: None)
        owner = asyncio.create_task(connection.run(ready.set), name=f"mcp-test-{target.server_id}")
        result: dict[str, Any] | None = None
        error: DownstreamError | None = None
        timings: dict[str, float] = {}
        waiter = asyncio.create_task(ready.wait())
        try:
            await asyncio.wait([owner, waiter], return_when=asyncio.FIRST_COMPLETED)
            if ready.is_set() and call is not None:
                before = time.monotonic()
                limit = target.limits.request_timeout or None
                result = await connection.call(call[0], parse_arguments(call[1]), timeout=limit)
                timings["call"] = (time.monotonic() - before) * 1000
        except DownstreamError as failure:
            error = failure
        finally:
            waiter.cancel()
            error = await _finish(owner, connection) or error
        found = connection.discovery
        timings |= found.timings if found else {}
        timings["total"] = (time.monotonic() - started) * 1000
        tail = connection.stderr_tail().decode(errors="replace")
        return TestReport(error is None, error, found, result, tail, timings)

    # -- management ---------------------------------------------------------------------------

    async def connect(self, server_id: int) -> None:
        """Connect now, whatever the breaker says. Raises DownstreamError."""
        slot = self._slot(server_id)
        await slot.load()
        await slot.connected(by_hand=True)

    async def disconnect(self, server_id: int) -> None:
        if slot := self._slots.pop(server_id, None):
            await slot.stop()

    async def reconnect(self, server_id: int) -> None:
        await self.disconnect(server_id)
        await self.connect(server_id)

    def reconfigure(self, revisions: Mapping[int, int]) -> None:
        """Retire the connections of servers that changed or are gone; calls in flight may end first."""
        for server_id, slot in list(self._slots.items()):
            if slot.target is None or revisions.get(server_id) == slot.target.revision:
                continue
            del self._slots[server_id]
            was_eager = server_id in revisions and slot.target.connect == "eager"
            self._spawn(self._replace(slot, again=was_eager))

    async def _replace(self, slot: Slot, *, again: bool) -> None:
        await slot.drain()
        if again and not self._closed:
            try:
                await self.connect(slot.server_id)
            except SlipsnisseError as error:
                log.info("not_reconnected", server_id=slot.server_id, code=error.code)

    def states(self) -> dict[int, ServerState]:
        return {server_id: slot.describe() for server_id, slot in self._slots.items()}

    def stderr_tail(self, server_id: int) -> str:
        slot = self._slots.get(server_id)
        if slot is None:
            return ""
        tail = slot.connection.stderr_tail() if slot.connection else slot.tail
        return tail.decode(errors="replace")

    async def close(self) -> None:
        """Close every connection, all at the same time."""
        self._closed = True
        slots = list(self._slots.values())
        self._slots.clear()
        await asyncio.gather(*(slot.stop() for slot in slots))
        for task in list(self._background):
            await asyncio.wait([task])

    # -- for slots ----------------------------------------------------------------------------

    async def load_target(self, server_id: int) -> Target:
        return await self._targets(server_id)

    def emit(self, event: ConnectionEvent) -> None:
        self._on_event(event)

    def _slot(self, server_id: int) -> Slot:
        if self._closed:
            raise ConnectionFailed("This process is shutting down.", remedy="Try again in a moment.")
        slot = self._slots.get(server_id)
        if slot is None:
            slot = self._slots[server_id] = Slot(server_id, self)
        return slot

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def may_resend(error: DownstreamError, target: Target) -> bool:
    if target.resend == "never" or isinstance(error, TimedOut):
        return False
    broke = isinstance(error, ConnectionFailed)
    return broke and (not error.sent or target.resend == "always")


def unsent(error: DownstreamError) -> DownstreamError:
    """The failure of connecting, as a caller that waits for the connection meets it."""
    return type(error)(error.message, remedy=error.remedy, sent=False)


async def _finish(owner: asyncio.Task[None], connection: Connection) -> DownstreamError | None:
    """End a test's connection. Returns the error it had, if any."""
    connection.stop()
    try:
        await owner
    except DownstreamError as error:
        return error
    return None


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.001, deadline - time.monotonic())


def _new_future() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.add_done_callback(_retrieve)
    return future


def _retrieve(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()  # whoever waits has seen it; nobody waiting is no error
