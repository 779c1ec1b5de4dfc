"""Ids of our requests. They are integers, since some servers know no others; the SDK's own count
from 0, far below."""

from __future__ import annotations

from typing import Any

from mcpregistry.domain.errors import ProtocolError

FIRST = 1_000_001


def parse_own_id(value: object) -> int | None:
    """The id of one of our requests that a server has sent back, as an answer's id or a progress
    token.

    Some servers send it back as text, or as a float. None: it is none of ours.
    """
    if (type(value) is str and value.isascii() and value.isdecimal() and len(value) < 16) or (
        type(value) is float and value.is_integer()
    ):
        value = int(value)
    return value if type(value) is int and value >= FIRST else None


def read_cancelled_id(message: dict[str, Any]) -> int | None:
    """Return the id of our request that the server says it has cancelled; None for any other
    message.

    Either side may cancel what the other has asked of it (MCP 2025-11-25, Cancellation), and no
    answer follows.
    """
    params = message.get("params")
    if message.get("method") != "notifications/cancelled" or not isinstance(params, dict):
        return None
    return parse_own_id(params.get("requestId"))


def make_cancelled_error() -> ProtocolError:
    """The error for a request that the server has cancelled: what it had done by then is not
    known."""
    return ProtocolError(
        "The server cancelled the request before it answered.",
        remedy="Read the log of the server.",
        sent=True,
    )
