"""Read the whole live configuration once, into one immutable value.

What is large, the definitions of tools, never changes and is kept between two readings (``Known``):
so a change of one of five thousand tools costs reading short columns, not the texts of all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from mcpregistry.db import open_snapshot
from mcpregistry.domain.apps import is_app, remove_app_page
from mcpregistry.domain.budgets import convert_dollars
from mcpregistry.domain.definitions.definition import INSTRUCTIONS, strip_instructions
from mcpregistry.domain.host_definitions import repair_definition
from mcpregistry.domain.offer_kinds import READ, RESOURCE, TOOL
from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.domain.policy.rules import RuleSpec
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.domain.snapshot_specs import (
    EndpointSpec,
    Grants,
    GrantSpec,
    PermitSpec,
    ProjectSpec,
    ServerSpec,
    TokenSpec,
    ToolSpec,
    WorkspaceSpec,
)
from mcpregistry.extensions import list_extensions
from mcpregistry.models import (
    Configuration,
    Definition,
    Endpoint,
    Grant,
    Permit,
    PolicyRule,
    Server,
    Token,
    Tool,
    Workspace,
)
from mcpregistry.models.server import Lifecycle
from mcpregistry.models.tool import decode_definition
from mcpregistry.services.configuration.agents import read_agents, read_budgets, read_grants
from mcpregistry.services.configuration.projects import load_project_specs

_AT_ONCE = 500  # definitions that one query reads
_followed: Callable[[], Snapshot] | None = None


def read_current_revision() -> int:
    """How often the configuration has changed; one small read."""
    return Configuration.objects.values_list("revision", flat=True).get(id=1)


@dataclass(frozen=True, slots=True)
class Read:
    """One definition as it was parsed; its content never changes."""

    hash: str
    data: Mapping[str, Any]  # as hosts are shown it
    plain: Mapping[str, Any]  # the same without its app
    instructions: str


Known = dict[int, Read]  # definitions by their keys; whoever follows the configuration keeps them


def set_followed_store(current: Callable[[], Snapshot] | None) -> None:
    """Where this process keeps the newest reading that it has followed to; None: nowhere. Said with
    its engine."""
    global _followed  # noqa: PLW0603 - a process follows one configuration
    _followed = current


def get_current_snapshot(tools: Callable[[], Collection[int] | None] = lambda: None) -> Snapshot:
    """The configuration as of now, for pages: the one that this process has where nothing has
    changed since, which one small read tells; else read anew, of those ``tools`` alone."""
    if (
        _followed is not None
        and (read := _followed()).revision
        and read.revision == read_current_revision()
    ):
        return read
    return load_snapshot(tools())


def load_snapshot(tools: Collection[int] | None = None, *, known: Known | None = None) -> Snapshot:
    """The configuration as of now: one consistent reading, in a fixed number of queries. ``tools``:
    of what servers offer only these, for a page that speaks of no others.

    ``known`` holds what earlier readings have parsed, and afterwards what this one needs, and no
    more.
    """
    with open_snapshot():
        return _read(tools, {} if known is None else known)


def _read(only: Collection[int] | None, known: Known) -> Snapshot:
    revision, default_outcome = Configuration.objects.values_list(
        "revision", "default_outcome"
    ).get(id=1)
    servers = {s.id: _build_server_spec(s) for s in Server.objects.active().only(*_OF_SERVER)}
    by_agent, by_endpoint = read_grants()
    of_agents, of_endpoints = read_budgets()
    projects = load_project_specs()
    rows = list(_iterate_server_rows(servers, only, whole=not known))
    off = defaultdict(set)
    for each in rows:
        if not each.enabled:
            off[each.server_id].add(each.name)
    rules = list(_select_rules())
    never = {server_id: frozenset(uris) for server_id, uris in off.items()}
    ruled = _find_ruled_resources(rules)
    shown = [t for t in rows if t.enabled and _is_shown(t, servers[t.server_id])]
    _learn(known, {t.pinned: t for t in shown})
    offers = [
        _build_tool_spec(t, known[t.pinned], never, ruled, servers[t.server_id]) for t in shown
    ]
    return Snapshot(
        revision=revision,
        sections={
            name: read()
            for extension in list_extensions()
            for name, read in extension.snapshot_sections.items()
        },
        servers=servers,
        tools={each.id: each for each in offers if each.kind == TOOL},
        others={each.id: each for each in offers if each.kind != TOOL},
        agents=read_agents(by_agent, of_agents),
        tokens=dict(_load_tokens()),
        endpoints={
            e.slug: _build_endpoint_spec(e, by_endpoint[e.id], of_endpoints[e.id], projects[e.slug])
            for e in Endpoint.objects.filter(enabled=True)
        },
        workspaces=tuple(_load_workspaces()),
        rules=tuple(map(build_rule_spec, rules)),
        default_outcome=find_effective_default(default_outcome),
        permits=_load_permits(),
    )


class _OfferRow(NamedTuple):
    """The columns of a tool, prompt or resource that a snapshot has; ``_COLUMNS`` in this order."""

    id: int
    server_id: int
    name: str
    kind: str
    enabled: bool
    pinned: int
    hash: str
    idempotent: bool
    read_only: bool | None
    destructive: bool | None
    open_world: bool | None
    call_energy: float | None
    call_cost: Decimal | None
    own_name: str
    own_description: str
    body: str = ""  # of the definition, where it is read along: empty otherwise


_COLUMNS = tuple(
    {"pinned": "pinned_id", "hash": "pinned__hash"}.get(name, name)
    for name in _OfferRow._fields[:-1]
)
_OF_SERVER = (
    "id",
    "slug",
    "name",
    "revision",
    "transport",
    "connect_mode",
    "request_timeout",
    "max_message_bytes",
    "unavailable_since",
    "shared_by",
    "asks_elicitation",
    "asks_sampling",
    "asks_roots",
    "sampling_expert",
    "features",
    "mcp_apps",
    "only_on",
)


def _iterate_server_rows(
    servers: Mapping[int, ServerSpec], only: Collection[int] | None, *, whole: bool
) -> Iterator[_OfferRow]:
    """What serves, and the fixed resources that are switched off, which no template may read
    either."""
    off = Tool.offers.filter(kind=RESOURCE, enabled=False)
    serving = Tool.offers.serving().filter(enabled=True)
    if only is not None:
        serving = serving.filter(pk__in=only)
    columns = (*_COLUMNS, "pinned__body") if whole else _COLUMNS
    active = (serving | off).filter(server__lifecycle=Lifecycle.ACTIVE).values_list(*columns)
    return (row for row in (_OfferRow(*each) for each in active) if row.server_id in servers)


def _learn(known: Known, needed: Mapping[int, _OfferRow]) -> None:
    """Read the definitions that are needed and not known, and forget those that are no longer
    needed."""
    for key in [
        key for key, read in known.items() if key not in needed or needed[key].hash != read.hash
    ]:
        del known[key]
    new = [key for key in needed if key not in known]
    known.update(
        (key, _parse_definition(row.kind, row.hash, row.body))
        for key in new
        if (row := needed[key]).body
    )
    unread = [key for key in new if key not in known]
    for start in range(0, len(unread), _AT_ONCE):
        rows = Definition.objects.filter(pk__in=unread[start : start + _AT_ONCE]).order_by()
        found = rows.values_list("pk", "hash", "body")
        known.update(
            (key, _parse_definition(needed[key].kind, text, body)) for key, text, body in found
        )


def _parse_definition(kind: str, text: str, body: str) -> Read:
    data = decode_definition(body)
    shown = repair_definition(kind, strip_instructions(data)).definition
    return Read(text, shown, remove_app_page(shown), str(data.get(INSTRUCTIONS) or ""))


def _build_server_spec(server: Server) -> ServerSpec:
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
        sampling_expert=server.sampling_expert,
        features=frozenset(server.features),
        mcp_apps=server.mcp_apps,
        only_on=server.only_on,
    )


def _is_shown(tool: _OfferRow, server: ServerSpec) -> bool:
    return server.mcp_apps or tool.kind not in READ or not is_app(tool.name)


def _find_ruled_resources(rules: Iterable[PolicyRule]) -> dict[int, dict[str, int]]:
    """The fixed resources that rules are about, by server, whether they serve or not: templates and
    links may lead to them."""
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for rule in rules:
        if (
            rule.tool is not None
            and rule.tool.kind == RESOURCE
            and rule.outcome != RuleOutcome.ALLOW
        ):
            found[rule.tool.server_id][rule.tool.name] = rule.tool.pk
    return found


def _build_tool_spec(
    tool: _OfferRow,
    read: Read,
    never: Mapping[int, frozenset[str]],
    ruled: Mapping[int, Mapping[str, int]],
    server: ServerSpec,
) -> ToolSpec:
    return ToolSpec(
        id=tool.id,
        server_id=tool.server_id,
        name=tool.name,
        definition_hash=read.hash,
        data=read.data if server.mcp_apps else read.plain,
        idempotent=tool.idempotent,
        read_only=tool.read_only,
        destructive=tool.destructive,
        open_world=tool.open_world,
        energy=tool.call_energy or 0.0,
        cost=convert_dollars(tool.call_cost or Decimal(0)),
        instructions=read.instructions,
        kind=tool.kind,
        never=never.get(tool.server_id, frozenset()),
        ruled=ruled.get(tool.server_id, {}),
        own_name=tool.own_name,
        own_description=tool.own_description,
    )


def find_effective_default(configured: str) -> RuleOutcome:
    """What happens when no rule fits. ``MCP_TOOL_APPROVAL=false`` lets run what would be asked
    about."""
    outcome = RuleOutcome(configured)
    return (
        RuleOutcome.ALLOW
        if outcome is RuleOutcome.ASK and not settings.MCP_TOOL_APPROVAL
        else outcome
    )


def _select_rules() -> QuerySet[PolicyRule]:
    return PolicyRule.objects.live().select_related("endpoint", "approvers", "tool").order_by("id")


def build_rule_spec(rule: PolicyRule) -> RuleSpec:
    """A rule as the policy takes it; also of one that is not saved yet."""
    return RuleSpec(
        id=rule.pk or 0,
        name=rule.name,
        priority=rule.priority,
        outcome=RuleOutcome(rule.outcome),
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


def _load_permits() -> dict[tuple[int, int], tuple[PermitSpec, ...]]:
    """Those that may still be used, by agent and tool."""
    found: dict[tuple[int, int], list[PermitSpec]] = defaultdict(list)
    live = Permit.objects.filter(revoked_at__isnull=True, expires_at__gt=timezone.now()).exclude(
        uses_left=0
    )
    for permit in live.order_by("expires_at", "id"):
        spec = PermitSpec(
            permit.pk,
            permit.definition_hash,
            permit.server_revision,
            permit.argument_pins,
            permit.expires_at.timestamp(),
        )
        found[permit.agent_id, permit.tool_id].append(spec)
    return {key: tuple(specs) for key, specs in found.items()}


def build_grant_spec(grant: Grant) -> GrantSpec:
    """A grant as the hot path takes it; also of one that is not saved yet."""
    return GrantSpec(
        grant.server_id,
        grant.tool_id,
        grant.argument_pins,
        _to_epoch(grant.expires_at),
        grant.kind,
        grant.uri,
    )


def _build_endpoint_spec(
    endpoint: Endpoint,
    grants: list[GrantSpec],
    budgets: set[str],
    projects: Sequence[ProjectSpec] = (),
) -> EndpointSpec:
    return EndpointSpec(
        slug=endpoint.slug,
        title=endpoint.name or endpoint.slug,
        instructions=endpoint.instructions,
        naming_style=endpoint.naming_style,
        description_style=endpoint.description_style,
        lists_only=endpoint.scope == Endpoint.Scope.LISTED,
        hide_unavailable=endpoint.hide_unavailable,
        grants=Grants(grants),
        hold_seconds=endpoint.hold_seconds,
        maintenance_tools=endpoint.maintenance_tools,
        tell_energy=endpoint.tell_energy,
        instructions_limit=endpoint.instructions_limit,
        budgets=frozenset(budgets),
        projects=tuple(projects),
    )


def _load_tokens() -> Iterable[tuple[str, TokenSpec]]:
    live = Token.objects.filter(agent__enabled=True, revoked_at__isnull=True)
    for digest, agent, expires_at in live.values_list("hash", "agent__slug", "expires_at"):
        yield digest, TokenSpec(agent, _to_epoch(expires_at))


def _load_workspaces() -> Iterable[WorkspaceSpec]:
    rows = Workspace.objects.filter(endpoint__enabled=True, agent__enabled=True)
    for directory, endpoint, agent in rows.values_list(
        "directory", "endpoint__slug", "agent__slug"
    ):
        yield WorkspaceSpec(directory, endpoint, agent)


def _to_epoch(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None
