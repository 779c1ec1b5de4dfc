"""Which conversation a request belongs to: a header, the command line of ``runmcp`` or ``_meta``
may name it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcpregistry.domain.errors import ArgumentsInvalid
from mcpregistry.gateway.caller_identity import Caller

HEADER = b"slipsnisse-conversation"
META_KEY = "slipsnisse/conversation"  # ``stdio/preload.py`` knows it too


def read_single_header(headers: list[tuple[bytes, bytes]], header: bytes = HEADER) -> str | None:
    """What the header says; empty without one. None: it is there twice, and nobody can say which
    one counts."""
    found = [value for name, value in headers if name == header]
    if len(found) > 1:
        return None
    return found[0].decode("latin-1") if found else ""


def find_conversation(caller: Caller, meta: Mapping[str, Any]) -> str:
    """The id that the request names, empty if none. Raises ArgumentsInvalid for what is no id, and
    for two of them."""
    if META_KEY not in meta:
        return caller.conversation
    named = meta[META_KEY]
    if not isinstance(named, str) or not named:
        raise ArgumentsInvalid(
            f"_meta['{META_KEY}'] must be the id of a conversation.",
            remedy="Leave out this key, or set it to the id of an open conversation of the agent.",
        )
    if caller.conversation not in ("", named):
        raise ArgumentsInvalid(
            "The request names two different conversations.",
            remedy=f"Leave out _meta['{META_KEY}'], or set it to the same conversation as the header.",
        )
    return named
