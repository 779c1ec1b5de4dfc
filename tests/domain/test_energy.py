"""Arithmetic of energy, by properties."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpregistry.domain.energy import Level, Rates, Stand, estimate, word_for

NOW = datetime(2026, 1, 1, tzinfo=UTC)
units = st.floats(0, 1e6)
seconds = st.floats(-1e5, 1e5)


@given(capacity=st.floats(0.01, 1e6), rate=st.floats(0, 1e3), steps=st.lists(st.tuples(seconds, st.floats(-1e3, 1e3))))
def test_a_level_stays_between_its_floor_and_its_capacity_whatever_the_clock_does(capacity, rate, steps):
    stand, now = Stand(capacity, NOW, capacity, rate), NOW
    for step, amount in steps:
        now += timedelta(seconds=step)
        assert 0 <= stand.level_at(now) <= capacity
        stand = stand.less(amount, now)
    assert 0 <= stand.level <= capacity


@given(level=units, rate=st.floats(0.001, 1e3), wanted=units)
def test_after_the_time_that_is_told_there_is_enough_and_not_much_before(level, rate, wanted):
    stand = Stand(level, NOW, 1e6, rate)
    wait = stand.seconds_until(wanted, NOW)
    assert stand.level_at(NOW + timedelta(seconds=wait + 1e-5)) >= wanted - 1e-2
    if wait > 1:
        assert stand.level_at(NOW + timedelta(seconds=wait * 0.99)) < wanted


@given(level=st.floats(0, 1e3), rate=st.floats(0.1, 1e3), wanted=st.floats(0, 1e3), back=st.floats(0, 1e5))
def test_the_time_that_is_told_holds_after_the_clock_was_set_back(level, rate, wanted, back):
    stand, now = Stand(level, NOW, 1e6, rate), NOW - timedelta(seconds=back)
    wait = stand.seconds_until(wanted, now)
    assert stand.level_at(now + timedelta(seconds=wait + 1e-5)) >= wanted - 1e-2
    assert (wait == 0) is (level >= wanted)


def test_what_never_comes_back_is_waited_for_for_ever():
    assert Stand(5, NOW, 100, 0).seconds_until(6, NOW) == math.inf
    assert Stand(5, NOW, 100, 1).seconds_until(101, NOW) == math.inf
    assert Stand(5, NOW, 100, 0).seconds_until(5, NOW) == 0


def test_a_call_costs_by_its_time():
    assert [Rates().of_call(each, 10_000) for each in (1, 2, 4)] == [2, 4, 8]
    assert Rates(1, 2, 3).of_call(1, 2048) == 9


@pytest.mark.parametrize(("level", "word"), [(0, "empty"), (9.9, "critical"), (10, "low"), (29, "low"), (30, "ok")])
def test_levels_have_names(level, word):
    assert word_for(level, critical=10, resume=30) is Level(word)


def test_an_estimate_grows_with_what_there_is_to_a_tool_and_an_operators_counts_more():
    plain = {"name": "t", "inputSchema": {"type": "object"}}
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]}
    assert estimate(plain) == 1.05
    assert estimate(plain | {"inputSchema": schema}) == pytest.approx(1.35)
    assert estimate(plain | {"annotations": {"destructiveHint": True, "openWorldHint": True}}) == 4.05
    assert estimate(plain | {"annotations": {"destructiveHint": True}}, destructive=False) == 1.05
    assert estimate(plain, operators=7) == 7
    assert estimate({"inputSchema": {"required": 3, "properties": []}}) == 1.05
