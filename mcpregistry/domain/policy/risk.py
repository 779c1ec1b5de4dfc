"""What a call of a tool may do, from what an approver has confirmed; a server's own claims never
count."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class RiskLevel(StrEnum):
    """How much harm a call may do; shown to approvers and readable as ``tool.risk`` in
    conditions."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"

    @property
    def rank(self) -> int:
        """1 to 3, for sorting the riskiest first."""
        return list(RiskLevel).index(self) + 1


class Confirmed(Protocol):
    """What was confirmed of a tool; None: nothing was."""

    @property
    def read_only(self) -> bool | None: ...
    @property
    def destructive(self) -> bool | None: ...
    @property
    def open_world(self) -> bool | None: ...


@dataclass(frozen=True, slots=True)
class Risk:
    """Every field is the worst that is not ruled out."""

    level: RiskLevel
    read_only: bool
    destructive: bool
    open_world: bool


def assess_risk(tool: Confirmed) -> Risk:
    """Low: changes nothing and stays at home. Medium: one of the two. High: may destroy, or acts
    abroad."""
    read_only = tool.read_only is True
    destructive = not read_only and tool.destructive is not False
    open_world = tool.open_world is not False
    if destructive or (open_world and not read_only):
        level = RiskLevel.HIGH
    else:
        level = RiskLevel.LOW if read_only and not open_world else RiskLevel.MEDIUM
    return Risk(level, read_only, destructive, open_world)
