"""Calls a minute: a bucket that refills evenly."""

from __future__ import annotations

import pytest

from mcpregistry.calls.rates import RateLimited, Rates
from mcpregistry.domain.specs import AgentSpec


def agent(limit: int | None, slug: str = "ann") -> AgentSpec:
    return AgentSpec(1, slug, frozenset(), limit, ())


def allowed(rates: Rates, who: AgentSpec, at: float) -> bool:
    try:
        rates.take(who, at)
    except RateLimited:
        return False
    return True


def test_a_minutes_calls_may_come_at_once_and_then_one_by_one():
    rates, who = Rates(), agent(60)
    assert [allowed(rates, who, 0.0) for _ in range(61)] == [True] * 60 + [False]
    assert [allowed(rates, who, at) for at in (0.5, 1.0, 1.1, 2.0)] == [False, True, False, True]


def test_a_long_pause_saves_no_more_than_a_minute():
    rates, who = Rates(), agent(3)
    assert allowed(rates, who, 0.0)
    assert [allowed(rates, who, 1e6) for _ in range(4)] == [True, True, True, False]


def test_agents_do_not_share_and_no_limit_means_none():
    rates = Rates()
    assert [allowed(rates, agent(1), 0.0), allowed(rates, agent(1), 0.0), allowed(rates, agent(1, "bob"), 0.0)] == [
        True,
        False,
        True,
    ]
    assert all(allowed(rates, agent(None), 0.0) for _ in range(1000))


def test_zero_means_never_and_the_refusal_says_how_long_to_wait():
    with pytest.raises(RateLimited):
        Rates().take(agent(0), 0.0)
    rates = Rates()
    rates.take(agent(6), 0.0)
    for _ in range(5):
        rates.take(agent(6), 0.0)
    with pytest.raises(RateLimited, match="10 seconds"):
        rates.take(agent(6), 0.0)


def test_a_lower_limit_counts_at_once():
    rates = Rates()
    rates.take(agent(100), 0.0)
    rates.take(agent(2), 0.0)
    rates.take(agent(2), 0.0)
    assert not allowed(rates, agent(2), 0.0)
