"""Reads a ``text/event-stream`` (HTML living standard 9.2) with a bound on every event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mcpregistry.domain.errors import DownstreamError
from mcpregistry.domain.text.almost_json import BOM
from mcpregistry.downstream.limits import make_too_large_error

RETRY_SECONDS = 1.0  # where the server says nothing
RETRY_DIGITS = 7  # of milliseconds, nearly three hours; who asks for more is not heard
MAX_ID = 4096  # bytes: it goes back in a header


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event with data; ``kind`` is "message" unless the stream names another."""

    kind: str
    data: bytes


class StreamLines:
    """Splits a stream into lines that end in LF, CRLF or CR, without the byte order mark in
    front."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._partial = bytearray()
        self._after_cr = False
        self._begun = False

    @property
    def held(self) -> int:
        """Bytes of the line that is not complete yet."""
        return len(self._partial)

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that are complete with this chunk. Raises ResourceLimit beyond ``limit`` bytes
        of one."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        elif chunk:
            self._after_cr = False
        first, *lines = chunk.split(b"\n")
        self._partial += first
        if lines:
            lines.insert(0, bytes(self._partial))
            self._partial = bytearray(lines.pop())
        if lines and not self._begun:
            lines[0] = lines[0].removeprefix(BOM)
            self._begun = True
        if len(self._partial) > self._limit:
            raise make_too_large_error(self._limit)
        return lines


class EventReader:
    """Feed it bytes, get whole events. Raises ResourceLimit when one event passes ``limit`` bytes.

    ``last_id`` is the id of the last whole event (empty: none had one), also of one without data,
    with which MCP servers open a stream that can be read on. ``retry`` is how long they ask us to
    wait before that, in seconds.
    """

    def __init__(self, limit: int, *, last_id: str = "", retry: float = RETRY_SECONDS) -> None:
        self.last_id = last_id
        self.retry = retry
        # what is wrong with the last event that held no message
        self.unreadable: DownstreamError | None = None
        self._next_id = last_id
        self._limit = limit
        self._lines = StreamLines(limit)
        self._data: bytearray | None = None
        self._kind = "message"

    def make_successor(self) -> EventReader:
        """For the stream that goes on where this one ended: a half event is forgotten, id and pause
        stay."""
        return EventReader(self._limit, last_id=self.last_id, retry=self.retry)

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """The events that are complete with this chunk."""
        events: list[StreamEvent] = []
        for line in self._lines.feed(chunk):
            if event := self._take(line):
                events.append(event)
        if len(self._data or b"") + self._lines.held > self._limit:
            raise make_too_large_error(self._limit)
        return events

    def _take(self, line: bytes) -> StreamEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            if self._data is None:
                self._data = bytearray(value)
            else:
                self._data += b"\n" + value
            if len(self._data) > self._limit:
                raise make_too_large_error(self._limit)
        elif name == b"event":
            self._kind = value.decode(errors="replace")
        elif name == b"id" and len(value) <= MAX_ID and value.isascii() and b"\0" not in value:
            self._next_id = value.decode()
        elif name == b"retry" and value.isdigit() and len(value) <= RETRY_DIGITS:
            self.retry = int(value) / 1000
        return None

    def _dispatch(self) -> StreamEvent | None:
        event = StreamEvent(self._kind, bytes(self._data)) if self._data else None
        self.last_id = self._next_id
        self._data = None
        self._kind = "message"
        return event


class MessageStream:
    """A stream for the SDK: events without a message, such as heartbeats, are left out, and each
    message is valid JSON.

    ``message_in`` returns the message in an event's data as bytes, or None.
    """

    def __init__(self, limit: int, message_in: Callable[[bytes], bytes | None]) -> None:
        self._limit = limit
        self._lines = StreamLines(limit)
        self._message_in = message_in
        self._fields: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> bytes:
        """What the SDK gets of the events that are complete with this chunk."""
        return b"".join(self._take(line) for line in self._lines.feed(chunk))

    def _take(self, line: bytes) -> bytes:
        if not line:
            return self._dispatch()
        self._size += len(line)
        if self._size > self._limit:
            raise make_too_large_error(self._limit)
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        else:
            self._fields.append(line)
        return b""

    def _dispatch(self) -> bytes:
        fields = self._fields
        data = b"\n".join(self._data)
        self._fields = []
        self._data = []
        self._size = 0
        message = self._message_in(data) if data else b""
        if message is None:
            return b""
        return b"\n".join([*fields, b"data: " + message, b"", b""])
