"""What is told of ends that look alike: of a call that was not sent nothing has happened, of the
other nobody knows."""

from __future__ import annotations

import pytest

from mcpregistry.domain.calls.ends import NOT_SENT, advice, headline
from mcpregistry.domain.error_texts import OUTCOME_UNKNOWN
from mcpregistry.domain.lifecycle import State


def test_what_is_unknown_is_called_so_and_is_not_to_be_repeated():
    said = advice(State.UNKNOWN)
    assert OUTCOME_UNKNOWN in said
    assert "Do not repeat it before you have checked, or asked the user." in said


@pytest.mark.parametrize("confirmed", [{"read_only": True}, {"idempotent": True}])
def test_what_an_operator_has_confirmed_to_do_no_harm_may_be_repeated(confirmed: dict[str, bool]):
    said = advice(State.UNKNOWN, **confirmed)
    assert "may have taken effect" in said
    assert "Do not repeat" not in said
    assert "confirmed" in said


def test_what_was_not_sent_differs_in_every_word():
    assert advice(State.NOT_SENT) == NOT_SENT
    assert "not sent" in NOT_SENT
    assert headline(State.NOT_SENT, "CONNECTION_FAILED") == "NOT SENT (CONNECTION_FAILED)"
    assert headline(State.UNKNOWN, "CONNECTION_FAILED") == "OUTCOME UNKNOWN (CONNECTION_FAILED)"
    assert headline(State.DENIED, "DENIED") == "DENIED"


def test_after_silence_it_is_said_what_to_do():
    assert "approvers are asked again" in advice(State.EXPIRED)
    assert advice(State.SUCCEEDED) == ""
