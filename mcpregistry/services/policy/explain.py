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
from mcpregistry.domain.definitions.naming import named
from mcpregistry.domain.errors import ArgumentsInvalid, NotFound
from mcpregistry.domain.kinds import TOOL
from mcpregistry.domain.policy.access import (
    about,
    capable,
    covers,
    is_listed_on,
    live,
    may_call,
    may_see,
)
from mcpregistry.domain.policy.decision import Decision, Outcome, Question, Terms, decide
from mcpregistry.domain.policy.risk import risk_of
from mcpregistry.domain.policy.rules import Verdict
from mcpregistry.domain.shown_definitions import check_call
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.domain.specs import AgentSpec, EndpointSpec, ServerSpec, ToolSpec
from mcpregistry.domain.text.display import printable
from mcpregistry.models import Agent, Endpoint, Server, Tool
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.access.roles import approvers
from mcpregistry.services.configuration.snapshot import snapshot_now
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
    verdicts: tuple[Verdict, ...] = ()
    asked: tuple[str, ...] = ()
    permit: str = ""


CHANGING = "The configuration is changing at this moment; try again."


def find_tool(name: str, *, styles: Sequence[str] = ("double",)) -> Tool:
    """By server::tool, server::prompt:name, or by the name that hosts use in one of these styles,
    the likeliest first, as ``ToolQuerySet.meant_by`` reads it. Raises NotFound, also where it may
    mean several."""
    found = Tool.offers.select_related("server", "pinned", "latest").meant_by(name, styles)
    if len(found) == 1:
        return found[0]
    if found:
        raise ambiguous(name, found)
    raise NotFound(
        error_texts.not_found("tool", printable(name, 200)),
        remedy="Write server::tool, as in the list of tools.",
    )


def ambiguous(name: str, found: Sequence[Tool]) -> NotFound:
    """What is told where a name may mean any of these; REST's paths tell the same."""
    which = ", ".join(map(str, found[:5])) + (
        f" and {len(found) - 5} more" if len(found) > 5 else ""
    )
    return NotFound(
        f"'{printable(name, 200)}' can mean several tools: {which}.",
        remedy="Write server::tool, as in the list of tools.",
    )


def why(
    *,
    agent: Agent,
    endpoint: Endpoint,
    tool: Tool,
    now: datetime,
    arguments: Mapping[str, Any] | None = None,
) -> Why:
    """Every stage of the decision about one call. ``arguments`` None: as far as it can be told
    without them."""
    snapshot = snapshot_now()
    at = now.timestamp()
    stages = [*configured(agent, endpoint, tool.server, tool)]
    specs = specs_of(snapshot, agent, endpoint, tool)
    if specs is None:
        return _ended(agent, endpoint, tool, stages)
    who, where, server, what = specs
    stages += granted(who, where, server, what, at)
    listed = may_see(who, where, server, what, at) and not (
        where.hide_unavailable and not server.available
    )
    name = _name(snapshot, specs, at) if listed else ""
    if not listed:
        return _ended(agent, endpoint, tool, stages)
    stages.append(Stage("name", True, f"Hosts call it {name}."))
    stages += _arguments(who, where, what, arguments, at)
    question = Question(who, where, server, what, arguments or {}, now=at, origin="http")
    decision = decide(snapshot.policy, question)
    verdicts = snapshot.policy.explain(question)
    asked = tuple(_people(decision.terms, agent)) if decision.terms else ()
    permit = (
        _permit(question, decision.terms, now) if decision.terms and arguments is not None else ""
    )
    stages.append(_policy(decision, what))
    broken = next((stage for stage in stages if stage.ok is False and stage.name != "policy"), None)
    answer = (
        f"{broken.fact} {broken.remedy}".strip() if broken else _answer(decision, asked, permit)
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


def _ended(agent: Agent, endpoint: Endpoint, tool: Tool, stages: list[Stage]) -> Why:
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


def specs_of(snapshot: Snapshot, agent: Agent, endpoint: Endpoint, tool: Tool) -> Specs | None:
    """The four as the hot path knows them; None while one of them does not serve."""
    who = snapshot.agents.get(agent.slug)
    where = snapshot.endpoints.get(endpoint.slug)
    server = snapshot.servers.get(tool.server_id)
    what = snapshot.offer(tool.pk)
    if who is None or where is None or server is None or what is None:
        return None
    return who, where, server, what


def configured(agent: Agent, endpoint: Endpoint, server: Server, tool: Tool) -> Iterator[Stage]:
    """What is switched on, there and approved; the table of who can call what asks the same.
    ``server`` is the tool's."""
    yield Stage(
        "agent",
        agent.enabled,
        f"The agent {agent} is {_on(agent.enabled)}.",
        "" if agent.enabled else "Enable it.",
    )
    yield Stage(
        "endpoint",
        endpoint.enabled,
        f"The endpoint {endpoint} is {_on(endpoint.enabled)}.",
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
        f"Last error: {printable(server.last_error, 300)} Reconnect it." if hidden else "",
    )
    yield Stage(
        "present",
        tool.present,
        "The server offers the tool." if tool.present else "The server no longer offers the tool.",
        "" if tool.present else "It returns automatically when the server lists it again.",
    )
    yield Stage(
        "tool",
        tool.enabled,
        f"The tool is {_on(tool.enabled)}.",
        "" if tool.enabled else "Enable it.",
    )
    yield _definition(tool)


def _definition(tool: Tool) -> Stage:
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


def granted(
    agent: AgentSpec, endpoint: EndpointSpec, server: ServerSpec, tool: ToolSpec, now: float
) -> Iterator[Stage]:
    """What lets the agent see it on the endpoint, each by itself; the table of who can call what
    asks the same."""
    able = capable(agent, server, tool)
    yield Stage(
        "capability",
        able,
        f"The agent's capabilities {'cover' if able else 'do not cover'} the tool.",
        ""
        if able
        else f"Add mcp_{server.slug}::* to the agent's capabilities. Capabilities with two meanings are ignored.",
    )
    yield _grant("grant", "agent", agent.grants, tool, now)
    if not is_listed_on(server, endpoint):
        fact = f"The server belongs to a project file and is only listed on the endpoint {server.only_on}."
        yield Stage(
            "endpoint's list",
            False,
            fact,
            "Start the host in that directory with runmcp --workspace.",
        )
    elif endpoint.lists_only:
        yield _grant("endpoint's list", "endpoint", endpoint.grants, tool, now)
    else:
        yield Stage(
            "endpoint's list", True, "The endpoint shows everything that the agent's grants cover."
        )


def _grant(stage: str, holder: str, grants: Any, tool: ToolSpec, now: float) -> Stage:
    found = [grant for grant in about(grants, tool) if covers(grant, tool)]
    valid = list(live(found, now))
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
    return Stage(stage, False, fact, "Grant the tool or its server.", expired=bool(found))


def _name(snapshot: Snapshot, specs: Specs, now: float) -> str:
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
    return named(tool.kind, offers, endpoint.naming_style)[server.slug, tool.name]


def _arguments(
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


def _policy(decision: Decision, tool: ToolSpec) -> Stage:
    risk = risk_of(tool)
    verbs = {
        Outcome.ALLOW: "it runs",
        Outcome.ASK: "it needs an approval",
        Outcome.DENY: "it is denied",
    }
    fact = f"Risk {risk.level}. {printable(decision.reason, 500)}: {verbs[decision.outcome]}."
    return Stage("policy", decision.outcome is not Outcome.DENY, fact)


def _people(terms: Terms, agent: Agent) -> Iterator[str]:
    """Who could answer now; the agent's owner only where the terms say so."""
    group = Group.objects.filter(pk=terms.group_id).first() if terms.group_id else None
    for user in approvers(group).order_by("username"):
        if user.pk != agent.owner_id or terms.requester_may_confirm:
            yield user.get_username()


def _permit(question: Question, terms: Terms, now: datetime) -> str:
    found = permits.covering(
        agent_slug=question.agent.slug,
        tool_id=question.tool.id,
        definition_hash=question.tool.definition_hash,
        server_revision=question.server.revision,
        arguments=question.arguments,
        fingerprint=terms.fingerprint,
        now=now,
    )
    return next((f"permit {permit.pk}, created by {permit.created_by}" for permit in found), "")


def _answer(decision: Decision, asked: tuple[str, ...], permit: str) -> str:
    if decision.outcome is Outcome.ALLOW:
        return f"The call runs immediately: {decision.reason}."
    if decision.outcome is Outcome.DENY:
        return f"The call is denied: {decision.reason}."
    if permit:
        return f"The call runs immediately: {permit}, applies to it."
    quorum = decision.terms.quorum if decision.terms else 1
    if len(asked) < quorum:
        return f"The call waits ({decision.reason}), but only {len(asked)} of the {quorum} required approvers can approve it."
    return f"The call waits for {quorum} of {len(asked)} approvers: {decision.reason}."


def _on(enabled: bool) -> str:
    return "enabled" if enabled else "disabled"


_SERVER_REMEDY = {
    Lifecycle.DRAFT.value: "Review its command line, then confirm it.",
    Lifecycle.DISABLED.value: "Enable it.",
}
