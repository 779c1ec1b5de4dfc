"""Figures of runs for ``GET /metrics``; those of the context guard in the names that the third
source design gives."""

from __future__ import annotations

from mcpregistry.services.records.metric_counters import Counter, Gauge
from subagents.domain.context import GuardOutcome, Reckoning, Trigger
from subagents.domain.spec import TargetSpec

GUARD_EVENTS = Counter(
    "ai_agent_context_guard_events",
    "Number of times that the context guard intervened.",
    ["provider", "model", "trigger", "outcome"],
)
GUARD_REMAINING = Gauge(
    "ai_agent_context_guard_remaining_tokens",
    "Tokens left in the context window at the last check of the guard. Negative if the request did not fit.",
    ["provider", "model", "trigger", "outcome"],
)
TURNS = Counter("slipsnisse_turns", "Answers of models.", ["model"])
ATTEMPTS = Counter(
    "slipsnisse_model_troubles", "Requests to models that failed.", ["model", "trouble"]
)
RUNS = Counter("slipsnisse_runs", "Runs that ended.", ["expert", "exit"])


def guard(
    target: TargetSpec, trigger: Trigger, outcome: GuardOutcome, reckoning: Reckoning
) -> None:
    """The context guard has stopped something. Call it where the ORM may be used."""
    GUARD_EVENTS.inc(provider=target.provider, model=target.label, trigger=trigger, outcome=outcome)
    GUARD_REMAINING.set(
        reckoning.remaining,
        provider=target.provider,
        model=target.label,
        trigger=trigger,
        outcome=outcome,
    )
