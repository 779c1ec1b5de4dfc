"""Reads a ``text/event-stream`` (HTML living standard 9.2) with a bound on every event."""

from __future__ import annotations

from dataclasses import dataclass

from mcpregistry.downstream.limits import too_large

RETRY_SECONDS = 1.0  # where the server says nothing
RETRY_DIGITS = 7  # of milliseconds, nearly three hours; who asks for more is not heard
MAX_ID = 4096  # bytes: it goes back in a header


@dataclass(frozen=True, slots=True)
class Event:
    """One event with data; ``kind`` is "message" unless the stream names another."""

    kind: str
    data: bytes


class EventReader:
    """Feed it bytes, get whole events. Raises ResourceLimit when one event passes ``limit`` bytes.

    ``last_id`` is the id of the last whole event (empty: none had one), also of one without data, with which MCP
    servers open a stream that can be read on. ``retry`` is how long they ask us to wait before that, in seconds.
    """

    def __init__(self, limit: int, *, last_id: str = "", retry: float = RETRY_SECONDS) -> None:
        self.last_id = last_id
        self.retry = retry
        self._next_id = last_id
        self._limit = limit
        self._partial = bytearray()
        self._data: bytearray | None = None
        self._kind = "message"

    def anew(self) -> EventReader:
        """For the stream that goes on where this one ended: a half event is forgotten, id and pause stay."""
        return EventReader(self._limit, last_id=self.last_id, retry=self.retry)

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that are complete with this chunk."""
        events: list[Event] = []
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            line = bytes(self._partial) + chunk[start:end] if self._partial else chunk[start:end]
            self._partial = bytearray()
            start = end + 1
            if event := self._take(line.rstrip(b"\r")):
                events.append(event)
        self._partial += chunk[start:]
        self._check(len(self._partial))
        return events

    def _take(self, line: bytes) -> Event | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            if self._data is None:
                self._data = bytearray(value)
            else:
                self._data += b"\n" + value
            self._check(0)
        elif name == b"event":
            self._kind = value.decode(errors="replace")
        elif name == b"id" and len(value) <= MAX_ID and value.isascii() and b"\0" not in value:
            self._next_id = value.decode()
        elif name == b"retry" and value.isdigit() and len(value) <= RETRY_DIGITS:
            self.retry = int(value) / 1000
        return None

    def _check(self, more: int) -> None:
        if len(self._data or b"") + more > self._limit:
            raise too_large(self._limit)

    def _dispatch(self) -> Event | None:
        event = Event(self._kind, bytes(self._data)) if self._data else None
        self.last_id = self._next_id
        self._data, self._kind = None, "message"
        return event
