"""The hash that ties an approval to one exact call, which the claim before dispatch compares once
more; and a wider one."""

from __future__ import annotations

from mcpregistry.domain.text.canonical import hash_parts


def compute_binding(
    *,
    agent: str,
    endpoint: str,
    server: str,
    revision: int,
    tool: str,
    definition: str,
    arguments: str,
    fingerprint: str = "",
    requester: int | None = None,
    conversation: str = "",
) -> str:
    """SHA-256 (hex) over everything that must be the same when the approved call runs.

    ``arguments`` are canonical JSON, ``revision`` is the server's; ``fingerprint`` is that of the
    rule that asked, empty without one. ``requester`` is the key of the person who asked, so that
    two people's identical calls are two; so are those of two conversations.
    """
    asked = [] if requester is None else [str(requester)]
    asked += [f"conversation {conversation}"] if conversation else []
    return hash_parts(
        agent, endpoint, server, str(revision), tool, definition, arguments, fingerprint, *asked
    )


def compute_call_key(*, agent: str, server: str, tool: str, arguments: str) -> str:
    """SHA-256 (hex) over what makes two calls the same in the eyes of whoever refused one of
    them."""
    return hash_parts(agent, server, tool, arguments)
