"""Which ids of a session of the older era are in use.

The SDK has one stream for each id of a session: a second request under an id whose first one is not answered yet would
take its stream away, and the first would wait for ever. MCP forbids such a request, so it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from mcp.types import INVALID_REQUEST

from mcpregistry.gateway.jsonrpc import error_to

Headers = Iterable[tuple[bytes, bytes]]
_TWICE = "This id is in use: its request is not answered yet. Give each request of a session an id of its own."


class Unanswered:
    """Of one process, which has the sessions."""

    def __init__(self) -> None:
        self._ids: set[tuple[bytes, int | str]] = set()

    @contextmanager
    def answering(
        self, headers: Headers, body: bytes, whole: bool, send: Any
    ) -> Iterator[tuple[dict[str, Any] | None, Any]]:
        """While this message is answered. Yields the error for one that may not be, and a ``send`` whose last event
        frees the id: whoever has read it may use the id again, however long we take to leave."""
        key = _key(headers, body) if whole else None
        if key is None or key in self._ids:
            yield error_to(key[1], INVALID_REQUEST, _TWICE) if key else None, send
            return

        mine = {key}

        async def sending(event: dict[str, Any]) -> None:
            if event["type"] == "http.response.body" and not event.get("more_body"):
                self._ids -= mine
                mine.clear()  # the next one's from here on
            await send(event)

        self._ids |= mine
        try:
            yield None, sending
        finally:
            self._ids -= mine


def _key(headers: Headers, body: bytes) -> tuple[bytes, int | str] | None:
    """Session and id, if it is a request within a session."""
    session = next((value for name, value in headers if name == b"mcp-session-id"), b"")
    message = msgspec.json.decode(body) if session else {}
    return (session, message["id"]) if "id" in message and "method" in message else None
