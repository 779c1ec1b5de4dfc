"""How many characters of definitions a model reads on every turn: of each tool, and of all that an
agent is shown.

The lists of agents are worked out from sets of tools and not built as hosts get them: a page is
about hundreds of agents.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from django.db.models import F
from django.db.models.functions import Length

from mcpregistry.domain import offer_kinds
from mcpregistry.domain.policy.access import EVERYTHING, select_unexpired_grants
from mcpregistry.domain.snapshot_specs import AgentSpec, EndpointSpec, GrantSpec
from mcpregistry.models import Tool
from mcpregistry.queries.own_definitions import OwnDefinition, list_own_definitions
from mcpregistry.queries.usage import By, UsageFilter, UsageRow, sort_rows
from mcpregistry.services.configuration.snapshot import get_current_snapshot

_FEW = 200  # servers whose tools are read by name; of more, all tools are read


@dataclass(frozen=True, slots=True)
class ToolSize:
    """A tool of a server and the characters of its definition as hosts are shown it."""

    pk: int
    server_id: int
    server: str
    key: str
    characters: int


_Definition = tuple[int | None, int | None]  # the key of a tool that is served, and characters


def list_tool_sizes(*servers: str) -> list[ToolSize]:
    """Every tool that is served and enabled, or those of these servers. An operator's own
    description counts in place of the server's."""
    some = {"server__slug__in": servers} if servers else {}
    served = Tool.objects.serving().filter(enabled=True, **some).order_by()
    own = {
        pk: _difference(body, text)
        for pk, body, text in served.exclude(own_description="").values_list(
            "pk", "pinned__body", "own_description"
        )
    }
    rows = served.annotate(length=Length("pinned__body"), slug=F("server__slug"))
    return [
        ToolSize(
            pk, server_id, slug, offer_kinds.spell_offer_key(kind, name), length + own.get(pk, 0)
        )
        for pk, server_id, slug, kind, name, length in rows.values_list(
            "pk", "server_id", "slug", "kind", "name", "length"
        )
    ]


def _list_server_names(server: str) -> tuple[str, ...]:
    return (server,) if server else ()


def _difference(body: str, own: str) -> int:
    """By how many characters an operator's description makes a definition longer."""
    said = json.loads(body).get("description") or ""
    return len(json.dumps(own, ensure_ascii=False)) - len(json.dumps(said, ensure_ascii=False))


def sort_page(
    rows: Sequence[UsageRow], sort: str, page: slice, by: By, *, now: datetime, wanted: UsageFilter
) -> list[UsageRow]:
    """A part of the rows in this order, with definitions: those of other rows are read only if they
    decide the order."""
    if sort.lstrip("-") == "definition_tokens":
        return sort_rows(with_definitions(rows, by, now=now, wanted=wanted), sort)[page]
    return with_definitions(sort_rows(rows, sort)[page], by, now=now, wanted=wanted)


def with_definitions(
    rows: Sequence[UsageRow], by: By, *, now: datetime, wanted: UsageFilter
) -> list[UsageRow]:
    """The same rows, with what the definitions of each take and the keys of tools that are
    served."""
    if not rows:
        return []
    read = _reader(by, now, wanted, rows)
    found = []
    for row in rows:
        pk, characters = read(row)
        found.append(replace(row, pk=pk, definition=characters))
    return found


def _reader(
    by: By, now: datetime, wanted: UsageFilter, rows: Sequence[UsageRow]
) -> Callable[[UsageRow], _Definition]:
    match by:
        case By.TOOL:
            servers_of = {row.server for row in rows}
            sizes = list_tool_sizes(*servers_of if len(servers_of) <= _FEW else ())
            tools = {(tool.server, tool.key): (tool.pk, tool.characters) for tool in sizes}
            return lambda row: tools.get((row.server, row.name), (None, None))
        case By.SERVER:
            servers: Counter[str] = Counter()
            for tool in list_tool_sizes(*_list_server_names(wanted.server)):
                servers[tool.server] += tool.characters
            return lambda row: (None, servers.get(row.name))
        case By.EXPERT:
            experts = {each.name: each.characters for each in own_definitions()}
            return lambda row: (None, experts.get(row.name))
        case By.AGENT:
            lists = ShownLists(now, server=wanted.server)
            return lambda row: (None, lists.of_agent(row.name, endpoint=wanted.endpoint))
        case By.ENDPOINT:
            lists = ShownLists(now, server=wanted.server)
            return lambda row: (None, lists.of_endpoint(row.name, agent=wanted.agent))


def own_definitions() -> list[OwnDefinition]:
    """The tools of other apps that are enabled."""
    return list(list_own_definitions(get_current_snapshot(lambda: ())))


class ShownLists:
    """The lists of tools that agents are shown, in characters; of one server alone, if one is
    named."""

    def __init__(self, now: datetime, *, server: str = "") -> None:
        self._snapshot = get_current_snapshot(lambda: ())
        self._at = now.timestamp()
        active = self._snapshot.servers
        self._tools = {
            tool.pk: tool
            for tool in list_tool_sizes(*_list_server_names(server))
            if tool.server_id in active
        }
        self._own = [] if server else list(list_own_definitions(self._snapshot))
        self._seen: dict[str, frozenset[int]] = {}
        self._kept_to = {pk: server.only_on for pk, server in active.items() if server.only_on}

    def of_agent(self, slug: str, *, endpoint: str = "") -> int | None:
        """The agent's list on the endpoint, or else its longest one; None if the agent or endpoint
        is not enabled."""
        agent = self._snapshot.agents.get(slug)
        places = self._endpoints(endpoint)
        return (
            max((self._characters(agent, place) for place in places), default=None)
            if agent
            else None
        )

    def of_endpoint(self, slug: str, *, agent: str = "") -> int | None:
        """What the endpoint shows to the agent, or else the longest list of any; None if it is not
        enabled."""
        place = self._snapshot.endpoints.get(slug)
        if place is None:
            return None
        if agent:
            return self.of_agent(agent, endpoint=slug)
        longest = 0
        for most, each in self._by_length:
            if most <= longest:
                break  # an endpoint shows nobody more than is granted
            longest = max(longest, self._characters(each, place))
        return longest

    @cached_property
    def _by_length(self) -> list[tuple[int, AgentSpec]]:
        """Every agent with the most that it could be shown anywhere, the longest first."""
        own = dict.fromkeys(self._snapshot.agents, 0)
        for each in self._own:
            for agent in each.agents & own.keys():
                own[agent] += each.characters
        found = [
            (own[agent.slug] + self._sum(self._find_granted(agent)), agent)
            for agent in self._snapshot.agents.values()
        ]
        return sorted(found, key=lambda pair: -pair[0])

    def _endpoints(self, wanted: str) -> list[EndpointSpec]:
        return [each for each in self._snapshot.endpoints.values() if wanted in ("", each.slug)]

    def _characters(self, agent: AgentSpec, endpoint: EndpointSpec) -> int:
        shown = self._find_granted(agent)
        if endpoint.lists_only:
            shown = shown & self._find_listed(endpoint)
        shown = (
            frozenset(pk for pk in shown if self._is_listed_on(self._tools[pk], endpoint))
            if self._kept_to
            else shown
        )
        own = (
            each
            for each in self._own
            if agent.slug in each.agents and endpoint.slug in each.endpoints
        )
        return self._sum(shown) + sum(each.characters for each in own)

    def _sum(self, tools: Iterable[int]) -> int:
        return sum(self._tools[pk].characters for pk in tools)

    def _is_listed_on(self, tool: ToolSize, endpoint: EndpointSpec) -> bool:
        return self._kept_to.get(tool.server_id, endpoint.slug) == endpoint.slug

    def _find_granted(self, agent: AgentSpec) -> frozenset[int]:
        key = f"agent:{agent.slug}"
        if key not in self._seen:
            granted = self._find_covered(agent.grants)
            self._seen[key] = frozenset(
                pk for pk in granted if self._capable(agent, self._tools[pk])
            )
        return self._seen[key]

    def _find_listed(self, endpoint: EndpointSpec) -> frozenset[int]:
        key = f"endpoint:{endpoint.slug}"
        if key not in self._seen:
            self._seen[key] = frozenset(self._find_covered(endpoint.grants))
        return self._seen[key]

    def _capable(self, agent: AgentSpec, tool: ToolSize) -> bool:
        names = {EVERYTHING, f"mcp_{tool.server}::*", f"mcp_{tool.server}::{tool.key}"}
        return not names.isdisjoint(agent.capabilities)

    def _find_covered(self, grants: Iterable[GrantSpec]) -> set[int]:
        found: set[int] = set()
        for grant in select_unexpired_grants(grants, self._at):
            if grant.tool_id is not None:
                found.add(grant.tool_id)
            elif grant.server_id is not None and grant.kind in (offer_kinds.TOOL, ""):
                found.update(self._of_server.get(grant.server_id, ()))
        return found & self._tools.keys()

    @cached_property
    def _of_server(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for tool in self._tools.values():
            found.setdefault(tool.server_id, []).append(tool.pk)
        return found
