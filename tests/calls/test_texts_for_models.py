"""What a model must understand from the answer to a call: whether it ran, how to learn its outcome,
whether to repeat it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mcpregistry.api.call_answers import failure
from mcpregistry.calls.approvals import status_tool
from mcpregistry.calls.approvals.held_call_status import describe_held_call
from mcpregistry.calls.call import CallOutcome
from mcpregistry.calls.connection_placement import STATE_IS_NEW
from mcpregistry.domain.calls.outcome_texts import advise_after_end
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.offer_kinds import PROMPT
from mcpregistry.gateway.host_answers import build_tool_result
from mcpregistry.models import Invocation
from mcpregistry.services.approvals import held_calls
from mcpregistry.services.approvals.held_calls import HeldCallTicket
from tests.fakes.held import decided, hold
from tests.fakes.seed import Site, populate

TICKET = HeldCallTicket(
    id="4711",
    call_id="0815",
    state=InvocationState.PENDING,
    joined=False,
    decide_by=datetime(2026, 11, 28, 12, 30, tzinfo=UTC),
    asked_of="2 approvers",
    url="http://testserver/approvals/4711/",
)
LONGEST = 600  # characters of our own words: they stand in the context of a model


def text_of(outcome: CallOutcome) -> str:
    return str(build_tool_result(outcome, legacy=False)["content"][0]["text"])


def test_pending_answer_says_that_the_call_has_not_run_and_whom_it_waits_for():
    message = describe_held_call(TICKET, InvocationState.PENDING)["message"]
    assert message.startswith("PENDING APPROVAL")
    assert "has not run" in message
    assert "2 approvers" in message
    assert "2026-11-28T12:30:00Z" in message
    assert "Tell the user" in message
    assert TICKET.url in message


@pytest.mark.parametrize(
    "state", [InvocationState.PENDING, InvocationState.READY, InvocationState.DISPATCHED]
)
def test_answer_about_held_call_says_how_to_learn_its_outcome_without_running_it_twice(
    state: InvocationState,
):
    message = describe_held_call(TICKET, state)["message"]
    assert 'mcp_approval_status with the id "4711"' in message
    assert "exactly the same arguments" in message
    assert "only once" in message
    assert "Do not change the arguments" in message
    assert len(message) < LONGEST


def test_answers_about_approved_calls_differ_before_and_while_they_run():
    ready, running = (
        describe_held_call(TICKET, state)["message"]
        for state in (InvocationState.READY, InvocationState.DISPATCHED)
    )
    assert "has not run yet" in ready
    assert "is running" in running
    assert "has not run" not in running


def test_pending_answer_about_a_prompt_asks_for_the_same_prompt():
    assert "same prompt" in describe_held_call(TICKET, InvocationState.PENDING, PROMPT)["message"]


@pytest.mark.parametrize("words", ["status", "approv", "decided and why", "result"])
def test_description_of_the_status_tool_says_what_it_returns(words: str):
    assert words in status_tool._LISTING["description"]


def test_status_tool_says_which_id_it_needs():
    assert "id" in status_tool._UNKNOWN_TEXT
    assert "pending approval" in status_tool._UNKNOWN_TEXT


def test_unknown_outcome_says_that_the_call_may_have_taken_effect_and_is_not_to_be_repeated():
    outcome = CallOutcome(
        "0815",
        InvocationState.UNKNOWN,
        None,
        "TIMEOUT",
        "The server did not answer in time.",
        advise_after_end(InvocationState.UNKNOWN),
    )
    for text in (text_of(outcome), failure(outcome)):
        assert "OUTCOME UNKNOWN" in text
        assert "may have taken effect" in text
        assert "Do not repeat it" in text
        assert "did not answer in time" in text
    assert "0815" in text_of(outcome)


def test_call_that_was_not_sent_is_not_described_as_unknown():
    outcome = CallOutcome(
        "0815",
        InvocationState.NOT_SENT,
        None,
        "BUSY",
        "Too many calls are waiting.",
        advise_after_end(InvocationState.NOT_SENT),
    )
    for text in (text_of(outcome), failure(outcome)):
        assert "NOT SENT" in text
        assert "not sent" in text
        assert "may have taken effect" not in text


def test_lost_state_of_a_session_is_not_described_as_an_error_of_the_call():
    assert "lost" in STATE_IS_NEW
    assert "session" in STATE_IS_NEW
    assert "failed" not in STATE_IS_NEW


@pytest.fixture
def site(db: None) -> Site:
    return populate(calls=0)


def ended(pk: str) -> Invocation:
    return Invocation.objects.get(pk=pk)


def told(call: Invocation) -> str:
    outcome = CallOutcome(
        call.pk,
        InvocationState(call.state),
        None,
        call.error_code,
        call.reason,
        advise_after_end(InvocationState(call.state)),
    )
    return text_of(outcome)


def test_rejection_says_that_the_call_did_not_run_who_rejected_it_and_why(site: Site):
    held = hold()
    decided(
        held, site.people["approver"], approve=False, reason="Not on a Friday.", at=held.asked_at
    )
    text = told(ended(held.call_id))
    assert text.startswith("REJECTED")
    assert "approver" in text
    assert "Not on a Friday" in text
    assert "not made" in text or "not run" in text
    assert "Do not" in text  # repeat it unchanged


def test_call_that_was_not_approved_says_that_it_did_not_run_and_can_be_requested_again(site: Site):
    undecided = hold()
    changed = hold()
    cancelled = hold()
    held_calls.expire(request_id=undecided.pk, now=undecided.decide_by)
    held_calls.void(
        request_id=changed.pk, reason="the tool's definition was changed", now=changed.asked_at
    )
    held_calls.cancel(
        request_id=cancelled.pk, reason="The caller disconnected.", actor="agent:local"
    )
    for held, state in ((undecided, InvocationState.EXPIRED), (changed, InvocationState.VOID)):
        text = told(ended(held.call_id))
        assert text.startswith(state.name)
        assert "not made" in text or "not run" in text
        assert "again" in text
    assert told(ended(cancelled.call_id)).startswith("CANCELLED")
