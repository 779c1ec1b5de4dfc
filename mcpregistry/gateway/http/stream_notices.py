"""Notifications and questions for a host on their way to the process that has the stream of its
session, on any machine."""

from __future__ import annotations

import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.downstream.peers.client import ask_host_at, send_notice
from mcpregistry.downstream.peers.connections import OwnerGoneError, PeerConnections
from mcpregistry.downstream.peers.messages import RelayedNotice, RelayedQuestion

log = structlog.get_logger(__name__)

MOST_REMEMBERED = 10_000  # sessions
LOOK_AGAIN = 1.0  # seconds, where no process has the stream


class StreamNotices:
    """Those of one web process. ``neighbours`` gives the addresses of the others, ``send_here``
    sends what this process can send itself."""

    def __init__(
        self,
        neighbours: Callable[[], Awaitable[list[str]]],
        send_here: Callable[[RelayedNotice], Awaitable[bool]],
        connections: PeerConnections,
    ) -> None:
        self._neighbours = neighbours
        self._send_here = send_here
        self._connections = connections
        self._known: dict[str, str] = {}  # where the stream of a session was found
        self._nowhere: dict[str, float] = {}  # when it was found nowhere; monotonic

    async def send(self, notice: RelayedNotice) -> bool:
        """Send it on the session's stream. False if no process that this one can reach has the
        stream. Never raises."""
        if await self._send_here(notice):
            return True
        known = self._known.pop(notice.session, "")
        if known and await self._send_by_process(known, notice):
            return True
        if time.monotonic() < self._nowhere.get(notice.session, 0.0) + LOOK_AGAIN:
            return False
        for address in await self._neighbours():
            if address != known and await self._send_by_process(address, notice):
                return True
        self._make_room()
        self._nowhere[notice.session] = time.monotonic()
        return False

    async def _send_by_process(self, address: str, notice: RelayedNotice) -> bool:
        try:
            is_sent = await send_notice(address, notice, self._connections)
        except (OwnerGoneError, SlipsnisseError, ssl.SSLError, TimeoutError):
            log.info("session.notification_not_relayed", address=address)
            return False
        if is_sent:
            self._make_room()
            self._known[notice.session] = address
            self._nowhere.pop(notice.session, None)
        return is_sent

    async def ask(self, question: RelayedQuestion, seconds: float) -> dict[str, Any] | None:
        """Return the host's answer to a question on its session's stream in another process, on any
        machine.

        None if no other process has the stream. Raises Unanswered.
        """
        known = self._known.get(question.session, "")
        for address in dict.fromkeys(
            [known, *await self._neighbours()] if known else await self._neighbours()
        ):
            try:
                answer = await ask_host_at(address, question, self._connections, seconds)
            except (OwnerGoneError, SlipsnisseError, ssl.SSLError, TimeoutError):
                log.info("session.question_not_relayed", address=address)
                continue
            if answer is not None:
                return answer
        return None

    def _make_room(self) -> None:
        for remembered in (self._known, self._nowhere):
            if len(remembered) >= MOST_REMEMBERED:
                remembered.clear()

    def forget(self, session: str) -> None:
        """The session has ended."""
        self._known.pop(session, None)
        self._nowhere.pop(session, None)
