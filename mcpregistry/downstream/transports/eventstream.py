"""Reads a ``text/event-stream`` (HTML living standard 9.2) with a bound on every event."""

from __future__ import annotations

from dataclasses import dataclass

from mcpregistry.downstream.wire import too_large


@dataclass(frozen=True, slots=True)
class Event:
    kind: str
    data: bytes


class EventReader:
    """Feed it bytes, get whole events. Raises ResourceLimit when one event passes ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._partial = bytearray()
        self._data: bytearray | None = None
        self._kind = "message"

    def feed(self, chunk: bytes) -> list[Event]:
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
        return None

    def _check(self, more: int) -> None:
        if len(self._data or b"") + more > self._limit:
            raise too_large(self._limit)

    def _dispatch(self) -> Event | None:
        event = Event(self._kind, bytes(self._data)) if self._data is not None else None
        self._data, self._kind = None, "message"
        return event
