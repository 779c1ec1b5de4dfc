"""Why a call would run, wait or be refused, and why a tool is not listed: every stage, in the order
of a call.

Reads the rows (so that it can also speak about what is switched off) and lets the very code decide
that decides about calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import Group

from mcpregistry.domain import error_texts
from mcpregistry.domain.definitions.naming import map_offer_names
from mcpregistry.domain.errors import ArgumentsInvalid, NotFound
from mcpregistry.domain.host_definitions import check_call
from mcpregistry.domain.offer_kinds import TOOL
from mcpregistry.domain.policy.access import (
    has_capability,
    is_covered_by_grant,
    is_listed_on,
    may_call,
    may_see,
    select_covering_grants,
    select_unexpired_grants,
)
from mcpregistry.domain.policy.decision import Decision, PolicyQuestion, RuleOutcome, Terms, decide
from mcpregistry.domain.policy.risk import assess_risk
from mcpregistry.domain.policy.rules import RuleVerdict
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.domain.snapshot_specs import AgentSpec, EndpointSpec, ServerSpec, ToolSpec
from mcpregistry.domain.text.display import number_of, show_invisible_characters
from mcpregistry.models import Agent, Endpoint, Server, Tool
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.access.roles import find_approvers
from mcpregistry.services.configuration.snapshot import get_current_snapshot
from mcpregistry.services.policy import permits

Specs = tuple[AgentSpec, EndpointSpec, ServerSpec, ToolSpec]


@dataclass(frozen=True, slots=True)
class Stage:
    """One thing that must be so. ``ok`` None: it cannot be told, because an earlier stage failed or
    nothing was given.

    ``expired``: it fails only because a grant has expired.
    """

    name: str
    ok: bool | None
    fact: str
    remedy: str = ""
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Why:
    """The answer to "Why?": every stage, every rule's verdict, and the end of it in one sentence
    (``answer``).

    ``listed``: the tool is in the agent's list now.
    """

    agent: str
    endpoint: str
    tool: str
    stages: tuple[Stage, ...]
    listed: bool
    name: str
    answer: str
    decision: Decision | None = None
    verdicts: tuple[RuleVerdict, ...] = ()
    asked: tuple[str, ...] = ()
    permit: str = ""


CHANGING = "Another user or process is changing the configuration at this moment. Try again."


def find_tool(name: str, *, styles: Sequence[str] = ("double",)) -> Tool:
    """By server::tool, server::prompt:name, or by the name that hosts use in one of these styles,
    the likeliest first, as ``ToolQuerySet.match_name`` reads it. Raises NotFound, also where it may
    mean several."""
    found = Tool.offers.select_related("server", "pinned", "latest").match_name(name, styles)
    if len(found) == 1:
        return found[0]
    if found:
        raise make_ambiguous_error(name, found)
    raise NotFound(
        error_texts.say_not_found("tool", show_invisible_characters(name, 200)),
        remedy="Use the form server::tool, as on the page “Tools, prompts, resources”.",
    )


def make_ambiguous_error(name: str, found: Sequence[Tool]) -> NotFound:
    """What is told where a name may mean any of these; REST's paths tell the same."""
    which = ", ".join(map(str, found[:5])) + (
        f" and {len(found) - 5} more" if len(found) > 5 else ""
    )
    return NotFound(
        f"'{show_invisible_characters(name, 200)}' can mean several tools: {which}.",
        remedy="Use the form server::tool, as on the page “Tools, prompts, resources”.",
    )


def explain_decision(
    *,
    agent: Agent,
    endpoint: Endpoint,
    tool: Tool,
    now: datetime,
    arguments: Mapping[str, Any] | None = None,
) -> Why:
    """Every stage of the decision about one call. ``arguments`` None: as far as it can be told
    without them."""
    snapshot = get_current_snapshot()
    at = now.timestamp()
    stages = [*check_configuration(agent, endpoint, tool.server, tool)]
    specs = find_specs(snapshot, agent, endpoint, tool)
    if specs is None:
        return _conclude_early(agent, endpoint, tool, stages)
    who, where, server, what = specs
    stages += check_grants(who, where, server, what, at)
    listed = may_see(who, where, server, what, at) and not (
        where.hide_unavailable and not server.available
    )
    name = _find_exposed_name(snapshot, specs, at) if listed else ""
    if not listed:
        return _conclude_early(agent, endpoint, tool, stages)
    stages.append(Stage("name", True, f"Hosts show the tool as {name}."))
    stages += _check_arguments(who, where, what, arguments, at)
    question = PolicyQuestion(who, where, server, what, arguments or {}, now=at, origin="http")
    decision = decide(snapshot.policy, question)
    verdicts = snapshot.policy.explain(question)
    asked = tuple(_list_possible_approvers(decision.terms, agent)) if decision.terms else ()
    permit = (
        _explain_permit(question, decision.terms, now)
        if decision.terms and arguments is not None
        else ""
    )
    stages.append(_check_policy(decision, what))
    broken = next((stage for stage in stages if stage.ok is False and stage.name != "policy"), None)
    answer = (
        f"{broken.fact} {broken.remedy}".strip()
        if broken
        else _compose_answer(decision, asked, permit)
    )
    return Why(
        agent.slug,
        endpoint.slug,
        str(tool),
        tuple(stages),
        True,
        name,
        answer,
        decision,
        verdicts,
        asked,
        permit,
    )


def _conclude_early(agent: Agent, endpoint: Endpoint, tool: Tool, stages: list[Stage]) -> Why:
    first = next((stage for stage in stages if stage.ok is False), None)
    why_not = f"{first.fact} {first.remedy}".strip() if first else CHANGING
    return Why(
        agent.slug,
        endpoint.slug,
        str(tool),
        tuple(stages),
        False,
        "",
        f"The tool is not listed and cannot be called. {why_not}",
    )


def find_specs(snapshot: Snapshot, agent: Agent, endpoint: Endpoint, tool: Tool) -> Specs | None:
    """The four as the hot path knows them; None while one of them does not serve."""
    who = snapshot.agents.get(agent.slug)
    where = snapshot.endpoints.get(endpoint.slug)
    server = snapshot.servers.get(tool.server_id)
    what = snapshot.find_offer(tool.pk)
    if who is None or where is None or server is None or what is None:
        return None
    return who, where, server, what


def check_configuration(
    agent: Agent, endpoint: Endpoint, server: Server, tool: Tool
) -> Iterator[Stage]:
    """What is switched on, there and approved; the table of who can call what asks the same.
    ``server`` is the tool's."""
    yield Stage(
        "agent",
        agent.enabled,
        f"The agent {agent} is {_say_enabled(agent.enabled)}.",
        "" if agent.enabled else "Enable it.",
    )
    yield Stage(
        "endpoint",
        endpoint.enabled,
        f"The endpoint {endpoint} is {_say_enabled(endpoint.enabled)}.",
        "" if endpoint.enabled else "Enable it.",
    )
    active = server.lifecycle == Lifecycle.ACTIVE
    yield Stage(
        "server",
        active,
        f"The server {server} is {server.get_lifecycle_display().lower()}.",
        "" if active else _SERVER_REMEDY.get(server.lifecycle, "Enable it."),
    )
    hidden = endpoint.hide_unavailable and server.unavailable_since is not None
    if server.unavailable_since is None:
        availability = "The server is available, as far as the site knows."
    elif hidden:
        availability = "The server has failed, and the endpoint hides tools of failed servers."
    else:
        availability = "The server has failed, but the endpoint still shows its tools."
    yield Stage(
        "availability",
        not hidden,
        availability,
        f"Last error: {show_invisible_characters(server.last_error, 300)} Reconnect the server."
        if hidden
        else "",
    )
    yield Stage(
        "present",
        tool.present,
        "The server offers the tool." if tool.present else "The server no longer offers the tool.",
        "" if tool.present else "The tool returns automatically when the server lists it again.",
    )
    yield Stage(
        "tool",
        tool.enabled,
        f"The tool is {_say_enabled(tool.enabled)}.",
        "" if tool.enabled else "Enable it.",
    )
    yield _check_definition(tool)


def _check_definition(tool: Tool) -> Stage:
    if tool.pinned_id and tool.pinned_id == tool.latest_id:
        return Stage("definition", True, "The current definition is the approved one.")
    facts = {
        "quarantined": "The tool's definition is not approved yet.",
        "changed": "The server has changed the tool since its definition was approved.",
        "rejected": "The tool's definition was rejected.",
        "gone": "The latest definition of the server is not the approved one.",
    }
    return Stage(
        "definition",
        False,
        facts.get(tool.status, "The tool's definition is not approved."),
        "Review the definition, then approve or reject it.",
    )


def check_grants(
    agent: AgentSpec, endpoint: EndpointSpec, server: ServerSpec, tool: ToolSpec, now: float
) -> Iterator[Stage]:
    """What lets the agent see it on the endpoint, each by itself; the table of who can call what
    asks the same."""
    able = has_capability(agent, server, tool)
    yield Stage(
        "capability",
        able,
        f"The agent's capabilities {'cover' if able else 'do not cover'} the tool.",
        ""
        if able
        else f"Add mcp_{server.slug}::* to the agent's capabilities. A capability that can mean two tools or servers is ignored.",
    )
    yield _check_grant("grant", "agent", agent.grants, tool, now)
    if not is_listed_on(server, endpoint):
        fact = f"The server belongs to a project file and is only listed on the endpoint {server.only_on}."
        yield Stage(
            "endpoint's list",
            False,
            fact,
            "Start the host in the directory of the project file, with runmcp --workspace.",
        )
    elif endpoint.lists_only:
        yield _check_grant("endpoint's list", "endpoint", endpoint.grants, tool, now)
    else:
        yield Stage(
            "endpoint's list", True, "The endpoint shows everything that the agent's grants cover."
        )


def _check_grant(stage: str, holder: str, grants: Any, tool: ToolSpec, now: float) -> Stage:
    found = [
        grant for grant in select_covering_grants(grants, tool) if is_covered_by_grant(grant, tool)
    ]
    valid = list(select_unexpired_grants(found, now))
    if valid:
        pinned = all(grant.pins for grant in valid)
        return Stage(
            stage, True, f"The {holder} has a grant{' with pinned arguments' if pinned else ''}."
        )
    fact = (
        f"The {holder}'s grant has expired."
        if found
        else f"The {holder} has no grant for the tool."
    )
    return Stage(
        stage, False, fact, "Add a grant for the tool or for its server.", expired=bool(found)
    )


def _find_exposed_name(snapshot: Snapshot, specs: Specs, now: float) -> str:
    """The exposed name depends on what else is listed beside it."""
    agent, endpoint, server, tool = specs
    seen = (
        (snapshot.servers[each.server_id], each)
        for each in (snapshot.tools if tool.kind == TOOL else snapshot.others).values()
        if each.server_id in snapshot.servers and each.kind == tool.kind
    )
    offers = [
        (home.slug, each.name, each.own_name)
        for home, each in seen
        if may_see(agent, endpoint, home, each, now)
        and not (endpoint.hide_unavailable and not home.available)
    ]
    return map_offer_names(tool.kind, offers, endpoint.naming_style)[server.slug, tool.name]


def _check_arguments(
    agent: AgentSpec,
    endpoint: EndpointSpec,
    tool: ToolSpec,
    arguments: Mapping[str, Any] | None,
    now: float,
) -> Iterator[Stage]:
    if arguments is None:
        yield Stage(
            "arguments", None, "No arguments were given, but grants and rules may depend on them."
        )
        return
    allowed = may_call(agent, endpoint, tool, arguments, now)
    yield Stage(
        "pinned arguments",
        allowed,
        "The grants allow these arguments." if allowed else "No grant allows these arguments.",
        "" if allowed else "Use the pinned arguments, or change the grant.",
    )
    try:
        checked = check_call(tool.kind, tool.data, arguments)
        said = (
            "The arguments match the tool's schema."
            if checked
            else "The schema cannot be used, so only the server checks the arguments."
        )
        yield Stage("schema", True, said)
    except ArgumentsInvalid as error:
        yield Stage("schema", False, error.message, error.remedy)


def _check_policy(decision: Decision, tool: ToolSpec) -> Stage:
    risk = assess_risk(tool)
    verbs = {
        RuleOutcome.ALLOW: "it runs",
        RuleOutcome.ASK: "it needs an approval",
        RuleOutcome.DENY: "it is denied",
    }
    fact = f"Risk {risk.level}. {show_invisible_characters(decision.reason, 500)}: {verbs[decision.outcome]}."
    return Stage("policy", decision.outcome is not RuleOutcome.DENY, fact)


def _list_possible_approvers(terms: Terms, agent: Agent) -> Iterator[str]:
    """Who could answer now; the agent's owner only where the terms say so."""
    group = Group.objects.filter(pk=terms.group_id).first() if terms.group_id else None
    for user in find_approvers(group).order_by("username"):
        if user.pk != agent.owner_id or terms.requester_may_confirm:
            yield user.get_username()


def _explain_permit(question: PolicyQuestion, terms: Terms, now: datetime) -> str:
    found = permits.find_covering_permits(
        agent_slug=question.agent.slug,
        tool_id=question.tool.id,
        definition_hash=question.tool.definition_hash,
        server_revision=question.server.revision,
        arguments=question.arguments,
        fingerprint=terms.fingerprint,
        now=now,
    )
    return next((f"permit {permit.pk}, created by {permit.created_by}" for permit in found), "")


def _compose_answer(decision: Decision, asked: tuple[str, ...], permit: str) -> str:
    if decision.outcome is RuleOutcome.ALLOW:
        return f"The call runs immediately: {decision.reason}."
    if decision.outcome is RuleOutcome.DENY:
        return f"The call is denied: {decision.reason}."
    if permit:
        return f"The call runs immediately: {permit}, applies to it."
    quorum = decision.terms.quorum if decision.terms else 1
    if len(asked) < quorum:
        return (
            f"The call waits for {number_of(quorum, 'approval')} ({decision.reason}), "
            f"but only {number_of(len(asked), 'user')} can approve it."
        )
    return (
        f"The call waits for {number_of(quorum, 'approval')} ({decision.reason}). "
        f"{number_of(len(asked), 'user')} can approve it."
    )


def _say_enabled(enabled: bool) -> str:
    return "enabled" if enabled else "disabled"


_SERVER_REMEDY = {
    Lifecycle.DRAFT.value: "Review the launch of the server, then confirm it.",
    Lifecycle.DISABLED.value: "Enable it.",
}
