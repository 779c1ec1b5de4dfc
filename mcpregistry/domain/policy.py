"""The decision about one call: allow, ask a person, or deny. An error is never an allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from mcpregistry.domain.snapshot import AgentSpec, EndpointSpec, ServerSpec, ToolSpec


class Outcome(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Decision:
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class Question:
    """What a policy may look at."""

    agent: AgentSpec
    endpoint: EndpointSpec
    server: ServerSpec
    tool: ToolSpec
    arguments: Mapping[str, Any]


class Policy(Protocol):
    def __call__(self, question: Question) -> Decision: ...


def allow_granted(question: Question) -> Decision:
    """What is granted may run."""
    return Decision(Outcome.ALLOW, "granted")


def decide(policy: Policy, question: Question) -> Decision:
    """The policy's decision; a policy that fails, or answers anything else, decides to deny."""
    try:
        decision = policy(question)
        return Decision(Outcome(decision.outcome), str(decision.reason))
    except Exception as error:  # noqa: BLE001 - whatever breaks in a rule, the call must not run
        return Decision(Outcome.DENY, f"the policy could not be evaluated ({type(error).__name__})")
