"""What event streams (``text/event-stream``) of ours look like."""

from __future__ import annotations

PING_SECONDS = 15.0  # as the SDK does: Node drops a body that is silent for five minutes
PING = b": ping\r\n\r\n"
STREAM = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]


def format_event(data: bytes, kind: bytes = b"message") -> bytes:
    """One event; ``data`` has no line break."""
    return b"event: %b\r\ndata: %b\r\n\r\n" % (kind, data)
