"""The context bill: what the definitions that an agent is shown on an endpoint cost on every turn,
and which are not used.

What is hidden is taken out of grants. So use is counted as far as these reach: of the agent's on
every endpoint, of an endpoint's list by every agent.

Tokens are estimated at the usual four bytes each, from the very list that hosts get.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Q

from mcpregistry.calls.catalog import Catalogue, CatalogueEntry, build_current_catalogue
from mcpregistry.domain.offer_kinds import TOOL
from mcpregistry.domain.snapshot_specs import ToolSpec
from mcpregistry.domain.text.canonical import measure_json
from mcpregistry.domain.usage import EXPERTS
from mcpregistry.models import Agent, Endpoint, Tool
from mcpregistry.queries.calls import find_record_start, list_tools_called
from mcpregistry.queries.definition_sizes import own_definitions
from mcpregistry.queries.tools_used import count_calls_by_server_and_tool
from mcpregistry.queries.usage import CHARACTERS

DAYS = 30
MOST_CALLS = 5_000


@dataclass(frozen=True, slots=True)
class BillLine:
    """One tool of the list. ``calls``: of the calls looked at; ``own`` tools of ours cannot be
    hidden by a grant. ``new``: first seen or granted within the period, so that it is too early to
    tell."""

    name: str
    server: str
    tool_id: int
    key: str
    tokens: int
    calls: int
    own: bool
    new: bool


@dataclass(frozen=True, slots=True)
class Bill:
    """What is carried on every turn, the dearest first. ``all``: every call of the period was
    looked at, so what is said to be unused is; else only the newest ``looked`` were, back to
    ``since``, or what is ``kept`` begins later than it."""

    lines: tuple[BillLine, ...]
    instructions: int
    looked: int
    since: datetime
    all: bool
    kept: bool = True

    @property
    def total(self) -> int:
        """Tokens of all definitions and instructions."""
        return self.instructions + sum(line.tokens for line in self.lines)

    @property
    def unused(self) -> list[BillLine]:
        """What was not called and could be hidden; nothing where not all calls were looked at."""
        return (
            [line for line in self.lines if not (line.calls or line.own or line.new)]
            if self.all
            else []
        )

    @property
    def wasted(self) -> int:
        """Tokens of what is not used."""
        return sum(line.tokens for line in self.unused)

    def count_without(self, tools: Collection[int]) -> int:
        """Tokens that are left where these tools are hidden; their servers' instructions stay."""
        return self.total - sum(
            line.tokens for line in self.lines if line.tool_id in tools and not line.own
        )


def choose_grant_holder(agent: Agent, endpoint: Endpoint, *, by_list: bool) -> Agent | Endpoint:
    """Whose grants tools are hidden from: the agent's, unless it is the list of an endpoint that
    has one."""
    return endpoint if by_list and endpoint.scope == Endpoint.Scope.LISTED else agent


def estimate_text_tokens(text: str) -> int:
    """About how many tokens a model reads for this text."""
    return _estimate_from_bytes(len(text.encode("utf-8", "surrogatepass"))) if text else 0


def _estimate_from_bytes(count: int) -> int:
    return max(1, round(count / 4))


def build_bill(
    agent: Agent,
    endpoint: Endpoint,
    *,
    now: datetime,
    days: int = DAYS,
    holder: Agent | Endpoint | None = None,
) -> Bill | None:
    """The bill of an agent on an endpoint; None where either is switched off. A bounded number of
    calls is read: those of the ``holder`` that tools would be hidden from, the agent if it is not
    the endpoint."""
    seen = build_current_catalogue(agent, endpoint, now=now)
    if seen is None:
        return None
    since = now - timedelta(days=days)
    called = _count_calls(holder or agent, since, now)
    kept = find_record_start(now) <= since
    counts = called.counts
    lines = _build_lines(
        seen, counts, _make_newness_check(holder or agent, since, now)
    ) + _build_own_lines(agent, endpoint, counts)
    lines = tuple(sorted(lines, key=lambda line: (-line.tokens, line.name)))
    return Bill(
        lines,
        estimate_text_tokens(seen.merge_instructions()),
        counts.total(),
        called.since,
        called.all and kept,
        kept,
    )


class _CallCounts(NamedTuple):
    """Calls by server and tool. ``all``: these are all calls of the period, else the newest back to
    ``since``."""

    counts: Counter[tuple[str, str]]
    since: datetime
    all: bool


def _count_calls(holder: Agent | Endpoint, since: datetime, now: datetime) -> _CallCounts:
    """If there are more calls than are read, the counted hours say how many there were of each
    tool."""
    calls = list_tools_called(holder, since=since, most=MOST_CALLS + 1)
    if len(calls) > MOST_CALLS:
        whose = "agent" if isinstance(holder, Agent) else "endpoint"
        counted = count_calls_by_server_and_tool(since, now=now, **{whose: holder.slug})
        if counted is not None:
            return _CallCounts(counted, since, True)
    read = calls[:MOST_CALLS]
    every = len(calls) <= MOST_CALLS
    return _CallCounts(
        Counter((server, tool) for server, tool, _ in read), since if every else read[-1][2], every
    )


def _make_newness_check(
    holder: Agent | Endpoint, since: datetime, now: datetime
) -> Callable[[ToolSpec], bool]:
    """Whether a tool was first seen since then, or nothing that grants it is older."""
    live = Q(expires_at=None) | Q(expires_at__gt=now)
    older = holder.grants.filter(live, created_at__lte=since, kind__in=(TOOL, "")).values_list(
        "tool_id", "server_id"
    )
    tools = {tool for tool, _ in older if tool}
    servers = {server for _, server in older if server}
    young = {*Tool.objects.filter(first_seen_at__gt=since).values_list("pk", flat=True)}
    return lambda tool: tool.id in young or not (tool.id in tools or tool.server_id in servers)


def _build_lines(
    seen: Catalogue, counts: Counter[tuple[str, str]], new: Callable[[ToolSpec], bool]
) -> tuple[BillLine, ...]:
    return tuple(_build_line(entry, counts, new) for entry in seen.entries.values())


def _build_own_lines(
    agent: Agent, endpoint: Endpoint, counts: Counter[tuple[str, str]]
) -> tuple[BillLine, ...]:
    """The expert tools that the agent is shown there. Grants do not hide them: their own lists of
    callers do."""
    shown = (
        each
        for each in own_definitions()
        if agent.slug in each.agents and endpoint.slug in each.endpoints
    )
    return tuple(
        BillLine(
            each.name,
            "",
            0,
            each.name,
            max(1, round(each.characters / CHARACTERS)),
            counts[EXPERTS, each.name],
            own=True,
            new=False,
        )
        for each in shown
    )


def _build_line(
    entry: CatalogueEntry, counts: Counter[tuple[str, str]], new: Callable[[ToolSpec], bool]
) -> BillLine:
    offer = entry.offer
    server = "" if offer.own else offer.server.slug
    return BillLine(
        entry.name,
        server,
        offer.tool.id,
        offer.tool.key,
        _estimate_from_bytes(measure_json(entry.listing)),
        counts[server, offer.tool.key],
        offer.own,
        not offer.own and new(offer.tool),
    )
