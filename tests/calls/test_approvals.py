"""Held calls through a real engine: asked, decided by people, run exactly once, with what was
approved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.auth.models import Group, User

from mcpregistry.calls.approvals import caller_waiting
from mcpregistry.calls.call import CallOutcome
from mcpregistry.db import db_call
from mcpregistry.domain.errors import Denied
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import (
    ApprovalRequest,
    ApprovalSeat,
    Configuration,
    Invocation,
    PolicyRule,
    Server,
)
from mcpregistry.services.approvals import held_calls, votes
from tests.calls.conftest import Site, add_server, told, tool
from tests.waiting import until as until_true

pytestmark = pytest.mark.exhaustive(on="postgresql")

Make = Callable[..., Any]
NUMBER = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["n"],
    "additionalProperties": False,
}


def person(name: str, *groups: str) -> User:
    user = User.objects.create_user(name, first_name=name.title())
    user.groups.set([Group.objects.get_or_create(name=each)[0] for each in groups or ("approver",)])
    return user


@pytest.fixture
def asking(live_db: None, journal: Path) -> Server:
    """A server whose calls are all asked about."""
    server = add_server(
        "echo", tool("echo", NUMBER), tool("pid"), env={"FAKE_JOURNAL": str(journal)}
    )
    Configuration.objects.update(default_outcome="ask")
    return server


@pytest.fixture
def bob(live_db: None) -> User:
    return person("bob")


async def held(count: int = 1) -> list[ApprovalRequest]:
    """The open requests, once there are so many."""

    def enough() -> list[ApprovalRequest] | None:
        rows = list(ApprovalRequest.objects.waiting().select_related("call", "group"))
        return rows if len(rows) >= count else None

    return await until_true(lambda: db_call(enough))


async def seated(count: int) -> None:
    """Once so many callers wait, for whatever request."""
    await until_true(lambda: db_call(lambda: ApprovalSeat.objects.count() == count))


async def vote(user: User, approve: bool = True, **facts: Any) -> ApprovalRequest:
    (request,) = await held()
    return await db_call(
        votes.vote, request_id=request.pk, user=user, approve=approve, via="web", **facts
    )


async def only() -> tuple[ApprovalRequest, list[str]]:
    request = await db_call(lambda: ApprovalRequest.objects.select_related("call").get())
    return request, await db_call(told, request.call_id)


async def until(state: InvocationState) -> ApprovalRequest:
    async def reached() -> ApprovalRequest | None:
        request, _ = await only()
        return request if request.call.state == state else None

    return await until_true(reached)


def calling(here: Site, arguments: dict[str, Any] | None = None) -> asyncio.Task[CallOutcome]:
    return asyncio.ensure_future(here.call("echo__echo", arguments or {"n": 1}))


async def test_an_approved_call_runs_and_its_caller_gets_the_answer(
    site: Make, asking: Server, bob: User
):
    here: Site = await site()
    call = calling(here)
    await held()
    assert here.sent() == []
    await vote(bob)
    outcome = await call
    assert outcome.state == InvocationState.SUCCEEDED
    assert [sent["arguments"] for sent in here.sent()] == [{"n": 1}]
    request, kinds = await only()
    assert kinds == [
        "call.pending",
        "approval.vote",
        "call.approved",
        "call.dispatched",
        "call.succeeded",
    ]
    assert (request.call.outcome, request.call.fence, request.join_key) == ("ask", 1, None)
    assert request.delivered_at is not None


async def test_a_rejection_is_told_with_name_and_reason(site: Make, asking: Server, bob: User):
    here: Site = await site()
    call = calling(here)
    await held()
    await vote(bob, False, reason="Not on a Friday.")
    outcome = await call
    assert (outcome.state, outcome.error_code) == (InvocationState.REJECTED, "REJECTED")
    assert (
        outcome.message
        == "REJECTED by Bob: Not on a Friday. The call was not made. Do not retry it unchanged."
    )
    assert here.sent() == []
    assert (await only())[1] == ["call.pending", "approval.vote", "call.rejected"]


# -- waiting, leaving, coming back -----------------------------------------------------------------


async def pending(
    here: Site, settings: Any, arguments: dict[str, Any] | None = None
) -> CallOutcome:
    """A call whose host cannot wait: it is told "pending" at once."""
    settings.MCP_HOLD_SECONDS = 0
    outcome = await here.call("echo__echo", arguments or {"n": 1})
    assert outcome.state == InvocationState.PENDING
    assert outcome.ticket is not None
    return outcome


async def asked_anew(here: Site, settings: Any, first: CallOutcome) -> None:
    """The identical call is a new request; nobody decides on it any more."""
    again = await pending(here, settings)
    assert (again.ticket.id != first.ticket.id, again.ticket.joined) == (True, False)
    assert (
        await here.engine.approvals.requests.cancel(again.ticket, "Enough")
        == InvocationState.CANCELLED
    )


@pytest.mark.both_databases
async def test_a_caller_that_leaves_takes_its_request_with_it(
    site: Make, asking: Server, bob: User
):
    here: Site = await site()
    call = calling(here)
    (request,) = await held()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    ended = await until(InvocationState.CANCELLED)
    with pytest.raises(votes.AlreadyDecided, match="disconnected"):
        await db_call(votes.vote, request_id=request.pk, user=bob, approve=True, via="web")
    assert (ended.join_key, here.sent()) == (None, [])


async def test_a_caller_that_leaves_at_once_leaves_no_open_request(site: Make, asking: Server):
    here: Site = await site()
    for ticks in range(12):
        call = calling(here, {"n": ticks})
        for _ in range(ticks):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    await until_true(
        lambda: db_call(
            lambda: not Invocation.objects.exclude(state=InvocationState.CANCELLED).exists()
        )
    )
    assert here.sent() == []


@pytest.mark.both_databases
async def test_the_identical_call_joins_and_each_caller_gets_the_one_result(
    site: Make, asking: Server, bob: User
):
    here = await site()
    there = await site()
    calls = [calling(here), calling(there), calling(here)]
    await seated(3)
    other = calling(here, {"n": 2})
    await held(2)
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)
    request = next(each for each in await held() if each.call.arguments == '{"n":1}')
    await db_call(votes.vote, request_id=request.pk, user=bob, approve=True, via="web")
    outcomes = await asyncio.gather(*calls)
    assert {outcome.state for outcome in outcomes} == {InvocationState.SUCCEEDED}
    assert len({outcome.invocation_id for outcome in outcomes}) == 1
    assert outcomes[0].result == outcomes[1].result == outcomes[2].result
    assert len(here.sent()) == 1


async def test_one_caller_leaving_does_not_take_the_call_from_the_other(
    site: Make, asking: Server, bob: User
):
    here: Site = await site()
    first = calling(here)
    second = calling(here)
    await seated(2)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await vote(bob)
    assert (await second).state == InvocationState.SUCCEEDED


@pytest.mark.both_databases
async def test_whoever_was_told_pending_comes_back_for_the_result_once(
    site: Make, asking: Server, bob: User, settings: Any
):
    here: Site = await site()
    first = await pending(here, settings)
    again = await pending(here, settings)
    assert (again.ticket.id, again.ticket.joined) == (first.ticket.id, True)
    await vote(bob)
    await until(InvocationState.READY)
    assert here.sent() == []
    done = await here.call("echo__echo", {"n": 1})
    assert (done.state, done.invocation_id) == (InvocationState.SUCCEEDED, first.invocation_id)
    assert len(here.sent()) == 1
    await asked_anew(here, settings, first)


async def test_a_refusal_waits_for_the_caller_who_was_told_pending(
    site: Make, asking: Server, bob: User, settings: Any
):
    here: Site = await site()
    await pending(here, settings)
    await vote(bob, False, reason="no")
    outcome = await here.call("echo__echo", {"n": 1})
    assert (outcome.state, here.sent()) == (InvocationState.REJECTED, [])
    assert "REJECTED by Bob: no." in outcome.message


async def test_silence_means_no(site: Make, asking: Server, bob: User):
    here: Site = await site()
    call = calling(here)
    (request,) = await held()
    late = datetime.now(UTC) + timedelta(hours=1)
    with pytest.raises(votes.AlreadyDecided, match="was not approved in time"):
        await db_call(
            votes.vote, request_id=request.pk, user=bob, approve=True, via="web", now=late
        )
    outcome = await call
    assert (outcome.state, outcome.error_code, outcome.message) == (
        InvocationState.EXPIRED,
        "EXPIRED",
        held_calls.SILENCE,
    )
    assert "approvers are asked again" in outcome.remedy
    assert here.sent() == []


@pytest.mark.both_databases
async def test_the_holder_itself_ends_what_nobody_decides(site: Make, asking: Server):
    rule = PolicyRule(name="quick", outcome="ask", decide_seconds=5)
    await db_call(rule.save)
    await db_call(lambda: PolicyRule.objects.update(decide_seconds=1))
    here: Site = await site()
    outcome = await here.call("echo__echo", {"n": 1})
    assert outcome.state == InvocationState.EXPIRED
    assert await db_call(held_calls.expire_due, datetime.now(UTC)) == 0


async def test_an_approval_that_nobody_uses_in_time_runs_nothing(
    site: Make, asking: Server, bob: User, settings: Any
):
    here: Site = await site()
    await pending(here, settings)
    request = await vote(bob)
    assert await db_call(held_calls.expire_due, request.execute_by) == 1
    outcome = await here.call("echo__echo", {"n": 1})
    assert (outcome.state, outcome.message, here.sent()) == (
        InvocationState.EXPIRED,
        held_calls.TOO_LATE,
        [],
    )


async def test_an_end_that_nobody_came_for_in_time_is_asked_anew(
    site: Make, asking: Server, bob: User, settings: Any
):
    here: Site = await site()
    first = await pending(here, settings)
    await vote(bob, False)
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    # a refusal holds five minutes
    await db_call(lambda: ApprovalRequest.objects.update(decided_at=long_ago))
    await db_call(held_calls.forget_ends, datetime.now(UTC) + timedelta(hours=1))
    await asked_anew(here, settings, first)


async def test_a_caller_that_leaves_while_it_runs_cancels_it_downstream(
    site: Make, live_db: None, journal: Path
):
    def prepare() -> User:
        add_server("slow", tool("count"), env={"FAKE_JOURNAL": str(journal)})
        Configuration.objects.update(default_outcome="ask")
        return person("bob")

    bob = await db_call(prepare)
    here: Site = await site()
    call = asyncio.ensure_future(here.call("slow__count", {"steps": 1000, "pause": 0.05}))
    await held()
    await vote(bob)
    await here.until_sent()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert (await until(InvocationState.UNKNOWN)).call.error_code == "CANCELLED"


async def test_a_call_may_run_although_its_caller_has_left(site: Make, asking: Server, bob: User):
    await db_call(PolicyRule(name="anyway", outcome="ask", run_if_caller_left=True).save)
    here: Site = await site()
    call = calling(here)
    await held()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await seated(0)
    request = await vote(bob)
    soon = datetime.now(UTC) + timedelta(seconds=2)
    assert await db_call(held_calls.list_calls_for_workers, soon) == [request.call_id]
    assert (
        await here.engine.approvals.runner.settle_call(request.call_id)
    ).state == InvocationState.SUCCEEDED
    back = await here.call("echo__echo", {"n": 1})
    assert (back.invocation_id, back.state, len(here.sent())) == (
        request.call_id,
        InvocationState.SUCCEEDED,
        1,
    )
    assert back.result["structuredContent"]["arguments"] == {"n": 1}


@pytest.mark.both_databases
async def test_stopping_the_site_leaves_requests_open_for_the_next_process(
    site: Make, asking: Server, bob: User
):
    here = await site()
    there = await site()
    call = calling(here)
    (request,) = await held()
    await here.engine.stop()
    outcome = await call
    assert (outcome.state, outcome.ticket.id) == (InvocationState.PENDING, request.pk)
    again = calling(there)
    await vote(bob)
    assert (await again).invocation_id == request.call_id
    assert len(there.sent()) == 1


# -- over several processes ------------------------------------------------------------------------


@pytest.mark.both_databases
async def test_of_many_who_want_to_run_it_one_does(
    site: Make, asking: Server, bob: User, settings: Any
):
    here = await site()
    there = await site()
    first = await pending(here, settings)
    await vote(bob)
    sides = [here.engine.approvals.runner, there.engine.approvals.runner] * 10
    outcomes = await asyncio.gather(*(side.run(first.ticket) for side in sides))
    assert {outcome.state for outcome in outcomes} == {InvocationState.SUCCEEDED}
    assert len(here.sent()) == 1
    assert (await only())[1].count("call.dispatched") == 1


async def test_a_host_may_ask_the_requester_only_where_the_rule_says_so(
    site: Make, asking: Server, bob: User
):
    here: Site = await site()
    call = calling(here)
    (request,) = await held()
    ticket = await db_call(held_calls.find, held_id=request.pk, agent_slug="ann")
    with pytest.raises(Denied):
        await here.engine.approvals.requests.confirm(ticket, "the person at host")
    await vote(bob)
    await call


async def test_the_person_at_the_host_confirms_where_the_rule_says_so(site: Make, asking: Server):
    await db_call(PolicyRule(name="own", outcome="ask", requester_may_confirm=True).save)
    here: Site = await site()
    call = calling(here)
    (request,) = await held()
    ticket = await db_call(held_calls.find, held_id=request.call_id, agent_slug="ann")
    assert (
        await here.engine.approvals.requests.confirm(ticket, "the person at host")
        == InvocationState.READY
    )
    assert (await call).state == InvocationState.SUCCEEDED
    assert await db_call(held_calls.find, held_id=request.pk, agent_slug="other") is None


@pytest.mark.both_databases
async def test_an_approval_wakes_the_call_that_waits_for_it(site: Make, asking: Server, bob: User):
    """The database alone carries it from one to the other; that a call looks by itself every ten
    seconds is not needed."""
    here: Site = await site()
    with patch.object(caller_waiting, "TELL_EVERY", 3600.0):
        call = calling(here)
        await held()
        await vote(bob)
        assert (await call).state == InvocationState.SUCCEEDED


async def test_of_callers_who_joined_one_request_the_running_call_is_everybodys(
    site: Make, live_db: None, journal: Path
):
    """They wake together. Whoever loses the claim must not take the call that is out off the list
    of those that run."""

    def asked() -> None:
        add_server("slow", tool("count"), env={"FAKE_JOURNAL": str(journal)})
        Configuration.objects.update(default_outcome="ask")

    await db_call(asked)
    here: Site = await site()
    callers = [
        asyncio.ensure_future(here.call("slow__count", {"steps": 1000, "pause": 0.1}))
        for _ in range(3)
    ]
    await seated(3)
    await vote(await db_call(person, "bob"))
    await here.until_sent()
    await asyncio.sleep(0.3)  # those who lost have come to their end
    assert len(here.engine.approvals.runner._running) == 1
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    ended = await until(InvocationState.UNKNOWN)
    assert ended.call.error_code == "CANCELLED"
    assert len(here.sent()) == 1
