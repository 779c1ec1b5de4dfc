"""Who may use which tool. Nothing granted means not found: there is no other default.

Capabilities have one spelling without doubt: ``mcp_git::push`` is a tool, ``mcp_git::*`` all tools
of a server. People may write the source design's ``mcp_git`` and ``mcp_git_push`` as well, as long
as these can mean one thing only. A prompt is spelled with its kind: ``mcp_git::prompt:review``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from mcpregistry.domain.offer_kinds import READ, RESOURCE
from mcpregistry.domain.snapshot_specs import (
    RUNS,
    AgentSpec,
    EndpointSpec,
    Grants,
    GrantSpec,
    ServerSpec,
    ToolSpec,
)

EVERYTHING = "mcp_integration"
# of a pattern for URIs the star alone stands for something else
_PLAIN = str.maketrans({"?": "[?]", "[": "[[]"})


def has_capability(agent: AgentSpec, server: ServerSpec, tool: ToolSpec) -> bool:
    """Whether the agent's capabilities reach this tool; naming all servers, the server, or the tool
    is enough."""
    has = agent.capabilities
    return (
        EVERYTHING in has
        or f"mcp_{server.slug}::*" in has
        or f"mcp_{server.slug}::{tool.key}" in has
    )


def list_capability_meanings(capability: str, slugs: Iterable[str]) -> list[tuple[str, str]]:
    """What an older spelling may name among servers with these slugs: (slug, "*") for a server,
    (slug, name) for its tool. A slug may hold underscores, so more than one can fit."""
    rest = capability.removeprefix("mcp_")
    if rest == capability or is_unambiguous(capability):
        return []
    servers = [(slug, "*") for slug in slugs if slug == rest]
    tools = [
        (slug, rest[len(slug) + 1 :])
        for slug in slugs
        if rest.startswith(f"{slug}_") and rest != f"{slug}_"
    ]
    return sorted(servers + tools)


def list_unambiguous_readings(
    capability: str, slugs: Iterable[str], offered: Container[tuple[str, str]]
) -> tuple[str, ...]:
    """A capability in the spelling without doubt: one, or none when there is no such server, or
    several when it is ambiguous; then it counts for nothing. ``offered``: approved tools, asked
    about only where several servers fit."""
    found = list_capability_meanings(capability, slugs)
    if len(found) > 1:
        found = [pair for pair in found if pair[1] == "*" or pair in offered]
    return tuple(f"mcp_{slug}::{tool}" for slug, tool in found) or (
        (capability,) if is_unambiguous(capability) else ()
    )


def is_unambiguous(capability: str) -> bool:
    """Whether it means the same whatever servers there are."""
    return capability == EVERYTHING or "::" in capability


def is_covered_by_grant(grant: GrantSpec, tool: ToolSpec) -> bool:
    """Whether the grant is for this tool or prompt, or for all of its kind that its server
    offers."""
    if grant.tool_id is not None:
        return grant.tool_id == tool.id
    return (
        grant.server_id == tool.server_id
        and grant.kind in (tool.kind, "")
        and _matches_uri_pattern(grant, tool.kind, tool.name)
    )


def _matches_uri_pattern(grant: GrantSpec, kind: str, uri: object) -> bool:
    """Whether a URI is like those that the grant is about. Of templates it is known only when one
    is read."""
    return (
        not grant.uri
        or kind != RESOURCE
        or (isinstance(uri, str) and fnmatchcase(uri, grant.uri.translate(_PLAIN)))
    )


def select_covering_grants(grants: Iterable[GrantSpec], tool: ToolSpec) -> Iterable[GrantSpec]:
    """All that may cover the tool."""
    return grants.about(tool) if isinstance(grants, Grants) else grants


def select_unexpired_grants(grants: Iterable[GrantSpec], now: float) -> Iterable[GrantSpec]:
    """The grants that have not expired at ``now``."""
    return (grant for grant in grants if grant.expires_at is None or grant.expires_at > now)


def is_listed_on(server: ServerSpec, endpoint: EndpointSpec) -> bool:
    """Whether the endpoint can list the server at all. A server of a directory's file belongs to
    one endpoint; expert tools whose whitelist names it can use it as well."""
    return server.only_on in ("", endpoint.slug) or endpoint.slug == RUNS.slug


def may_see(
    agent: AgentSpec, endpoint: EndpointSpec, server: ServerSpec, tool: ToolSpec, now: float
) -> bool:
    """Whether the tool is in this agent's list on this endpoint (pinned arguments play no part in
    listing)."""
    if not has_capability(agent, server, tool) or not is_listed_on(server, endpoint):
        return False
    if not any(
        is_covered_by_grant(grant, tool)
        for grant in select_unexpired_grants(select_covering_grants(agent.grants, tool), now)
    ):
        return False
    return not endpoint.lists_only or any(
        is_covered_by_grant(grant, tool)
        for grant in select_unexpired_grants(select_covering_grants(endpoint.grants, tool), now)
    )


def may_call(
    agent: AgentSpec,
    endpoint: EndpointSpec,
    tool: ToolSpec,
    arguments: Mapping[str, Any],
    now: float,
) -> bool:
    """Whether a live grant of the agent, and where the endpoint only lists some tools one of the
    endpoint, allows these arguments.
    """
    if tool.kind in READ and tool.never and str(arguments.get("uri")) in tool.never:
        return False
    return _is_allowed_by_grant(agent.grants, tool, arguments, now) and (
        not endpoint.lists_only or _is_allowed_by_grant(endpoint.grants, tool, arguments, now)
    )


def _is_allowed_by_grant(
    grants: Iterable[GrantSpec], tool: ToolSpec, arguments: Mapping[str, Any], now: float
) -> bool:
    return any(
        is_covered_by_grant(grant, tool)
        and match_pins(grant.pins, arguments)
        and (not grant.uri or _can_read_uri(grant, tool, arguments))
        for grant in select_unexpired_grants(select_covering_grants(grants, tool), now)
    )


def may_begin(
    agent: AgentSpec, endpoint: EndpointSpec, tool: ToolSpec, known: Mapping[str, Any], now: float
) -> bool:
    """Whether a grant may allow a call of whose arguments only these are known yet; of a ``uri``
    how it begins."""
    return _can_begin_call(agent.grants, tool, known, now) and (
        not endpoint.lists_only or _can_begin_call(endpoint.grants, tool, known, now)
    )


def _can_begin_call(
    grants: Iterable[GrantSpec], tool: ToolSpec, known: Mapping[str, Any], now: float
) -> bool:
    return any(
        is_covered_by_grant(grant, tool)
        and all(
            name not in known or _is_same_value(known[name], value)
            for name, value in grant.pins.items()
        )
        and (
            not grant.uri
            or tool.kind not in READ
            or _can_lead_to_uri(grant.uri.partition("*")[0], str(known.get("uri", "")))
        )
        for grant in select_unexpired_grants(select_covering_grants(grants, tool), now)
    )


def find_implied_arguments(
    agent: AgentSpec,
    endpoint: EndpointSpec,
    tool: ToolSpec,
    known: Mapping[str, Any],
    *,
    typed: str,
    now: float,
) -> Mapping[str, Any] | None:
    """What else a call that begins like this must say for a grant to allow it, besides the argument
    that is being typed. None where grants leave several ways.
    """
    own = _list_unknown_pins(agent.grants, tool, known, now)
    listed = _list_unknown_pins(endpoint.grants, tool, known, now) if endpoint.lists_only else [{}]
    pairs = [(mine, theirs) for mine in own for theirs in listed]
    alike = [{**mine, **theirs} for mine, theirs in pairs if _have_compatible_pins(mine, theirs)]
    ways = [{name: value for name, value in pair.items() if name != typed} for pair in alike]
    if any(not way for way in ways):
        return {}
    return ways[0] if ways and all(_is_same_value(way, ways[0]) for way in ways) else None


def _list_unknown_pins(
    grants: Iterable[GrantSpec], tool: ToolSpec, known: Mapping[str, Any], now: float
) -> list[dict[str, Any]]:
    """Of each grant that may allow it, the pinned arguments that are not known yet."""
    fitting = (grant for grant in grants if _can_begin_call([grant], tool, known, now))
    return [
        {name: value for name, value in grant.pins.items() if name not in known}
        for grant in fitting
    ]


def _have_compatible_pins(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return all(
        name not in right or _is_same_value(value, right[name]) for name, value in left.items()
    )


def _can_lead_to_uri(granted: str, begun: str) -> bool:
    return granted.startswith(begun) or begun.startswith(granted)


def _can_read_uri(grant: GrantSpec, tool: ToolSpec, arguments: Mapping[str, Any]) -> bool:
    return tool.kind not in READ or _matches_uri_pattern(grant, RESOURCE, arguments.get("uri"))


def match_pins(pins: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Whether every pinned argument is there with exactly its value (``true`` is not ``1``)."""
    return all(
        name in arguments and _is_same_value(arguments[name], value) for name, value in pins.items()
    )


def _is_same_value(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(
            _is_same_value(left[key], right[key]) for key in left
        )
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_is_same_value, left, right))
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def find_next_expiry(grants: Iterable[GrantSpec], now: float) -> float | None:
    """When the next of these grants runs out, or None; the catalogue is built anew then."""
    return min(
        (g.expires_at for g in grants if g.expires_at is not None and g.expires_at > now),
        default=None,
    )
