"""Arithmetic of energy, by properties."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpregistry.domain.energy import (
    EnergyLevel,
    EnergyRates,
    PoolLevel,
    classify_level,
    estimate_call_cost,
    estimate_first_cost,
    summarize_samples,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
units = st.floats(0, 1e6)
seconds = st.floats(-1e5, 1e5)


@given(
    capacity=st.floats(0.01, 1e6),
    rate=st.floats(0, 1e3),
    steps=st.lists(st.tuples(seconds, st.floats(-1e3, 1e3))),
)
def test_a_level_stays_between_its_floor_and_its_capacity_whatever_the_clock_does(
    capacity, rate, steps
):
    stand = PoolLevel(capacity, NOW, capacity, rate)
    now = NOW
    for step, amount in steps:
        now += timedelta(seconds=step)
        assert 0 <= stand.level_at(now) <= capacity
        stand = stand.take_units(amount, now)
    assert 0 <= stand.level <= capacity


@given(level=units, rate=st.floats(0.001, 1e3), wanted=units)
def test_after_the_time_that_is_told_there_is_enough_and_not_much_before(level, rate, wanted):
    stand = PoolLevel(level, NOW, 1e6, rate)
    wait = stand.seconds_until(wanted, NOW)
    assert stand.level_at(NOW + timedelta(seconds=wait + 1e-5)) >= wanted - 1e-2
    if wait > 1:
        assert stand.level_at(NOW + timedelta(seconds=wait * 0.99)) < wanted


@given(
    level=st.floats(0, 1e3),
    rate=st.floats(0.1, 1e3),
    wanted=st.floats(0, 1e3),
    back=st.floats(0, 1e5),
)
def test_the_time_that_is_told_holds_after_the_clock_was_set_back(level, rate, wanted, back):
    stand = PoolLevel(level, NOW, 1e6, rate)
    now = NOW - timedelta(seconds=back)
    wait = stand.seconds_until(wanted, now)
    assert stand.level_at(now + timedelta(seconds=wait + 1e-5)) >= wanted - 1e-2
    assert (wait == 0) is (level >= wanted)


def test_what_never_comes_back_is_waited_for_for_ever():
    assert PoolLevel(5, NOW, 100, 0).seconds_until(6, NOW) == math.inf
    assert PoolLevel(5, NOW, 100, 1).seconds_until(101, NOW) == math.inf
    assert PoolLevel(5, NOW, 100, 0).seconds_until(5, NOW) == 0


def test_a_call_costs_by_its_time():
    assert [EnergyRates().price_call(each, 10_000) for each in (1, 2, 4)] == [2, 4, 8]
    assert EnergyRates(1, 2, 3).price_call(1, 2048) == 9


@pytest.mark.parametrize(
    ("level", "word"), [(0, "empty"), (9.9, "critical"), (10, "low"), (29, "low"), (30, "ok")]
)
def test_levels_have_names(level, word):
    assert classify_level(level, critical=10, resume=30) is EnergyLevel(word)


def test_an_estimate_grows_with_what_there_is_to_a_tool_and_an_operators_counts_more():
    plain = {"name": "t", "inputSchema": {"type": "object"}}
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]}
    assert estimate_first_cost(plain) == 1.05
    assert estimate_first_cost(plain | {"inputSchema": schema}) == pytest.approx(1.35)
    assert (
        estimate_first_cost(
            plain | {"annotations": {"destructiveHint": True, "openWorldHint": True}}
        )
        == 4.05
    )
    assert (
        estimate_first_cost(plain | {"annotations": {"destructiveHint": True}}, destructive=False)
        == 1.05
    )
    assert estimate_first_cost(plain, operators=7) == 7
    assert estimate_first_cost({"inputSchema": {"required": 3, "properties": []}}) == 1.05


def test_the_more_calls_there_are_the_less_the_definition_counts():
    assert estimate_call_cost(3.0, None, EnergyRates()) == 3.0
    once = summarize_samples([(10, 2.0, 50)])
    often = summarize_samples([(10, 2.0, 50)] * 195)
    assert estimate_call_cost(3.0, once, EnergyRates()) == pytest.approx((1 * 4 + 5 * 3) / 6)
    assert estimate_call_cost(3.0, often, EnergyRates()) == pytest.approx((195 * 4 + 5 * 3) / 200)
    assert summarize_samples([]) is None


def test_newer_calls_weigh_more():
    usage = summarize_samples([(10, 1.0, 0), (10, 2.0, 0)])
    assert usage is not None
    assert usage.seconds == pytest.approx(0.9 * 1 + 0.1 * 2), "the first seeds it"
    slower = summarize_samples([(10, 1.0, 0)] * 100 + [(10, 5.0, 0)] * 100)
    assert slower is not None
    assert slower.seconds > 4.9
    assert (slower.median, slower.p95) == (5.0, 5.0)


@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.floats(0, 600), st.floats(0, 1e7)), min_size=1, max_size=60
    )
)
def test_whatever_calls_took_an_estimate_is_a_number_that_is_not_negative(samples):
    usage = summarize_samples(samples)
    for size in (0, 100, 1e9):
        assert 0 <= estimate_call_cost(1.0, usage, EnergyRates(1, 2, 3), size) < 1e9


def test_where_calls_take_as_long_as_their_arguments_are_the_estimate_learns_that():
    by_length = summarize_samples(
        [(size % 1000, 0.01 * (size % 1000), size % 1000) for size in range(7, 7 * 60, 7)]
    )
    assert by_length is not None
    short, long = (estimate_call_cost(0.0, by_length, EnergyRates(), size) for size in (10, 400))
    assert long == pytest.approx(40 * short, rel=0.05)
    assert estimate_call_cost(0.0, by_length, EnergyRates(), 1e9) < 10, (
        "beyond what was ever seen it does not reckon on"
    )
    even = summarize_samples([(size, 2.0, 0) for size in range(60)])
    assert even is not None
    assert estimate_call_cost(0.0, even, EnergyRates(), 59) == pytest.approx(
        estimate_call_cost(0.0, even, EnergyRates(), 0)
    )


def test_what_arguments_do_not_tell_is_not_learned_from_them():
    noisy = summarize_samples(
        [((at * 37) % 100, 1.0 + ((at * 61) % 10) / 10, 0) for at in range(40)]
        + [(50, 1.4, 0)] * 10
    )
    assert noisy is not None
    assert noisy.line is None or abs(noisy.line.seconds_per_byte) < 0.01
