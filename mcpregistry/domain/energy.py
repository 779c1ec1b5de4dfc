"""Arithmetic of energy: what a pool holds at a moment, what work costs, and when there is enough
again.

Energy is a number without a unit that stands for effort. A pool refills evenly; its level is worked
out when somebody looks, so nothing has to tick. Pure: times are given, nothing is stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any


class OnEmpty(StrEnum):
    """What becomes of a call for which its pool has not enough."""

    ALLOW = "allow"
    WAIT = "wait"
    DENY = "deny"


class EnergyLevel(StrEnum):
    """How a pool stands, in a word."""

    OK = "ok"
    LOW = "low"
    CRITICAL = "critical"
    EMPTY = "empty"


_CLOCKS_DIFFER = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class PoolLevel:
    """What a pool held ``at`` a time, and how it goes on: ``regeneration`` per second up to
    ``capacity``, never below ``floor``. A clock that was set back refills nothing."""

    level: float
    at: datetime
    capacity: float
    regeneration: float
    floor: float = 0.0

    def level_at(self, now: datetime) -> float:
        """Units at ``now``."""
        seconds = max(0.0, (now - self.at).total_seconds())
        return min(self.capacity, self.level + self.regeneration * seconds)

    def is_ahead(self, now: datetime) -> bool:
        """Whether it was written by a clock so far ahead that nothing would come back for longer
        than a pool fills."""
        ahead = (self.at - now).total_seconds()
        return self.regeneration > 0 and ahead > max(
            _CLOCKS_DIFFER, self.capacity / self.regeneration
        )

    def take_units(self, amount: float, now: datetime) -> PoolLevel:
        """After ``amount`` units were taken at ``now`` (given, if it is negative)."""
        after = max(self.floor, self.level_at(now) - amount)
        return replace(self, level=min(self.capacity, after), at=max(self.at, now))

    def seconds_until(self, level: float, now: datetime) -> float:
        """Until it holds so much; infinite when it never will. After a clock was set back nothing
        comes before ``at``."""
        lacking = level - self.level_at(now)
        if lacking <= 0:
            return 0.0
        if self.regeneration <= 0 or level > self.capacity:
            return math.inf
        return max(0.0, (self.at - now).total_seconds()) + lacking / self.regeneration


@dataclass(frozen=True, slots=True)
class EnergyRates:
    """What work costs: per call, per second and per KiB that went in or came out; of models per
    1,000 tokens."""

    per_call: float = 0.0
    per_second: float = 2.0
    per_kilobyte: float = 0.0
    per_1000_input: float = 0.5
    per_1000_cached: float = 0.05
    per_1000_output: float = 2.0

    def price_turn(self, *, input: int, cached: int, output: int) -> float:
        """A turn of a model, in tokens as its provider counted them; ``cached`` is part of
        ``input``."""
        fresh = max(0, input - cached)
        return (
            self.per_1000_input * fresh
            + self.per_1000_cached * cached
            + self.per_1000_output * output
        ) / 1000

    def price_call(self, seconds: float, length: float) -> float:
        """A call that was sent, whether it succeeded or not: ``seconds`` until its end, ``length``
        bytes both ways."""
        return (
            self.per_call + self.per_second * max(0.0, seconds) + self.per_kilobyte * length / 1024
        )


@dataclass(frozen=True, slots=True)
class CostLine:
    """What calls took by the length of their arguments: seconds, and bytes both ways; up to the
    ``longest`` seen."""

    seconds: float
    seconds_per_byte: float
    length: float
    length_per_byte: float
    longest: float

    def at(self, argument_bytes: float) -> tuple[float, float]:
        """(seconds, bytes) of a call with arguments of this length."""
        size = min(argument_bytes, self.longest)
        return max(0.0, self.seconds + self.seconds_per_byte * size), max(
            0.0, self.length + self.length_per_byte * size
        )


@dataclass(frozen=True, slots=True)
class ToolCost:
    """What the last ``calls`` of a tool took: ``seconds`` and ``length`` (bytes both ways) weigh
    newer ones more; ``median`` and ``p95`` are seconds. ``line`` is there where it foretells better
    than these."""

    calls: int
    seconds: float
    length: float
    median: float
    p95: float
    line: CostLine | None = None

    @property
    def slow(self) -> str:
        """What may be done about a tool whose calls often take long; empty where they do not, or
        too few are known."""
        if self.calls < SLOW_FROM or self.p95 < SLOW_SECONDS:
            return ""
        way = (
            "Most calls are slow: start the server in advance (connect mode), or ask the operator of the server to make it faster."
            if self.median >= SLOW_SECONDS
            else "Most calls are faster: check the arguments of the slow calls, and how many calls the server runs at once."
        )
        return (
            f"{way} If older answers are acceptable, an expert tool that reuses them saves calls."
        )


Sample = tuple[
    float, float, float
]  # of a call: bytes of its arguments, seconds from sending to the end, bytes both ways

# calls, and what a twentieth of them takes at least
SLOW_FROM = 10
SLOW_SECONDS = 5.0
LOOKED_AT = 200  # calls of a tool that its usage is made of
_NEWER = 0.1  # what each call counts beside all before it
_DOUBT = 5  # calls that the guess from a definition counts as
_ENOUGH = 20  # calls for a line


def summarize_samples(samples: Sequence[Sample]) -> ToolCost | None:
    """What these calls took, the oldest first. None without any."""
    if not samples:
        return None
    seconds, length = _weigh_samples(samples)
    times = sorted(sample[1] for sample in samples)
    median, p95 = (times[min(len(times) - 1, int(len(times) * part))] for part in (0.5, 0.95))
    return ToolCost(len(samples), seconds, length, median, p95, _fit_predictive_line(samples))


def _weigh_samples(samples: Sequence[Sample]) -> tuple[float, float]:
    _, seconds, length = samples[0]
    for _, took, moved in samples[1:]:
        seconds = seconds + _NEWER * (took - seconds)
        length = length + _NEWER * (moved - length)
    return seconds, length


def _fit_predictive_line(samples: Sequence[Sample]) -> CostLine | None:
    """Made of the older three quarters it must foretell the seconds of the newest, which neither
    has seen, better."""
    known = samples[: len(samples) * 3 // 4]
    line = _fit_line(known) if len(samples) >= _ENOUGH else None
    if line is None:
        return None
    even = _weigh_samples(known)[0]
    unseen = samples[len(known) :]
    missed = sum(abs(took - line.at(size)[0]) for size, took, _ in unseen)
    return _fit_line(samples) if missed < sum(abs(took - even) for _, took, _ in unseen) else None


def _fit_line(samples: Sequence[Sample]) -> CostLine | None:
    """Least squares. None where all arguments are of one length."""
    sizes = [sample[0] for sample in samples]
    middle = sum(sizes) / len(sizes)
    spread = sum((size - middle) ** 2 for size in sizes)
    if spread <= 0:
        return None

    def fit_column(column: int) -> tuple[float, float]:
        mean = sum(sample[column] for sample in samples) / len(samples)
        slope = sum((sample[0] - middle) * (sample[column] - mean) for sample in samples) / spread
        return mean - slope * middle, slope

    return CostLine(*fit_column(1), *fit_column(2), longest=max(sizes))


def estimate_call_cost(
    guess: float, usage: ToolCost | None, rates: EnergyRates, argument_bytes: float | None = None
) -> float:
    """Units that a call will cost: by what earlier calls took, and the fewer there are the more by
    ``guess``.

    ``argument_bytes``: of the call's arguments, where they are known.
    """
    if usage is None:
        return guess
    took = usage.seconds, usage.length
    if usage.line is not None and argument_bytes is not None:
        took = usage.line.at(argument_bytes)
    return (usage.calls * rates.price_call(*took) + _DOUBT * guess) / (usage.calls + _DOUBT)


def classify_level(
    level: float, *, critical: float, resume: float, floor: float = 0.0
) -> EnergyLevel:
    """Empty at its floor, critical below ``critical``, low below ``resume``."""
    if level <= floor:
        return EnergyLevel.EMPTY
    if level < critical:
        return EnergyLevel.CRITICAL
    return EnergyLevel.LOW if level < resume else EnergyLevel.OK


def estimate_first_cost(
    definition: Mapping[str, Any],
    *,
    operators: float = 0.0,
    destructive: bool | None = None,
    open_world: bool | None = None,
) -> float:
    """Units that one call of a tool may cost, before there is any: as an operator said, else by how
    much there is to it.

    1 + 0.2 for each required and 0.1 for each other argument + 0.05 for each 256 bytes of its
    schema, + 1 if it may destroy + 2 if it reaches out into the world. What nobody has vouched for
    counts as its server claims it.
    """
    if operators > 0:
        return operators
    schema = definition.get("inputSchema") or {}
    properties = schema.get("properties") or {}
    required = schema.get("required") or []
    claims = definition.get("annotations") or {}
    needed = len(required) if isinstance(required, list) else 0
    others = max(0, (len(properties) if isinstance(properties, dict) else 0) - needed)
    destroys = claims.get("destructiveHint") is True if destructive is None else destructive
    reaches = claims.get("openWorldHint") is True if open_world is None else open_world
    return (
        1
        + 0.2 * needed
        + 0.1 * others
        + 0.05 * math.ceil(len(str(schema)) / 256)
        + 1.0 * destroys
        + 2.0 * reaches
    )
