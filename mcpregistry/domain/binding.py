"""What exactly was decided on: one hash over everything that must still be so when the call runs."""

from __future__ import annotations

from mcpregistry.domain.canonical import digest


def binding_of(
    *,
    agent: str,
    endpoint: str,
    server: str,
    revision: int,
    tool: str,
    definition: str,
    arguments: str,
    fingerprint: str = "",
) -> str:
    """SHA-256 (hex). ``arguments`` are canonical JSON; ``fingerprint`` is that of the rule that asked, if one did."""
    return digest(agent, endpoint, server, str(revision), tool, definition, arguments, fingerprint)
