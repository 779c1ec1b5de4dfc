"""What is told of ends that look alike: of a call that was not sent nothing has happened, of the
other nobody knows."""

from __future__ import annotations

import pytest

from mcpregistry.domain.calls.outcome_texts import NOT_SENT, advise_after_end, compose_headline
from mcpregistry.domain.error_texts import OUTCOME_UNKNOWN
from mcpregistry.domain.lifecycle import InvocationState


def test_what_is_unknown_is_called_so_and_is_not_to_be_repeated():
    said = advise_after_end(InvocationState.UNKNOWN)
    assert OUTCOME_UNKNOWN in said
    assert "Do not repeat it before you have checked, or asked the user." in said


@pytest.mark.parametrize("confirmed", [{"read_only": True}, {"idempotent": True}])
def test_what_an_operator_has_confirmed_to_do_no_harm_may_be_repeated(confirmed: dict[str, bool]):
    said = advise_after_end(InvocationState.UNKNOWN, **confirmed)
    assert "may have taken effect" in said
    assert "Do not repeat" not in said
    assert "confirmed" in said


def test_what_was_not_sent_differs_in_every_word():
    assert advise_after_end(InvocationState.NOT_SENT) == NOT_SENT
    assert "not sent" in NOT_SENT
    assert (
        compose_headline(InvocationState.NOT_SENT, "CONNECTION_FAILED")
        == "NOT SENT (CONNECTION_FAILED)"
    )
    assert (
        compose_headline(InvocationState.UNKNOWN, "CONNECTION_FAILED")
        == "OUTCOME UNKNOWN (CONNECTION_FAILED)"
    )
    assert compose_headline(InvocationState.DENIED, "DENIED") == "DENIED"


def test_after_silence_it_is_said_what_to_do():
    assert "approvers are asked again" in advise_after_end(InvocationState.EXPIRED)
    assert advise_after_end(InvocationState.SUCCEEDED) == ""
