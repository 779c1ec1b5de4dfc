"""What the clock has counted by the hour and by the day is what the record says, whatever happened
in between."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError, DataError

from mcpregistry.domain.lifecycle import FAILED, SUPPOSED, InvocationState
from mcpregistry.domain.sample_statistics import find_percentile
from mcpregistry.domain.usage import (
    BUCKETS,
    DAY,
    ERROR,
    HOUR,
    estimate_percentile,
    find_duration_bucket,
    split_time_range,
    truncate_to_day,
    truncate_to_hour,
)
from mcpregistry.models import CountedSpan, Invocation, SpanFailure, SpanUsage, Tool
from mcpregistry.models.usage import TOOK, SpanLength
from mcpregistry.services.records import call_hours
from tests.fakes.lived import populated

BEGIN = datetime(2026, 3, 1, 21, 10, tzinfo=UTC)
ENDS = (
    InvocationState.SUCCEEDED,
    InvocationState.SUCCEEDED,
    InvocationState.TOOL_ERROR,
    InvocationState.NOT_SENT,
    InvocationState.UNKNOWN,
    InvocationState.DENIED,
)
Sums = dict[tuple[str, ...], dict[str, Any]]


@dataclass
class History:
    """Calls by chance: they come, end at once or late, are recorded late, and supposed ends become
    known."""

    chance: random.Random
    now: datetime = BEGIN
    made: int = 0
    lingering: float = 0.1  # of the calls that come: they end later
    open: list[str] = field(default_factory=list)
    supposed: list[str] = field(default_factory=list)

    def come(self, count: int) -> None:
        Invocation.objects.bulk_create(self._call() for _ in range(count))

    def _call(self) -> Invocation:
        self.made += 1
        chance = self.chance
        at = self.now - timedelta(seconds=chance.choice((0, 5, 4_000)) * chance.random())
        server, tool = chance.choice(
            (("git", "log"), ("git", "diff"), ("expert", "search"), ("", f"made-up-{self.made}"))
        )
        call = Invocation(
            id=f"call-{self.made}",
            state=InvocationState.DISPATCHED,
            agent_slug=chance.choice("ab"),
            endpoint_slug="default",
            writer="w",
            server_slug=server,
            tool_name=tool,
            exposed_name=tool,
            origin="http",
            received_at=at,
            dispatched_at=at,
            outcome=chance.choice(("allow", "allow", "ask")),
        )
        if chance.random() < self.lingering:
            self.open.append(call.pk)
        else:
            self.end(call, chance.choice(ENDS))
        return call

    def end(self, call: Invocation, state: InvocationState, code: str = "") -> None:
        call.state = state
        call.error_code = code or ("E" + str(self.chance.randrange(3)) if state in FAILED else "")
        call.finished_at = self.now
        call.duration_ms = self.chance.lognormvariate(4, 2)
        call.result = f'{{"text":"no row {self.made}"}}'
        call.result_bytes = self.chance.randrange(2_000)
        call.dispatched_at = (
            None
            if state in {InvocationState.NOT_SENT, InvocationState.DENIED}
            else call.received_at
        )

    def end_late(self, most: int = 1) -> None:
        for _ in range(min(most, len(self.open))):
            pk = self.open.pop(self.chance.randrange(len(self.open)))
            guess = self.chance.random() < 0.4
            self._change(
                pk,
                InvocationState.UNKNOWN if guess else InvocationState.SUCCEEDED,
                SUPPOSED if guess else "",
            )
            self.supposed += [pk] if guess else []

    def correct(self, most: int = 1) -> None:
        for _ in range(min(most, len(self.supposed))):
            self._change(self.supposed.pop(0), InvocationState.TOOL_ERROR)

    def _change(self, pk: str, state: InvocationState, code: str = "") -> None:
        call = Invocation.objects.get(pk=pk)
        self.end(call, state, code)
        call.save()


def of_record() -> tuple[Sums, dict[tuple[str, ...], list[float]]]:
    """By its own arithmetic: the sums of each key, and how long the calls took that nobody was
    asked about."""
    found: Sums = {}
    took: dict[tuple[str, ...], list[float]] = {}
    for call in Invocation.objects.order_by("received_at").iterator():
        key = (
            call.agent_slug,
            call.endpoint_slug,
            call.server_slug,
            call.tool_name if call.server_slug else "",
        )
        sums = found.setdefault(
            key,
            {
                "calls": 0,
                "errors": 0,
                "sent": 0,
                "size": 0,
                "cost": 0,
                "codes": Counter(),
                "last": None,
            },
        )
        failed = call.state in {"tool_error", "not_sent", "unknown"}
        sums["calls"] += 1
        sums["errors"] += failed
        sums["codes"] += Counter([call.error_code] if failed else [])
        sums["last"] = call.received_at
        if call.dispatched_at:
            sums["sent"] += 1
            sums["size"] += call.result_bytes
            sums["cost"] += 250_000 if call.tool_name == "log" else 0
            if call.outcome != "ask" and call.duration_ms is not None:
                took.setdefault(key, []).append(call.duration_ms)
    return found, took


def counted(rows: Iterable[SpanUsage]) -> tuple[Sums, dict[tuple[str, ...], list[int]]]:
    found: Sums = {}
    took: dict[tuple[str, ...], list[int]] = {}
    for row in sorted(rows, key=lambda row: row.begins):
        key = (row.agent_slug, row.endpoint_slug, row.server_slug, row.tool_name)
        sums = found.setdefault(
            key,
            {
                "calls": 0,
                "errors": 0,
                "sent": 0,
                "size": 0,
                "cost": 0,
                "codes": Counter(),
                "last": None,
            },
        )
        for name in ("calls", "errors", "sent", "size"):
            sums[name] += getattr(row, name)
        sums["cost"] += row.cost or 0
        sums["codes"] += Counter(row.codes)
        sums["last"] = row.last
        buckets = took.setdefault(key, [0] * BUCKETS)
        took[key] = [one + getattr(row, name) for one, name in zip(buckets, TOOK, strict=True)]
    return found, took


def breaks(monkeypatch: pytest.MonkeyPatch, now: datetime) -> None:
    """The database fails while an hour is replaced: after its rows went and some came."""
    with monkeypatch.context() as patch, suppress(DatabaseError):
        patch.setattr(
            SpanFailure.objects,
            "bulk_create",
            lambda rows: (_ for _ in ()).throw(DatabaseError("gone")),
        )
        call_hours.count_due(now)


@pytest.mark.exhaustive
@pytest.mark.django_db
@pytest.mark.parametrize(
    ("seed", "calls"),
    [
        pytest.param(1, 1_000, id="1"),
        # chance is not the database's
        pytest.param(2, 1_000, marks=pytest.mark.one_database, id="2"),
        pytest.param(3, 100_000, marks=pytest.mark.timeout(3_600), id="many-calls"),
    ],
)
def test_what_was_counted_is_what_the_record_says(
    monkeypatch: pytest.MonkeyPatch, seed: int, calls: int
) -> None:
    populated(calls=0)
    Invocation.objects.all().delete()
    tool = Tool.objects.get(server__slug="git", name="git_log")
    Tool.objects.filter(pk=tool.pk).update(name="log", call_cost=Decimal("0.0025"))
    history = History(random.Random(seed), lingering=0.1 if calls < 100_000 else 0.02)
    late = max(1, calls // 5_000)  # calls that end late, or whose end becomes known, at a time
    for step in range(40):
        history.come(history.chance.randrange(calls * 3 // 50))
        history.end_late(late)
        acts = (
            lambda: history.correct(late),
            lambda: breaks(monkeypatch, history.now),
            lambda: history.end_late(late),
        )
        for act in history.chance.sample(acts, 2):
            act()
        call_hours.count_due(history.now)
        if step % 7 == 0:
            assert call_hours.count_due(history.now) == 0, "counted twice"
        back = step in {14, 28}
        history.now -= timedelta(hours=back * 30)
        history.now += timedelta(minutes=history.chance.randrange(20, 300)) * (not back)
    history.now = (
        max(history.now, *Invocation.objects.values_list("received_at", flat=True)) + DAY * 2
    )
    while history.open or history.supposed:
        history.end_late(late)
        history.correct(late)
    call_hours.count_due(history.now)
    assert history.made > calls

    truth, durations = of_record()
    hours, took = counted(SpanUsage.objects.filter(span=SpanLength.HOUR))
    assert hours == truth
    days = [row.begins for row in CountedSpan.objects.filter(span=SpanLength.DAY)]
    whole, around = split_time_range(
        BEGIN.replace(minute=0) - DAY, truncate_to_hour(history.now), days
    )
    rows = [*SpanUsage.objects.filter(span=SpanLength.DAY, begins__in=whole)]
    for first, last in around:
        rows += SpanUsage.objects.filter(span=SpanLength.HOUR, begins__gte=first, begins__lt=last)
    assert len(whole) > 3
    assert counted(rows) == (hours, took)
    for key, times in durations.items():
        for percent in (50, 95):
            exact = find_percentile(sorted(times), percent)
            said = estimate_percentile(took[key], percent)
            assert exact is not None
            assert said is not None
            assert 1 / (1 + ERROR) - 1e-9 <= said / max(exact, 2.0) <= 1 + ERROR + 1e-9
    failures: Counter[str] = Counter()
    for row in SpanFailure.objects.all():
        failures[row.code] += row.count
    assert failures == Counter(
        Invocation.objects.filter(state__in=FAILED).values_list("error_code", flat=True)
    )


@pytest.mark.django_db
def test_what_retention_has_taken_stays_counted() -> None:
    history = History(random.Random(3))
    history.come(50)
    later = history.now + timedelta(hours=2)
    assert call_hours.count_due(later) > 0
    call_hours.count_due(history.now - DAY)  # the clock is set back: these hours are in doubt
    Invocation.objects.filter(pk__in=[f"call-{number}" for number in range(1, 26)]).delete()
    assert call_hours.count_due(later) > 0, "looked at again"
    assert sum(row.calls for row in SpanUsage.objects.filter(span=SpanLength.HOUR)) == 50
    assert not CountedSpan.objects.filter(again=True).exists()


@pytest.mark.django_db
@pytest.mark.both_databases
def test_words_that_no_database_stores_keep_nothing_from_being_counted() -> None:
    history = History(random.Random(4))
    history.come(5)
    said = json.dumps({"content": [{"type": "text", "text": "a\0b \ud800 c"}], "isError": True})
    Invocation.objects.filter(pk="call-1").update(
        state=InvocationState.TOOL_ERROR, error_code="X", result=said, dispatched_at=BEGIN
    )
    assert call_hours.count_due(BEGIN + 3 * HOUR) > 0
    assert SpanFailure.objects.filter(code="X").count() == 1


@pytest.mark.django_db
def test_an_hour_that_cannot_be_counted_is_tried_again_and_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History(random.Random(5))
    history.come(20)
    history.now += 2 * HOUR
    history.come(20)
    bad = truncate_to_hour(BEGIN)
    count = call_hours._count

    def counted(hour: datetime) -> None:
        if hour == bad:
            raise DataError("no")
        count(hour)

    with monkeypatch.context() as patch:
        patch.setattr(call_hours, "_count", counted)
        call_hours.count_due(BEGIN + 4 * HOUR)
    assert CountedSpan.objects.get(span=SpanLength.HOUR, begins=bad).again
    assert SpanUsage.objects.filter(
        span=SpanLength.HOUR, begins=truncate_to_hour(history.now)
    ).exists()
    call_hours.count_due(BEGIN + 4 * HOUR)
    assert sum(row.calls for row in SpanUsage.objects.filter(span=SpanLength.HOUR)) == 40


def test_buckets_hold_what_they_say() -> None:
    assert [find_duration_bucket(each) for each in (0, 2, 2.01, 2.82, 2.9, 4, 1e12)] == [
        0,
        0,
        1,
        1,
        2,
        2,
        BUCKETS - 1,
    ]
    assert estimate_percentile([0] * BUCKETS, 50) is None


def test_days_lie_whole_within_a_period_and_hours_around_them() -> None:
    day = truncate_to_day(BEGIN)
    whole, around = split_time_range(
        day - HOUR, day + DAY * 2 + HOUR, [day - DAY, day, day + DAY, day + DAY * 2]
    )
    assert whole == [day, day + DAY]
    assert around == [(day - HOUR, day), (day + DAY * 2, day + DAY * 2 + HOUR)]
    assert split_time_range(day, day + DAY, [day]) == ([day], [])
    assert split_time_range(day, day + DAY, []) == ([], [(day, day + DAY)])
