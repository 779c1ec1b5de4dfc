"""What is open for hosts, and how it ends when their access ends: a token, an agent, an endpoint or
a session.

Every answer over HTTP, every connection that lasts, and every request to a headend is noted here
while it is open. It is looked at when the configuration changes, when a session has ended in any
process, and once a second for tokens that expire. So a stream on which nothing is sent ends, too.
To the code that answers, this end looks like a host that closed its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from mcpregistry.calls.engine import Engine
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.gateway.caller_identity import Caller

LOOK_SECONDS = 1.0
ENDED = "ended"
REVOKED = "revoked"
_SESSION_HEADER = b"mcp-session-id"

Scope = dict[str, Any]
Refuse = Callable[[Any, str], Awaitable[None]]  # with a ``send``, and why


@dataclass(slots=True)
class Arrival:
    """A host at the door: who it is, by which token, and the ASGI connection."""

    caller: Caller
    token_hash: str
    scope: Scope
    receive: Any
    send: Any


class Guest(Protocol):
    """Something that is open for a host."""

    caller: Caller
    token_hash: str

    @property
    def session(self) -> bytes:
        """The id of the session that it belongs to; empty if there is none."""

    def end(self, why: str) -> None:
        """End it now. Returns at once."""


class Access:
    """All guests of this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: set[Guest] = set()
        self._looking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to follow the configuration; to be called on the event loop."""
        loop = asyncio.get_running_loop()

        def schedule_look(_: Snapshot) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self.end_revoked)

        self._engine.live.listeners.append(schedule_look)
        self._looking = loop.create_task(self._look_for_expired())

    def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()

    def has_access(self, guest: Guest) -> bool:
        """Whether its token, agent and endpoint are still what they were when its host came."""
        agent = self._engine.find_agent(guest.token_hash)
        caller = guest.caller
        return (
            agent is not None
            and agent.slug == caller.agent
            and caller.endpoint in self._engine.live.current.endpoints
        )

    def add(self, guest: Guest) -> None:
        """This is open from now on; pair it with ``remove``."""
        self._open.add(guest)

    def remove(self, guest: Guest) -> None:
        """It is over."""
        self._open.discard(guest)

    def end_revoked(self) -> None:
        """End everything whose access has ended."""
        for guest in list(self._open):
            if not self.has_access(guest):
                guest.end(REVOKED)

    def end_session(self, session_id: str) -> None:
        """The session has ended, in whichever process."""
        named = session_id.encode("latin-1")
        for guest in list(self._open):
            if guest.session == named:
                guest.end(ENDED)

    def spawn(self, work: Any) -> None:
        """Run this until it is done."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_for_expired(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.end_revoked()


class GuardedAnswer:
    """The answer to one HTTP request, as a ``send`` that sends nothing more once access has ended.

    ``refuse`` answers a request of which nothing was sent yet.
    """

    __slots__ = ("_access", "_over", "_refuse", "_scope", "_send", "_start", "caller", "token_hash")

    def __init__(self, access: Access, arrival: Arrival, refuse: Refuse) -> None:
        self.caller = arrival.caller
        self.token_hash = arrival.token_hash
        self._scope = arrival.scope
        self._send = arrival.send
        self._access = access
        self._refuse = refuse
        self._start: dict[str, Any] | None = None
        self._over = False

    async def __call__(self, event: dict[str, Any]) -> None:
        """Send one event of ASGI."""
        if self._over:
            return
        if not self._access.has_access(self) and not self._is_one_body:
            self._over = True
            await self._finish(REVOKED)
            return
        if event["type"] == "http.response.start":
            self._start = event
        elif not event.get("more_body"):
            self._over = True
        await self._send(event)

    @property
    def session(self) -> bytes:
        """The one that the request names. The request that ends a session gets its answer."""
        if self._scope["method"] == "DELETE":
            return b""
        return next(
            (value for name, value in self._scope["headers"] if name == _SESSION_HEADER), b""
        )

    @property
    def _is_one_body(self) -> bool:
        """Whether a body of a known length has begun: it must be whole, and its end is near."""
        return self._start is not None and any(
            name.lower() == b"content-length" for name, _ in self._start["headers"]
        )

    def end(self, why: str) -> None:
        """End it now. The code that answers then receives ``http.disconnect`` (ASGI)."""
        if not self._over and not self._is_one_body:
            self._over = True
            self._access.spawn(self._finish(why))

    async def _finish(self, why: str) -> None:
        with suppress(OSError):  # the host has gone
            if self._start is None:
                await self._refuse(self._send, why)
            else:
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
