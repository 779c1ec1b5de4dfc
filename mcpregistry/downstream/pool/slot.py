"""One server in the pool: its owner task, its health, its gate.

The owner task opens the connection, keeps it and closes it; it alone moves the server's health.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from mcpregistry.domain.calls.forwarding import Forwarding
from mcpregistry.domain.errors import (
    AuthFailed,
    ConnectionFailed,
    DownstreamError,
    SessionLost,
    SlipsnisseError,
    TimedOut,
)
from mcpregistry.domain.servers import health
from mcpregistry.domain.servers.health import Health
from mcpregistry.domain.servers.sessions import EVERYBODY, OLDER
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.downstream.pool.concurrency_gate import Gate
from mcpregistry.downstream.pool.connection import ServerConnection, open_connection
from mcpregistry.downstream.pool.discovery import Discovery
from mcpregistry.downstream.pool.events import ConnectionEvent, EventKind, ServerState
from mcpregistry.downstream.pool.owner_tasks import end_owner
from mcpregistry.downstream.pool.resource_subscriptions import Watched, make_future

log = structlog.get_logger(__name__)

DRAIN_SECONDS = 10.0
TELL_SECRETS_SECONDS = 5.0


class ServerSlot:
    """One server: its owner task, its health, its gate."""

    def __init__(
        self,
        server_id: int,
        targets: Callable[[int], Awaitable[ServerTarget]],
        on_event: Callable[[ConnectionEvent], None],
        make_room: Callable[[ServerSlot], Awaitable[None]],
        watched: Watched,
        *,
        note: Callable[[ServerTarget, str], None],
        session: str = EVERYBODY,
        on_over: Callable[[ServerSlot], None] | None = None,
    ) -> None:
        self.server_id = server_id
        self.session = session  # whose connection it is
        self.older = False  # its connection is opened with the older handshake (``routes.py``)
        # which questions the host of this session can be asked
        self.bears: frozenset[str] | None = None
        self.apps: Mapping[str, Any] | None = None  # which pages it can show
        self.openers: dict[str, Forwarding] = {}  # whose calls wait for the connection, by session
        self._on_over = on_over
        self._make_room = make_room
        self._watched = watched
        self._targets = targets
        self._note_handshake = note
        self._on_event = on_event
        self.health = Health()
        self.gate: Gate | None = None
        self.expected = 0  # calls that have the slot, and wait for its target
        self.target: ServerTarget | None = None
        self.connection: ServerConnection | None = None
        self.tail = b""
        self._secrets_found = 0
        self._secrets_told = float("-inf")
        self._owner: asyncio.Task[None] | None = None
        self._stopping = False
        self._up: asyncio.Future[None] | None = None
        self._over = asyncio.Event()
        self.has_fallen = False  # its last connection was ready, and was lost

    # -- calls --------------------------------------------------------------------------------

    def enter_now(self) -> ServerConnection | None:
        """A place and the live connection, if both are there without waiting."""
        connection = self.connection
        gate = self.gate
        if connection is None or gate is None or not connection.usable or not gate.enter_now():
            return None
        return connection

    async def enter(self, deadline: float | None) -> ServerConnection:
        """A place and the connection, waiting for both until ``deadline``. Pair it with
        ``leave``."""
        assert self.gate is not None
        try:
            async with asyncio.timeout(compute_seconds_left(deadline)):
                await self.gate.enter()
        except TimeoutError:
            raise TimedOut(
                "The call waited too long for other calls to this server.",
                remedy="Try again later.",
            ) from None
        try:
            async with asyncio.timeout(compute_seconds_left(deadline)):
                return await self.ensure_connected()
        except TimeoutError:
            self.gate.leave()
            raise TimedOut("The server was not ready in time.", remedy="Try again later.") from None
        except BaseException:
            self.gate.leave()
            raise

    def leave(self) -> None:
        """Give back the place that ``enter`` or ``enter_now`` took."""
        assert self.gate is not None
        self.gate.leave()

    async def ensure_connected(self, *, by_hand: bool = False) -> ServerConnection:
        """The live connection, opened if need be. Raises DownstreamError, at once while it is
        down."""
        connection = self.connection
        if connection is not None and connection.usable:
            return connection
        if not by_hand and self._manual:
            raise ConnectionFailed(
                "The server is only connected when a user connects it.",
                remedy="Press “Connect server” on the page of the server.",
            )
        if connection is not None and connection.ended:
            await self.wait_until_closed()
        self._refuse(by_hand)
        if not self.alive:
            await self._make_room(self)
        if self._up is None or self._up.done():
            self._up = make_future()
        if not self.alive:
            self._owner = asyncio.create_task(
                self._run_owner(), name=f"mcp-server-{self.server_id}"
            )
            if self._on_over is not None:
                self._owner.add_done_callback(self._report_closed)
        # Many callers wait for the same connection: one that is cancelled must not cancel it for
        # the others.
        await asyncio.shield(self._up)
        connection = self.connection
        if connection is None or not connection.usable:
            raise ConnectionFailed(
                "The server exited immediately after it was started.",
                remedy="Read “Last output on stderr” on the page of the server.",
            )
        return connection

    @property
    def alive(self) -> bool:
        """It holds a connection, or is about to."""
        return self._owner is not None and not self._owner.done()

    @property
    def idle_since(self) -> float | None:
        """Monotonic time of the last request, if its connection may be closed and opened again
        unnoticed."""
        connection = self.connection
        if connection is None or not connection.usable or connection.target.connect != "lazy":
            return None
        watches = self._watched and connection.is_main
        busy = connection.in_flight or watches or (self.gate is not None and self.gate.inside)
        return None if busy else connection.last_used

    async def close_idle(self) -> None:
        """Close the connection and wait until it has; the next call opens it again. Bounded."""
        if self.connection is not None and self._owner is not None:
            self.connection.stop()
            await end_owner(self._owner)

    def _report_closed(self, _: asyncio.Task[None]) -> None:
        assert self._on_over is not None
        self._on_over(self)

    @property
    def _tells_all(self) -> bool:
        """Whether its lists are those of the server. A host that can be asked less may be shown
        less, one that shows pages may be shown more, and the lists of an older connection may
        differ from those that are approved.
        """
        if self.older or self.apps is not None:
            return False
        return self.bears is None or self.target is None or self.target.questions <= self.bears

    @property
    def refused_for(self) -> float:
        """Seconds until it may be tried again after a failure."""
        return health.compute_refusal_seconds(self.health, now=time.monotonic())

    @property
    def leaving(self) -> bool:
        """Its connection is closing."""
        return self.alive and self.connection is not None and self.connection.ended

    async def wait_until_closed(self) -> None:
        """Wait until the connection that is closing has closed."""
        await self._over.wait()

    @property
    def _manual(self) -> bool:
        return self.target is not None and self.target.connect == "manual"

    def _refuse(self, by_hand: bool) -> None:
        if self._stopping:
            raise ConnectionFailed(
                "The server is being disconnected.", remedy="Try again in a moment."
            )
        left = 0.0 if by_hand else health.compute_refusal_seconds(self.health, now=time.monotonic())
        if left:
            raise ConnectionFailed(
                f"The server is down: {self.health.detail}",
                remedy=f"The site tries to connect again in {left:.0f} s.",
            )

    async def load(self) -> ServerTarget:
        """Read the server's target anew. Raises DownstreamError, or what says why there is none."""
        if self.target is None:
            self.target = await self._load_current_target()
            self.gate = self.gate or Gate(self.target.limits.max_concurrency)
        return self.target

    async def _load_current_target(self) -> ServerTarget:
        target = await self._targets(self.server_id)
        if not self.older:
            return target
        # The second connection of a server is opened only for calls.
        return replace(
            target, protocol="legacy", connect="lazy" if self.session == OLDER else target.connect
        )

    # -- the owner ----------------------------------------------------------------------------

    async def _run_owner(self) -> None:
        try:
            while not self._stopping:
                if not await self._run_connection() or self._stopping:
                    return
                await self._pause()
        finally:
            self._resolve_waiters(
                ConnectionFailed(
                    "The server was disconnected.",
                    remedy="The next call connects the server again.",
                )
            )

    async def _run_connection(self) -> bool:
        """One connection from start to end. Returns whether it is to be brought back."""
        self._set_health(health.move(self.health, "connecting", now=time.monotonic()))
        target: ServerTarget | None = None
        connection: ServerConnection | None = None
        try:
            target = await self._load_current_target()
            self.target = target
            connection = await open_connection(
                target, self._report_tools_changed, bears=self.bears, apps=self.apps
            )
            self.connection = connection
            connection.logs.tell = self._report_logs
            connection.watched = self._watched
            connection.is_main = self.session != OLDER
            for caller, host in self.openers.items():
                connection.introduce(caller, host)
            self._over.clear()
            await connection.run(self._handle_ready)
        except DownstreamError as error:
            if isinstance(error, TimedOut) and connection is not None and connection.era is None:
                self._note_handshake(connection.target, connection.handshake)
            self.has_fallen = self.health.state == "connected"
            # A session's own connection is opened again by its next call.
            is_eager = target is not None and target.connect == "eager" and not self.session
            returns = is_eager and not self._stopping
            # offered again and again, it may lock an account: a person must look
            if isinstance(error, AuthFailed):
                returns = False
                log.warning(
                    "credential_refused",
                    server_id=self.server_id,
                    pause_seconds=health.REFUSED_DELAY,
                )
            self._handle_failure(error, returns=returns)
            return returns
        except SlipsnisseError as error:
            # it may not be started any more: disabled, changed, a value missing
            self._handle_failure(
                ConnectionFailed(error.message, remedy=error.remedy), returns=False
            )
            return False
        finally:
            self._keep_tail(connection)
        self._set_health(health.record_stop(self.health, now=time.monotonic()))
        return False

    def _handle_ready(self) -> None:
        self.has_fallen = False
        if self.connection is not None:
            self._note_handshake(self.connection.target, self.connection.handshake)
        self._set_health(health.record_connection(self.health, now=time.monotonic()))
        self._resolve_waiters(None)

    def _handle_failure(self, error: DownstreamError, *, returns: bool) -> None:
        self._set_health(
            health.record_failure(
                self.health,
                now=time.monotonic(),
                chance=random.random(),  # noqa: S311  jitter, not a secret
                returns=returns,
                code=error.code,
                detail=str(error),
                refused=isinstance(error, AuthFailed),
                forgotten=isinstance(error, SessionLost),
                pause=error.retry_after,
            )
        )
        self._resolve_waiters(error)

    def _resolve_waiters(self, error: DownstreamError | None) -> None:
        if self._up is None or self._up.done():
            return
        if error is None:
            self._up.set_result(None)
        else:
            self._up.set_exception(make_unsent_error(error))

    def _keep_tail(self, connection: ServerConnection | None) -> None:
        """What is left of a connection once it has closed."""
        self.connection = None
        self._over.set()
        if connection is None:
            return
        connection.logs.report_lines()
        self.tail = connection.read_stderr_tail()
        if self.tail:
            self._emit("stderr", detail=self.tail.decode(errors="replace"))

    async def _pause(self) -> None:
        left = health.compute_refusal_seconds(self.health, now=time.monotonic())
        await asyncio.sleep(left)

    def _set_health(self, after: Health) -> None:
        self.health = after
        found = (
            self.connection.discovery if self.connection and after.state == "connected" else None
        )
        self._emit("state", detail=after.detail, discovery=found)

    def _report_tools_changed(self, discovery: Discovery) -> None:
        self._emit("tools_changed", discovery=discovery)

    def _report_logs(self, lines: str) -> None:
        self._emit("log", detail=lines)

    def report_secrets(self, what: str, found: int) -> None:
        """An answer held ``found`` of the server's own secrets, which were replaced. Told every few
        seconds at most."""
        self._secrets_found += found
        now = time.monotonic()
        if found and now >= self._secrets_told + TELL_SECRETS_SECONDS:
            times = "once" if self._secrets_found == 1 else f"{self._secrets_found} times"
            detail = f"Answers contained secrets of this server ({times}, most recently in an answer of {what}). The secrets were replaced with a mask."
            self._emit("secrets", detail=detail)
            self._secrets_found = 0
            self._secrets_told = now

    def report_failure(self, error: DownstreamError) -> None:
        """A call failed, for a reason that is the server's: people see it at once. Never blocks."""
        self._emit("call_failed", detail=str(error), code=error.code)

    def _emit(
        self,
        kind: EventKind,
        *,
        detail: str = "",
        code: str = "",
        discovery: Discovery | None = None,
    ) -> None:
        connection = self.connection
        era = connection.era if connection else None
        if discovery is not None and not self._tells_all:
            discovery = None
        self._on_event(
            ConnectionEvent(
                server_id=self.server_id,
                kind=kind,
                state=self.health.state,
                detail=detail,
                code=code or self.health.code,
                pid=connection.pid if connection else None,
                era="modern" if self.session == OLDER else era,  # the server supports both
                at=time.time(),
                discovery=discovery,
                attempts=self.health.failures,
            )
        )

    async def stop(self) -> None:
        """Close for good. A connection that will not end is cancelled; its processes die all the
        same."""
        self._stopping = True
        owner = self._owner
        if owner is None:
            return
        if self.connection is not None:
            self.connection.stop()
        else:
            owner.cancel()  # it waits for its next try or for its target: nothing to close
        await end_owner(owner)
        if self.health.state != "disconnected":
            self._set_health(health.record_stop(self.health, now=time.monotonic()))

    async def drain(self) -> None:
        """Let calls in flight end, then stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                if self.gate is not None:
                    await self.gate.empty.wait()
        await self.stop()

    def describe(self) -> ServerState:
        """The server's state as ``Pool.list_states`` shows it."""
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
            retry_in=health.compute_refusal_seconds(self.health, now=now),
            for_seconds=now - self.health.since if self.health.since else 0.0,
        )


def make_unsent_error(error: DownstreamError) -> DownstreamError:
    """The failure of connecting, as a caller that waits for the connection meets it."""
    return type(error)(error.message, remedy=error.remedy, sent=False)


def compute_seconds_left(deadline: float | None) -> float | None:
    """Seconds until a monotonic deadline, at least a millisecond; None without one."""
    return None if deadline is None else max(0.001, deadline - time.monotonic())
