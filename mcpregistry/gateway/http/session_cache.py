"""What one web process knows of the sessions of older hosts. The rows hold the truth, so any
process serves any of them.

A session is read once and then remembered; the change feed says when it has ended elsewhere, and
brings what its host sent to another process about a request that this one serves.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import structlog
from django.db import Error
from mcp.types import InitializeRequestParams

from mcpregistry.calls.call import CallHost
from mcpregistry.calls.watch.changes import Feed
from mcpregistry.db import db_call, estimate_database_now
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import QueueFullError, ResourceLimit
from mcpregistry.gateway.caller_identity import Caller
from mcpregistry.gateway.host_questions import build_declared_host
from mcpregistry.models import HostSession
from mcpregistry.models.feed import SESSIONS
from mcpregistry.services import host_sessions

log = structlog.get_logger(__name__)

R = TypeVar("R")

_NOTE_EVERY = 30.0  # seconds between notes that hosts were here
_MOST_KNOWN = 10_000
_MOST_SAID = 65_536
# commits of others may become visible in another order than their times
_MARGIN = timedelta(seconds=60)
_AFTER_FAULT = 1.0
_FORGET_AT_ONCE = 100
_MOST_WAITING = 1_000  # messages for one session that does not take them
CANCELLED = "notifications/cancelled"
SSE_VERSION = "2024-11-05"  # the only one that HTTP+SSE has


@dataclass(slots=True)
class HostSessionState:
    """A session as it was read. ``host`` is what its handshake says; ``calls``: how to give up
    those that a lane of this process has under way, by request id; ``answered``: questions whose
    answers were passed on from here; ``cancelled``: requests whose cancellation was, each with the
    key of the message and the time."""

    id: str
    agent: str
    endpoint: str
    version: str
    client: InitializeRequestParams
    host: CallHost
    used: float
    log_level: str = ""  # as its host has set it
    calls: dict[int | str, Callable[[], None]] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)
    cancelled: dict[int | str, tuple[int, float]] = field(default_factory=dict)


class HostSessionCache:
    """One per web process; used on its event loop. Its id is plain text, and so is what ``ended``
    is called with."""

    def __init__(self, feed: Feed, process: str = "") -> None:
        self._feed = feed
        self._process = process
        self._known: dict[str, HostSessionState] = {}
        self._here: set[str] = set()  # hosts that were here since the last note
        self._held: dict[str, int] = {}  # open streams
        self._noting: asyncio.TimerHandle | None = None
        self._told: dict[str | int, float] = {}
        # messages from elsewhere, by session, on their way
        self._waiting: dict[str, deque[tuple[int, str]]] = {}
        self._left_out: Counter[str] = Counter()  # notices for which there was no room among them
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        # Whoever keeps something for a session is told its id when it has ended, in whichever
        # process that was.
        self.ended: list[Callable[[str], None]] = []
        # (session, server) of sessions' own connections
        self.own: Callable[[], Collection[tuple[str, int]]] = tuple
        self._owned = False  # whether some were there when it was noted last
        # Returns whether a message was for this process alone, so that no other one needs it.
        self.deliver: Callable[[str, dict[str, Any]], Awaitable[bool]] | None = None

    def start(self) -> None:
        """Begin to hear of what other processes do with sessions."""
        loop = asyncio.get_running_loop()
        self._since = estimate_database_now()

        def schedule_news(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._news.set)

        self._forget = self._feed.subscribe(SESSIONS, schedule_news)
        self._spawn(self._follow())

    async def close(self) -> None:
        """Note who was here, and hear no more."""
        self._forget()
        for task in list(self._tasks):
            task.cancel()
        if self._noting:
            self._noting.cancel()
        if here := self._here | self._held.keys():
            with suppress(Error):
                await db_call(host_sessions.note_seen, here)

    async def find(self, session_id: str, caller: Caller) -> HostSessionState | None:
        """The running session of this caller, or None. Raises Busy when the database cannot be
        asked."""
        session = self._known.get(session_id)
        if session is None or (
            not session.calls
            and time.monotonic() - session.used > host_sessions.IDLE.total_seconds()
        ):
            session = await self._read(session_id)
        if session is None or (session.agent, session.endpoint) != (caller.agent, caller.endpoint):
            return None
        session.used = time.monotonic()
        self._note_activity(session_id)
        return session

    async def begin(
        self, session_id: str, caller: Caller, version: str, client: InitializeRequestParams
    ) -> None:
        """A host has shaken hands here; committed when this returns. Raises ResourceLimit, or Busy
        without a database."""
        said = client.model_dump_json(by_alias=True, exclude_none=True)
        if len(said) > _MOST_SAID:
            raise ResourceLimit(
                f"The handshake describes the host with more than {_MOST_SAID:,} characters.",
                remedy="Send less in clientInfo and capabilities.",
            )
        try:
            await db_call(
                host_sessions.begin_session,
                session_id=session_id,
                agent=caller.agent,
                endpoint=caller.endpoint,
                version=version,
                client=said,
                name=client.client_info.name,
                said_version=client.client_info.version,
            )
        except Error:
            raise QueueFullError(
                error_texts.DATABASE_UNAVAILABLE, remedy="Connect again in a moment."
            ) from None
        self._known.pop(session_id, None)

    @asynccontextmanager
    async def record_connection(
        self, connection_id: str, caller: Caller, version: str = ""
    ) -> AsyncIterator[None]:
        """While a host's connection lasts here, it has a row: to be seen, and ended by people.
        Raises Busy before.

        ``version``: of HTTP+SSE, whose messages other processes may be sent; a WebSocket has none
        until its handshake.
        """
        whose = {
            "agent": caller.agent,
            "endpoint": caller.endpoint,
            "version": version,
            "client": "",
        }
        try:
            await db_call(host_sessions.begin_session, session_id=connection_id, **whose)
        except Error:
            raise QueueFullError(
                error_texts.DATABASE_UNAVAILABLE, remedy="Connect again in a moment."
            ) from None
        try:
            with self.keep_alive(connection_id):
                yield
        finally:
            with suppress(QueueFullError):  # then the clock ends it
                await self.end(connection_id)

    async def introduce(self, connection_id: str, client: InitializeRequestParams) -> None:
        """The host of such a connection has said its name, which is for people alone: nothing fails
        for want of it."""
        said = client.client_info
        with suppress(Error):
            await db_call(host_sessions.record_client_name, connection_id, said.name, said.version)

    async def pass_on(self, stream_id: str, caller: Caller, body: bytes) -> bool:
        """Send a message to the process that holds this stream; False if it is not this caller's.
        Raises Busy."""
        try:
            row = await db_call(host_sessions.find_running_session, stream_id)
            if row is None or row.client or row.protocol_version != SSE_VERSION:
                return False
            if (row.agent_slug, row.endpoint_slug) != (caller.agent, caller.endpoint):
                return False
            await db_call(host_sessions.send_host_message, stream_id, body.decode())
        except Error:
            raise QueueFullError(
                error_texts.DATABASE_UNAVAILABLE, remedy="Send the message again in a moment."
            ) from None
        return True

    def get_known(self, session_id: str) -> HostSessionState | None:
        """The session, if this process knows it by now."""
        return self._known.get(session_id)

    async def end(self, session_id: str) -> None:
        """Its host ends it, for every process. Raises Busy when the database cannot be asked."""
        try:
            await db_call(host_sessions.end_session, session_id)
        except Error:
            raise QueueFullError(
                error_texts.DATABASE_UNAVAILABLE, remedy="End the session again in a moment."
            ) from None
        self._forget_session(session_id)

    async def send_on(self, session_id: str, message: dict[str, Any]) -> int:
        """Send a message to the other processes. Returns its key. Raises a database error, or
        Busy."""
        return await db_call(host_sessions.send_host_message, session_id, json.dumps(message))

    async def forget(self, keys: Collection[int]) -> None:
        """Delete messages that no process needs. Raises a database error."""
        await db_call(host_sessions.delete_messages, tuple(keys))

    async def set_log_level(self, session_id: str, level: str) -> None:
        """What its host wants to hear, for every process. Raises Busy."""
        await _write_row(host_sessions.set_log_level, session_id, level)

    async def read_log_level(self, session: HostSessionState) -> None:
        """Anew, for another process has set it; returns when it was read, or the session is not
        known here any more."""
        while self.get_known(session.id) is session:
            try:
                session.log_level = await db_call(host_sessions.get_log_level, session.id)
                return
            except Error:
                await asyncio.sleep(_AFTER_FAULT)

    async def subscribe(self, session_id: str, uri: str, wanted: bool) -> None:
        """Its host wants to hear of this resource's changes, or not any more. Raises Busy, or
        ResourceLimit."""
        await _write_row(
            host_sessions.subscribe if wanted else host_sessions.unsubscribe, session_id, uri
        )

    @contextmanager
    def keep_alive(self, session_id: str) -> Iterator[None]:
        """While its host holds a stream open, a session does not idle."""
        self._held[session_id] = self._held.get(session_id, 0) + 1
        self._note_activity(session_id)
        try:
            yield
        finally:
            self._held[session_id] -= 1
            if not self._held[session_id]:
                del self._held[session_id]

    async def _read(self, session_id: str) -> HostSessionState | None:
        self._known.pop(session_id, None)
        try:
            row = await db_call(host_sessions.find_running_session, session_id)
        except Error:
            raise QueueFullError(
                error_texts.DATABASE_UNAVAILABLE, remedy=error_texts.TRY_AGAIN_SOON
            ) from None
        # a connection that lasts has a row as well, but is no session of this door
        if row is None or not row.client:
            return None
        if len(self._known) >= _MOST_KNOWN:
            self._known = {each.id: each for each in self._known.values() if each.calls}
        return self._known.setdefault(session_id, _build_session(row))

    def _note_activity(self, session_id: str) -> None:
        self._here.add(session_id)
        self._schedule_note()

    def _schedule_note(self) -> None:
        if self._noting is None:
            loop = asyncio.get_running_loop()
            self._noting = loop.call_later(_NOTE_EVERY, lambda: self._spawn(self._write_down()))

    async def _write_down(self) -> None:
        self._noting = None
        here = self._here | self._held.keys()
        self._here = set()
        own = self.own()
        try:
            await db_call(host_sessions.note_seen, here)
            if own or self._owned:
                await db_call(host_sessions.note_connections, self._process, own)
            self._owned = bool(own)
        except Error:  # again with the next ones: they idle for much longer before they are ended
            self._here |= here
        if self._held or self._here:
            self._note_activity(next(iter(self._held or self._here)))
        elif own:
            self._schedule_note()

    async def _follow(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            now = estimate_database_now()
            try:
                news = await db_call(
                    host_sessions.read_news, self._since - _MARGIN, frozenset(self._told)
                )
            except Error:
                await asyncio.sleep(_AFTER_FAULT)
                self._news.set()
                continue
            self._apply_news(news)
            if news.more:
                self._news.set()
            else:
                self._since = now

    def _apply_news(self, news: host_sessions.News) -> None:
        if not news.more:  # else the same messages are looked through again
            aside = time.monotonic() - 3 * _MARGIN.total_seconds()
            self._told = {key: at for key, at in self._told.items() if at > aside}
        for session_id in news.ended:
            self._forget_session(session_id)
        for key, session_id, body in news.messages:
            if key not in self._told:
                self._told[key] = time.monotonic()
                self._queue_message(key, session_id, body)

    def _queue_message(self, key: int, session_id: str, body: str) -> None:
        """In order within a session; one whose host does not read keeps nobody else waiting.

        If too many wait, notices are left out and counted. A request, an answer or a cancellation
        is not: its session ends instead, so that nobody waits for what will not come, and no
        cancelled call continues.
        """
        waiting = self._waiting.get(session_id)
        # else a task takes them already, which may be forgetting what it has taken
        if waiting is None:
            waiting = deque()
            self._waiting[session_id] = waiting
            self._spawn(self._deliver_messages(session_id, waiting))
        if len(waiting) >= _MOST_WAITING:
            self._left_out[session_id] += 1
            if _is_needed(json.loads(body)):
                log.error("sessions.ended_for_full", session=session_id[:8], waiting=len(waiting))
                while len(waiting) > 1:  # the first is being taken
                    waiting.pop()
                self._spawn(self._end_overfull(session_id))
            return
        waiting.append((key, body))

    async def _deliver_messages(self, session_id: str, waiting: deque[tuple[int, str]]) -> None:
        taken: list[int] = []
        try:
            while waiting:
                key, body = waiting[0]
                try:
                    if self.deliver is not None and await self.deliver(
                        session_id, json.loads(body)
                    ):
                        taken.append(key)
                except Exception:  # one message must not keep the next ones from being heard
                    log.exception("sessions.message_not_taken")
                waiting.popleft()
                if len(taken) >= _FORGET_AT_ONCE or not waiting:
                    await self._forget_messages(taken)
        finally:
            del self._waiting[session_id]
            if count := self._left_out.pop(session_id, 0):
                log.warning("sessions.messages_left_out", session=session_id[:8], count=count)

    async def _forget_messages(self, keys: list[int]) -> None:
        """No other process needs these. What the database does not forget now, the clock does."""
        if keys:
            with suppress(Error):
                await self.forget(keys)
            keys.clear()

    async def _end_overfull(self, session_id: str) -> None:
        """In every process. Where the database is away, at least here; then the clock ends it."""
        with suppress(QueueFullError):
            await self.end(session_id)
        self._forget_session(session_id)

    def _forget_session(self, session_id: str) -> None:
        if session_id in self._told:
            return
        self._told[session_id] = time.monotonic()
        self._known.pop(session_id, None)
        self._here.discard(session_id)
        for tell in self.ended:
            tell(session_id)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_needed(message: dict[str, Any]) -> bool:
    """Return whether a request waits for this message, or a call is cancelled by it."""
    return "id" in message or message.get("method") == CANCELLED


async def _write_row(write: Callable[..., R], *said: Any) -> R:
    try:
        return await db_call(write, *said)
    except Error:
        raise QueueFullError(
            error_texts.DATABASE_UNAVAILABLE, remedy=error_texts.TRY_AGAIN_SOON
        ) from None


def _build_session(row: HostSession) -> HostSessionState:
    client = InitializeRequestParams.model_validate_json(row.client, by_name=False)
    host = build_declared_host(
        row.protocol_version, client.client_info, client.capabilities, "http"
    )
    return HostSessionState(
        row.pk,
        row.agent_slug,
        row.endpoint_slug,
        row.protocol_version,
        client,
        host,
        used=time.monotonic(),
        log_level=row.log_level,
    )
