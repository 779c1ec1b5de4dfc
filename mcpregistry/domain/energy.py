"""Arithmetic of energy: what a pool holds at a moment, what work costs, and when there is enough again.

Energy is a number without a unit that stands for effort. A pool refills evenly; its level is worked out when somebody
looks, so nothing has to tick. Pure: times are given, nothing is stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any


class OnEmpty(StrEnum):
    """What becomes of a call for which its pool has not enough."""

    ALLOW = "allow"
    WAIT = "wait"
    DENY = "deny"


class Level(StrEnum):
    """How a pool stands, in a word."""

    OK = "ok"
    LOW = "low"
    CRITICAL = "critical"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Stand:
    """What a pool held ``at`` a time, and how it goes on: ``regeneration`` per second up to ``capacity``, never below
    ``floor``. A clock that was set back refills nothing."""

    level: float
    at: datetime
    capacity: float
    regeneration: float
    floor: float = 0.0

    def level_at(self, now: datetime) -> float:
        """Units at ``now``."""
        seconds = max(0.0, (now - self.at).total_seconds())
        return min(self.capacity, self.level + self.regeneration * seconds)

    def less(self, amount: float, now: datetime) -> Stand:
        """After ``amount`` units were taken at ``now`` (given, if it is negative)."""
        after = max(self.floor, self.level_at(now) - amount)
        return replace(self, level=min(self.capacity, after), at=max(self.at, now))

    def seconds_until(self, level: float, now: datetime) -> float:
        """Until it holds so much; infinite when it never will. After a clock was set back nothing comes before ``at``."""
        lacking = level - self.level_at(now)
        if lacking <= 0:
            return 0.0
        if self.regeneration <= 0 or level > self.capacity:
            return math.inf
        return max(0.0, (self.at - now).total_seconds()) + lacking / self.regeneration


@dataclass(frozen=True, slots=True)
class Rates:
    """What work costs: per call, per second and per KiB that went in or came out; of models per 1,000 tokens."""

    per_call: float = 0.0
    per_second: float = 2.0
    per_kilobyte: float = 0.0
    per_1000_input: float = 0.5
    per_1000_cached: float = 0.05
    per_1000_output: float = 2.0

    def of_turn(self, *, input: int, cached: int, output: int) -> float:
        """A turn of a model, in tokens as its provider counted them; ``cached`` is part of ``input``."""
        fresh = max(0, input - cached)
        return (self.per_1000_input * fresh + self.per_1000_cached * cached + self.per_1000_output * output) / 1000

    def of_call(self, seconds: float, length: int) -> float:
        """A call that was sent, whether it succeeded or not: ``seconds`` until its end, ``length`` bytes both ways."""
        return self.per_call + self.per_second * max(0.0, seconds) + self.per_kilobyte * length / 1024


def word_for(level: float, *, critical: float, resume: float, floor: float = 0.0) -> Level:
    """Empty at its floor, critical below ``critical``, low below ``resume``."""
    if level <= floor:
        return Level.EMPTY
    if level < critical:
        return Level.CRITICAL
    return Level.LOW if level < resume else Level.OK


def estimate(
    definition: Mapping[str, Any], *, operators: float = 0.0, destructive: bool | None = None,
    open_world: bool | None = None,
) -> float:  # fmt: skip
    """Units that one call of a tool will cost: as an operator said, else by how much there is to it.

    1 + 0.2 for each required and 0.1 for each other argument + 0.05 for each 256 bytes of its schema, + 1 if it may
    destroy + 2 if it reaches out into the world. What nobody has vouched for counts as its server claims it.
    """
    if operators > 0:
        return operators
    schema = definition.get("inputSchema") or {}
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    claims = definition.get("annotations") or {}
    needed = len(required) if isinstance(required, list) else 0
    others = max(0, (len(properties) if isinstance(properties, dict) else 0) - needed)
    destroys = claims.get("destructiveHint") is True if destructive is None else destructive
    reaches = claims.get("openWorldHint") is True if open_world is None else open_world
    return 1 + 0.2 * needed + 0.1 * others + 0.05 * math.ceil(len(str(schema)) / 256) + 1.0 * destroys + 2.0 * reaches
