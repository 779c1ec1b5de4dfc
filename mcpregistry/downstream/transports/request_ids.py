"""Ids of our requests. They are integers, since some servers know no others; the SDK's own count from 0, far below."""

from __future__ import annotations

FIRST = 1_000_001


def own_id(value: object) -> int | None:
    """The id of one of our requests that a server has sent back, as an answer's id or a progress token.

    Some servers send it back as text, or as a float. None: it is none of ours.
    """
    if (type(value) is str and value.isascii() and value.isdecimal() and len(value) < 16) or (
        type(value) is float and value.is_integer()
    ):
        value = int(value)
    return value if type(value) is int and value >= FIRST else None
