"""Read the whole live configuration once, into one immutable value."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from mcpregistry.domain.apps import is_app, without_app
from mcpregistry.domain.budgets import of_dollars
from mcpregistry.domain.definitions.definition import INSTRUCTIONS, listing
from mcpregistry.domain.kinds import READ, RESOURCE, TOOL
from mcpregistry.domain.policy.decision import Outcome
from mcpregistry.domain.policy.rules import RuleSpec
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.domain.specs import (
    AgentSpec,
    EndpointSpec,
    GrantSpec,
    PermitSpec,
    ServerSpec,
    TokenSpec,
    ToolSpec,
    WorkspaceSpec,
)
from mcpregistry.models import (
    Agent,
    Budget,
    Configuration,
    Endpoint,
    Grant,
    Permit,
    PolicyRule,
    Server,
    Token,
    Tool,
    Workspace,
)
from mcpregistry.services.configuration.capabilities import Meanings, meanings

_SECTIONS: dict[str, Callable[[], Any]] = {}


def add_section(name: str, read: Callable[[], Any]) -> None:
    """Another app's part of the configuration: read in the same transaction, an immutable value in ``sections``."""
    _SECTIONS[name] = read


def current_revision() -> int:
    """How often the configuration has changed; one small read."""
    return Configuration.objects.values_list("revision", flat=True).get(id=1)


def load_snapshot() -> Snapshot:
    """The configuration as of now: one consistent reading, in a fixed number of queries."""
    with _one_reading():
        return _read()


@contextmanager
def _one_reading() -> Iterator[None]:
    """A transaction that sees one moment. On SQLite not Django's own, which would take the write lock."""
    if connection.in_atomic_block:
        yield
    elif connection.vendor == "postgresql":
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield
    else:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN DEFERRED")
            try:
                yield
            finally:
                cursor.execute("ROLLBACK")  # nothing was written


def _read() -> Snapshot:
    revision, default_outcome = Configuration.objects.values_list("revision", "default_outcome").get(id=1)
    servers = {s.id: _server(s) for s in Server.objects.active()}
    by_agent, by_endpoint = _grants()
    rows = list(_of_servers(servers))
    off = defaultdict(set)
    for each in rows:
        if not each.enabled:
            off[each.server_id].add(each.name)
    never = {server_id: frozenset(uris) for server_id, uris in off.items()}
    offers = [_tool(t, never, servers[t.server_id]) for t in rows if t.enabled and _shown(t, servers[t.server_id])]
    return Snapshot(
        revision=revision,
        sections={name: read() for name, read in _SECTIONS.items()},
        servers=servers,
        tools={each.id: each for each in offers if each.kind == TOOL},
        others={each.id: each for each in offers if each.kind != TOOL},
        agents=_agents(by_agent),
        tokens=dict(_tokens()),
        endpoints={e.slug: _endpoint(e, by_endpoint[e.id]) for e in Endpoint.objects.filter(enabled=True)},
        workspaces=tuple(_workspaces()),
        rules=tuple(map(rule_spec, _rules())),
        default_outcome=effective_default(default_outcome),
        permits=_permits(),
    )


def _of_servers(ids: Iterable[int]) -> QuerySet[Tool]:
    """What serves, and the fixed resources that are switched off, which no template may read either."""
    off = Tool.offers.filter(kind=RESOURCE, enabled=False)
    return (Tool.offers.serving().filter(enabled=True) | off).filter(server_id__in=ids).select_related("pinned")


def _server(server: Server) -> ServerSpec:
    return ServerSpec(
        id=server.id,
        slug=server.slug,
        title=server.title,
        revision=server.revision,
        transport=server.transport,
        connect_mode=server.connect_mode,
        request_timeout=server.request_timeout,
        max_message_bytes=server.max_message_bytes,
        available=server.unavailable_since is None,
        shared_by=server.shared_by,
        questions=server.questions,
        features=frozenset(server.features),
        mcp_apps=server.mcp_apps,
    )


def _shown(tool: Tool, server: ServerSpec) -> bool:
    return server.mcp_apps or tool.kind not in READ or not is_app(tool.name)


def _tool(tool: Tool, never: Mapping[int, frozenset[str]], server: ServerSpec) -> ToolSpec:
    assert tool.pinned is not None
    return ToolSpec(
        id=tool.id,
        server_id=tool.server_id,
        name=tool.name,
        definition_hash=tool.pinned.hash,
        data=listing(tool.pinned.data) if server.mcp_apps else without_app(listing(tool.pinned.data)),
        idempotent=tool.idempotent,
        read_only=tool.read_only,
        destructive=tool.destructive,
        open_world=tool.open_world,
        energy=tool.call_energy or 0.0,
        cost=of_dollars(tool.call_cost or Decimal(0)),
        instructions=str(tool.pinned.data.get(INSTRUCTIONS) or ""),
        kind=tool.kind,
        never=never.get(tool.server_id, frozenset()),
    )


def effective_default(configured: str) -> Outcome:
    """What happens when no rule fits. ``MCP_TOOL_APPROVAL=false`` lets run what would be asked about."""
    outcome = Outcome(configured)
    return Outcome.ALLOW if outcome is Outcome.ASK and not settings.MCP_TOOL_APPROVAL else outcome


def _rules() -> QuerySet[PolicyRule]:
    return PolicyRule.objects.filter(enabled=True).select_related("endpoint", "approvers").order_by("id")


def rule_spec(rule: PolicyRule) -> RuleSpec:
    """A rule as the policy takes it; also of one that is not saved yet."""
    return RuleSpec(
        id=rule.pk or 0,
        name=rule.name,
        priority=rule.priority,
        outcome=Outcome(rule.outcome),
        condition=rule.condition,
        agent_id=rule.agent_id,
        endpoint=rule.endpoint.slug if rule.endpoint else None,
        server_id=rule.server_id,
        tool_id=rule.tool_id,
        expert=rule.expert,
        group_id=rule.approvers_id,
        group=rule.approvers.name if rule.approvers else "",
        quorum=rule.quorum,
        decide_seconds=rule.decide_seconds,
        execute_seconds=rule.execute_seconds,
        requester_may_confirm=rule.requester_may_confirm,
        run_if_caller_left=rule.run_if_caller_left,
        refusal_seconds=rule.refusal_seconds,
    )


def _permits() -> dict[tuple[int, int], tuple[PermitSpec, ...]]:
    """Those that may still be used, by agent and tool."""
    found: dict[tuple[int, int], list[PermitSpec]] = defaultdict(list)
    live = Permit.objects.filter(revoked_at__isnull=True, expires_at__gt=timezone.now()).exclude(uses_left=0)
    for permit in live.order_by("expires_at", "id"):
        spec = PermitSpec(
            permit.pk, permit.definition_hash, permit.server_revision, permit.argument_pins,
            permit.expires_at.timestamp(),
        )  # fmt: skip
        found[permit.agent_id, permit.tool_id].append(spec)
    return {key: tuple(specs) for key, specs in found.items()}


def _grants() -> tuple[dict[int, list[GrantSpec]], dict[int, list[GrantSpec]]]:
    by_agent: dict[int, list[GrantSpec]] = defaultdict(list)
    by_endpoint: dict[int, list[GrantSpec]] = defaultdict(list)
    for grant in Grant.objects.order_by("id"):
        spec = GrantSpec(
            grant.server_id, grant.tool_id, grant.argument_pins, _epoch(grant.expires_at), grant.kind, grant.uri
        )
        if grant.agent_id is not None:
            by_agent[grant.agent_id].append(spec)
        elif grant.endpoint_id is not None:
            by_endpoint[grant.endpoint_id].append(spec)
    return by_agent, by_endpoint


def _agents(grants: dict[int, list[GrantSpec]]) -> dict[str, AgentSpec]:
    rows = list(Agent.objects.filter(enabled=True))
    known = meanings(name for row in rows for name in row.capabilities)
    budgets: dict[int, set[str]] = defaultdict(set)
    for agent_id, unit in Budget.objects.filter(enabled=True).order_by().values_list("agent_id", "unit"):
        budgets[agent_id].add(unit)
    return {row.slug: _agent(row, grants[row.id], known, frozenset(budgets[row.id])) for row in rows}


def _agent(agent: Agent, grants: list[GrantSpec], known: Meanings, budgets: frozenset[str]) -> AgentSpec:
    clear = frozenset(known[name][0] for name in agent.capabilities if len(known[name]) == 1)
    return AgentSpec(
        agent.id, agent.slug, clear, agent.calls_per_minute, tuple(grants), agent.hold_seconds, agent.energy_pool_id,
        budgets,
    )  # fmt: skip


def _endpoint(endpoint: Endpoint, grants: list[GrantSpec]) -> EndpointSpec:
    return EndpointSpec(
        slug=endpoint.slug,
        title=endpoint.name or endpoint.slug,
        instructions=endpoint.instructions,
        naming_style=endpoint.naming_style,
        description_style=endpoint.description_style,
        lists_only=endpoint.scope == Endpoint.Scope.LISTED,
        hide_unavailable=endpoint.hide_unavailable,
        grants=tuple(grants),
        hold_seconds=endpoint.hold_seconds,
        maintenance_tools=endpoint.maintenance_tools,
        tell_energy=endpoint.tell_energy,
        instructions_limit=endpoint.instructions_limit,
    )


def _tokens() -> Iterable[tuple[str, TokenSpec]]:
    live = Token.objects.filter(agent__enabled=True, revoked_at__isnull=True)
    for digest, agent, expires_at in live.values_list("hash", "agent__slug", "expires_at"):
        yield digest, TokenSpec(agent, _epoch(expires_at))


def _workspaces() -> Iterable[WorkspaceSpec]:
    rows = Workspace.objects.filter(endpoint__enabled=True, agent__enabled=True)
    for directory, endpoint, agent in rows.values_list("directory", "endpoint__slug", "agent__slug"):
        yield WorkspaceSpec(directory, endpoint, agent)


def _epoch(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None
