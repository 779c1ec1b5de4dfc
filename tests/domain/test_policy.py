"""Whatever is wrong with a rule, the call does not run."""

from __future__ import annotations

from typing import Any

import pytest

from mcpregistry.domain.policy.decision import Decision, RuleOutcome, decide

QUESTION: Any = object()


class Hostile:
    @property
    def outcome(self) -> str:
        raise RuntimeError("hunter2")

    reason = ""


@pytest.mark.parametrize("outcome", RuleOutcome)
def test_a_decision_is_taken_as_it_is(outcome: RuleOutcome):
    decision = decide(lambda _: Decision(outcome, "why"), QUESTION)
    assert (decision.outcome, decision.reason) == (outcome, "why")
    assert (decision.terms is not None) == (outcome is RuleOutcome.ASK)


def test_a_plain_word_means_the_same_outcome():
    assert decide(lambda _: Decision("ask", "why"), QUESTION).outcome is RuleOutcome.ASK  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error", [ValueError("hunter2"), RecursionError(), MemoryError(), KeyError("x"), TimeoutError()]
)
def test_a_rule_that_fails_denies_and_says_only_how(error: Exception):
    def fails(_: Any) -> Decision:
        raise error

    decision = decide(fails, QUESTION)
    assert decision.outcome is RuleOutcome.DENY
    assert type(error).__name__ in decision.reason
    assert "hunter2" not in decision.reason


@pytest.mark.parametrize(
    "answer", [None, True, "allow", 1, {}, Decision("ALLOW", ""), Decision(None, ""), Hostile()]
)  # type: ignore[arg-type]
def test_a_rule_that_answers_anything_else_denies(answer: Any):
    assert decide(lambda _: answer, QUESTION).outcome is RuleOutcome.DENY


def test_what_a_policy_allows_may_run():
    assert decide(lambda _: Decision(RuleOutcome.ALLOW, "granted"), QUESTION) == Decision(
        RuleOutcome.ALLOW, "granted"
    )
