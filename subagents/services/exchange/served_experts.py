"""What a file means for what is offered: which tools ``runmcp --config`` offers, and which a
watched file takes away."""

from __future__ import annotations

import json
from contextlib import suppress

from django.db import transaction

from mcpregistry.domain.caller_rights import grant_all_rights
from mcpregistry.domain.definitions.findings import Severity
from mcpregistry.domain.errors import Conflict
from mcpregistry.domain.formats.placeholders import is_reference
from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.models import Agent, Endpoint, PolicyRule, Server, Tool
from mcpregistry.services.access.scopes import grant_variables
from mcpregistry.services.definitions import decisions
from mcpregistry.services.policy import rules
from mcpregistry.services.records import audit
from subagents.models import ExpertTool, LanguageModel, Provider
from subagents.services import experts, providers
from subagents.services.exchange.expert_rows import key_of
from subagents.services.readiness import obstacles

_KIND = "tool/"
_RULE = "Whitelist of the expert tool "


def _extract_names(labels: frozenset[str]) -> set[str]:
    return {label.removeprefix(_KIND) for label in labels if label.startswith(_KIND)}


@transaction.atomic
def switch(labels: frozenset[str], *, on: bool, actor: str) -> dict[str, str]:
    """Switch tools on or off because a watched file names them, or no longer does.

    Returns what has changed, in words.
    """
    told = {}
    for expert in ExpertTool.objects.filter(
        name__in=_extract_names(labels), enabled=not on
    ).select_related("agent"):
        expert.change(enabled=on)
        targets = [
            target.model for target in expert.ordered_targets.select_related("model__provider")
        ]
        experts.save_expert(expert=expert, targets=targets, actor=actor)
        words = "is in the file again: enabled" if on else "is no longer in the file: disabled"
        told[f"{_KIND}{expert.name}"] = f"{expert.name} {words}."
    return told


@transaction.atomic
def serve(names: frozenset[str], *, agent: Agent, endpoint: Endpoint, actor: str) -> list[str]:
    """Offer the tools of ``names`` to the agent on the endpoint, and no others there.

    Whoever names a file vouches for its whitelists, so the calls that they name run without being
    asked about, unless a rule that people wrote says otherwise. Returns what stands in the way of
    running them, a sentence with its remedy.
    """
    wanted = _extract_names(names)
    with audit.collect_entries():
        _confirm_providers(names, actor)
        for expert in endpoint.experts.exclude(name__in=wanted):
            rest = [each for each in expert.endpoints.all() if each != endpoint]
            experts.offer(expert=expert, agents=expert.users.all(), endpoints=rest, actor=actor)
        found = ExpertTool.objects.filter(name__in=wanted).select_related("agent")
        problems = _serve_each(
            list(found.prefetch_related("ordered_targets", "users", "endpoints")),
            agent,
            endpoint,
            actor,
        )
    transaction.set_rollback(bool(problems))  # what cannot run is not offered
    return problems


def _serve_each(found: list[ExpertTool], agent: Agent, endpoint: Endpoint, actor: str) -> list[str]:
    problems = [
        f'The expert tool "{expert.name}" is disabled. Enable it, or remove it from the file.'
        for expert in found
        if not expert.enabled
    ]
    found = [expert for expert in found if expert.enabled]
    problems += _approve(found, actor)
    for expert in found:
        targets = [target.model_id for target in expert.ordered_targets.all()]
        problems += _check_awaited_tools(expert) or map(str, obstacles(expert, targets))
        _offer_tools(expert, agent, endpoint, actor)
    _let_run(found, actor)
    return problems


def _confirm_providers(names: frozenset[str], actor: str) -> None:
    """Those that the file itself has brought, as its servers; not those that it only refers to."""
    slugs = [name.removeprefix("provider/") for name in names if name.startswith("provider/")]
    for provider in Provider.objects.filter(slug__in=slugs):
        if provider.draft_problem():
            providers.confirm_destination(
                provider=provider, actor=actor, shown=provider.destination_hash()
            )
            grant_variables(
                [provider.key, *provider.headers.values()], f"provider:{provider.slug}", actor
            )


def take_back(labels: frozenset[str], *, actor: str) -> None:
    """Delete the expert tools, models and providers that a file has just made. One that is used
    meanwhile stays."""
    for expert in ExpertTool.objects.filter(name__in=_extract_names(labels)):
        with suppress(Conflict):
            experts.delete_expert(expert=expert, actor=actor, rights=grant_all_rights)
    for model in LanguageModel.objects.select_related("provider"):
        if f"model/{model}" in labels:
            with suppress(Conflict):
                providers.delete_model(model=model, actor=actor)
    slugs = [label.removeprefix("provider/") for label in labels if label.startswith("provider/")]
    for provider in Provider.objects.filter(slug__in=slugs):
        with suppress(Conflict):
            providers.delete_provider(provider=provider, actor=actor)


def references(names: frozenset[str]) -> list[str]:
    """The placeholders in keys and headers of the providers that these tools ask."""
    asked = Provider.objects.filter(models__experts__name__in=_extract_names(names)).distinct()
    texts = [text for provider in asked for text in (provider.key, *provider.headers.values())]
    return [text for text in texts if is_reference(text)]


def _approve(found: list[ExpertTool], actor: str) -> list[str]:
    """Approve what the whitelists name and nobody has decided on, unless the scanner raises an
    alarm."""
    granted = Tool.objects.waiting().filter(
        grants__agent__in=[expert.agent_id for expert in found], pinned=None
    )
    waiting = [
        (tool, tool.latest)
        for tool in granted.select_related("latest", "server").distinct()
        if tool.latest
    ]
    clean = [definition for _, definition in waiting if definition.severity < Severity.ALARM]
    decisions.approve_all(definitions=clean, actor=actor)
    return [
        f"The definition of {tool} is suspicious. Read it under Approvals, Definitions, then approve or reject it."
        for tool, definition in waiting
        if definition.severity >= Severity.ALARM
    ]


def _check_awaited_tools(expert: ExpertTool) -> list[str]:
    """The servers have told what they offer by now."""
    parts = [key.partition("::") for key in expert.awaited_tools]
    servers = {
        server.slug: server
        for server in Server.objects.filter(slug__in=[slug for slug, _, _ in parts])
    }
    return [
        f"/tools/{expert.name}/internal_tools: {' '.join(describe_missing_tool(servers[slug], name))}"
        for slug, _, name in parts
        if slug in servers
    ]


def describe_missing_tool(server: Server, name: str) -> tuple[str, str]:
    """Sentence and remedy for a whitelist that names what its server does not offer."""
    offered = sorted(
        Tool.objects.filter(server=server, present=True).values_list("name", flat=True)
    )
    known = ", ".join(offered[:20]) or "nothing"
    return (
        f'The server "{server.slug}" offers no tool named "{name}".',
        f"Correct the name, or remove it. The server offers: {known}.",
    )


def _offer_tools(expert: ExpertTool, agent: Agent, endpoint: Endpoint, actor: str) -> None:
    agents = list(expert.users.all())
    endpoints = list(expert.endpoints.all())
    if agent not in agents or endpoint not in endpoints:
        agents = list(dict.fromkeys([*agents, agent]))
        endpoints = list(dict.fromkeys([*endpoints, endpoint]))
        experts.offer(expert=expert, agents=agents, endpoints=endpoints, actor=actor)


def _let_run(found: list[ExpertTool], actor: str) -> None:
    """One rule each, exactly as wide as the whitelist, behind all that people write themselves."""
    whitelists = experts.load_whitelists(found)
    named = PolicyRule.objects.filter(
        name__startswith=_RULE, agent__in=[expert.agent_id for expert in found]
    )
    rules_now = {(rule.name, rule.agent_id): rule for rule in named}
    for expert in found:
        rule = rules_now.get((f"{_RULE}{expert.name}", expert.agent_id))
        _let_one_run(expert, whitelists[expert.pk], rule, actor)


def _let_one_run(
    expert: ExpertTool, whitelist: list[Tool], rule: PolicyRule | None, actor: str
) -> None:
    pairs: dict[str, list[str]] = {}
    for key in sorted(map(key_of, whitelist)):
        server, _, tool = key.partition("::")
        pairs.setdefault(server, []).append(tool)
    condition = " || ".join(
        f"(server.slug == {json.dumps(server)} && tool.name in {json.dumps(names, ensure_ascii=False)})"
        for server, names in pairs.items()
    )
    if rule is not None and not condition:
        rules.delete_rule(rule=rule, actor=actor)
    if not condition or (rule is not None and rule.condition == condition):
        return
    rule = rule or PolicyRule(
        name=f"{_RULE}{expert.name}",
        agent=expert.agent,
        outcome=RuleOutcome.ALLOW,
        priority=rules.AUTO,
        note="Added by runmcp --config for the whitelist in the file.",
    )
    rule.condition = condition
    rules.save_rule(rule=rule, actor=actor)
    audit.record_entry(
        kind="expert.vouched", actor=actor, subject=f"expert:{expert.name}", whitelist=pairs
    )
