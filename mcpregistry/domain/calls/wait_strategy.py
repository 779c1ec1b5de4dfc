"""In which ways a held call may wait, best first, and for how long. Pure: facts in, choice out.

task       the host declares the Tasks extension: it gets a handle at once and asks for the end itself
question   the rule lets the requester confirm, and somebody may sit at the host: ask there
progress   the host shows progress: hold the call and say who is asked and how long is left
hold       nothing but the call itself: hold it silently for a moment
away       answer "pending"; the identical call later joins the same request
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from mcpregistry.domain.hosts import Limits

MARGIN = 10.0  # seconds before the host's limit at which we answer, so that the answer still arrives
SHORT = 50.0  # the longest silent hold, whatever the host bears: most proxies drop a silent minute
LONG = 3600.0  # the longest hold with progress: each costs a connection
PEOPLE_NEED = 1.0  # seconds; nobody reads a question and answers it sooner


class Rung(StrEnum):
    TASK = "task"
    QUESTION = "question"
    PROGRESS = "progress"
    HOLD = "hold"
    AWAY = "away"


class Answer(StrEnum):
    """What a host's answer to our question means."""

    YES = "yes"
    NO = "no"
    NOBODY = "nobody"


def rungs(*, tasks: bool, questions: bool, may_confirm: bool, progress: bool) -> tuple[Rung, ...]:
    """The ways to wait, in the order in which they are tried. A task needs no second way."""
    if tasks:
        return (Rung.TASK,)
    first = (Rung.QUESTION,) if questions and may_confirm else ()
    return (*first, Rung.PROGRESS if progress else Rung.HOLD, Rung.AWAY)


def question_modes(declared: Collection[str], limits: Limits) -> frozenset[str]:
    """How this host may be asked: "form", "url", both, or not at all."""
    return frozenset(mode for mode in declared if mode == "form" or (mode == "url" and limits.url_questions))


def hold_seconds(rung: Rung, limits: Limits, *, cap: float | None = None) -> float:
    """How long a call may be held on this rung. ``cap``: what the caller or the operator allows."""
    if rung is Rung.PROGRESS and limits.progress_extends:
        longest = LONG
    elif rung is Rung.PROGRESS:
        longest = limits.silent - MARGIN
    elif rung is Rung.HOLD:
        longest = min(limits.silent - MARGIN, SHORT)
    else:
        longest = 0.0
    return longest if cap is None else min(longest, cap)


def meant(action: str, *, confirmed: bool, seconds: float) -> Answer:
    """What an elicitation's answer means, ``seconds`` after it was asked.

    Without a terminal Claude Code answers "cancel" at once, Codex and Copilot "decline" at once: nobody
    was there, which is no refusal. "cancel" later means that the person closed the question, in
    Claude Code with "Esc to answer later": no refusal either. Only a "decline" after a time in which a
    person can have read it is one; so is a form that was sent back without the confirmation.
    """
    if action == "accept":
        return Answer.YES if confirmed else Answer.NO
    if action == "decline" and seconds >= PEOPLE_NEED:
        return Answer.NO
    return Answer.NOBODY
