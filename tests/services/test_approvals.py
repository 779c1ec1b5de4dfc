"""Who may decide, what counts, and what follows; each verb on rows alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.utils import timezone

from mcpregistry.domain.calls.binding import compute_binding
from mcpregistry.domain.errors import ConfigInvalid, Conflict, Denied, NotFound, QueueFullError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.policy.decision import DEFAULT_TERMS, Terms
from mcpregistry.domain.policy.risk import Risk, RiskLevel
from mcpregistry.models import (
    Agent,
    ApprovalRequest,
    AuditEntry,
    Conversation,
    HostTask,
    Invocation,
    Permit,
)
from mcpregistry.models.conversation import MessageKind
from mcpregistry.services.access import agents, roles
from mcpregistry.services.approvals import held_calls, votes
from mcpregistry.services.approvals.held_calls import HeldCallTicket
from mcpregistry.services.approvals.votes import AlreadyDecided, vote
from mcpregistry.services.conversations import messages
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.policy import permits
from mcpregistry.services.policy.permits import PermitWish
from mcpregistry.services.tasks.host_tasks import TaskWish
from mcpregistry.services.upkeep import retention
from tests.fakes.remembered import remembered
from tests.services.rows import confirmed, dispatched, ended
from tests.services.test_invariants import broken

pytestmark = [pytest.mark.django_db, pytest.mark.exhaustive(on="postgresql")]
HIGH = Risk(RiskLevel.HIGH, False, True, True)


def person(name: str, *groups: str, **fields: Any) -> User:
    user = User.objects.create_user(name, **fields)
    user.groups.set([Group.objects.get_or_create(name=each)[0] for each in groups])
    return user


@pytest.fixture(autouse=True)
def _site() -> None:
    remembered("tests/services/test_approvals.py", make_site)


def make_site() -> None:
    server = confirmed("echo")
    observe.observe(server=server, listed=[{"name": "echo", "inputSchema": {"type": "object"}}])
    decisions.approve_waiting(server=server, actor="test")
    agents.save_agent(agent=Agent(slug="ann", owner=person("owner", "approver")), actor="test")


@pytest.fixture
def bob() -> User:
    return person("bob", "approver")


def terms(**changes: Any) -> Terms:
    return Terms(**({"rule_id": None, "rule": "careful", "fingerprint": "f" * 64} | changes))


def row(number: int = 1, arguments: str = '{"n":1}', fingerprint: str = "f" * 64) -> dict[str, Any]:
    same = {
        "agent": "ann",
        "endpoint": "default",
        "server": "echo",
        "revision": 1,
        "tool": "echo",
        "definition": "d",
    }
    return {
        "id": f"{number:032x}",
        "agent_slug": "ann",
        "endpoint_slug": "default",
        "server_slug": "echo",
        "server_revision": 1,
        "tool_name": "echo",
        "exposed_name": "echo__echo",
        "definition_hash": "d",
        "binding": compute_binding(**same, arguments=arguments, fingerprint=fingerprint),
        "arguments": arguments,
        "outcome": "ask",
        "origin": "http",
        "writer": "web:1",
        "received_at": timezone.now(),
    }


def ask(
    number: int = 1, *, arguments: str = '{"n":1}', task: TaskWish | None = None, **changes: Any
) -> HeldCallTicket:
    return held_calls.ask(
        row=row(number, arguments),
        terms=terms(**changes),
        risk=HIGH,
        waiting_as="task" if task else "hold",
        now=timezone.now(),
        task=task,
    )


def request_of(ticket: HeldCallTicket) -> ApprovalRequest:
    return held_calls.load(ticket.id)


def state_of(ticket: HeldCallTicket) -> str:
    return request_of(ticket).call.state


def yes(ticket: HeldCallTicket, user: User, **facts: Any) -> ApprovalRequest:
    return vote(request_id=ticket.id, user=user, approve=True, via="web", **facts)


def no(ticket: HeldCallTicket, user: User, **facts: Any) -> ApprovalRequest:
    return vote(request_id=ticket.id, user=user, approve=False, via="web", **facts)


# -- who may ---------------------------------------------------------------------------------------


def of_group(**changes: Any) -> dict[str, Any]:
    return {
        "group_id": Group.objects.get_or_create(name="finance")[0].pk,
        "group": "finance",
    } | changes


WHO: dict[str, tuple[Callable[[], User], Callable[[], dict[str, Any]], str]] = {
    "approver": (lambda: person("x", "approver"), dict, ""),
    "admin": (lambda: person("x", "admin"), dict, ""),
    "superuser": (lambda: person("x", is_superuser=True), dict, ""),
    "viewer": (lambda: person("x", "viewer"), dict, "do not have permission to decide"),
    "operator": (lambda: person("x", "operator"), dict, "do not have permission to decide"),
    "nobody": (lambda: person("x"), dict, "do not have permission to decide"),
    "disabled": (lambda: person("x", "approver", is_active=False), dict, "disabled"),
    "in the group": (lambda: person("x", "approver", "finance"), of_group, ""),
    "in the group, no approver": (
        lambda: person("x", "finance"),
        of_group,
        "do not have permission to decide",
    ),
    "not in the group": (lambda: person("x", "approver"), of_group, "group finance"),
    "superuser, not in the group": (
        lambda: person("x", is_superuser=True),
        of_group,
        "group finance",
    ),
    "owner": (lambda: User.objects.get(username="owner"), dict, "You own the agent"),
    "owner who may confirm": (
        lambda: User.objects.get(username="owner"),
        lambda: {"requester_may_confirm": True},
        "",
    ),
}


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize("who", WHO)
def test_who_may_decide(who: str):
    make, change, words = WHO[who]
    user = make()
    ticket = ask(**change())
    assert words in votes.explain_ineligibility(request_of(ticket), user)
    assert bool(words) == bool(votes.explain_ineligibility(request_of(ticket), user))
    if words:
        for decide in (yes, no):
            with pytest.raises(Denied, match=words):
                decide(ticket, user)
        assert state_of(ticket) == InvocationState.PENDING
    else:
        assert yes(ticket, user).call.state == InvocationState.READY


def test_a_superuser_does_not_approve_for_her_own_agent():
    User.objects.filter(username="owner").update(is_superuser=True)
    with pytest.raises(Denied, match="You own the agent"):
        yes(ask(), User.objects.get(username="owner"))


def test_those_who_could_decide_are_listed_once():
    wanted = {"owner", "a", "b", "c"}
    person("a", "approver", "admin")
    person("b", is_superuser=True)
    person("c", "admin", "finance")
    person("d", "viewer")
    person("e", "approver", is_active=False)
    person("f", "finance")
    assert sorted(roles.find_approvers(None).values_list("username", flat=True)) == sorted(wanted)
    finance = Group.objects.get(name="finance")
    assert list(roles.find_approvers(finance).values_list("username", flat=True)) == ["c"]


# -- votes -----------------------------------------------------------------------------------------


@pytest.mark.both_databases
def test_a_quorum_is_of_different_people(bob: User):
    ticket = ask(quorum=2)
    eve = person("eve", "approver")
    assert yes(ticket, bob).call.state == InvocationState.PENDING
    with pytest.raises(Conflict, match="already voted on this call"):
        yes(ticket, bob)
    assert yes(ticket, eve).call.state == InvocationState.READY
    assert broken() == set()


def test_one_rejection_ends_it_whatever_others_said(bob: User):
    ticket = ask(quorum=3)
    eve = person("eve", "approver")
    yes(ticket, eve)
    no(ticket, bob, reason="no")
    assert state_of(ticket) == InvocationState.REJECTED
    with pytest.raises(AlreadyDecided, match="bob already rejected"):
        yes(ticket, person("dan", "approver"))


@pytest.mark.both_databases
def test_the_second_to_decide_hears_who_was_first(bob: User):
    ticket = ask()
    eve = person("eve", "approver", first_name="Eve", last_name="E.")
    yes(ticket, eve)
    for decide in (yes, no):
        with pytest.raises(AlreadyDecided, match="Eve E"):
            decide(ticket, bob)


def test_a_voter_who_loses_the_right_counts_no_more(bob: User):
    ticket = ask(quorum=2)
    eve = person("eve", "approver")
    yes(ticket, bob)
    bob.groups.clear()
    assert yes(ticket, eve).call.state == InvocationState.PENDING
    assert yes(ticket, person("dan", "approver")).call.state == InvocationState.READY
    eve.is_active = False
    eve.save()
    assert (
        votes.explain_lost_quorum(request_of(ticket), votes.list_votes(request_of(ticket)))
        == "bob no longer has permission to approve the call; eve no longer has permission to approve the call"
    )


def test_nobody_decides_on_what_is_not_there(bob: User):
    with pytest.raises(NotFound):
        vote(request_id="x", user=bob, approve=True, via="web")


@pytest.mark.both_databases
@pytest.mark.parametrize("late", [InvocationState.PENDING, InvocationState.READY])
def test_time_ends_what_waits(bob: User, late: InvocationState):
    ticket = ask()
    if late is InvocationState.READY:
        yes(ticket, bob)
    request = request_of(ticket)
    due = request.execute_by or request.decide_by
    assert held_calls.expire_due(due - timedelta(seconds=1)) == 0
    assert held_calls.expire_due(due) == 1
    assert (state_of(ticket), request_of(ticket).call.lease_until) == (
        InvocationState.EXPIRED,
        None,
    )
    assert broken() == set()


def test_a_host_that_confirms_counts_once_and_the_owner_is_the_same_person(bob: User):
    owner = User.objects.get(username="owner")
    ticket = ask(quorum=2, requester_may_confirm=True)
    votes.confirm(request_id=ticket.id, by="the person at Cursor")
    with pytest.raises(Conflict, match="already confirmed this call"):
        votes.confirm(request_id=ticket.id, by="the person at Cursor")
    with pytest.raises(Conflict, match="already voted on this call"):
        yes(ticket, owner)
    assert yes(ticket, bob).call.state == InvocationState.READY
    assert broken() == set()


def test_a_host_without_an_owner_confirms_once_too(bob: User):
    Agent.objects.update(owner=None)
    ticket = ask(quorum=2, requester_may_confirm=True)
    votes.confirm(request_id=ticket.id, by="the person at Cursor")
    with pytest.raises(Conflict, match="already confirmed this call"):
        votes.confirm(request_id=ticket.id, by="the person at Cursor")
    assert yes(ticket, bob).call.state == InvocationState.READY


def test_a_host_refuses_only_where_it_may_confirm():
    ticket = ask()
    with pytest.raises(Denied):
        votes.refuse(request_id=ticket.id, by="the person at Cursor")
    ticket = ask(2, arguments="{}", requester_may_confirm=True)
    votes.refuse(request_id=ticket.id, by="the person at Cursor", reason="not now")
    assert request_of(ticket).call.reason.startswith("REJECTED by the person at Cursor: not now.")


def test_every_step_is_in_the_audit_log(bob: User):
    yes(ask(), bob, reason="fine")
    kinds = (
        AuditEntry.objects.filter(subject=f"call:{1:032x}")
        .order_by("id")
        .values_list("kind", "actor")
    )
    assert list(kinds) == [
        ("call.pending", "ann"),
        ("approval.vote", "user:bob"),
        ("call.approved", "user:bob"),
    ]


# -- asking ----------------------------------------------------------------------------------------


@pytest.mark.both_databases
def test_the_identical_call_joins_and_a_task_never_does():
    first = ask(1)
    assert (ask(2).id, ask(2).joined) == (first.id, True)
    assert ask(3, arguments='{"n":2}').id != first.id
    wish = TaskWish(ttl_ms=1000, poll_ms=500)
    tasks = [ask(number, task=wish) for number in (4, 5)]
    assert len({first.id, *(each.id for each in tasks)}) == 3
    assert {each.task_id for each in tasks} == set(HostTask.objects.values_list("pk", flat=True))
    assert request_of(first).seats.count() == 2  # of two callers, one of whom asked twice


@pytest.mark.both_databases
def test_what_the_rule_said_is_frozen(settings: Any):
    settings.SITE_URL = "https://gate.example"
    ticket = ask(quorum=2, decide_seconds=60, execute_seconds=30, **of_group())
    request = request_of(ticket)
    assert ticket.asked_of == "2 members of the group finance"
    assert ticket.url == f"https://gate.example/approvals/{request.pk}/"
    assert request.decide_by - request.asked_at == timedelta(seconds=60)
    assert (request.rule_name, request.risk, request.risk_rank, request.execute_seconds) == (
        "careful",
        "high",
        3,
        30,
    )
    assert request.call.lease_until == request.decide_by + held_calls.SLACK


def test_one_agent_cannot_bury_the_people_who_decide(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(held_calls, "MOST_OPEN", 2)
    ask(1, arguments="{}")
    ask(2, arguments="[]")
    with pytest.raises(QueueFullError, match="2 calls of this agent already wait"):
        ask(3, arguments='{"n":3}')
    assert Invocation.objects.count() == 2


@pytest.mark.both_databases
def test_payloads_are_forgotten_and_who_decided_is_not(bob: User):
    ticket = ask()
    no(ticket, bob, reason="never")
    old = timezone.now() - timedelta(days=40)
    ApprovalRequest.objects.update(said="please", result="{}")
    Invocation.objects.update(received_at=old)
    retention.prune(timezone.now())
    request = request_of(ticket)
    assert (request.said, request.result, request.call.arguments) == ("", "", "")
    assert (request.decided_reason, request.votes.get().name) == ("never", "bob")


# -- permits ---------------------------------------------------------------------------------------


def hours(number: float) -> datetime:
    return timezone.now() + timedelta(hours=number)


TOO_WIDE: dict[str, tuple[dict[str, Any], Callable[[], PermitWish]]] = {
    "another value": ({}, lambda: PermitWish(hours(1), {"n": 2})),
    "another argument": ({}, lambda: PermitWish(hours(1), {"m": 1})),
    "true is not one": ({}, lambda: PermitWish(hours(1), {"n": True})),
    "too long": ({}, lambda: PermitWish(hours(24 * 31))),
    "in the past": ({}, lambda: PermitWish(hours(-1))),
    "no use": ({}, lambda: PermitWish(hours(1), uses=0)),
    "alone for several": ({"quorum": 2}, lambda: PermitWish(hours(1))),
}


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize("case", TOO_WIDE)
def test_a_permit_only_narrows_and_a_wrong_one_decides_nothing(bob: User, case: str):
    change, wish = TOO_WIDE[case]
    ticket = ask(**change)
    with pytest.raises(ConfigInvalid):
        yes(ticket, bob, permit=wish())
    assert (state_of(ticket), Permit.objects.count(), request_of(ticket).votes.count()) == (
        InvocationState.PENDING,
        0,
        0,
    )


def test_a_requester_does_not_permit_herself():
    ticket = ask(requester_may_confirm=True)
    with pytest.raises(Denied, match="cannot create a permit"):
        yes(ticket, User.objects.get(username="owner"), permit=PermitWish(hours(1)))


def covering(**changes: Any) -> list[Permit]:
    """The permits for a call that fits the only one, but for these changes."""
    facts = {
        "agent_slug": "ann",
        "tool_id": Permit.objects.get().tool_id,
        "definition_hash": "d",
        "server_revision": 1,
        "arguments": {"n": 1, "more": 2},
        "fingerprint": "f" * 64,
        "now": timezone.now(),
    }
    return permits.find_covering_permits(**(facts | changes))


def covered(bob: User, **changes: Any) -> bool:
    return bool(covering(**changes))


def test_a_permit_covers_only_what_it_was_given_for(bob: User):
    yes(ask(), bob, permit=PermitWish(hours(1), {"n": 1}, uses=1))
    assert covered(bob)
    for change in (
        {"agent_slug": "eve"},
        {"tool_id": 0},
        {"definition_hash": "e"},
        {"server_revision": 2},
        {"arguments": {"n": 2}},
        {"arguments": {}},
        {"fingerprint": "0"},
        {"now": hours(2)},
    ):
        assert not covered(bob, **change), change
    found = covering()
    uses = [
        permits.use_permit(call_id="c", permits=found, agent_slug="ann", now=timezone.now())
        for _ in range(3)
    ]
    assert [bool(each) for each in uses] == [True, False, False]
    assert not covered(bob)


def _used(bob: User) -> None:
    """The only use of a permit is taken, by the call ``c``."""
    yes(ask(), bob, permit=PermitWish(hours(1), {"n": 1}, uses=1))
    found = covering()
    assert permits.use_permit(call_id="c", permits=found, agent_slug="ann", now=timezone.now())


@pytest.mark.both_databases
@pytest.mark.parametrize("state", ["not_sent", "cancelled"])
def test_the_use_of_a_call_that_never_ran_is_given_back_though_its_process_died(
    bob: User, state: str
):
    _used(bob)
    ended("c", state=state, finished_at=timezone.now())
    assert permits.give_back_left(timezone.now()) == 0  # it may do it itself
    assert [permits.give_back_left(hours(0.1)) for _ in range(2)] == [1, 0]
    assert covered(bob)
    # its process lives after all
    permits.give_back(permit_id=Permit.objects.get().pk, call_id="c", agent_slug="ann")
    assert Permit.objects.get().uses_left == 1
    assert AuditEntry.objects.filter(kind="permit.returned", actor="ann").count() == 1


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.both_databases
@pytest.mark.parametrize("state", ["succeeded", "tool_error", "unknown", "dispatched", "none"])
def test_the_use_of_a_call_that_may_have_run_or_may_yet_run_stays_taken(bob: User, state: str):
    _used(bob)
    if state == "dispatched":
        dispatched("c")
    elif state != "none":
        ended("c", state=state, finished_at=timezone.now())
    assert permits.give_back_left(hours(0.1)) == 0
    assert not covered(bob)


@pytest.mark.both_databases
@pytest.mark.parametrize("uses", [None, 1])
def test_a_permit_that_is_revoked_or_ends_just_before_its_use_is_not_used(
    bob: User, uses: int | None
):
    yes(ask(), bob, permit=PermitWish(hours(1), uses=uses))
    found = covering()
    assert permits.use_permit(call_id="c", permits=found, agent_slug="ann", now=hours(2)) is None
    permits.revoke(permit=found[0], actor="user:bob")
    assert (
        permits.use_permit(call_id="c", permits=found, agent_slug="ann", now=timezone.now()) is None
    )


def test_a_permit_does_not_count_for_whoever_gave_it(bob: User):
    yes(ask(), bob, permit=PermitWish(hours(1)))
    assert covered(bob, requester=bob.pk + 1)
    assert not covered(bob, requester=bob.pk)


def test_whoever_wrote_in_the_conversation_of_a_call_neither_approves_nor_permits_it(bob: User):
    """A hosted agent reads the whole conversation. So not only the person who wrote last has asked
    for its calls."""
    cid = person("cid", "approver")
    conversation = Conversation.objects.create(agent=Agent.objects.get(slug="ann"))
    for user in (bob, person("last", "operator")):
        messages.add_message(
            conversation=conversation,
            kind=MessageKind.IN,
            text="Do it.",
            author=f"user:{user}",
            user=user,
        )
    facts = row(1) | {"conversation_id": conversation.pk}
    ticket = held_calls.ask(
        row=facts, terms=terms(), risk=HIGH, waiting_as="hold", now=timezone.now()
    )
    with pytest.raises(Denied, match="You have written in the conversation"):
        yes(ticket, bob)
    yes(ticket, cid, permit=PermitWish(hours(1)))
    assert len(covering(conversation=conversation.pk)) == 1
    messages.add_message(
        conversation=conversation, kind=MessageKind.IN, text="More.", author="user:cid", user=cid
    )
    assert not covering(conversation=conversation.pk)
    assert len(covering()) == 1
    request = request_of(ticket)
    assert not votes.explain_lost_quorum(request, votes.list_votes(request)), (
        "what is written later takes no vote back"
    )


def test_a_permit_counts_only_while_its_giver_could_approve_the_call(bob: User):
    finance = Group.objects.create(name="finance")
    bob.groups.add(finance)
    yes(ask(**of_group()), bob, permit=PermitWish(hours(1)))
    assert len(covering()) == 1
    bob.groups.remove(finance)
    assert not covering()
    bob.groups.add(finance)
    Agent.objects.update(owner=bob)
    assert not covering()


@pytest.mark.both_databases
def test_a_permit_ends_with_its_giver_or_when_it_is_revoked(bob: User):
    yes(ask(), bob, permit=PermitWish(hours(1)))
    bob.groups.clear()
    assert not covered(bob)
    bob.groups.set([Group.objects.get(name="approver")])
    assert covered(bob)
    permit = permits.revoke(permit=Permit.objects.get(), actor="user:x")
    assert permits.revoke(permit=permit, actor="user:x").revoked_at == permit.revoked_at
    assert not covered(bob)


def test_the_default_asks_on_the_default_terms(bob: User):
    ticket = held_calls.ask(
        row=row(1, fingerprint=DEFAULT_TERMS.fingerprint),
        terms=DEFAULT_TERMS,
        risk=HIGH,
        waiting_as="hold",
        now=timezone.now(),
    )
    assert (ticket.asked_of, yes(ticket, bob).call.state) == ("an approver", InvocationState.READY)
    assert broken() == set()


def test_a_rule_that_is_gone_asks_nobody_and_says_why():
    """A process may decide by a rule for up to a second after it was removed."""
    with pytest.raises(QueueFullError, match="was just deleted"):
        ask(rule_id=987654)
    assert not ApprovalRequest.objects.exists()
    assert not Invocation.objects.exists()
