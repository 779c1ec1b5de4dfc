"""The context guard: nothing enters the conversation that the model's window cannot hold (S2-079 to S2-085)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from subagents.domain.spec import TargetSpec

REFUSAL = "(tool failed: context window budget exceeded)"  # the exact text of the third source design
_FIRST_RATIO = 1.15  # estimates are about this much too low until a provider has told the truth once


class Trigger(StrEnum):
    TURN = "turn_preflight"
    TOOL = "tool_preflight"


class Outcome(StrEnum):
    OK = "ok"
    SKIP = "skip"  # another target has a larger window
    FINAL = "final"  # conclude with what is there


@dataclass(frozen=True, slots=True)
class Reckoning:
    """In tokens. ``remaining`` is negative when it does not fit; all three go into the accounting."""

    projected: int
    limit: int

    @property
    def remaining(self) -> int:
        return self.limit - self.projected

    @property
    def fits(self) -> bool:
        return self.projected <= self.limit


def reckon(target: TargetSpec, *, known: int, added: int, ratio: float) -> Reckoning:
    """``known``: tokens of the last request and its answer, as billed; ``added``: our estimate of what is new."""
    return Reckoning(known + round(added * ratio), target.room)


def ratio_of(reported: int, estimated: int) -> float:
    """How far our estimates are off for this conversation; never below one."""
    return max(1.0, reported / estimated) if reported and estimated else _FIRST_RATIO


def admitted(sizes: list[int], *, target: TargetSpec, known: int, ratio: float) -> list[bool]:
    """Which of these results (tokens, in order) may enter. After the first that does not fit, none does."""
    used, answers = known, list[bool]()
    for size in sizes:
        fits = all(answers) and reckon(target, known=used, added=size, ratio=ratio).fits
        answers.append(fits)
        used += round(size * ratio) if fits else 0
    return answers
