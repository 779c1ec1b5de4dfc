"""Who can call what: agents by tools on one endpoint. Each cell is worked out by what "Why?" asks,
so they agree.

Read from one snapshot, whatever the size of the table. Arguments play no part: what rules and pins
say of them is told by "Why?" alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from django.db.models import Q

from mcpregistry.domain.errors import Conflict
from mcpregistry.domain.offer_kinds import TOOL
from mcpregistry.domain.policy.access import (
    is_covered_by_grant,
    select_covering_grants,
    select_unexpired_grants,
)
from mcpregistry.domain.policy.decision import Decision, PolicyQuestion, decide
from mcpregistry.domain.policy.risk import RiskLevel
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.models import Agent, Endpoint, Grant, Tool
from mcpregistry.models.tool import ToolQuerySet
from mcpregistry.services.configuration.snapshot import load_snapshot
from mcpregistry.services.policy.explain import (
    CHANGING,
    Specs,
    Stage,
    check_configuration,
    check_grants,
    find_specs,
)

MOST_TICKS = 320  # that grants are given for at once: all of one page
_LOOKED_AT = 200  # tools that the cause of an empty list is found among


class CellStanding(StrEnum):
    """What an agent's call of a tool comes to. Hidden: a grant or the like is missing; absent:
    nobody is served it."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"
    HIDDEN = "hidden"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Cell:
    """``word`` is the reason in a word or two, ``why`` in a sentence with what to do. ``lacks``:
    who needs a grant for the agent to see it ("agent", "endpoint"), empty where a grant alone does
    not help; ``then`` is what follows with it."""

    standing: CellStanding
    word: str
    why: str
    lacks: tuple[str, ...] = ()
    then: CellStanding | None = None


@dataclass(frozen=True, slots=True)
class TableFilter:
    """Which tools the table is about; what is empty leaves it open."""

    kind: str = TOOL
    server: str = ""
    risk: str = ""
    search: str = ""
    tool: int | None = None


_ABROAD = Q(open_world=True) | Q(open_world=None)
_RISKS = {
    RiskLevel.LOW: Q(read_only=True, open_world=False),
    RiskLevel.MEDIUM: (Q(read_only=True) & _ABROAD)
    | ((Q(read_only=False) | Q(read_only=None)) & Q(destructive=False, open_world=False)),
    RiskLevel.HIGH: (Q(read_only=False) | Q(read_only=None))
    & (Q(destructive=True) | Q(destructive=None) | _ABROAD),
}


def select_tools(wanted: TableFilter) -> ToolQuerySet:
    """The tools of a table, with what its cells need of them and not their texts. Pages and REST
    cut their part of it."""
    found = Tool.offers.filter(kind=wanted.kind).select_related("server", "latest")
    if wanted.tool is not None:
        found = Tool.offers.filter(pk=wanted.tool).select_related("server", "latest")
    if wanted.server:
        found = found.filter(server__slug=wanted.server)
    if wanted.risk in list(RiskLevel):
        found = found.filter(_RISKS[RiskLevel(wanted.risk)])
    if wanted.search:
        found = found.filter(
            Q(name__icontains=wanted.search) | Q(server__slug__icontains=wanted.search)
        )
    return found.defer("latest__body", "latest__findings_json")


class AccessTable:
    """The cells of one endpoint and some tools, all from one reading of the configuration."""

    def __init__(self, endpoint: Endpoint, tools: Iterable[Tool], now: datetime) -> None:
        self.endpoint = endpoint
        self._snapshot = load_snapshot({tool.pk for tool in tools})
        self._at = now.timestamp()
        self._of_tool: dict[int, tuple[Stage | None, Stage]] = {}
        self._rules = {rule.id: rule.name for rule in self._snapshot.rules}

    def build_row(self, tool: Tool, agents: Iterable[Agent]) -> list[Cell]:
        """What each of the agents may do with the tool."""
        return [self.build_cell(agent, tool) for agent in agents]

    def build_cell(self, agent: Agent, tool: Tool) -> Cell:
        """What the agent may do with the tool. The first thing in the way is the reason; that its
        server has failed, which passes, is the last."""
        wrong, failed = self._check_configured(agent, tool)
        if wrong is not None:
            return Cell(CellStanding.ABSENT, _describe_stage(wrong, tool), _explain_stage(wrong))
        specs = find_specs(self._snapshot, agent, self.endpoint, tool)
        if specs is None:
            return Cell(CellStanding.ABSENT, "changing", CHANGING)
        cell = self._judge_served_tool(specs, tool)
        if failed.ok is False and cell.standing is not CellStanding.HIDDEN:
            return Cell(CellStanding.HIDDEN, _describe_stage(failed, tool), _explain_stage(failed))
        return cell

    def _check_configured(self, agent: Agent, tool: Tool) -> tuple[Stage | None, Stage]:
        """The first that is wrong, and whether the server is there: the same for all agents that
        are switched on."""
        found = self._of_tool.get(tool.pk) if agent.enabled else None
        if found is None:
            stages = {
                stage.name: stage
                for stage in check_configuration(agent, self.endpoint, tool.server, tool)
            }
            failed = stages.pop("availability")
            found = _find_first_failure(stages.values()), failed
            if agent.enabled:
                self._of_tool[tool.pk] = found
        return found

    def _judge_served_tool(self, specs: Specs, tool: Tool) -> Cell:
        agent, endpoint, server, offer = specs
        wrong = [
            stage
            for stage in check_grants(agent, endpoint, server, offer, self._at)
            if stage.ok is False
        ]
        decision = decide(
            self._snapshot.policy,
            PolicyQuestion(agent, endpoint, server, offer, {}, now=self._at, origin="http"),
        )
        if not wrong:
            return Cell(
                CellStanding(decision.outcome),
                self._describe_decision(decision, specs),
                f"{_capitalize(decision.reason)}.",
            )
        lacks = tuple(_HOLDERS[stage.name] for stage in wrong if stage.name in _HOLDERS)
        helps = len(lacks) == len(wrong)
        then = CellStanding(decision.outcome) if helps else None
        return Cell(
            CellStanding.HIDDEN,
            _describe_stage(wrong[0], tool),
            _explain_stage(wrong[0]),
            lacks if helps else (),
            then,
        )

    def _describe_decision(self, decision: Decision, specs: Specs) -> str:
        agent, _, _, tool = specs
        if decision.failed:
            return "arguments decide"
        if all(
            grant.pins or grant.uri
            for grant in select_unexpired_grants(
                select_covering_grants(agent.grants, tool), self._at
            )
            if is_covered_by_grant(grant, tool)
        ):
            return "pinned arguments"
        return (
            show_invisible_characters(self._rules.get(decision.rule_id or 0, ""), 60) or "no rule"
        )


def propose_narrowest_grants(
    table: AccessTable, pairs: Sequence[tuple[Agent, Tool]]
) -> list[Grant]:
    """Unsaved grants, each for one tool alone, that let these agents see these tools; none where
    there is one, or where a grant does not help. The page shows them before anybody says yes.
    Raises Conflict where it is too much at once."""
    if len(pairs) > MOST_TICKS:
        raise Conflict(
            f"At most {MOST_TICKS} grants can be added at once (got {len(pairs)}).",
            remedy="Select fewer boxes.",
        )
    found: dict[tuple[int | None, int], Grant] = {}
    for agent, tool in pairs:
        for holder in table.build_cell(agent, tool).lacks:
            row = (
                Grant(agent=agent, tool=tool)
                if holder == "agent"
                else Grant(endpoint=table.endpoint, tool=tool)
            )
            found.setdefault((row.agent_id, tool.pk), row)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an agent sees nothing at all; ``tool`` is one that stands for the others, to ask "Why?"
    about."""

    fact: str
    tool: Tool | None = None


def find_commonest_cause(agent: Agent, endpoint: Endpoint, now: datetime) -> Cause:
    """The commonest reason among what the agent is granted; asked where its list is empty."""
    if not agent.enabled:
        return Cause("The agent is disabled. Enable it.")
    mine = agent.grants.filter(Q(expires_at=None) | Q(expires_at__gt=now))
    if not mine.exists():
        return Cause(
            "All grants of the agent have expired. Add a new grant."
            if agent.grants.exists()
            else "The agent has no grant yet. Add a grant."
        )
    wanted = Q(pk__in=mine.values("tool")) | Q(server__in=mine.values("server"))
    tools = list(
        Tool.offers.filter(wanted).select_related("server", "latest").order_by("pk")[:_LOOKED_AT]
    )
    table = AccessTable(endpoint, tools, now)
    cells = [(tool, table.build_cell(agent, tool)) for tool in tools]
    hidden = [
        (tool, cell)
        for tool, cell in cells
        if cell.standing in (CellStanding.HIDDEN, CellStanding.ABSENT)
    ]
    if not hidden:
        return Cause(
            "The servers in the grants of the agent do not offer any tools yet. Test the servers, so that their tools are listed."
        )
    ((word, _),) = Counter(cell.word for _, cell in hidden).most_common(1)
    tool, cell = next((tool, cell) for tool, cell in hidden if cell.word == word)
    return Cause(cell.why, tool)


_HOLDERS = {"grant": "agent", "endpoint's list": "endpoint"}
_WORDS = {
    "agent": "agent is disabled",
    "endpoint": "endpoint is disabled",
    "availability": "server failed",
    "present": "no longer offered",
    "tool": "disabled",
    "capability": "capabilities",
    "grant": "not granted",
    "endpoint's list": "not on endpoint",
}
_DEFINITIONS = {"quarantined": "not approved", "changed": "changed", "rejected": "rejected"}


def _describe_stage(stage: Stage, tool: Tool) -> str:
    if stage.name == "definition":
        return _DEFINITIONS.get(tool.status, "not approved")
    if stage.name == "server":
        return f"server is {tool.server.get_lifecycle_display().lower()}"
    if stage.expired:
        return "grant has expired"
    return _WORDS[stage.name]


def _explain_stage(stage: Stage) -> str:
    return f"{stage.fact} {stage.remedy}".strip()


def _capitalize(text: str) -> str:
    return show_invisible_characters(text[:1].upper() + text[1:], 300)


def _find_first_failure(stages: Iterable[Stage]) -> Stage | None:
    return next((stage for stage in stages if stage.ok is False), None)
