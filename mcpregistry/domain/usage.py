"""The arithmetic of usage: what calls of an hour come to, how such sums are added up, and what
percentiles they give.

How long calls took is kept as counts in buckets that grow by the square root of 2. Counts can be
added up over hours, tools and agents, which percentiles cannot; what is said of them is at most 19
% off (``ERROR``), from 2 ms to 25 minutes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from operator import add as plus
from typing import NamedTuple

import msgspec

from mcpregistry.domain.calls.error_patterns import Failure, normalize_error_text
from mcpregistry.domain.lifecycle import FAILED, SUPPOSED, TERMINAL, InvocationState

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
BUCKETS = 40
EXPERTS = "expert"  # in the place of a server, in the record of a call to an expert tool
ERROR = 2**0.25 - 1
# milliseconds: the first bucket holds all up to it, the last all beyond its lower bound
_SHORTEST = 2.0
_REFUSED = TERMINAL - {InvocationState.SUCCEEDED, *FAILED}
_MOST_KEYS = 5_000
_MOST_SHAPES = 200
_MOST_EXAMPLES = 5


def truncate_to_hour(moment: datetime) -> datetime:
    """The beginning of its hour, in UTC."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def truncate_to_day(moment: datetime) -> datetime:
    """The beginning of its day, in UTC."""
    return truncate_to_hour(moment).replace(hour=0)


def find_duration_bucket(milliseconds: float) -> int:
    """Which bucket a duration belongs to."""
    if milliseconds <= _SHORTEST:
        return 0
    return min(BUCKETS - 1, math.ceil(2 * math.log2(milliseconds / _SHORTEST)))


def estimate_percentile(took: Sequence[int], percent: int) -> float | None:
    """Milliseconds that ``percent`` of the calls stay below, from their buckets; None without
    calls.

    It is the middle of the bucket that ``sample_statistics.find_percentile`` of the same calls lies
    in.
    """
    up_to = list(accumulate(took))
    if not up_to or not (count := up_to[-1]):
        return None
    bucket = bisect_right(up_to, min(count - 1, count * percent // 100))
    return _SHORTEST * 2 ** ((bucket - 0.5) / 2) if bucket else _SHORTEST


class Key(NamedTuple):
    """Whose sum it is. Names that no server has are left out: whoever calls may invent them."""

    agent: str
    endpoint: str
    server: str
    tool: str


class CallFact(NamedTuple):
    """What usage needs of one call. ``asked``: people were asked about it, so its time is theirs.
    ``cost``: in hundred-millionths of a dollar, None where nothing is known."""

    call: str
    key: Key
    state: str
    code: str
    reason: str
    words: str  # the beginning of a failure's result
    sent: bool
    asked: bool
    took: float | None
    size: int
    cost: int | None
    at: datetime


class UsageTally(msgspec.Struct, array_like=True, gc=False):
    """A sum over calls. Pages read thousands of them, as arrays. ``codes``: failures by their code;
    ``took``: calls that nobody was asked about, by bucket."""

    calls: int = 0
    errors: int = 0
    refused: int = 0
    sent: int = 0
    size: int = 0
    cost: int | None = None
    last: datetime | None = None
    # no Counter: thousands are made for a page, and read
    codes: dict[str, int] = msgspec.field(default_factory=dict)
    took: list[int] = msgspec.field(default_factory=lambda: [0] * BUCKETS)

    @property
    def timed(self) -> int:
        """How many calls the percentiles are of."""
        return sum(self.took)

    @property
    def error_rate(self) -> float | None:
        """0 to 1; None without calls."""
        return self.errors / self.calls if self.calls else None

    @property
    def p50(self) -> float | None:
        """Milliseconds that half of them stay below."""
        return estimate_percentile(self.took, 50)

    @property
    def p95(self) -> float | None:
        """Milliseconds that 95 of 100 stay below."""
        return estimate_percentile(self.took, 95)

    def count(self, fact: CallFact) -> None:
        """Add one call."""
        self.calls += 1
        failed = fact.state in FAILED
        self.errors += failed
        self.refused += fact.state in _REFUSED
        if failed:
            code = fact.code or fact.state
            self.codes[code] = self.codes.get(code, 0) + 1
        if fact.sent:
            self.sent += 1
            self.size += fact.size
        if fact.sent and not fact.asked and fact.took is not None:
            self.took[find_duration_bucket(fact.took)] += 1
        self.cost = _sum_optional(self.cost, fact.cost)
        self.last = max(self.last or fact.at, fact.at)

    def add(self, other: UsageTally) -> None:
        """Add another sum: sums of parts come to the sum of the whole."""
        self.calls += other.calls
        self.errors += other.errors
        self.refused += other.refused
        self.sent += other.sent
        self.size += other.size
        for code, count in other.codes.items():
            self.codes[code] = self.codes.get(code, 0) + count
        self.took = list(map(plus, self.took, other.took))
        self.cost = _sum_optional(self.cost, other.cost)
        if self.last is None or (other.last is not None and other.last > self.last):
            self.last = other.last


def _sum_optional(one: int | None, other: int | None) -> int | None:
    return one if other is None else other + (one or 0)


def merge_tallies(tallies: Iterable[UsageTally]) -> UsageTally:
    """The sum of sums. A page adds up thousands, so each column is added up at once."""
    parts = list(tallies)
    if not parts:
        return UsageTally()
    codes: dict[str, int] = {}
    for each in parts:
        for code, count in each.codes.items():
            codes[code] = codes.get(code, 0) + count
    costs = [each.cost for each in parts if each.cost is not None]
    return UsageTally(
        calls=sum(each.calls for each in parts),
        errors=sum(each.errors for each in parts),
        refused=sum(each.refused for each in parts),
        sent=sum(each.sent for each in parts),
        size=sum(each.size for each in parts),
        cost=sum(costs) if costs else None,
        last=max((each.last for each in parts if each.last), default=None),
        codes=codes,
        took=list(map(sum, zip(*(each.took for each in parts), strict=True))),
    )


class ShapeKey(NamedTuple):
    """Failures that are alike: same tool, same code, texts of the same shape."""

    server: str
    tool: str
    code: str
    shape: str


class FailureExample(NamedTuple):
    """One call that failed."""

    at: datetime
    call: str


@dataclass(slots=True)
class FailureGroup:
    """How often it failed so, when first and last, and the newest of these calls."""

    count: int
    first: datetime
    last: datetime
    examples: list[FailureExample]

    def add(self, other: FailureGroup) -> None:
        """Add failures of the same shape."""
        self.examples = sorted((*self.examples, *other.examples), reverse=True)[:_MOST_EXAMPLES]
        self.first = min(self.first, other.first)
        self.last = max(self.last, other.last)
        self.count += other.count


class Totals(NamedTuple):
    """A whole hour. ``unsettled``: calls of it that have no end yet, or one that was only supposed,
    or whose cost is still to come: they may still change."""

    calls: int
    errors: int
    unsettled: int


@dataclass(slots=True)
class Tallied:
    """What the calls of some time come to."""

    totals: Totals
    by_key: dict[Key, UsageTally]
    alike: dict[ShapeKey, FailureGroup]


def tally_calls(facts: Iterable[CallFact]) -> Tallied:
    """Add up calls: whole, by key, and failures by what they have in common."""
    by_key: dict[Key, UsageTally] = {}
    alike: dict[ShapeKey, FailureGroup] = {}
    unsettled = 0
    for fact in facts:
        by_key.setdefault(fact.key, UsageTally()).count(fact)
        unsettled += fact.state not in TERMINAL or (
            fact.state == InvocationState.UNKNOWN and fact.code == SUPPOSED
        )
        if fact.state in FAILED:
            _count_alike(alike, fact)
    errors = sum(each.errors for each in by_key.values())
    totals = Totals(sum(each.calls for each in by_key.values()), errors, unsettled)
    return Tallied(totals, _limit_keys(by_key), _select_most_frequent(alike))


def _count_alike(alike: dict[ShapeKey, FailureGroup], fact: CallFact) -> None:
    text = Failure(
        fact.call, fact.key.server, fact.key.tool, fact.code, fact.reason, fact.words, fact.at
    ).text
    key = ShapeKey(
        fact.key.server, fact.key.tool, fact.code or fact.state, normalize_error_text(text)
    )
    one = FailureGroup(1, fact.at, fact.at, [FailureExample(fact.at, fact.call)])
    if key in alike:
        alike[key].add(one)
    else:
        alike[key] = one


def _limit_keys(by_key: dict[Key, UsageTally]) -> dict[Key, UsageTally]:
    """The busiest by themselves, the rest of each agent at a server together, without their
    tool."""
    ordered = sorted(by_key.items(), key=lambda item: (-item[1].calls, item[0]))
    kept = dict(ordered[:_MOST_KEYS])
    for key, tally in ordered[_MOST_KEYS:]:
        kept.setdefault(key._replace(tool=""), UsageTally()).add(tally)
    return kept


def _select_most_frequent(alike: dict[ShapeKey, FailureGroup]) -> dict[ShapeKey, FailureGroup]:
    ordered = sorted(alike.items(), key=lambda item: (-item[1].count, item[0]))
    return dict(ordered[:_MOST_SHAPES])


def split_time_range(
    since: datetime, until: datetime, days: Iterable[datetime]
) -> tuple[list[datetime], list[tuple[datetime, datetime]]]:
    """Which of the ``days`` that were added up lie whole in [since, until), and the hours around
    them as (from, to)."""
    whole = sorted(day for day in days if day >= since and day + DAY <= until)
    around: list[tuple[datetime, datetime]] = []
    begins = since
    for day in [*whole, until]:
        if begins < day:
            around.append((begins, day))
        begins = day + DAY
    return whole, around
