"""A refused call is not asked about again at once: the identical call gets the refusal, from every
process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from mcpregistry.calls import refusal_records
from mcpregistry.calls.call import CallHost, CallOutcome, CallRequest
from mcpregistry.db import db_call
from mcpregistry.domain.errors import Conflict, Denied
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Agent, ApprovalRequest, Endpoint, Invocation, PolicyRule, Server
from mcpregistry.services.access import agents, grants
from mcpregistry.services.approvals import votes
from mcpregistry.services.policy.permits import PermitWish
from tests.calls.conftest import ACTOR, Site
from tests.calls.test_approvals import Make, asking, bob, calling, held, vote
from tests.calls.test_approvals_changed import permitted
from tests.waiting import until

__all__ = ["asking", "bob"]  # fixtures

SAID = "REJECTED by Bob: not on a Friday. The call was not made. Do not retry it unchanged."


async def refused(
    here: Site, bob: User, arguments: dict[str, Any] | None = None
) -> ApprovalRequest:
    """A call that bob has refused, and whose caller was told so."""
    call = calling(here, arguments)
    (request,) = await held()
    await vote(bob, False, reason="not on a Friday")
    assert (await call).state is InvocationState.REJECTED
    return request


async def asks(here: Site, arguments: dict[str, Any] | None = None) -> None:
    """People are asked about the call; it is withdrawn again."""
    call = calling(here, arguments)
    await held()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await until(lambda: db_call(lambda: not ApprovalRequest.objects.waiting().exists()))


async def test_the_identical_call_gets_the_refusal_and_nobody_is_asked(
    site: Make, asking: Server, bob: User
) -> None:
    here = await site()
    there = await site()
    await refused(here, bob)
    first = await db_call(ApprovalRequest.objects.get)
    assert first.decided_at is not None
    holds_until = (first.decided_at + timedelta(seconds=300)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for again in (
        await here.call("echo__echo", {"n": 1}),
        await there.call("echo__echo", {"n": 1}),
    ):
        assert (again.state, again.error_code, again.message, again.ticket) == (
            InvocationState.REJECTED,
            "REJECTED",
            SAID,
            None,
        )
        assert "no approver was asked again" in again.remedy
        assert f"after {holds_until}" in again.remedy
        row = await db_call(Invocation.objects.get, pk=again.invocation_id)
        assert (row.state, row.outcome) == ("rejected", "ask")
        assert row.reason.startswith(SAID)
        assert f"/approvals/{first.pk}/" in row.reason
    assert await db_call(ApprovalRequest.objects.count) == 1
    await asks(here, {"n": 2})
    assert here.sent() == []


async def test_another_endpoint_is_no_way_around_it_and_another_agent_is_another(
    site: Make, asking: Server, bob: User
) -> None:
    def prepare() -> None:
        agents.save_endpoint(endpoint=Endpoint(slug="other"), actor=ACTOR)
        agent = agents.save_agent(agent=Agent(slug="eve"), actor=ACTOR)
        grants.grant_access(agent=agent, server=Server.objects.get(slug="echo"), actor=ACTOR)

    await db_call(prepare)
    here: Site = await site()
    await refused(here, bob)

    async def call(endpoint: str, agent: str) -> CallOutcome:
        host = CallHost(name="x", transport="rest", hold=0.0)
        catalogue = here.engine.get_catalogue(endpoint, agent)
        return await here.engine.call(
            CallRequest(catalogue, "echo__echo", {"n": 1}, "http", host=host)
        )

    assert (await call("other", "ann")).message == SAID
    asked = await call("other", "eve")
    assert asked.state is InvocationState.PENDING
    assert asked.ticket is not None
    await here.engine.approvals.requests.cancel(asked.ticket, "enough")


async def test_a_host_that_takes_tasks_is_refused_as_well(
    site: Make, asking: Server, bob: User
) -> None:
    here: Site = await site()
    await refused(here, bob)
    again = await here.call(
        "echo__echo", {"n": 1}, host=CallHost(name="x", transport="http", tasks=True)
    )
    assert (again.state, again.message, again.ticket) == (InvocationState.REJECTED, SAID, None)


def _long_ago() -> None:
    ApprovalRequest.objects.update(decided_at=datetime.now(UTC) - timedelta(seconds=301))


LIFTED: dict[str, Callable[[], Any]] = {
    "the time is over": _long_ago,
    "the rule does not hold it": lambda: PolicyRule.objects.update(refusal_seconds=0),
}


@pytest.mark.parametrize("how", LIFTED)
async def test_it_is_asked_about_again(site: Make, asking: Server, bob: User, how: str) -> None:
    await db_call(PolicyRule.objects.create, name="all", outcome="ask")
    here: Site = await site()
    await refused(here, bob)
    await db_call(LIFTED[how])
    await db_call(here.engine.live.refresh)
    await asks(here)


async def test_who_may_decide_takes_it_back_and_the_refused_call_stays_refused(
    site: Make, asking: Server, bob: User
) -> None:
    here: Site = await site()
    request = await refused(here, bob)
    assert (await here.call("echo__echo", {"n": 1})).state is InvocationState.REJECTED
    await db_call(votes.lift_refusal, request_id=request.pk, user=bob)
    await asks(here)
    assert (
        await db_call(Invocation.objects.get, pk=request.call_id)
    ).state == InvocationState.REJECTED
    assert here.sent() == []


async def test_who_was_told_to_come_back_is_not_given_a_refusal_that_was_taken_back(
    site: Make, asking: Server, bob: User
) -> None:
    here: Site = await site()
    away = CallHost(name="x", transport="rest", hold=0.0)
    assert (await here.call("echo__echo", {"n": 1}, host=away)).state is InvocationState.PENDING
    (request,) = await held()
    await vote(bob, False, reason="not on a Friday")
    await db_call(votes.lift_refusal, request_id=request.pk, user=bob)
    again = await here.call("echo__echo", {"n": 1}, host=away)
    assert again.state is InvocationState.PENDING
    assert again.ticket is not None
    assert again.ticket.id != request.pk
    await here.engine.approvals.requests.cancel(again.ticket, "enough")


async def test_who_may_not_decide_takes_nothing_back_and_what_waits_is_no_refusal(
    site: Make, asking: Server, bob: User
) -> None:
    here: Site = await site()
    request = await refused(here, bob)
    call = calling(here, {"n": 2})
    (waiting,) = await held()
    with pytest.raises(Conflict, match="no longer applies"):
        await db_call(votes.lift_refusal, request_id=waiting.pk, user=bob)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    eve = await db_call(User.objects.create_user, "eve")
    with pytest.raises(Denied):
        await db_call(votes.lift_refusal, request_id=request.pk, user=eve)
    assert (await here.call("echo__echo", {"n": 1})).message == SAID


async def test_a_rule_and_a_permit_lift_it(site: Make, asking: Server, bob: User) -> None:
    here: Site = await site()
    await refused(here, bob, {"n": 1, "note": "a"})
    other = calling(here, {"n": 1, "note": "b"})
    await held()
    await vote(
        bob, permit=PermitWish(until=datetime.now(UTC) + timedelta(hours=1), uses=1, pins={"n": 1})
    )
    assert (await other).state is InvocationState.SUCCEEDED
    # the permit is used up now
    assert (await permitted(here, {"n": 1, "note": "a"})).state is InvocationState.SUCCEEDED
    assert (await here.call("echo__echo", {"n": 1, "note": "a"})).state is InvocationState.REJECTED
    await db_call(PolicyRule.objects.create, name="let it", outcome="allow")
    await db_call(here.engine.live.refresh)
    assert (await here.call("echo__echo", {"n": 1, "note": "a"})).state is InvocationState.SUCCEEDED


async def test_who_keeps_asking_fills_no_disk_and_is_answered_more_slowly(
    site: Make, asking: Server, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[int] = []
    monkeypatch.setattr(
        refusal_records, "compute_repeat_pause", lambda repeats: pauses.append(repeats) or 0.0
    )
    here: Site = await site()
    await refused(here, bob)
    outcomes = [await here.call("echo__echo", {"n": 1}) for _ in range(20)]
    assert {(outcome.state, outcome.message) for outcome in outcomes} == {
        (InvocationState.REJECTED, SAID)
    }
    assert len({outcome.invocation_id for outcome in outcomes}) == 1, (
        "whoever was refused finds a record of it"
    )
    assert pauses == list(range(20))
    before = await db_call(lambda: list(Invocation.objects.values_list("pk", flat=True)))
    assert len(before) == 2
    here.engine.refusals.close()
    last = await until(lambda: db_call(Invocation.objects.exclude(pk__in=before).first))
    assert (last.state, last.error_code) == ("rejected", "REJECTED")
    assert (
        f"19 more identical calls were rejected within a minute after the call {outcomes[0].invocation_id}."
        in last.reason
    )


def test_the_pause_grows_and_is_bounded() -> None:
    pauses = [refusal_records.compute_repeat_pause(repeats) for repeats in range(8)]
    assert pauses == [0, 0.25, 0.5, 1, 2, 2, 2, 2]
    assert refusal_records.compute_repeat_pause(10**9) == 2
