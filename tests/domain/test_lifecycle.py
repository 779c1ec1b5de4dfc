"""The states of a call: the table of moves, and what follows from it."""

from __future__ import annotations

from itertools import product

import pytest

from mcpregistry.domain.lifecycle import MOVES, TERMINAL, InvocationState, is_move_allowed

ALLOWED = {
    ("received", "denied"),
    ("received", "pending"),
    ("received", "ready"),
    ("pending", "rejected"),
    ("pending", "expired"),
    ("pending", "cancelled"),
    ("pending", "void"),
    ("pending", "ready"),
    ("ready", "dispatched"),
    ("ready", "void"),
    ("ready", "cancelled"),
    ("ready", "expired"),
    ("dispatched", "succeeded"),
    ("dispatched", "tool_error"),
    ("dispatched", "not_sent"),
    ("dispatched", "unknown"),
}


@pytest.mark.parametrize(("old", "new"), [*product(InvocationState, InvocationState)])
def test_every_move_is_in_the_table_or_refused(old: InvocationState, new: InvocationState):
    assert is_move_allowed(old, new) is ((old.value, new.value) in ALLOWED)


def test_terminal_states_are_those_without_a_way_out():
    assert {
        InvocationState(name)
        for name in (
            "denied",
            "rejected",
            "expired",
            "cancelled",
            "void",
            "succeeded",
            "tool_error",
            "not_sent",
            "unknown",
        )
    } == TERMINAL


def test_nothing_is_sent_but_from_ready_and_success_comes_only_after_sending():
    assert [old for old, new in MOVES.items() if InvocationState.DISPATCHED in new] == [
        InvocationState.READY
    ]
    assert [old for old, new in MOVES.items() if InvocationState.SUCCEEDED in new] == [
        InvocationState.DISPATCHED
    ]
