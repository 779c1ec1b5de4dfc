"""Reads about energy: how a pool's level went, and what was taken of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from mcpregistry.models import EnergyPool

_HOURS = 24
_BARS = 96


@dataclass(frozen=True, slots=True)
class EnergyBar:
    """One column of the chart: the lowest level of its quarter of an hour, and what was taken in
    it.

    ``top`` and ``height`` are per cent of the capacity, ``drain`` per cent of the quarter in which
    most was taken; ``there``: the pool existed by then.
    """

    x: int
    at: datetime
    level: float
    taken: float
    top: float
    height: float
    drain: float
    critical: bool
    there: bool


@dataclass(slots=True)
class _Quarter:
    lowest: float
    taken: float = 0.0


def chart(pool: EnergyPool, now: datetime, agent: str = "") -> list[EnergyBar]:
    """The last day in quarters of an hour; of what was taken only what ``agent`` took, if one is
    named.

    Between entries the level is reckoned as the pool does it.
    """
    width = timedelta(hours=_HOURS) / _BARS
    begin = now - _BARS * width
    quarters = _quarters(pool, begin, width, agent)
    most = max(each.taken for each in quarters) or 1.0
    made = _find_creation_time(pool) or begin
    bars = []
    for place, each in enumerate(quarters):
        height = 100 * min(1.0, each.lowest / pool.capacity)
        bars.append(
            EnergyBar(
                place,
                begin + place * width,
                each.lowest,
                each.taken,
                100 - height,
                height,
                100 * each.taken / most,
                each.lowest < pool.critical,
                begin + (place + 1) * width > made,
            )
        )
    return bars


def _find_creation_time(pool: EnergyPool) -> datetime | None:
    """When it was made, if its first version is still kept."""
    first = pool.history.filter(history_type="+").order_by("history_date").first()
    return None if first is None else first.history_date


def _quarters(pool: EnergyPool, begin: datetime, width: timedelta, agent: str) -> list[_Quarter]:
    found = pool.entries.filter(at__gte=begin).order_by("id")
    entries = iter(found.values_list("at", "before", "after", "amount", "agent_slug"))
    entry = next(entries, None)
    before = pool.entries.filter(at__lt=begin).order_by("-id").first()
    if before:
        last = (before.at, before.after)
    elif entry:
        last = (entry[0], entry[1])
    else:
        last = (pool.level_at, pool.level)
    quarters = []
    for place in range(_BARS):
        start = begin + place * width
        quarter = _Quarter(_refill_level(pool, last, start))
        while entry is not None and entry[0] < start + width:
            at, _, after, amount, slug = entry
            last = (at, after)
            quarter.lowest = min(quarter.lowest, after)
            if agent in ("", slug):
                quarter.taken += max(0.0, amount)
            entry = next(entries, None)
        quarters.append(quarter)
    return quarters


def _refill_level(pool: EnergyPool, last: tuple[datetime, float], now: datetime) -> float:
    seconds = max(0.0, (now - last[0]).total_seconds())
    return min(pool.capacity, last[1] + pool.regeneration * seconds)
