"""Between the approval and the call: what voids it, what an edit and a permit do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from mcpregistry.calls.call import CallOutcome
from mcpregistry.db import db_call
from mcpregistry.domain.errors import ArgumentsInvalid, Conflict, Denied
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import (
    Agent,
    Configuration,
    Grant,
    Invocation,
    Permit,
    PolicyRule,
    Server,
    Tool,
)
from mcpregistry.services.approvals import requests, votes
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.policy import permits
from mcpregistry.services.policy.permits import PermitWish
from mcpregistry.services.servers import lifecycle
from tests.calls.conftest import ACTOR, Site, tool
from tests.calls.test_approvals import (
    NUMBER,
    asking,
    bob,
    calling,
    held,
    only,
    pending,
    person,
    vote,
)
from tests.waiting import until

__all__ = ["asking", "bob"]  # fixtures

Make = Callable[..., Any]


# -- what voids an approval ------------------------------------------------------------------------


def edit_server() -> None:
    server = Server.objects.get(slug="echo")
    server.request_timeout = 77
    lifecycle.save_server(server=server, actor=ACTOR)


def change_definition() -> None:
    server = Server.objects.get(slug="echo")
    observe.observe(server=server, listed=[tool("echo", NUMBER, description="other"), tool("pid")])
    decisions.approve_waiting(server=server, actor=ACTOR)


CHANGES: dict[str, tuple[Callable[[], Any], str]] = {
    "server edited": (edit_server, "settings of the server echo were changed"),
    "definition changed": (change_definition, "definition was changed"),
    "tool disabled": (
        lambda: Tool.objects.filter(name="echo").update(enabled=False),
        "no longer exists",
    ),
    "agent disabled": (lambda: Agent.objects.update(enabled=False), "was disabled"),
    "grant withdrawn": (lambda: Grant.objects.all().delete(), "no longer granted"),
    "grant narrowed": (
        lambda: Grant.objects.update(argument_pins={"n": 7}),
        "no longer allow these arguments",
    ),
    "rule added": (
        lambda: PolicyRule(name="new", outcome="ask").save(),
        "was changed, or another rule applies",
    ),
    "rule denies": (
        lambda: PolicyRule(name="new", outcome="deny").save(),
        "was changed, or another rule applies",
    ),
    "approver disabled": (
        lambda: User.objects.update(is_active=False),
        "Bob no longer has permission to approve the call",
    ),
    "approver's role taken": (
        lambda: User.objects.get().groups.clear(),
        "Bob no longer has permission to approve the call",
    ),
    "approver deleted": (
        lambda: User.objects.all().delete(),
        "Bob no longer has permission to approve the call",
    ),
}


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize("change", CHANGES)
async def test_whatever_changes_after_the_approval_voids_it(
    site: Make, asking: Server, bob: User, settings: Any, change: str
):
    here: Site = await site()
    first = await pending(here, settings)
    await vote(bob)
    act, words = CHANGES[change]
    await db_call(act)
    outcome = await here.engine.approvals.runner.run(first.ticket)
    assert (outcome.state, outcome.error_code) == (InvocationState.VOID, "VOID")
    assert words in outcome.message
    assert here.sent() == []


async def test_a_change_between_the_look_and_the_claim_loses_the_claim(
    site: Make, asking: Server, bob: User, settings: Any, monkeypatch: pytest.MonkeyPatch
):
    here: Site = await site()
    first = await pending(here, settings)
    await vote(bob)
    recorder = here.engine.recorder
    changed = []
    real = recorder.claim

    async def late(*claim: Any) -> int:
        if not changed:
            changed.append(await db_call(edit_server))
        return await real(*claim)

    monkeypatch.setattr(recorder, "claim", late)
    outcome = await here.engine.approvals.runner.run(first.ticket)
    assert (outcome.state, here.sent()) == (InvocationState.VOID, [])


async def test_an_edited_call_that_a_rule_has_come_to_deny_is_not_run(
    site: Make, asking: Server, bob: User, settings: Any
):
    """The new rule does not touch what was asked for, only what the approver made of it."""
    here: Site = await site()
    first = await pending(here, settings)
    await vote(bob, arguments={"n": 51})
    await db_call(lambda: PolicyRule(name="few", outcome="deny", condition="args.n > 50").save())
    outcome = await here.engine.approvals.runner.run(first.ticket)
    assert (outcome.state, outcome.error_code) == (InvocationState.VOID, "VOID")
    assert "a rule now denies the call" in outcome.message
    assert here.sent() == []


async def test_an_edit_into_what_a_rule_denies_is_refused_at_once(
    site: Make, asking: Server, bob: User, settings: Any
):
    await db_call(lambda: PolicyRule(name="few", outcome="deny", condition="args.n > 50").save())
    here: Site = await site()
    await pending(here, settings)
    with pytest.raises(Denied, match="A rule denies the call with these arguments"):
        await vote(bob, arguments={"n": 51})
    request, _ = await only()
    assert (request.edited, request.call.state) == ("", InvocationState.PENDING)
    await vote(bob, approve=False)


async def test_an_edit_into_what_a_stricter_rule_asks_about_is_refused_at_once(
    site: Make, asking: Server, bob: User, settings: Any
):
    """One approver must not make a small call large, where a large one needs two people."""
    await db_call(
        lambda: PolicyRule(name="many", outcome="ask", condition="args.n > 50", quorum=2).save()
    )
    here: Site = await site()
    first = await pending(here, settings)
    with pytest.raises(
        Denied, match="The rule 'many' requires 2 approvers for a call with these arguments"
    ):
        await vote(bob, arguments={"n": 51})
    request, _ = await only()
    assert (request.edited, request.call.state) == ("", InvocationState.PENDING)
    await vote(bob, arguments={"n": 9})
    assert (await here.engine.approvals.runner.run(first.ticket)).state == InvocationState.SUCCEEDED


async def test_an_edited_call_that_a_stricter_rule_has_come_to_ask_about_is_not_run(
    site: Make, asking: Server, bob: User, settings: Any
):
    here: Site = await site()
    first = await pending(here, settings)
    await vote(bob, arguments={"n": 51})
    await db_call(
        lambda: PolicyRule(name="many", outcome="ask", condition="args.n > 50", quorum=2).save()
    )
    outcome = await here.engine.approvals.runner.run(first.ticket)
    assert (outcome.state, outcome.error_code) == (InvocationState.VOID, "VOID")
    assert "the rule 'many' requires 2 approvers for the edited arguments" in outcome.message
    assert here.sent() == []


# -- edits and permits -----------------------------------------------------------------------------


async def test_an_edit_runs_instead_and_the_agent_is_told_what_changed(
    site: Make, asking: Server, bob: User
):
    here: Site = await site()
    call = calling(here, {"n": 100, "note": "all"})
    await held()
    await vote(bob, arguments={"n": 10})
    outcome = await call
    assert [sent["arguments"] for sent in here.sent()] == [{"n": 10}]
    assert outcome.result["content"][0]["text"].splitlines()[1:] == [
        "- n: 100 -> 10",
        '- note: "all" -> (absent)',
    ]
    assert outcome.result["structuredContent"]["arguments"] == {"n": 10}
    assert outcome.result["_meta"]["slipsnisse/approval"]["changed"]["n"] == {
        "asked": 100,
        "ran": 10,
    }
    request, _ = await only()
    assert (request.call.arguments, request.edited) == ('{"n":100,"note":"all"}', '{"n":10}')


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"n": "10"}, ArgumentsInvalid),
        ({}, ArgumentsInvalid),
        ({"n": float("nan")}, ArgumentsInvalid),
        ({"n": 8}, Denied),
    ],
)
async def test_an_edit_that_does_not_fit_is_refused_and_changes_nothing(
    site: Make,
    asking: Server,
    bob: User,
    settings: Any,
    arguments: dict[str, Any],
    error: type[Exception],
):
    await db_call(lambda: Grant.objects.update(argument_pins={"n": 7}))
    here: Site = await site()
    await pending(here, settings, {"n": 7})
    with pytest.raises(error):
        await vote(bob, arguments=arguments)
    request, kinds = await only()
    assert (request.edited, kinds) == ("", ["call.pending"])
    await vote(bob, False)


async def test_votes_on_other_arguments_do_not_count(site: Make, asking: Server, bob: User):
    def prepare() -> User:
        PolicyRule(name="two", outcome="ask", quorum=2).save()
        return person("eve")

    eve = await db_call(prepare)
    here: Site = await site()
    call = calling(here)
    await held()
    shown = requests.hash_current_arguments((await held())[0])
    await vote(bob, seen=shown)
    await vote(eve, arguments={"n": 5}, seen=shown)
    assert (await only())[0].call.state == InvocationState.PENDING
    with pytest.raises(Conflict, match="changed after you opened this page"):
        await vote(bob, seen=shown)
    with pytest.raises(Conflict, match="already voted on this call"):
        await vote(eve)
    await vote(bob)
    assert (await call).state == InvocationState.SUCCEEDED
    assert [sent["arguments"] for sent in here.sent()] == [{"n": 5}]


async def test_a_permit_lets_such_calls_run_and_no_others(
    site: Make, asking: Server, bob: User, settings: Any
):
    here: Site = await site()
    call = calling(here, {"n": 1, "note": "a"})
    wish = PermitWish(until=datetime.now(UTC) + timedelta(hours=1), pins={"n": 1}, uses=2)
    await held()
    await vote(bob, permit=wish)
    await call
    for note in "bc":
        outcome = await permitted(here, {"n": 1, "note": note})
        assert outcome.state == InvocationState.SUCCEEDED
    row = await db_call(Invocation.objects.get, pk=outcome.invocation_id)
    assert (row.outcome, "permit" in row.reason, "bob" in row.reason) == ("allow", True, True)
    await pending(here, settings, {"n": 1, "note": "d"})  # used up
    await pending(here, settings, {"n": 2})  # never covered
    for request in await held(2):
        await db_call(votes.vote, request_id=request.pk, user=bob, approve=False, via="web")


async def test_who_comes_back_for_an_approved_call_gets_that_though_a_permit_was_given_with_it(
    site: Make, asking: Server, bob: User, settings: Any
):
    here: Site = await site()
    told = await pending(here, settings, {"n": 1})
    await vote(bob, permit=PermitWish(until=datetime.now(UTC) + timedelta(hours=1), uses=1))
    outcome = await permitted(here, {"n": 1})
    request, _ = await only()
    assert (outcome.state, outcome.invocation_id) == (
        InvocationState.SUCCEEDED,
        told.ticket.call_id,
    )
    assert (request.call.state, len(here.sent())) == (InvocationState.SUCCEEDED, 1)
    assert (await db_call(Permit.objects.get)).uses_left == 1
    # told once: now the permit is used
    assert (await here.call("echo__echo", {"n": 1})).state == InvocationState.SUCCEEDED
    assert ((await db_call(Permit.objects.get)).uses_left, len(here.sent())) == (0, 2)


async def permitted(here: Site, arguments: dict[str, Any]) -> CallOutcome:
    """This engine has heard of the permit, as it hears of every change."""
    await until(lambda: here.engine.live.current.permits)
    return await here.call("echo__echo", arguments)


ENDS: dict[str, Callable[[Permit], Any]] = {
    "revoked": lambda permit: permits.revoke(permit=permit, actor=ACTOR),
    "run out": lambda permit: Permit.objects.update(expires_at=datetime.now(UTC)),
    "server edited": lambda permit: edit_server(),
    "giver disabled": lambda permit: User.objects.update(is_active=False),
    "rule changed": lambda permit: PolicyRule(name="new", outcome="ask").save(),
}


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.parametrize("end", ENDS)
async def test_a_permit_ends_with_what_it_was_given_for(
    site: Make, asking: Server, bob: User, settings: Any, end: str
):
    here: Site = await site()
    call = calling(here)
    await held()
    await vote(bob, permit=PermitWish(until=datetime.now(UTC) + timedelta(hours=1)))
    await call
    assert (await permitted(here, {"n": 2})).state == InvocationState.SUCCEEDED
    await db_call(lambda: ENDS[end](Permit.objects.get()))
    revision = await db_call(lambda: Configuration.objects.get().revision)
    await until(lambda: here.engine.live.current.revision >= revision)
    outcome = await pending(here, settings, {"n": 3})
    assert (
        await here.engine.approvals.requests.cancel(outcome.ticket, "Enough")
        == InvocationState.CANCELLED
    )
