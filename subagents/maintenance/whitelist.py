"""A trial's whitelist is applied: definitions approved, rules and grants made, suspicious tools
hidden; a person's own act.

Every definition must still be the one that was tried. A tool on which somebody has decided
meanwhile stays as decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.contrib.auth.models import User
from django.db.models import Q

from mcpregistry.domain.errors import Conflict
from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.domain.trials.report import ProposedToolRule
from mcpregistry.models import Agent, PolicyRule, Server, Tool
from mcpregistry.services.access import grants
from mcpregistry.services.definitions import decisions
from mcpregistry.services.policy import rules
from subagents.domain.maintenance import Kind, ProposalState, RequestMessageKind
from subagents.maintenance import queue
from subagents.models import MaintenanceRequest, Proposal

MOST_TOLD = 100


def rows_of(proposal: Proposal) -> list[ProposedToolRule]:
    """What it proposes of tools: nothing, unless it comes from a trial."""
    if proposal.request.kind != Kind.TRY:
        return []
    trial = getattr(proposal.request, "trial", None)
    return trial.proposed["tools"] if trial else []


def list_needed_rights(proposal: Proposal) -> Iterator[str]:
    """What somebody needs to do by hand what its whitelist does."""
    wanted = {row["rule"] for row in rows_of(proposal)}
    if wanted & {"allow", "ask"}:
        yield from ("mcpregistry.approve_definition", "mcpregistry.add_policyrule")
        if proposal.request.params.get("for_agent"):
            yield "mcpregistry.add_grant"
    if "hide" in wanted:
        yield "mcpregistry.change_tool"


def apply(proposal: Proposal, server: Server, *, actor: str, user: User) -> None:
    """Do it, in the transaction of the caller. Raises Conflict where a tool is no longer what was
    tried."""
    tools = [*_list_undecided(server, rows_of(proposal))]
    served = [(row, tool) for row, tool in tools if row["rule"] != "hide"]
    if served:
        decisions.approve_all(
            definitions=[tool.latest for _, tool in served if tool.latest], actor=actor, user=user
        )
    for row, tool in served:
        if row["rule"] == "allow":
            rules.auto_approve(tool=tool, actor=actor)
        else:
            _ask(tool, actor)
    for _, tool in [each for each in tools if each[0]["rule"] == "hide"]:
        decisions.save_tool(tool=tool.change(enabled=False), actor=actor)
    if (slug := proposal.request.params.get("for_agent")) and served:
        agent = Agent.objects.filter(slug=slug).first()
        if agent is None:
            raise Conflict(
                f'The agent "{slug}" no longer exists.',
                remedy="Decline the proposal, and start a new trial.",
            )
        grants.grant_tools((agent, tool, actor) for _, tool in served)
    if served:
        _tell(proposal.request, server, [tool.name for _, tool in served])


def _list_undecided(
    server: Server, wanted: Sequence[ProposedToolRule]
) -> Iterator[tuple[ProposedToolRule, Tool]]:
    rows = Tool.objects.filter(
        server=server, name__in=[row["tool"] for row in wanted]
    ).select_related("latest")
    known = {tool.name: tool for tool in rows}
    for row in wanted:
        tool = known.get(row["tool"])
        if tool is None or tool.latest is None or tool.latest.hash != row["hash"]:
            raise Conflict(
                f"The definition of the tool {show_invisible_characters(row['tool'], 80)} has changed since the trial, or was not read yet.",
                remedy="Refresh the server's tools, then start a new trial.",
            )
        if tool.latest.decided_at is None:
            yield row, tool


def _ask(tool: Tool, actor: str) -> None:
    """Ask people about each call, unless somebody has made a rule for the tool; where nobody can
    answer, it is refused."""
    if PolicyRule.objects.filter(tool=tool, draft=False).exists():
        return
    name = rules.find_free_rule_name(f"Ask about {show_invisible_characters(str(tool), 150)}")
    rule = PolicyRule(name=name, outcome=RuleOutcome.ASK, priority=rules.AUTO, tool=tool)
    rules.save_rule(rule=rule, actor=actor, unanswered=True)


def _tell(request: MaintenanceRequest, server: Server, names: list[str]) -> None:
    """Whoever asked for the trial, or for this server, hears that its tools are there."""
    added = Q(proposal__server=server) | Q(proposal__install__server=server)
    asked = MaintenanceRequest.objects.filter(
        added, kind=Kind.ADD, proposal__state=ProposalState.APPLIED
    )
    for each in [request, *asked]:
        agent = Agent.objects.filter(slug=each.agent).first() if each.agent else None
        if not each.agent or (agent is not None and server.pk in queue.servers_of(agent)):
            queue.tell(each, RequestMessageKind.TOOL, server=server.slug, tools=names[:MOST_TOLD])
