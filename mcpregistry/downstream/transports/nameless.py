"""Errors without an id on a connection that carries everything (a pipe, SSE, WebSocket): which
request they belong to.

Some servers answer a request with an error whose id is null or missing. Others send such an error
for a notification. A server reads its messages in order. So if one request of ours is out, and the
server has answered another request that was sent after everything else, the error belongs to the
one that is out. It gets the error unless its answer comes within a second. In all other cases its
request is unknown, and a request that is not answered in time quotes the error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from mcpregistry.domain.text.canonical import clean_text

MOST_WORDS = 300  # characters
GRACE_SECONDS = 1.0  # in which the real answer may still come


class OutstandingRequest(Protocol):
    """A request that is out."""

    future: asyncio.Future[dict[str, Any]]
    nameless: str
    number: int


class NamelessErrors:
    """Notes in which order messages go out on one connection, and which requests are answered."""

    def __init__(self) -> None:
        self._sent = 0
        self._last_other = 0  # the newest message that is not a request of ours
        self._last_answered = 0

    def count_request(self) -> int:
        """A request of ours goes out. Returns its number."""
        self._sent += 1
        return self._sent

    def count_other(self) -> None:
        """A notification goes out, or a message of the SDK."""
        self._sent += 1
        self._last_other = self._sent

    def note_answer(self, number: int) -> None:
        """The server has answered the request with this number."""
        self._last_answered = max(self._last_answered, number)

    def receive(self, message: dict[str, Any], out: Collection[OutstandingRequest]) -> None:
        """An error without an id has come while these requests are out."""
        words = describe_error(message["error"])
        for waiting in out:
            waiting.nameless = words
        if len(out) == 1 and self._last_other <= self._last_answered:
            asyncio.get_running_loop().call_later(GRACE_SECONDS, _settle, next(iter(out)), message)


def describe_error(error: Mapping[str, Any]) -> str:
    """The error's own words on one line, bounded."""
    return clean_text(" ".join(str(error.get("message", "")).split()), MOST_WORDS)


def _settle(waiting: OutstandingRequest, message: dict[str, Any]) -> None:
    if not waiting.future.done():
        waiting.future.set_result(message)
