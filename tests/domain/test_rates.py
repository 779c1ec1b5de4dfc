"""Calls a minute: one bucket that refills evenly, of which several processes take allotments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpregistry.domain.rates import KEPT, Bucket, Purse, compute_allotment

limits = st.integers(1, 5_000)


@given(
    limits,
    st.integers(1, 5),
    st.lists(st.tuples(st.floats(0, 30), st.integers(0, 4)), max_size=200),
)
def test_several_processes_never_make_more_calls_than_the_limit_and_an_allotment_each(
    limit, processes, tries
):
    """In any window: a full bucket, what refills meanwhile, and what each process held before."""
    bucket = Bucket(float(limit), 0.0)
    purses = [Purse() for _ in range(processes)]
    now = 0.0
    made = []
    for later, who in tries:
        now += later
        purse = purses[who % processes]
        if not purse.spend(now, limit):
            bucket, got = bucket.take_calls(compute_allotment(limit), now, limit)
            purse.record_lease(got, now, 0.0 if got else bucket.wait(now, limit))
            if not purse.spend(now, limit):
                continue
        made.append(now)
    for start in made[::7]:
        for end in (each for each in made[::3] if each >= start):
            window = sum(start <= each <= end for each in made)
            assert (
                window
                <= limit + (end - start) * limit / 60 + processes * compute_allotment(limit) + 1
            )


def test_a_minutes_calls_may_come_at_once_and_then_one_by_one():
    bucket, taken = Bucket(60.0, 0.0).take_calls(61, 0.0, 60)
    assert (taken, bucket.wait(0.0, 60)) == (60, 1.0)
    assert [bucket.take_calls(1, at, 60)[1] for at in (0.5, 1.0, 2.0)] == [0, 1, 1]
    assert bucket.take_calls(100, 1e6, 60)[1] == 60, "a long pause saves no more than a minute"


@pytest.mark.parametrize(("limit", "size"), [(1, 1), (19, 1), (60, 3), (6_000, 300)])
def test_an_allotment_is_a_twentieth_and_at_least_one(limit, size):
    assert compute_allotment(limit) == size


def test_a_lower_limit_counts_at_once_for_what_is_held_and_for_what_is_left():
    assert Bucket(600.0, 0.0).level_at(0.0, 2) == 2
    purse = Purse()
    purse.record_lease(30, 0.0, 0.0)
    assert [purse.spend(0.0, 2) for _ in range(2)] == [True, False]


def test_what_is_held_for_too_long_is_dropped_and_a_clock_that_is_set_back_refills_nothing():
    purse = Purse()
    purse.record_lease(3, 0.0, 0.0)
    assert [purse.spend(at, 60) for at in (KEPT - 1, KEPT)] == [True, False]
    bucket, _ = Bucket(60.0, 1_000.0).take_calls(60, 1_000.0, 60)
    assert bucket.take_calls(1, 900.0, 60)[1] == 0
    assert bucket.take_calls(1, 900.0, 60)[0].at == 1_000.0
