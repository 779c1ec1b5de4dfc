"""Something of the product's own fails around a held call: what its caller is told agrees with its
record."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError

from mcpregistry.calls.approvals import waiter_leases as process_seats
from mcpregistry.calls.call import CallOutcome
from mcpregistry.db import db_call, read_database_now
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest, ApprovalSeat, AuditEntry, Invocation, Permit, Server
from mcpregistry.services.approvals import held_calls, waiters
from mcpregistry.services.policy import permits
from mcpregistry.services.policy.permits import PermitWish
from tests.calls.conftest import Site
from tests.calls.test_approvals import asking, bob, calling, held, only, seated, vote
from tests.calls.test_approvals_changed import permitted
from tests.calls.test_pipeline import Outage, echo
from tests.waiting import HANG_LIMIT, until

__all__ = ["asking", "bob", "echo"]
Make = Callable[..., Any]
pytestmark = pytest.mark.fault


def failing(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception, *, times: int = 1_000
) -> None:
    """The function raises as often, then works again."""
    real = getattr(owner, name)
    left = [times]

    def function(*args: Any, **kwargs: Any) -> Any:
        if left[0] > 0:
            left[0] -= 1
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, function)


async def recorded() -> tuple[str, str, list[str]]:
    """State and code of the only call, and the kinds of its audit entries."""

    def read() -> tuple[str, str, list[str]]:
        call = Invocation.objects.get()
        kinds = (
            AuditEntry.objects.filter(subject=f"call:{call.pk}")
            .order_by("id")
            .values_list("kind", flat=True)
        )
        return call.state, call.error_code, list(kinds)

    return await db_call(read)


async def test_a_server_that_cannot_be_loaded_during_an_outage_is_no_defect(
    site: Make, echo: Server
) -> None:
    here: Site = await site()

    async def dispatch(*_: Any, **__: Any) -> dict[str, Any]:
        raise OperationalError("no connection")

    here.engine.pipeline.execution.dispatchers = dict.fromkeys(
        here.engine.pipeline.execution.dispatchers, dispatch
    )
    outcome = await here.call("echo__echo", {"n": 1})
    assert (outcome.state, outcome.error_code) == (InvocationState.NOT_SENT, "UNAVAILABLE")


# -- after the call was sent -----------------------------------------------------------------------


async def test_a_call_that_succeeded_is_told_so_though_noting_that_fails(
    site: Make, asking: Server, bob: User, monkeypatch: pytest.MonkeyPatch
):
    here: Site = await site()
    failing(monkeypatch, held_calls, "record_delivery", OperationalError("database is locked"))
    call = calling(here)
    await held()
    await vote(bob)
    outcome = await call
    assert (outcome.state, bool(outcome.result)) == (InvocationState.SUCCEEDED, True)
    assert (await recorded())[0] == "succeeded"
    assert len(here.sent()) == 1


async def test_what_fails_once_while_a_call_is_out_does_not_change_what_its_caller_hears(
    site: Make, asking: Server, bob: User, monkeypatch: pytest.MonkeyPatch
):
    here: Site = await site()
    call = calling(here)
    await held()
    failing(monkeypatch, held_calls, "load", OperationalError("gone"), times=1)
    await vote(bob)
    outcome = await call
    if outcome.ticket is not None:  # it is told to come back, and does
        outcome = await here.engine.approvals.runner.run(outcome.ticket)
    assert outcome.state == InvocationState.SUCCEEDED
    assert ((await recorded())[0], len(here.sent())) == ("succeeded", 1)


# -- before it was held ----------------------------------------------------------------------------


async def test_a_fault_while_asking_is_recorded_as_the_end_it_is(
    site: Make, asking: Server, monkeypatch: pytest.MonkeyPatch
):
    here: Site = await site()
    failing(monkeypatch, held_calls, "ask", KeyError("hunter2"))
    outcome = await calling(here)
    assert (outcome.state, outcome.error_code) == (InvocationState.CANCELLED, "DENIED")
    assert "hunter2" not in outcome.message + outcome.remedy
    assert await recorded() == ("cancelled", "DENIED", ["call.cancelled"])
    assert here.sent() == []


async def test_a_call_that_cannot_be_written_to_be_held_is_not_recorded_like_any_other(
    site: Make, asking: Server, monkeypatch: pytest.MonkeyPatch
):
    here: Site = await site()
    failing(monkeypatch, held_calls, "ask", OperationalError("database or disk is full"))
    outcome = await calling(here)
    assert (outcome.state, outcome.error_code) == (InvocationState.NOT_SENT, "NOT_RECORDED")
    assert await db_call(Invocation.objects.count) == 0
    assert here.sent() == []


async def test_a_joined_caller_whose_waiting_breaks_gives_its_seat_back(
    site: Make, asking: Server, bob: User, monkeypatch: pytest.MonkeyPatch
):
    here: Site = await site()
    waiting = here.engine.pipeline.holder
    real = waiting._wait_for_host
    holding = asyncio.Event()

    async def hold(*args: Any) -> InvocationState:
        """Waits for the first caller alone; its request shows in the database before it comes
        here."""
        if holding.is_set():
            raise RuntimeError("ours")
        holding.set()
        return await real(*args)

    monkeypatch.setattr(waiting, "_wait_for_host", hold)
    first = calling(here)
    await until(holding.is_set)
    second = await calling(here)
    await seated(1)
    assert second.state == InvocationState.PENDING
    assert second.ticket is not None
    assert await db_call(lambda: Invocation.objects.filter(pk=second.invocation_id).exists())
    assert not first.done()
    await vote(bob, approve=False, reason="no")
    assert (await first).state == InvocationState.REJECTED


def unheard() -> None:
    """The clock comes by until no seat is left that nobody renews."""
    at = read_database_now() + waiters.LEASE + timedelta(seconds=1)
    for _ in range(2):
        held_calls.leave_dead_seats(at)
        at += waiters.DOUBT + timedelta(seconds=1)


async def test_a_caller_whose_seat_cannot_be_given_back_is_not_waited_for_after_its_lease(
    site: Make, asking: Server, monkeypatch: pytest.MonkeyPatch
):
    here: Site = await site()
    call = calling(here)
    await seated(1)
    refused = threading.Event()

    def leave(**_: Any) -> bool:
        refused.set()
        raise OperationalError("gone")

    monkeypatch.setattr(held_calls, "leave", leave)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert await asyncio.to_thread(refused.wait, HANG_LIMIT)
    await seated(1)
    await db_call(unheard)
    await seated(0)
    assert await recorded() == ("cancelled", "CANCELLED", ["call.pending", "call.cancelled"])


async def test_the_seat_of_a_caller_who_waits_is_renewed(
    site: Make, asking: Server, bob: User, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(process_seats, "RENEW", 0.02)
    here: Site = await site()
    call = calling(here)
    await seated(1)
    await db_call(ApprovalSeat.objects.update, lease_until=datetime.now(UTC), doubted=True)

    def renewed() -> bool:
        return ApprovalSeat.objects.filter(
            lease_until__gt=read_database_now() + waiters.LEASE / 2, doubted=False
        ).exists()

    await until(lambda: db_call(renewed))
    await vote(bob)
    assert (await call).state == InvocationState.SUCCEEDED
    await seated(0)


# -- permits ---------------------------------------------------------------------------------------


async def given(here: Site, bob: User) -> None:
    """A permit for one use, of which this engine has heard."""
    first = calling(here, {"n": 1, "note": "ask"})
    await held()
    await vote(
        bob, permit=PermitWish(until=datetime.now(UTC) + timedelta(hours=1), uses=1, pins={"n": 1})
    )
    assert (await first).state == InvocationState.SUCCEEDED
    await until(lambda: here.engine.live.current.permits)


async def uses_left(number: int) -> None:
    await until(lambda: db_call(lambda: Permit.objects.get().uses_left == number))


async def test_a_permit_whose_call_could_not_be_recorded_has_its_use_back(
    site: Make, asking: Server, bob: User, monkeypatch: pytest.MonkeyPatch
):
    here: Site = await site()
    await given(here, bob)
    outage = Outage(monkeypatch)
    outage.on = True
    outcome: CallOutcome = await here.call("echo__echo", {"n": 1})
    assert (outcome.state, outcome.error_code) == (InvocationState.NOT_SENT, "NOT_RECORDED")
    outage.on = False
    await uses_left(1)
    assert (await permitted(here, {"n": 1})).state == InvocationState.SUCCEEDED
    await uses_left(0)
    assert await db_call(lambda: AuditEntry.objects.filter(kind="permit.returned").count()) == 1


async def test_a_caller_that_leaves_while_its_permit_is_looked_up_gives_the_use_back(
    site: Make, asking: Server, bob: User, monkeypatch: pytest.MonkeyPatch
):
    here: Site = await site()
    await given(here, bob)
    real = permits.use_permit
    entered = threading.Event()
    go = threading.Event()

    def slow(**kwargs: Any) -> Any:
        entered.set()
        go.wait(HANG_LIMIT)
        return real(**kwargs)

    monkeypatch.setattr(permits, "use_permit", slow)
    call = calling(here, {"n": 1})
    await until(lambda: entered.is_set())
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    go.set()

    def returned() -> int:
        return AuditEntry.objects.filter(kind="permit.returned").count()

    await until(lambda: db_call(returned))
    await uses_left(1)
    request, _ = await only()
    assert await db_call(lambda: ApprovalRequest.objects.count()) == 1
    assert request.call.state == InvocationState.SUCCEEDED
