"""Killed with -9 at every named point of a held call: it runs once or not at all, and the record is
honest."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from mcpregistry import failpoints
from mcpregistry.calls.approvals import waiter_leases as process_seats
from mcpregistry.db import db_call, read_database_now
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest, ApprovalSeat, Invocation, Server
from mcpregistry.services.approvals import held_calls, votes, waiters
from mcpregistry.services.upkeep.reaping import reap_calls
from tests import forkserver
from tests.calls.conftest import Site, journal, site
from tests.calls.test_approvals import asking, bob, calling, held, seated, until
from tests.conftest import child_env
from tests.externals import ROOT
from tests.fault.database import until as comes_true
from tests.waiting import HANG_LIMIT

__all__ = ["asking", "bob", "journal", "site"]  # fixtures

pytestmark = pytest.mark.fault
Make = Callable[..., Any]
KILLED = -9


@contextmanager
def process(what: str, point: str) -> Iterator[forkserver.Process]:
    """A holder (or a voter) that kills itself at the point."""
    env = child_env() | {"SLIPSNISSE_FAILPOINT": f"{point}:crash"}
    child = forkserver.popen(["-m", "tests.fault.holder", what], env=env)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def vote(user: User) -> None:
    votes.vote(request_id=ApprovalRequest.objects.get().pk, user=user, approve=True, via="web")


def reap_later() -> None:
    """The clock comes by once every lease has run out."""
    later = timezone.now() + timedelta(days=2)
    held_calls.expire_due(later)
    reap_calls(later)


async def killed_at(point: str, bob: User) -> Invocation:
    """A process dies there. Returns the call as it left it."""
    if point == "voted":
        with process("call", "held") as child:
            await held()
            assert await db_call(child.wait, HANG_LIMIT) == KILLED
        with process("vote", point) as child:
            assert await db_call(child.wait, HANG_LIMIT) == KILLED
    else:
        with process("call", point) as child:
            await held()
            if point != "held":
                await db_call(vote, bob)
            assert await db_call(child.wait, HANG_LIMIT) == KILLED
    return await db_call(Invocation.objects.get)


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize(
    ("point", "left"),
    [
        ("held", InvocationState.PENDING),
        ("voted", InvocationState.READY),
        ("before_claim", InvocationState.READY),
    ],
)
async def test_what_was_not_claimed_is_run_once_by_whoever_comes_back(
    site: Make, asking: Server, bob: User, point: str, left: InvocationState
):
    call = await killed_at(point, bob)
    assert call.state == left
    here: Site = await site()
    assert here.sent() == []
    if left is InvocationState.PENDING:
        await db_call(vote, bob)
    outcome = await here.call("echo__echo", {"n": 1})
    assert (outcome.state, outcome.invocation_id) == (InvocationState.SUCCEEDED, call.pk)
    assert len(here.sent()) == 1


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize(
    ("point", "times"), [("after_claim", {0}), ("after_send", {0, 1}), ("before_end", {1})]
)
async def test_what_was_claimed_is_never_sent_again_and_ends_unknown(
    site: Make, asking: Server, bob: User, point: str, times: set[int]
):
    call = await killed_at(point, bob)
    assert call.state == InvocationState.DISPATCHED
    here: Site = await site()
    assert len(here.sent()) in times
    await db_call(reap_later)
    # the caller comes back, and hears how it ended
    outcome = await here.call("echo__echo", {"n": 1})
    assert (outcome.state, outcome.invocation_id, outcome.error_code) == (
        InvocationState.UNKNOWN,
        call.pk,
        "LEASE_EXPIRED",
    )
    assert len(here.sent()) in times


def test_every_failpoint_is_named_and_reached_somewhere():
    used: set[str] = set()
    for path in [*(ROOT / "mcpregistry").rglob("*.py"), *(ROOT / "subagents").rglob("*.py")]:
        used |= set(re.findall(r'failpoint\("(\w+)"\)', Path(path).read_text()))
    assert used == set(failpoints.NAMES)


def test_without_the_variable_a_failpoint_does_nothing():
    for name in failpoints.NAMES:
        failpoints.failpoint(name)


@pytest.mark.exhaustive
async def test_a_joined_caller_whose_process_is_killed_keeps_its_seat_no_longer_than_its_lease(
    site: Make, asking: Server, bob: User, monkeypatch: pytest.MonkeyPatch
):
    """Else the other's leaving would never end the call, and people would be asked for nobody."""
    monkeypatch.setattr(process_seats, "RENEW", 0.02)
    here: Site = await site()
    living = calling(here)
    await seated(1)
    with process("call", "none") as child:
        await seated(2)
        child.kill()
        await db_call(child.wait, HANG_LIMIT)
    at = await db_call(lambda: read_database_now() + waiters.LEASE + timedelta(seconds=1))
    # both leases are over then; one process still lives
    assert await db_call(held_calls.leave_dead_seats, at) == 0

    def living_alone_renewed() -> bool:
        return ApprovalSeat.objects.filter(doubted=False).count() == 1

    await comes_true(living_alone_renewed)
    later = at + waiters.DOUBT + timedelta(seconds=1)
    assert await db_call(held_calls.leave_dead_seats, later) == 1
    (request,) = await held()
    assert (request.call.state, not living.done()) == (InvocationState.PENDING, True)
    living.cancel()
    await asyncio.gather(living, return_exceptions=True)
    await until(InvocationState.CANCELLED)
    await seated(0)
