"""The context guard: nothing enters the conversation that the model's window cannot hold (S2-079 to
S2-085)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from subagents.domain.spec import TargetSpec

# the exact text of the third source design
REFUSAL = "(tool failed: context window budget exceeded)"
# estimates are about this much too low until a provider has told the truth once
_FIRST_RATIO = 1.15


class Trigger(StrEnum):
    """Where the guard stopped something: before a turn, or before a tool's result entered."""

    TURN = "turn_preflight"
    TOOL = "tool_preflight"


class GuardOutcome(StrEnum):
    """What was done about it."""

    SKIP = "skip"  # another target has a larger window
    FINAL = "final"  # conclude with what is there


@dataclass(frozen=True, slots=True)
class Reckoning:
    """Whether a conversation fits a window. In tokens; all three numbers go into the accounting.

    ``remaining`` is negative when it does not fit.
    """

    projected: int
    limit: int

    @property
    def remaining(self) -> int:
        return self.limit - self.projected

    @property
    def fits(self) -> bool:
        return self.projected <= self.limit


def reckon(target: TargetSpec, *, known: int, added: int, ratio: float) -> Reckoning:
    """The size of the next request against the target's window.

    ``known``: tokens of the last request and its answer, as billed; ``added``: our estimate of what
    is new, corrected by ``ratio``.
    """
    return Reckoning(known + round(added * ratio), target.room)


def ratio_of(reported: int, estimated: int) -> float:
    """How far our estimates are off for this conversation; never below one."""
    return max(1.0, reported / estimated) if reported and estimated else _FIRST_RATIO


@dataclass
class Room:
    """What a conversation has left, while the results of one step enter in order. ``used`` is in
    tokens."""

    target: TargetSpec
    used: int
    ratio: float
    full: bool = False

    def admit(self, size: int) -> Reckoning | None:
        """None: it fits, and is counted in. Else what did not fit; after that nothing does."""
        reckoning = reckon(self.target, known=self.used, added=size, ratio=self.ratio)
        self.full = self.full or not reckoning.fits
        if self.full:
            return reckoning
        self.used = reckoning.projected
        return None
