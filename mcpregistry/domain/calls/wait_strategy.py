"""In which ways a held call may wait, best first, and for how long. Pure: facts in, choice out.

task       the host declares the Tasks extension: it gets a handle at once and asks for the end
itself question   the rule lets the requester confirm, and somebody may sit at the host: ask there
progress   the host shows progress: hold the call and say who is asked and how long is left hold
nothing but the call itself: hold it silently for a moment away       answer "pending"; the
identical call later joins the same request
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from mcpregistry.domain.calls.hosts import HostLimits

# Seconds before the host's limit at which we answer, so that the answer still arrives; at most a
# fifth of the limit.
MARGIN = 10.0
SHORT = 50.0  # the longest silent hold, whatever the host bears: most proxies drop a silent minute
LONG = 3600.0  # the longest hold with progress: each costs a connection
PEOPLE_NEED = 1.0  # seconds; nobody reads a question and answers it sooner


class WaitStep(StrEnum):
    """The ways in which a held call may wait; see the module's table."""

    TASK = "task"
    QUESTION = "question"
    PROGRESS = "progress"
    HOLD = "hold"
    AWAY = "away"


class ElicitationAnswer(StrEnum):
    """What a host's answer to our question means."""

    YES = "yes"
    NO = "no"
    NOBODY = "nobody"


def plan_wait_steps(
    *, tasks: bool, questions: bool, may_confirm: bool, progress: bool
) -> tuple[WaitStep, ...]:
    """The ways to wait, in the order in which they are tried. A task needs no second way."""
    if tasks:
        return (WaitStep.TASK,)
    first = (WaitStep.QUESTION,) if questions and may_confirm else ()
    return (*first, WaitStep.PROGRESS if progress else WaitStep.HOLD, WaitStep.AWAY)


def list_question_modes(declared: Collection[str], limits: HostLimits) -> frozenset[str]:
    """How this host may be asked: "form", "url", both, or not at all."""
    return frozenset(
        mode for mode in declared if mode == "form" or (mode == "url" and limits.url_questions)
    )


def limit_hold_seconds(step: WaitStep, limits: HostLimits, *, cap: float | None = None) -> float:
    """How long a call may be held at this step. ``cap``: what the caller or the operator allows."""
    borne = limits.silent - min(MARGIN, limits.silent / 5)
    if step is WaitStep.PROGRESS:
        longest = LONG if limits.progress_extends else borne
    elif step is WaitStep.HOLD:
        longest = min(borne, SHORT)
    else:
        longest = 0.0
    return longest if cap is None else min(longest, cap)


def interpret_elicitation(action: str, *, confirmed: bool, seconds: float) -> ElicitationAnswer:
    """What the answer to our elicitation means, when it came ``seconds`` after the question.

    Without a terminal Claude Code answers "cancel" at once, Codex and Copilot "decline" at once:
    nobody was there, which is no refusal. "cancel" later means that the person closed the question,
    in Claude Code with "Esc to answer later": no refusal either. Only a "decline" after a time in
    which a person can have read it is one; so is a form that was sent back without the
    confirmation.
    """
    if action == "accept":
        return ElicitationAnswer.YES if confirmed else ElicitationAnswer.NO
    if action == "decline" and seconds >= PEOPLE_NEED:
        return ElicitationAnswer.NO
    return ElicitationAnswer.NOBODY
