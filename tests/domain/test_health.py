"""The states of a connection, its back-off and its breaker."""

from __future__ import annotations

import itertools

import pytest

from mcpregistry.domain.servers import health
from mcpregistry.domain.servers.health import Health, State


def failing(times: int, *, chance: float = 0.0) -> Health:
    state = Health()
    for number in range(times):
        state = health.move(state, "connecting", now=float(number))
        state = health.record_failure(
            state, now=float(number), chance=chance, returns=False, code="C", detail="d"
        )
    return state


def test_delays_double_up_to_a_minute_and_chance_spreads_them_over_half():
    delays = [health.compute_backoff(failures, chance=0.999999) for failures in range(1, 20)]
    assert [round(delay, 3) for delay in delays[:4]] == [0.5, 1.0, 2.0, 4.0]
    assert round(delays[-1]) == 60
    assert health.compute_backoff(3, chance=0) == pytest.approx(1.0)
    assert health.compute_backoff(0, chance=0.5) == 0
    assert health.compute_backoff(10_000, chance=0) == 30


def test_a_failed_connect_is_refused_until_its_next_try():
    state = failing(1)
    assert state.state == "error"
    assert health.compute_refusal_seconds(state, now=0.0) == 0.25
    assert health.compute_refusal_seconds(state, now=0.3) == 0
    assert (state.code, state.detail) == ("C", "d")


def test_failures_in_a_row_wait_longer_and_one_answer_forgives_them():
    assert failing(5).retry_at - 4 > failing(4).retry_at - 3
    assert health.record_served_call(failing(5)).failures == 0


def test_a_connection_that_served_long_and_falls_may_be_tried_at_once():
    state = health.record_connection(health.move(failing(4), "connecting", now=10), now=10)
    fallen = health.record_failure(
        state, now=10 + health.STABLE_SECONDS, chance=0, returns=False, code="", detail=""
    )
    assert health.compute_refusal_seconds(fallen, now=fallen.since) == 0
    assert fallen.failures == 1


def test_a_connection_that_falls_over_and_over_is_not():
    state = Health()
    waits = []
    for number in range(4):
        state = health.record_connection(health.move(state, "connecting", now=number), now=number)
        state = health.record_failure(
            state, now=number, chance=0, returns=False, code="", detail=""
        )
        waits.append(health.compute_refusal_seconds(state, now=number))
    assert waits == [0, 0.25, 0.5, 1]


def test_one_that_returns_by_itself_is_reconnecting():
    state = health.move(Health(), "connecting", now=0)
    assert (
        health.record_failure(state, now=0, chance=0, returns=True, code="", detail="").state
        == "reconnecting"
    )


def test_stopping_on_purpose_holds_nothing_against_it():
    assert health.record_stop(failing(5), now=7) == Health(since=7)


STATES: tuple[State, ...] = ("disconnected", "connecting", "connected", "reconnecting", "error")


MOVES = {
    ("disconnected", "connecting"),
    ("connecting", "connected"),
    ("connecting", "error"),
    ("connected", "disconnected"),
    ("error", "connecting"),  # the five of the design
    ("connected", "reconnecting"),
    ("connecting", "reconnecting"),
    ("reconnecting", "connecting"),
    ("reconnecting", "disconnected"),  # reconnecting
    # and three more
    ("connecting", "disconnected"),
    ("connected", "error"),
    ("error", "disconnected"),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(STATES, STATES)))
def test_only_moves_of_the_table_are_possible(before: State, after: State):
    state = Health(state=before)
    if (before, after) in MOVES:
        assert health.move(state, after, now=1).state == after
    else:
        with pytest.raises(ValueError, match=before):
            health.move(state, after, now=1)
