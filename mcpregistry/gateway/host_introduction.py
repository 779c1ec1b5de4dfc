"""What a host is told when it comes: what the servers have that its agent sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp.server.context import HandlerResult

from mcpregistry.domain.offer_kinds import COMPLETIONS, LOGGING, SUBSCRIPTIONS


def build_introduction(
    result: HandlerResult, features: frozenset[str], instructions: str
) -> dict[str, Any]:
    """The SDK's answer to ``initialize`` or ``server/discover``, with the endpoint's instructions
    and features."""
    assert result is not None
    said = (
        result
        if isinstance(result, dict)
        else result.model_dump(by_alias=True, mode="json", exclude_none=True)
    )
    said["capabilities"] = drop_missing_capabilities(said.get("capabilities") or {}, features)
    return said | ({"instructions": instructions} if instructions else {})


def drop_missing_capabilities(
    capabilities: Mapping[str, Any], features: frozenset[str]
) -> dict[str, Any]:
    """What we declare, without what no server has that the caller sees."""
    said = {
        name: value
        for name, value in capabilities.items()
        if name not in (COMPLETIONS, LOGGING) or name in features
    }
    if isinstance(resources := said.get("resources"), dict):
        said["resources"] = resources | {"subscribe": SUBSCRIPTIONS in features}
    return said
