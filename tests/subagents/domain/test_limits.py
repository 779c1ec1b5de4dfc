"""Budgets, the context guard, fallback, savings: tables, and properties where there are any."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subagents.domain import context, fallback
from subagents.domain.budget import (
    Spent,
    affordable,
    find_reached_limit,
    output_room,
    price,
    reserve,
)
from subagents.domain.fallback import Failed, GiveUp, TargetAttempt, Wait, choose
from subagents.domain.lifecycle import CALL_MOVES, RUN_MOVES, CallState, Exit, RunState
from subagents.domain.model_errors import ErrorKind, classify
from subagents.domain.savings import Counted, money_saved, savings
from subagents.domain.spec import DEFAULT_WINDOW, ExpertSpec, Prices, TargetSpec

PRICES = Prices(Decimal(1), Decimal(5), Decimal("0.1"), Decimal("1.25"))
SPEC = ExpertSpec(
    "x",
    "d",
    {},
    "",
    (),
    max_steps=5,
    max_tokens=1000,
    max_calls=10,
    max_cost=Decimal(1),
    max_seconds=60,
)


def target(model_id: int, window: int = 10_000) -> TargetSpec:
    return TargetSpec(model_id, f"p/m{model_id}", "p", window, 1_000, 256, "", PRICES)


@pytest.mark.parametrize(
    ("used", "dollars"),
    [
        ({"input": 1_000_000, "output": 0}, "1"),
        ({"input": 0, "output": 1_000_000}, "5"),
        ({"input": 1_000_000, "output": 0, "cached": 1_000_000}, "0.1"),
        ({"input": 1_000_000, "output": 0, "cache_write": 1_000_000}, "1.25"),
        ({"input": 1600, "output": 20, "cached": 400, "cache_write": 200}, "0.00139"),
    ],
)
def test_prices(used: dict[str, int], dollars: str) -> None:
    assert price(PRICES, **used) == Decimal(dollars)


def test_an_unknown_price_is_unknown_and_a_free_model_is_free() -> None:
    assert price(Prices(input=Decimal(1)), input=1, output=1) is None
    assert price(Prices(free=True), input=1, output=1) == 0


@given(st.integers(0, 10**6), st.integers(1, 10**5), st.integers(0, 10**6), st.integers(0, 10**6))
def test_what_is_reserved_is_never_less_than_what_it_costs(
    inp: int, out: int, cached: int, written: int
) -> None:
    written = min(written, max(0, inp - cached))
    cached = min(cached, inp)
    cost = price(PRICES, input=inp, output=out, cached=cached, cache_write=written)
    assert cost is not None
    assert reserve(PRICES, estimated_input=inp, max_output=out) >= cost


@pytest.mark.parametrize(
    ("spent", "exit"),
    [
        (Spent(), None),
        (Spent(steps=3), None),
        (Spent(steps=4), Exit.MAX_TURNS),
        (Spent(seconds=60), Exit.TIME_LIMIT),
        (Spent(tokens=1000), Exit.BUDGET),
        (Spent(calls=10), Exit.BUDGET),
    ],
)
def test_limits(spent: Spent, exit: Exit | None) -> None:
    assert find_reached_limit(SPEC, spent) == exit


def test_money_is_affordable_up_to_its_last_cent() -> None:
    spent = Spent(cost=Decimal("0.6"))
    assert affordable(SPEC, spent, Decimal("0.4"))
    assert not affordable(SPEC, spent, Decimal("0.41"))
    assert affordable(replace(SPEC, max_cost=None), spent, Decimal(99))


def test_the_room_of_a_model_leaves_its_answer_and_its_buffer() -> None:
    assert target(1).room == 10_000 - 1_000 - 256
    assert DEFAULT_WINDOW == 131_072


def test_results_enter_in_order_until_one_does_not_fit_and_then_none() -> None:
    assert let_in([100, 5_000, 10], context.Room(target(1), used=5_000, ratio=1.0)) == [
        True,
        False,
        False,
    ]
    assert let_in([100, 10], context.Room(target(1), used=5_000, ratio=1.0)) == [True, True]


def let_in(sizes: list[int], room: context.Room) -> list[bool]:
    return [room.admit(size) is None for size in sizes]


@given(st.lists(st.integers(0, 5_000), max_size=8), st.integers(0, 9_000), st.floats(1, 3))
def test_what_is_admitted_always_fits(sizes: list[int], known: int, ratio: float) -> None:
    room = context.Room(target(1), known, ratio)
    fitting = let_in(sizes, room)
    total = known + sum(
        round(size * ratio) for size, fits in zip(sizes, fitting, strict=True) if fits
    )
    assert total == room.used <= max(room.target.room, known)


def failed(
    model: int, kind: ErrorKind, *, ago: float = 100.0, after: float | None = None
) -> Failed:
    return Failed(model, kind, after, ago)


@pytest.mark.parametrize(
    ("before", "choice"),
    [
        ([], TargetAttempt(target(1))),
        ([failed(1, ErrorKind.AUTH)], TargetAttempt(target(2))),
        ([failed(1, ErrorKind.OVERLOADED)], TargetAttempt(target(2))),
        (
            [failed(1, ErrorKind.OVERLOADED), failed(2, ErrorKind.OVERLOADED)],
            TargetAttempt(target(1)),
        ),
        (
            [failed(1, ErrorKind.AUTH), failed(2, ErrorKind.QUOTA)],
            GiveUp(Exit.QUOTA, ErrorKind.QUOTA),
        ),
        ([failed(1, ErrorKind.BAD_REQUEST)], TargetAttempt(target(2))),
        ([failed(1, ErrorKind.POLICY)], TargetAttempt(target(2))),
        ([failed(1, ErrorKind.EMPTY)], TargetAttempt(target(2))),
        (
            [failed(1, ErrorKind.BAD_REQUEST), failed(2, ErrorKind.BAD_REQUEST)],
            GiveUp(Exit.MODEL, ErrorKind.BAD_REQUEST),
        ),
        (
            [failed(1, ErrorKind.CONTEXT), failed(2, ErrorKind.CONTEXT)],
            GiveUp(Exit.TOKEN_LIMIT, ErrorKind.CONTEXT),
        ),
        (
            [
                failed(1, ErrorKind.RATE_LIMITED, after=30, ago=10),
                failed(2, ErrorKind.RATE_LIMITED, after=20, ago=10),
            ],
            Wait(10),
        ),
        (
            [failed(1, ErrorKind.RATE_LIMITED, after=999, ago=10), failed(2, ErrorKind.AUTH)],
            Wait(989),
        ),
    ],
)
def test_fallback(before: list[Failed], choice: object) -> None:
    found = choose([target(1), target(2)], before)
    assert (replace(found, why="") if isinstance(found, GiveUp) else found) == choice


@pytest.mark.parametrize(
    ("before", "left", "choice"),
    [
        (
            [failed(1, ErrorKind.RATE_LIMITED, after=300, ago=0)],
            55.0,
            TargetAttempt(target(2), 55.0),
        ),
        (
            [
                failed(1, ErrorKind.RATE_LIMITED, after=300, ago=0),
                failed(2, ErrorKind.NETWORK, ago=0),
            ],
            55.0,
            Wait(1),
        ),
        (
            [failed(1, ErrorKind.RATE_LIMITED, after=50, ago=0), failed(2, ErrorKind.AUTH)],
            55.0,
            Wait(50),
        ),
    ],
)
def test_who_asks_to_be_left_alone_for_longer_than_the_run_has_is_not_waited_for(
    before: list[Failed], left: float, choice: object
) -> None:
    assert choose([target(1), target(2)], before, left=left) == choice


@pytest.mark.parametrize(
    ("models", "before", "left", "choice"),
    [
        ([1], [], 60.0, TargetAttempt(target(1), 60.0)),
        ([1, 2, 3], [], 60.0, TargetAttempt(target(1), 20.0)),
        ([1, 2, 3], [failed(1, ErrorKind.TIMEOUT)], 40.0, TargetAttempt(target(2), 20.0)),
        ([1, 2], [failed(1, ErrorKind.TIMEOUT)], 30.0, TargetAttempt(target(2), 30.0)),
        ([1, 2], [failed(1, ErrorKind.AUTH)], 60.0, TargetAttempt(target(2), 60.0)),
    ],
)
def test_a_model_gets_a_share_of_the_time_so_that_those_after_it_have_their_turn(
    models: list[int], before: list[Failed], left: float, choice: object
) -> None:
    assert choose([target(number) for number in models], before, left=left) == choice


def test_giving_up_says_who_was_asked_and_what_each_came_to() -> None:
    limited = Failed(1, ErrorKind.RATE_LIMITED, 300.0, 0.0, "slow down")
    broken = Failed(2, ErrorKind.BAD_REQUEST, None, 0.0, "no tools here")
    choice = choose([target(1), target(2)], [limited, broken], left=55)
    assert isinstance(choice, GiveUp)
    assert choice.why == (
        f"{target(1).label}: rate_limited (slow down); the next attempt is possible in 300 s, but the run has only 55 s left. "
        f"{target(2).label}: bad_request (no tools here)."
    )


@pytest.mark.parametrize(
    ("spent", "last", "room"),
    [(0, False, 272), (0, True, 600), (500, False, 0), (500, True, 400), (700, True, 0)],
)
def test_tokens_are_reserved_ahead_like_money(spent: int, last: bool, room: int) -> None:
    known = Spent(tokens=spent)
    assert output_room(SPEC, known, input=100, most=600, last=last) == room
    assert output_room(replace(SPEC, max_tokens=None), known, input=100, most=600, last=last) == 600


@given(st.lists(st.tuples(st.integers(1, 2), st.sampled_from(ErrorKind)), max_size=12))
def test_no_target_is_asked_more_often_than_the_rounds(
    attempts: list[tuple[int, ErrorKind]],
) -> None:
    before: list[Failed] = []
    for _, kind in attempts:
        choice = choose([target(1), target(2)], before)
        if not isinstance(choice, TargetAttempt):
            break
        before.append(failed(choice.target.model_id, kind))
    for model in (1, 2):
        assert sum(f.model_id == model for f in before) <= fallback.ROUNDS


@pytest.mark.parametrize(
    ("name", "status", "text", "kind"),
    [
        ("APIError", 403, "forbidden", ErrorKind.AUTH),
        ("BadRequestError", 403, "forbidden", ErrorKind.AUTH),
        ("InternalServerError", 500, "Connection error.", ErrorKind.NETWORK),
        ("APIError", 529, "overloaded", ErrorKind.OVERLOADED),
        ("RateLimitError", 429, "You exceeded your current quota", ErrorKind.QUOTA),
        ("ContextWindowExceededError", 400, "too long", ErrorKind.CONTEXT),
        ("SomethingNew", None, "?", ErrorKind.OVERLOADED),
        ("SomethingNew", 418, "?", ErrorKind.BAD_REQUEST),
    ],
)
def test_kinds_of_errors(name: str, status: int | None, text: str, kind: ErrorKind) -> None:
    assert classify(name, status, text) == kind


def test_savings_are_negative_when_they_are() -> None:
    long = Counted(12_704, 175, 163, 2_275 + 83, 83, 34_415, 4)
    assert savings(long) == {
        "context_saved": 12_716,
        "definitions_saved": 2_275,
        "compression": 79.01,
        "reread_tax": 2.67,
        "results": 12_704,
        "calls": 175,
        "returned": 163,
    }
    assert savings(Counted(10, 5, 100, 50, 83, 500, 1))["context_saved"] == -85


def test_money_is_saved_where_the_callers_model_is_dear_and_lost_where_it_is_cheap() -> None:
    long = Counted(12_704, 175, 163, 2_275 + 83, 83, 34_415, 4)
    cost = Decimal("0.011")
    dear = money_saved(long, cost=cost, callers=Prices(Decimal(5), Decimal(25)))
    # alone: 4 turns over 30,000 and half of what grows; with the expert tool: one turn, and the run
    grown = (12_704 + 175) * 5 // 2
    assert (
        dear == (Decimal(30_000 * 4 + grown) * 5 + 175 * 25 - (30_000 + 163) * 5) / 1_000_000 - cost
    )
    cached = money_saved(
        long, cost=cost, callers=Prices(Decimal(5), Decimal(25), cache_read=Decimal("0.5"))
    )
    assert dear > (cached or 0) > 0
    cheap = money_saved(long, cost=cost, callers=Prices(Decimal("0.01"), Decimal("0.02")))
    assert cheap is not None
    assert cheap < 0
    assert money_saved(long, cost=cost, callers=Prices()) is None


def test_states_end_where_they_must() -> None:
    assert set(RunState) - set(RUN_MOVES) == {RunState.DONE, RunState.FAILED, RunState.CANCELLED}
    assert all(target in RunState for targets in RUN_MOVES.values() for target in targets)
    assert CallState.STARTED not in CALL_MOVES[CallState.UNKNOWN], (
        "nothing in doubt is started again by itself"
    )
