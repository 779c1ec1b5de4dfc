"""The decision about one call: allow, ask a person, or deny. An error is never an allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from mcpregistry.domain.offer_kinds import READ
from mcpregistry.domain.snapshot_specs import AgentSpec, EndpointSpec, ServerSpec, ToolSpec
from mcpregistry.domain.text.canonical import hash_parts


class RuleOutcome(StrEnum):
    """What follows for a call."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"

    @property
    def strictness(self) -> int:
        return list(RuleOutcome).index(self)


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms people are asked. ``rule_id`` is None when no rule did: the default asks.

    ``fingerprint`` (SHA-256, hex) changes with every edit of the rule that could change a decision.
    """

    rule_id: int | None
    rule: str
    fingerprint: str
    group_id: int | None = None
    group: str = ""
    quorum: int = 1
    decide_seconds: int = 900
    execute_seconds: int = 600
    requester_may_confirm: bool = False
    run_if_caller_left: bool = False
    refusal_seconds: int = 300


DEFAULT_TERMS = Terms(None, "no rule matches", hash_parts("default", "ask"))


@dataclass(frozen=True, slots=True)
class Decision:
    """``terms`` are there whenever a person is to be asked. ``failed`` names rules whose conditions
    gave no answer."""

    outcome: RuleOutcome
    reason: str
    terms: Terms | None = None
    rule_id: int | None = None
    failed: tuple[tuple[int, str, str], ...] = ()  # rule id, rule name, why


@dataclass(frozen=True, slots=True)
class PolicyQuestion:
    """What a policy may look at. ``now`` is in seconds since the epoch; ``expert`` names the run
    that calls."""

    agent: AgentSpec
    endpoint: EndpointSpec
    server: ServerSpec
    tool: ToolSpec
    arguments: Mapping[str, Any]
    expert: str = ""
    now: float = 0.0
    origin: str = ""
    host: str = ""

    @property
    def row(self) -> int:
        """The key of the fixed resource that is read, be it by a template or a link; 0 where no
        rule is about it."""
        ruled = self.tool.ruled
        return (
            ruled.get(str(self.arguments.get("uri")), 0) if ruled and self.tool.kind in READ else 0
        )

    def is_rule_relevant(self, tool_id: int, outcome: RuleOutcome) -> bool:
        """Whether a rule about another tool counts: of the resource's own row, of which it gains
        nothing."""
        return tool_id == self.row and outcome is not RuleOutcome.ALLOW


class CallPolicy(Protocol):
    """Whatever decides about a call: ``Rules``, or a function in its place in tests."""

    def __call__(self, question: PolicyQuestion) -> Decision:
        """Decide about one call; may raise, which ``decide`` turns into a refusal."""


def decide(policy: CallPolicy, question: PolicyQuestion) -> Decision:
    """The policy's decision; a policy that raises, or answers anything else, denies. The pipeline
    asks through this."""
    try:
        decision = policy(question)
        outcome = RuleOutcome(decision.outcome)
        terms = decision.terms or DEFAULT_TERMS if outcome is RuleOutcome.ASK else None
        return Decision(outcome, str(decision.reason), terms, decision.rule_id, decision.failed)
    except Exception as error:  # noqa: BLE001 - whatever breaks in a rule, the call must not run
        return Decision(
            RuleOutcome.DENY, f"the policy could not be evaluated ({type(error).__name__})"
        )
