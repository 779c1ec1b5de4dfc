"""Somebody who can write to the database, but has no key, cannot make a held call run: the log does
not prove it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.utils import timezone

from mcpregistry.calls.engine import Engine
from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.text.canonical import hash_parts
from mcpregistry.models import (
    Agent,
    ApprovalRequest,
    ApprovalVote,
    AuditEntry,
    Endpoint,
    Invocation,
    PolicyRule,
    Server,
)
from mcpregistry.services.access import agents, grants
from mcpregistry.services.approvals import held_calls
from mcpregistry.services.approvals.requests import hash_current_arguments, recompute_binding
from tests.calls.conftest import ACTOR, Site, broken
from tests.calls.test_approvals import asking, bob, pending, person, vote
from tests.fakes.tampered import seal, sealed_anew, unguarded, verify

__all__ = ["asking", "bob"]  # fixtures

pytestmark = [pytest.mark.attack, pytest.mark.exhaustive(on="postgresql")]
SIGNED = "Terms, votes and approvals match the audit log."


@pytest.fixture
async def here(live_db: None, journal: Path, asking: Server, bob: User) -> AsyncIterator[Site]:
    """A site whose calls two people of a group must approve. The test breaks what the invariants
    say."""
    await db_call(_prepare)
    site = Site(Engine("web"), journal)
    await site.engine.start()
    yield site
    await site.engine.stop()


def _prepare() -> None:
    sealed_anew()
    group = Group.objects.create(name="finance")
    for user in (User.objects.get(username="bob"), person("eve")):
        user.groups.add(group)
    PolicyRule(name="two", outcome="ask", quorum=2, approvers=group).save()
    agents.save_endpoint(endpoint=Endpoint(slug="other"), actor=ACTOR)
    other = agents.save_agent(agent=Agent(slug="other"), actor=ACTOR)
    grants.grant_access(agent=other, server=Server.objects.get(slug="echo"), actor=ACTOR)


def let_go() -> None:
    """What the site itself writes when a call is approved, but for the entry in the log."""
    now = timezone.now()
    ApprovalRequest.objects.update(decided_at=now, execute_by=now + timedelta(minutes=10))
    Invocation.objects.update(state=InvocationState.READY, lease_until=now + timedelta(minutes=11))


def forge_vote(**changes: Any) -> None:
    vote = ApprovalVote.objects.get()
    vote.pk = None
    vote.user = User.objects.get(username="eve")
    vote.name = "Eve"
    for name, value in changes.items():
        setattr(vote, name, value)
    vote.save(force_insert=True)


def forge_vote_of_another_call() -> None:
    """The row of a vote that Eve has cast on another call."""
    forge_vote(at=timezone.now() - timedelta(hours=1), reason="Fine.")


def replace_arguments() -> None:
    """Other arguments, with all that is made of them without a key."""
    request = ApprovalRequest.objects.select_related("call").get()
    request.call.arguments = '{"n":666}'
    Invocation.objects.update(arguments=request.call.arguments, binding=recompute_binding(request))
    ApprovalVote.objects.update(arguments_hash=hash_current_arguments(request))


def replace_by_edit() -> None:
    request = ApprovalRequest.objects.select_related("call").get()
    request.edited = '{"n":666}'
    ApprovalRequest.objects.update(edited=request.edited)
    Invocation.objects.update(binding=recompute_binding(request))
    ApprovalVote.objects.update(arguments_hash=hash_current_arguments(request))


def write_over(**columns: Any) -> None:
    """Another agent or endpoint, which may call the tool just as well."""
    Invocation.objects.update(**columns)
    Invocation.objects.update(
        binding=recompute_binding(ApprovalRequest.objects.select_related("call").get())
    )


def sequence(*acts: Callable[[], Any]) -> Callable[[], None]:
    return lambda: [act() for act in acts] and None


ONE_VOTE: dict[str, tuple[Callable[[], Any], str]] = {
    "forged vote": (sequence(forge_vote, let_go), "the vote of Eve was changed"),
    "vote of another call": (
        sequence(forge_vote_of_another_call, let_go),
        "the vote of Eve was changed",
    ),
    "same vote twice": (
        sequence(lambda: forge_vote(user=None, name="Bob"), let_go),
        "the vote of Bob was changed",
    ),
    "vote of a host": (
        sequence(
            lambda: forge_vote(user=None, via="host"),
            lambda: ApprovalRequest.objects.update(requester_may_confirm=True),
            let_go,
        ),
        "the setting 'requester may confirm' was changed",
    ),
    "lowered quorum": (
        sequence(lambda: ApprovalRequest.objects.update(quorum=1), let_go),
        "the number of required approvals was changed",
    ),
    "let go": (let_go, "it has no audit entry about an approval"),
}
TWO_VOTES: dict[str, tuple[Callable[[], Any], str]] = {
    "more time": (
        lambda: ApprovalRequest.objects.update(execute_by=timezone.now() + timedelta(days=9)),
        "the expiry of the decision was changed",
    ),
    "other group": (
        lambda: ApprovalRequest.objects.update(group=None),
        "the group that can decide was changed",
    ),
    "other arguments": (
        replace_arguments,
        "the hash of its agent, tool, arguments and rule was changed",
    ),
    "other edit": (replace_by_edit, "the hash of its agent, tool, arguments and rule was changed"),
    "other agent": (
        lambda: write_over(agent_slug="other"),
        "its requester or its request was changed",
    ),
    "other endpoint": (
        lambda: write_over(endpoint_slug="other"),
        "its requester or its request was changed",
    ),
    "other words of the agent": (
        lambda: ApprovalRequest.objects.update(said="x"),
        "the message of the agent was changed",
    ),
    "vote taken away": (
        lambda: ApprovalVote.objects.last().delete(),
        "one of its votes is missing",
    ),
}


async def refused(here: Site, ticket: held_calls.HeldCallTicket, words: str) -> None:
    """Nothing is sent, and caller, log, verification and invariants say why."""
    outcome = await here.engine.approvals.runner.run(ticket)
    assert (outcome.state, outcome.error_code) == (InvocationState.VOID, "APPROVAL_UNPROVEN")
    assert words in outcome.message
    assert "manage.py audit verify" in outcome.message
    assert here.sent() == []
    entry = await AuditEntry.objects.aget(kind="approval.unproven")
    assert words in entry.body
    ended = await AuditEntry.objects.aget(kind="call.void")
    assert '"error":"APPROVAL_UNPROVEN"' in ended.body


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.parametrize("case", ONE_VOTE)
async def test_call_with_one_of_two_votes_is_not_sent(
    here: Site, bob: User, settings: Any, case: str
) -> None:
    act, words = ONE_VOTE[case]
    first = await pending(here, settings)
    await vote(bob)
    await db_call(tamper, act)
    await refused(here, first.ticket, words)
    if case != "let go":  # nothing else was changed there, and the call has ended
        await db_call(seal)
        assert any(words in each for each in (await db_call(verify, full=True)).problems)
        assert any(SIGNED in each for each in await db_call(broken))


@pytest.mark.exhaustive(one_in=8)
@pytest.mark.parametrize("case", TWO_VOTES)
async def test_approved_call_that_was_changed_is_not_sent(
    here: Site, bob: User, settings: Any, case: str
) -> None:
    act, words = TWO_VOTES[case]
    first = await pending(here, settings)
    await vote(bob)
    await vote(await User.objects.aget(username="eve"))
    await db_call(tamper, act)
    await refused(here, first.ticket, words)


def tamper(act: Callable[[], Any]) -> None:
    with unguarded():
        act()


@pytest.mark.both_databases
async def test_quorum_that_was_lowered_before_the_last_vote_is_found(
    here: Site, bob: User, settings: Any
) -> None:
    """The site itself counts the votes then, and takes one for enough."""
    first = await pending(here, settings)
    await db_call(lambda: ApprovalRequest.objects.update(quorum=1))
    await vote(bob)
    assert (await Invocation.objects.aget()).state == InvocationState.READY
    await refused(here, first.ticket, "the number of required approvals was changed")


@pytest.mark.both_databases
async def test_call_that_was_never_asked_about_is_not_sent(
    here: Site, bob: User, settings: Any
) -> None:
    """A copy of an approved call, with request and votes, under new names."""
    await pending(here, settings)
    await vote(bob)
    await vote(await User.objects.aget(username="eve"))
    key = await db_call(insert_copy)
    ticket = await db_call(held_calls.find, held_id=key, agent_slug="ann")
    outcome = await here.engine.approvals.runner.run(ticket)
    assert (outcome.state, outcome.error_code) == (InvocationState.VOID, "APPROVAL_UNPROVEN")
    assert "it has no audit entry about an approval request" in outcome.message
    assert here.sent() == []


def insert_copy() -> str:
    request = ApprovalRequest.objects.select_related("call").get()
    votes = list(request.votes.all())
    call = request.call
    with unguarded():
        call.pk = secrets.token_hex(16)
        call.save(force_insert=True)
        request.pk = secrets.token_hex(16)
        request.call = call
        request.join_key = None
        request.save(force_insert=True)
        for each in votes:
            each.pk = None
            each.request = request
            each.save(force_insert=True)
    return str(request.pk)


@pytest.mark.both_databases
async def test_call_that_has_run_is_not_sent_again(here: Site, bob: User, settings: Any) -> None:
    first = await pending(here, settings)
    await vote(bob)
    await vote(await User.objects.aget(username="eve"))
    assert (await here.engine.approvals.runner.run(first.ticket)).state == InvocationState.SUCCEEDED
    await db_call(
        tamper,
        lambda: Invocation.objects.update(state=InvocationState.READY, finished_at=None, fence=0),
    )
    outcome = await here.engine.approvals.runner.run(first.ticket)
    assert (outcome.state, outcome.error_code) == (InvocationState.VOID, "APPROVAL_UNPROVEN")
    assert "it was already sent, or has ended" in outcome.message
    assert len(here.sent()) == 1


@pytest.mark.both_databases
async def test_entry_without_the_key_proves_nothing(here: Site, bob: User, settings: Any) -> None:
    first = await pending(here, settings)
    await vote(bob)
    await db_call(tamper, forge_with_entries)
    await refused(here, first.ticket, "its text does not match its hash")


def forge_with_entries() -> None:
    """Eve's vote and the approval, with entries that are signed with another key."""
    forge_vote()
    let_go()
    call = Invocation.objects.get().pk
    entry = AuditEntry.objects.get(subject=f"call:{call}", kind="approval.vote")
    for number, kind in enumerate(("approval.vote", "call.approved")):
        entry.pk = None
        entry.seq = entry.seq + 1_000 + number
        entry.kind = kind
        entry.hash = hash_parts(kind)
        entry._state.adding = True
        entry.save(force_insert=True)


@pytest.mark.one_database
async def test_proof_costs_one_query(
    here: Site, bob: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where a held call is about to run."""
    from mcpregistry.services.records import signed_calls

    counted = []
    real = signed_calls._load_call_entries

    def count(call: str) -> list[AuditEntry]:
        counted.append(call)
        return real(call)

    monkeypatch.setattr(signed_calls, "_load_call_entries", count)
    first = await pending(here, settings)
    await vote(bob)
    await vote(await User.objects.aget(username="eve"))
    assert counted == []
    assert (await here.engine.approvals.runner.run(first.ticket)).state == InvocationState.SUCCEEDED
    assert counted == [first.ticket.call_id]
