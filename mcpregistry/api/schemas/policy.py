"""Policy rules, permits, what is confirmed of tools, tests of drafts, and the reasons of a
decision."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.basics import Object, Slug, StrictInput, Text
from mcpregistry.domain.policy.conditions import LONGEST
from mcpregistry.domain.policy.risk import assess_risk
from mcpregistry.models import Permit, PolicyRule, Tool
from mcpregistry.services.definitions import behaviour
from mcpregistry.services.policy.explain import Why
from mcpregistry.services.policy.replay import ReplayReport

OutcomeWord = Literal["allow", "ask", "deny"]
Seconds = Annotated[int, Field(ge=5, le=30 * 24 * 60 * 60)]
ToolName = Annotated[
    Text, Field(min_length=1, max_length=600, description="Name of the tool as server::tool.")
]

RefusalSeconds = Annotated[
    int,
    Field(
        ge=0,
        le=30 * 24 * 60 * 60,
        description="Seconds for which the same call is refused after a rejection. 0 disables this.",
    ),
]


class RuleChange(StrictInput):
    """Changes of a rule. Null in a scope or in ``approvers`` removes the value."""

    nullable = frozenset({"agent", "endpoint", "server", "tool", "approvers"})

    name: Annotated[Text, Field(min_length=1, max_length=200)] | None = None
    enabled: bool | None = None
    draft: (
        Annotated[
            bool, Field(description="A draft is disabled and has no effect until it is made live.")
        ]
        | None
    ) = None
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] | None = None
    agent: Slug | None = None
    endpoint: Slug | None = None
    expert: Annotated[Text, Field(max_length=100)] | None = None
    server: Slug | None = None
    tool: ToolName | None = None
    condition: (
        Annotated[
            Text,
            Field(
                max_length=LONGEST,
                description="CEL expression. If empty, the rule matches every call.",
            ),
        ]
        | None
    ) = None
    outcome: OutcomeWord | None = None
    approvers: (
        Annotated[
            Text, Field(max_length=150, description="Name of the group whose members can decide.")
        ]
        | None
    ) = None
    quorum: Annotated[int, Field(ge=1, le=10)] | None = None
    decide_seconds: Seconds | None = None
    execute_seconds: Seconds | None = None
    refusal_seconds: RefusalSeconds | None = None
    requester_may_confirm: bool | None = None
    run_if_caller_left: bool | None = None
    note: Annotated[Text, Field(max_length=20_000)] | None = None


class RuleNew(RuleChange):
    """A new rule. Name and outcome are required."""

    name: Annotated[Text, Field(min_length=1, max_length=200)]
    outcome: OutcomeWord


class RuleOut(Schema):
    """A rule."""

    id: int
    name: str
    enabled: bool
    draft: bool
    priority: int
    agent: str | None
    endpoint: str | None
    expert: str
    server: str | None
    tool: str | None
    condition: str
    outcome: str
    approvers: str | None
    quorum: int
    decide_seconds: int
    execute_seconds: int
    refusal_seconds: int
    requester_may_confirm: bool
    run_if_caller_left: bool
    note: str
    created_at: datetime


class RuleTest(StrictInput):
    """Try a draft, or with ``id`` a changed version of a rule, on the calls of the last days."""

    id: Annotated[int, Field(ge=1, lt=2**63)] | None = None
    rule: RuleChange
    days: Annotated[int, Field(ge=1, le=365)] = 7


class ExampleOut(Schema):
    """One past call that the draft would have decided differently."""

    call: str
    at: datetime
    agent: str
    tool: str
    arguments: str
    before: str
    after: str
    reason: str


class ChangeOfTest(Schema):
    """Number of calls of an agent to a tool that would be decided differently, and how."""

    agent: str
    tool: str
    before: str
    after: str
    calls: int


class RuleTestOut(Schema):
    """``moved``: calls by outcome now and with the draft, for example {"allow>ask": 12}. ``held``,
    ``denied``, ``allowed``: with the draft.
    """

    days: int
    found: int
    looked_at: int
    judged: int
    changed: int
    held: int
    denied: int
    allowed: int
    erased: int = Field(
        description="Calls that could not be checked, because retention has erased their arguments."
    )
    gone: int = Field(description="Calls whose agent, endpoint, server or tool no longer exists.")
    failed: int = Field(description="Calls for which a condition gave no result.")
    moved: dict[str, int]
    by_tool: dict[str, dict[str, int]]
    changes: list[ChangeOfTest] = Field(
        description="Changed decisions by agent and tool, those with the most calls first, at most 200."
    )
    examples: list[ExampleOut]


class AnnotationsIn(StrictInput):
    """Confirmed annotations. Null means not known, so the worst is assumed."""

    nullable = frozenset({"read_only", "destructive", "open_world"})

    read_only: bool | None
    destructive: bool | None
    open_world: bool | None
    seen: Annotated[
        Text,
        Field(
            max_length=64,
            description="The value of `seen` in the answer that you checked. Refused with 409 if the tool was "
            "changed since.",
        ),
    ] = ""


class AnnotationsOut(Schema):
    """``claimed``: annotations of the server, which have no effect. ``confirmed``: annotations that
    an approver has confirmed.
    """

    tool: str
    claimed: dict[str, bool]
    confirmed: dict[str, bool | None]
    risk: str
    seen: str = Field(
        description="Fingerprint of the approved definition and of what is confirmed."
    )


class PermitOut(Schema):
    """A permit: an approval in advance."""

    id: int
    agent: str
    tool: str
    argument_pins: dict[str, Any]
    expires_at: datetime
    uses_left: int | None
    request: str | None
    created_by: str | None
    created_at: datetime
    revoked_at: datetime | None


class WhyIn(StrictInput):
    """The call in question. Without arguments, conditions on arguments are not decided."""

    agent: Slug
    endpoint: Slug
    tool: ToolName
    arguments: Object | None = None


class StageOut(Schema):
    """One stage of the decision and its result."""

    name: str
    ok: bool | None
    fact: str
    remedy: str


class VerdictOut(Schema):
    """The result of one rule for the call."""

    rule: int
    name: str
    priority: int
    outcome: str
    fit: str
    why: str


class WhyOut(Schema):
    """Every stage of the decision, and the result of every rule."""

    agent: str
    endpoint: str
    tool: str
    listed: bool
    name: str
    answer: str
    outcome: str | None
    rule: str | None
    stages: list[StageOut]
    rules: list[VerdictOut]
    asked: list[str]
    permit: str


def rule_out(row: PolicyRule) -> RuleOut:
    """The row as its answer."""
    plain: dict[str, Any] = {
        name: getattr(row, name) for name in RuleOut.model_fields if name not in _NAMED
    }
    named: dict[str, Any] = {
        name: str(related) if (related := getattr(row, name)) else None for name in _NAMED
    }
    return RuleOut(**plain, **named)


_CHANGES = 200  # that one answer lists
_NAMED = ("agent", "endpoint", "server", "tool", "approvers")


def test_out(report: ReplayReport) -> RuleTestOut:
    """The report of a replay as its answer."""
    return RuleTestOut(
        days=report.days,
        found=report.found,
        looked_at=report.looked_at,
        judged=report.judged,
        changed=report.changed,
        held=report.held,
        denied=report.denied,
        allowed=report.allowed,
        erased=report.erased,
        gone=report.gone,
        failed=report.failed,
        moved={f"{before}>{after}": count for (before, after), count in report.moved.items()},
        by_tool={
            tool: {str(word): n for word, n in counts.items()}
            for tool, counts in report.by_tool.items()
        },
        changes=[
            ChangeOfTest(agent=c.agent, tool=c.tool, before=c.before, after=c.after, calls=calls)
            for c, calls in report.changes.most_common(_CHANGES)
        ],
        examples=[
            ExampleOut(
                call=e.call_id,
                at=e.at,
                agent=e.agent,
                tool=e.tool,
                arguments=e.arguments,
                before=e.before,
                after=e.after,
                reason=e.reason,
            )
            for e in report.examples
        ],
    )


def annotations_out(tool: Tool) -> AnnotationsOut:
    """What is claimed and what is confirmed of the tool, and the risk that follows."""
    confirmed = {name: getattr(tool, name) for name in behaviour.HINTS}
    return AnnotationsOut(
        tool=str(tool),
        claimed=behaviour.read_claims(tool),
        confirmed=confirmed,
        risk=assess_risk(tool).level,
        seen=behaviour.fingerprint_behaviour(tool),
    )


def permit_out(row: Permit) -> PermitOut:
    """The row as its answer."""
    return PermitOut(
        id=row.pk,
        agent=row.agent.slug,
        tool=str(row.tool),
        argument_pins=row.argument_pins,
        expires_at=row.expires_at,
        uses_left=row.uses_left,
        request=row.request_id,
        created_by=row.created_by.username if row.created_by else None,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
    )


def why_out(found: Why) -> WhyOut:
    """An explanation as its answer."""
    decision = found.decision
    return WhyOut(
        agent=found.agent,
        endpoint=found.endpoint,
        tool=found.tool,
        listed=found.listed,
        name=found.name,
        answer=found.answer,
        outcome=decision.outcome if decision else None,
        rule=decision.reason if decision else None,
        stages=[StageOut(name=s.name, ok=s.ok, fact=s.fact, remedy=s.remedy) for s in found.stages],
        rules=[
            VerdictOut(
                rule=v.rule.id,
                name=v.rule.name,
                priority=v.rule.priority,
                outcome=v.rule.outcome,
                fit=v.fit,
                why=v.why,
            )
            for v in found.verdicts
        ],
        asked=list(found.asked),
        permit=found.permit,
    )
