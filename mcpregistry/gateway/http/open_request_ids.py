"""Which ids of a session of the older era are in use.

The SDK has one stream for each id of a session: a second request under an id whose first one is not
answered yet would take its stream away, and the first would wait for ever. MCP forbids such a
request, so it is refused. The SDK takes 7 and "7" for the same id, so they are the same here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from mcp.shared.dispatcher import coerce_request_id
from mcp.types import INVALID_REQUEST

from mcpregistry.gateway.jsonrpc import make_error_reply

Headers = Iterable[tuple[bytes, bytes]]
_TWICE = "Another request with this id is not answered yet. Use a different id for each request of a session."


class OpenRequestIds:
    """Of one process, which has the sessions."""

    def __init__(self) -> None:
        self._ids: set[tuple[str, int | str]] = set()

    @contextmanager
    def reserve_id(
        self, session: str, request_id: int | str | None, send: Any
    ) -> Iterator[tuple[dict[str, Any] | None, Any]]:
        """While a message of this session is answered; ``request_id`` is None if it is not a
        request.

        Yields the error for one that may not be, and a ``send`` whose last event frees the id:
        whoever has read it may use the id again, however long we take to leave.
        """
        key = (
            (session, coerce_request_id(request_id)) if session and request_id is not None else None
        )
        if key is None or key in self._ids:
            yield make_error_reply(request_id, INVALID_REQUEST, _TWICE) if key else None, send
            return

        mine = {key}

        async def send_and_free_id(event: dict[str, Any]) -> None:
            if event["type"] == "http.response.body" and not event.get("more_body"):
                self._ids -= mine
                mine.clear()  # the next one's from here on
            await send(event)

        self._ids |= mine
        try:
            yield None, send_and_free_id
        finally:
            self._ids -= mine


def read_request_id(headers: Headers, body: bytes) -> tuple[str, int | str | None]:
    """Return session and id of a request. The session is empty if none is named, and the id is None
    if it is another message."""
    session = next(
        (value.decode("latin-1") for name, value in headers if name == b"mcp-session-id"), ""
    )
    message = msgspec.json.decode(body) if session else {}
    return session, message["id"] if "id" in message and "method" in message else None
