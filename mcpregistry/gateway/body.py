"""Look at a request's body and still hand it on whole."""

from __future__ import annotations

from typing import Any

SMALL = 64 * 1024  # bytes; a lane does not look further


async def read_small(receive: Any) -> tuple[bytes, bool]:
    """The body as far as it is small, and whether that is all of it."""
    body = b""
    while len(body) <= SMALL:
        event = await receive()
        body += event.get("body", b"")
        if event["type"] != "http.request" or not event.get("more_body"):
            return body, event["type"] == "http.request"
    return body, False


def replayed(body: bytes, whole: bool, receive: Any) -> Any:
    """A ``receive`` that gives what was read again, then goes on."""
    first = [{"type": "http.request", "body": body, "more_body": not whole}]

    async def again() -> Any:
        return first.pop() if first else await receive()

    return again
