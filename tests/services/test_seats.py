"""Seats of held calls: taken, renewed, given back; what follows when the last one goes, and when a
process dies."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from mcpregistry.db import read_database_now
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalSeat, AuditEntry
from mcpregistry.services.approvals import held_calls, waiters
from mcpregistry.services.approvals.held_calls import HeldCallTicket
from mcpregistry.services.approvals.votes import is_run_by_worker
from tests.services.test_approvals import _site, ask, bob, request_of, state_of, yes

__all__ = ["_site", "bob"]  # fixtures
pytestmark = pytest.mark.django_db
MOMENT = timedelta(seconds=1)


def leave(ticket: HeldCallTicket) -> bool:
    return held_calls.leave(
        request_id=ticket.id, caller=ticket.caller, reason="Gone", now=read_database_now()
    )


def sweep(at: datetime) -> int:
    return held_calls.leave_dead_seats(at)


def silence() -> datetime:
    """No process renews anything, and the clock comes by until every seat has had its second
    chance."""
    over = read_database_now() + waiters.LEASE + MOMENT
    assert sweep(over) == 0
    assert sweep(over + waiters.DOUBT) == 0
    return over + waiters.DOUBT + MOMENT


def sitting() -> set[str]:
    return set(ApprovalSeat.objects.values_list("caller", flat=True))


def test_of_two_who_wait_one_may_leave_and_the_call_ends_with_the_last():
    first = ask(1)
    second = ask(2)
    assert (first.caller, second.caller) == (f"{1:032x}", f"{2:032x}")
    assert leave(first) is False
    assert (state_of(first), sitting()) == (InvocationState.PENDING, {second.caller})
    assert leave(second) is True
    assert (state_of(first), sitting()) == (InvocationState.CANCELLED, set())


def test_a_caller_that_leaves_twice_takes_nobody_elses_seat():
    first = ask(1)
    second = ask(2)
    assert [leave(first), leave(first)] == [False, False]
    assert (state_of(first), sitting()) == (InvocationState.PENDING, {second.caller})


def test_a_caller_that_comes_again_from_another_process_has_one_seat():
    first = ask(1)
    request = request_of(first)
    waiters.take_seat(request, caller=first.caller, process="worker:2")
    assert list(request.seats.values_list("process", flat=True)) == ["worker:2"]


def test_the_seat_of_a_dead_process_ends_by_itself_and_the_call_with_the_last():
    ticket = ask(1)
    at = silence()
    assert (state_of(ticket), sweep(at)) == (InvocationState.PENDING, 1)
    call = request_of(ticket).call
    assert (call.state, call.reason) == (
        InvocationState.CANCELLED,
        f"{held_calls.UNHEARD}. The call was not made.",
    )
    assert (
        AuditEntry.objects.filter(
            kind="call.cancelled", subject=f"call:{call.pk}", actor="approvals"
        ).count()
        == 1
    )
    assert (sitting(), sweep(at)) == (set(), 0)


def test_a_process_that_was_only_slow_keeps_its_seats():
    """After a laptop's sleep the clock may come before the renewal."""
    slow = ask(1)
    dead = ask(2)
    at = silence()
    waiters.renew([slow.caller])
    assert sweep(at) == 1
    assert (state_of(slow), sitting()) == (InvocationState.PENDING, {slow.caller})
    assert leave(slow) is True
    assert state_of(dead) == InvocationState.CANCELLED


def test_a_seat_whose_lease_is_over_counts_for_nobody_who_leaves():
    """Also where no clock comes by: runmcp alone."""
    ask(1)
    second = ask(2)
    ApprovalSeat.objects.exclude(pk=second.caller).update(lease_until=read_database_now() - MOMENT)
    assert leave(second) is True
    assert state_of(second) == InvocationState.CANCELLED


def test_a_dead_process_does_not_end_a_call_whose_caller_comes_back():
    first = ask(1)
    second = ask(2)
    assert (
        held_calls.mark_caller_away(request_id=second.id, caller=second.caller).state
        is InvocationState.PENDING
    )
    assert sweep(silence()) == 1
    assert (state_of(first), sitting()) == (InvocationState.PENDING, set())


def test_a_call_that_runs_although_its_caller_left_is_a_workers_once_its_process_is_dead(bob):
    ticket = ask(1, run_if_caller_left=True)
    assert not is_run_by_worker(request_of(ticket))
    assert sweep(silence()) == 1
    assert state_of(ticket) == InvocationState.PENDING
    assert is_run_by_worker(yes(ticket, bob))


def test_an_end_that_was_told_leaves_no_seat():
    ticket = ask(1)
    held_calls.cancel(request_id=ticket.id, reason="Enough", actor="x")
    held_calls.record_delivery(request_id=ticket.id, caller=ticket.caller, now=read_database_now())
    assert sitting() == set()
