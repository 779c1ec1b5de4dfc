"""What comes next follows from the records alone."""

from __future__ import annotations

import pytest

from subagents.domain.budget import Spent
from subagents.domain.lifecycle import CallState, Exit
from subagents.domain.next_steps import (
    AskModel,
    Conclude,
    FindOut,
    RunCalls,
    WaitForPeople,
    next_step,
)
from subagents.domain.spec import ExpertSpec
from subagents.domain.transcript import CallView, TurnView

SPEC = ExpertSpec("x", "d", {}, "", (), parallelism=2)
P = CallState.PLANNED
W = CallState.WAITING
S = CallState.STARTED
D = CallState.DONE
U = CallState.UNKNOWN


def turn(*calls: tuple[CallState, bool]) -> list[TurnView]:
    """One turn with calls of (state, only reads)."""
    views = tuple(
        CallView(i, 1, i, f"c{i}", "t", "{}", state, read_only=reads)
        for i, (state, reads) in enumerate(calls)
    )
    return [TurnView(1, "", "calls" if calls else "stop", False, "", views)]


@pytest.mark.parametrize(
    ("calls", "which"),
    [
        ([(P, True), (P, True), (P, True)], [0, 1]),
        ([(P, True), (P, False), (P, True)], [0]),
        ([(D, True), (P, False), (P, True)], [1]),
        ([(D, True), (D, False), (P, True)], [2]),
        ([(W, True), (P, True)], [1]),
        ([(P, False), (P, False)], [0]),
        ([(U, False), (P, True)], [1]),
    ],
)
def test_reading_calls_go_together_and_writing_ones_alone(calls: list, which: list[int]) -> None:
    step = next_step(SPEC, turn(*calls), Spent(), None)
    assert isinstance(step, RunCalls)
    assert [call.index for call in step.calls] == which


@pytest.mark.parametrize(
    ("calls", "which"),
    [
        ([(P, False), (P, True)], [0, 1]),
        ([(P, False), (D, False), (P, False)], [0, 2]),
        ([(W, True), (P, False)], [1]),
    ],
)
def test_other_calls_go_together_if_they_may(calls: list, which: list[int]) -> None:
    step = next_step(SPEC, turn(*calls), Spent(), None, lambda call: True)
    assert isinstance(step, RunCalls)
    assert [call.index for call in step.calls] == which


def test_no_other_call_passes_one_that_waits_for_people() -> None:
    assert isinstance(
        next_step(SPEC, turn((W, False), (P, False)), Spent(), None, lambda call: True),
        WaitForPeople,
    )


@pytest.mark.parametrize("calls", [[(W, False), (P, True)], [(W, True), (P, False)], [(W, True)]])
def test_what_waits_for_people_is_overtaken_by_nothing_that_matters(calls: list) -> None:
    assert isinstance(next_step(SPEC, turn(*calls), Spent(), None), WaitForPeople)


def test_started_calls_are_looked_up_first() -> None:
    step = next_step(SPEC, turn((S, False), (P, True)), Spent(), None)
    assert isinstance(step, FindOut)
    assert [call.index for call in step.calls] == [0]


def test_the_model_is_asked_in_the_beginning_and_after_its_calls() -> None:
    assert next_step(SPEC, [], Spent(), None) == AskModel(None)
    assert next_step(SPEC, turn((D, True)), Spent(), None) == AskModel(None)
    assert next_step(SPEC, turn((D, True)), Spent(steps=9), None) == AskModel(Exit.MAX_TURNS)
    assert next_step(SPEC, turn((D, True)), Spent(), Exit.TOKEN_LIMIT) == AskModel(Exit.TOKEN_LIMIT)


def test_a_turn_without_calls_is_the_answer() -> None:
    assert next_step(SPEC, turn(), Spent(), None) == Conclude(Exit.ANSWER)
    assert next_step(SPEC, turn(), Spent(), Exit.BUDGET) == Conclude(Exit.BUDGET)
