"""Who may use which tool. Nothing granted means not found: there is no other default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mcpregistry.domain.snapshot import AgentSpec, EndpointSpec, GrantSpec, ServerSpec, ToolSpec

EVERYTHING = "mcp_integration"


def capable(agent: AgentSpec, server: ServerSpec, tool: ToolSpec) -> bool:
    """Any of the three layers is enough: all servers, this server, this tool."""
    layers = (EVERYTHING, f"mcp_{server.slug}", f"mcp_{server.slug}_{tool.name}")
    return any(layer in agent.capabilities for layer in layers)


def covers(grant: GrantSpec, tool: ToolSpec) -> bool:
    return grant.tool_id == tool.id if grant.tool_id is not None else grant.server_id == tool.server_id


def live(grants: Iterable[GrantSpec], now: float) -> Iterable[GrantSpec]:
    return (grant for grant in grants if grant.expires_at is None or grant.expires_at > now)


def may_see(agent: AgentSpec, endpoint: EndpointSpec, server: ServerSpec, tool: ToolSpec, now: float) -> bool:
    """Is the tool in this agent's list on this endpoint?"""
    if not capable(agent, server, tool):
        return False
    if not any(covers(grant, tool) for grant in live(agent.grants, now)):
        return False
    return not endpoint.lists_only or any(covers(grant, tool) for grant in live(endpoint.grants, now))


def may_call(
    agent: AgentSpec, endpoint: EndpointSpec, tool: ToolSpec, arguments: Mapping[str, Any], now: float
) -> bool:
    """Does some live grant of the agent, and of a listing endpoint, allow these very arguments?"""
    return _allows(agent.grants, tool, arguments, now) and (
        not endpoint.lists_only or _allows(endpoint.grants, tool, arguments, now)
    )


def _allows(grants: Iterable[GrantSpec], tool: ToolSpec, arguments: Mapping[str, Any], now: float) -> bool:
    return any(covers(grant, tool) and pinned(grant.pins, arguments) for grant in live(grants, now))


def pinned(pins: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Every pinned argument is there and equals its value (true is not 1)."""
    return all(name in arguments and _same(arguments[name], value) for name, value in pins.items())


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def next_expiry(grants: Iterable[GrantSpec], now: float) -> float | None:
    """When the next of these grants runs out, so that a list built now is built anew then."""
    return min((g.expires_at for g in grants if g.expires_at is not None and g.expires_at > now), default=None)
