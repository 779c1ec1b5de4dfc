"""Nobody approves what they asked for, whichever door they asked through: the person is a column of
the call."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from mcpregistry.db import db_call
from mcpregistry.models import ApprovalRequest, AuditEntry, Invocation, PolicyRule
from mcpregistry.services.approvals import votes
from tests.api.test_approvals import held, send  # noqa: F401 - the fixture
from tests.api.test_calls import Site, site  # noqa: F401 - the fixture
from tests.services.test_invariants import broken

RULE = "No user approved their own call."
pytestmark = pytest.mark.attack


async def ask_as(site: Site, who: str, **arguments: Any) -> str:  # noqa: F811
    """A person asks in the name of the agent "robot"; gives the id of the held request."""
    status, answer = await site.call("echo__echo", {"params": arguments, "agent": "robot"}, who=who)
    assert status == 202, answer
    return answer["mcp"]["approval"]["id"]


async def approve(site: Site, held_id: str, who: str, **more: Any) -> tuple[int, Any]:  # noqa: F811
    _, shown = await send(site, "GET", f"/{held_id}", who)
    return await send(site, "POST", f"/{held_id}/approve", who, {"seen": shown["seen"]} | more)


async def test_who_asked_in_an_agents_name_does_not_approve_it_and_another_does(held):  # noqa: F811
    held_id = await ask_as(held, "ann", a=1)
    status, told = await approve(held, held_id, "ann")
    assert (status, told["message"]) == (
        403,
        "You requested this call, so another approver must decide.",
    )
    status, shown = await approve(held, held_id, "bob")
    assert (status, shown["state"]) == (200, "ready")
    assert shown["requester"].startswith("approver-")
    status, _ = await held.call("echo__echo", {"params": {"a": 1}, "agent": "robot"}, who="ann")
    assert status == 200
    call = await db_call(Invocation.objects.get, arguments='{"a":1}')
    assert (call.state, call.requester) == ("succeeded", shown["requester"])
    assert call.requester_id == await db_call(lambda: User.objects.get(username=call.requester).pk)
    bodies = await db_call(
        lambda: list(
            AuditEntry.objects.filter(
                subject=f"call:{call.pk}", kind__in=["call.pending", "call.dispatched"]
            ).values_list("body", flat=True)
        )
    )
    assert len(bodies) == 2
    assert all(f'"requester":"{call.requester}"' in body for body in bodies)
    assert await db_call(lambda: RULE not in broken())


async def test_the_identical_call_of_another_is_another_so_nobody_slips_in_behind_a_request(held):  # noqa: F811
    of_agent = (await held.call("echo__echo", {"params": {"a": 2}}))[1]["mcp"]["approval"]["id"]
    of_ann = await ask_as(held, "ann", a=2)
    assert len({of_agent, of_ann, await ask_as(held, "bob", a=2)}) == 3
    assert await ask_as(held, "ann", a=2) == of_ann
    assert (await approve(held, of_agent, "ann"))[0] == 200
    assert (await approve(held, of_ann, "ann"))[0] == 403


async def test_a_renamed_account_is_the_same_person(held):  # noqa: F811
    held_id = await ask_as(held, "ann", a=3)
    name = await db_call(lambda: Invocation.objects.get(arguments='{"a":3}').requester)
    await db_call(lambda: User.objects.filter(username=name).update(username="somebody-else"))
    assert (await approve(held, held_id, "ann"))[0] == 403


@pytest.mark.exhaustive
async def test_a_permit_of_ones_own_does_not_count_for_ones_own_calls(held):  # noqa: F811
    first = (await held.call("echo__echo", {"params": {"a": 4}}))[1]["mcp"]["approval"]["id"]
    until = (timezone.now() + timedelta(hours=1)).isoformat()
    assert (await approve(held, first, "ann", permit={"until": until}))[0] == 200
    body = {"params": {"a": 5}, "agent": "robot"}
    assert (await held.call("echo__echo", body, who="ann"))[0] == 202
    # until this process has heard of the permit
    while (await held.call("echo__echo", body, who="bob"))[0] != 200:
        pass


async def test_only_where_the_rule_says_so_the_requester_confirms_and_permits_nothing(held):  # noqa: F811
    await db_call(
        PolicyRule.objects.create,
        name="own word",
        outcome="ask",
        requester_may_confirm=True,
        priority=500,
    )
    while not (
        await db_call(
            ApprovalRequest.objects.filter(
                pk=await ask_as(held, "ann", a=6), requester_may_confirm=True
            ).exists
        )
    ):
        pass  # until this process has heard of the rule
    held_id = await ask_as(held, "ann", a=6)
    until = (timezone.now() + timedelta(hours=1)).isoformat()
    status, told = await approve(held, held_id, "ann", permit={"until": until})
    assert (status, "cannot create a permit" in told["message"]) == (403, True)
    assert (await approve(held, held_id, "ann"))[0] == 200
    assert await db_call(lambda: RULE not in broken())


@pytest.mark.exhaustive
async def test_a_vote_from_before_stops_counting_and_the_invariant_names_it(held):  # noqa: F811
    held_id = await ask_as(held, "ann", a=7)
    await approve(held, held_id, "bob")

    def forge() -> tuple[str, bool]:
        request = ApprovalRequest.objects.select_related("call", "group").get(pk=held_id)
        request.votes.update(user=request.call.requester_id)
        return votes.explain_lost_quorum(request, votes.list_votes(request)), RULE in broken()

    lost, named = await db_call(forge)
    assert (bool(lost), named) == (True, True)
