"""A finished call and a vote cannot be changed unnoticed, though the append-only log is another
table."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from mcpregistry.calls.recording.recorder import Recorder
from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest, ApprovalVote, AuditEntry, Configuration, Invocation
from mcpregistry.models.guards import drop_guards, install_guards
from mcpregistry.services.approvals import votes
from mcpregistry.services.records import ending, verification
from mcpregistry.services.upkeep import reaping, retention
from tests.calls.test_recorder import begin, end, fact, finish, intent
from tests.fakes.held import hold
from tests.fakes.seed import populate
from tests.fakes.tampered import seal, sealed_anew, unguarded, verify

pytestmark = [pytest.mark.attack, pytest.mark.exhaustive(on="postgresql")]
SENT, REFUSED, LATE = (f"{number:032x}" for number in (1, 2, 3))


@pytest.fixture
async def recorded(live_db: None) -> dict[str, Any]:
    """One call that was sent, one that was refused, one that the clock has given up before its end
    came.

    Returns the columns of the last one while its end was only supposed.
    """
    await db_call(sealed_anew)
    recorder = Recorder("web")
    recorder.start(asyncio.get_running_loop())
    facts: dict[str, Any] = {
        "binding": "b" * 64,
        "requester": "Ann",
        "requester_id": 7,
        "conversation_id": "c1",
        "reason": "A rule allows it.",
    }
    await recorder.begin(intent(1, **facts), fact(1, "call.dispatched", binding="b" * 64))
    await finish(recorder, 1, result={"content": [{"type": "text", "text": "42"}]})
    ended = {
        name: value
        for name, value in end(2, state="denied", reason="No grant.", result=None).items()
        if name != "before"
    }
    refused = {**intent(2), **ended, "dispatched_at": None, "lease_until": None}
    del refused["fence"], refused["keep"]
    await recorder.begin(refused, fact(2, "call.denied"))
    await begin(recorder, 3)
    await db_call(_given_up)
    supposed = await Invocation.objects.values().aget(pk=LATE)
    await finish(recorder, 3)
    await asyncio.get_running_loop().run_in_executor(None, recorder.close)
    await db_call(seal)
    return supposed


def _given_up() -> None:
    Invocation.objects.filter(pk=LATE).update(lease_until=timezone.now() - timedelta(seconds=1))
    assert reaping.reap_calls(timezone.now()) == 1


def change(call: str, **columns: Any) -> None:
    with unguarded():
        assert Invocation.objects.filter(pk=call).update(**columns) == 1


async def told(full: bool = True) -> list[str]:
    return list((await db_call(lambda: verify(full=full))).problems)


@pytest.mark.both_databases
async def test_what_was_recorded_fits(recorded):
    assert await told() == []
    assert (await Invocation.objects.aget(pk=LATE)).state == InvocationState.SUCCEEDED
    assert await told(full=False) == []


@pytest.mark.both_databases
async def test_corrected_call_that_is_put_back_to_unknown_is_found(
    recorded: dict[str, Any],
) -> None:
    """Its log has both ends, and the last one counts."""
    del recorded["id"]
    await db_call(lambda: change(LATE, **recorded))
    assert await told() == [
        f"call {LATE}: {said}" for said in (END, "its reason was changed", "its result is missing")
    ]


WHO = "its requester or its request was changed"
TALK = "its conversation was changed"
END = "its outcome was changed"


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"agent_slug": "eve"}, WHO),
    ({"requester": "Eve"}, WHO),
    ({"requester_id": 8}, WHO),
    ({"tool_name": "x"}, WHO),
    ({"server_slug": "x"}, WHO),
    ({"server_revision": 9}, WHO),
    ({"definition_hash": "f" * 64}, WHO),
    ({"endpoint_slug": "x"}, WHO),
    ({"exposed_name": "x"}, WHO),
    ({"origin": "rest"}, WHO),
    ({"outcome": "ask"}, WHO),
    ({"writer": "web:x"}, WHO),
    ({"dispatched_at": timezone.now() - timedelta(days=2)}, WHO),
    ({"host_name": "x"}, WHO),
    ({"request_id": "9"}, WHO),
    ({"received_at": timezone.now() - timedelta(days=2)}, WHO),
    ({"conversation_id": "c2"}, TALK),
    ({"conversation_id": None}, TALK),
    ({"arguments": '{"a":1}'}, "its arguments were changed"),
    ({"arguments": ""}, "its arguments are missing"),
    ({"binding": "c" * 64}, "the hash of its agent, tool, arguments and rule was changed"),
    ({"reason": "Because."}, "its reason was changed"),
    ({"result": "{}"}, "its result was changed"),
    ({"result": ""}, "its result is missing"),
    ({"result_bytes": 1}, END),
    ({"state": "tool_error"}, END),
    ({"error_code": "X"}, END),
    ({"state": "dispatched"}, "it has ended, but its record is still open"),
    ({"finished_at": timezone.now() - timedelta(days=2)}, END),
    ({"duration_ms": 2.0}, END),
]


@pytest.mark.exhaustive(on="postgresql")
async def test_any_change_of_a_finished_call_is_found(recorded):
    """One at a time, and each is taken back before the next."""
    sent = Invocation.objects.filter(pk=SENT)
    assert await told() == []
    await db_call(drop_guards)
    try:
        for columns, said in CHANGES:
            was = await sent.values(*columns).aget()
            assert await sent.aupdate(**columns) == 1
            for full in (False, True):
                assert await told(full) == [f"call {SENT}: {said}"], columns
            assert await sent.aupdate(**was) == 1
        for full in (False, True):
            assert await told(full) == []
    finally:
        await db_call(install_guards)


@pytest.mark.both_databases
async def test_a_refused_call_that_was_changed_is_found(recorded):
    await db_call(change, REFUSED, agent_slug="eve", reason="It was granted.", state="succeeded")
    assert sorted(await told()) == [
        f"call {REFUSED}: {said}" for said in sorted((WHO, END, "its reason was changed"))
    ]


def insert_copy(key: str) -> None:
    """Insert a call by hand, as like one that was recorded as can be."""
    row = Invocation.objects.get(pk=SENT)
    row.pk = key
    with unguarded():
        row.save(force_insert=True)


@pytest.mark.both_databases
@pytest.mark.parametrize("key", ["0" * 32, "f" * 32], ids=["older", "newer"])
async def test_a_call_that_was_inserted_by_hand_is_found(
    recorded, monkeypatch: pytest.MonkeyPatch, key: str
):
    assert await told(full=False) == []
    await db_call(insert_copy, key)
    assert await told() == [f"call {key}: it has no audit entry"]
    monkeypatch.setattr(verification, "ROWS", 2)  # of a turn
    found = [await told(full=False) for _ in range(2)]
    assert [f"call {key}: it has no audit entry"] in found


@pytest.mark.both_databases
async def test_a_call_that_was_taken_away_is_found_and_one_that_retention_took_is_not(recorded):
    await db_call(Configuration.objects.update, keep_calls_days=1, keep_payloads_days=1)
    await db_call(lambda: Invocation.objects.filter(pk=SENT).delete())
    gone = [f"call {SENT}: its record is missing, and retention has not deleted it"]
    assert await told() == gone
    await db_call(retention.prune, timezone.now())  # nothing is old enough, so nothing is said
    assert await told() == gone
    done = await db_call(retention.prune, timezone.now() + timedelta(days=1, hours=2))
    assert done["calls"] == 2
    assert (await AuditEntry.objects.alatest("id")).kind == "calls.forgotten"
    assert await told() == []


@pytest.mark.both_databases
async def test_what_retention_empties_is_no_fault(recorded):
    await db_call(Configuration.objects.update, keep_payloads_days=1)
    assert (await db_call(retention.prune, timezone.now() + timedelta(days=1, hours=2)))[
        "payloads"
    ] == 3
    assert await told() == []
    await db_call(change, SENT, agent_slug="eve")
    assert await told() == [f"call {SENT}: {WHO}"]


# Votes


@pytest.fixture
def voted(live_db: None) -> ApprovalRequest:
    """A call that two people have decided on, one of them twice."""
    site = populate(calls=20)
    sealed_anew()
    other = User.objects.create_user("other", is_superuser=True)
    request = hold("git", "git_push", quorum=2)
    votes.vote(request_id=request.pk, user=other, approve=True, reason="Fine.", via="web")
    votes.vote(
        request_id=request.pk,
        user=site.people["approver"],
        approve=True,
        via="web",
        arguments={"query": "origin other"},
    )
    votes.vote(request_id=request.pk, user=other, approve=True, reason="Also fine.", via="web")
    assert Invocation.objects.get(pk=request.call_id).state == InvocationState.READY
    seal()
    assert verify().problems == ()
    return request


VOTES: list[dict[str, Any]] = [
    {"name": "Eve"},
    {"reason": "x"},
    {"approve": False},
    {"arguments_hash": "f" * 64},
    {"via": "rest"},
    {"at": timezone.now() - timedelta(days=1)},
]


@pytest.mark.exhaustive(on="postgresql")
def test_any_change_of_a_vote_is_found(voted):
    """One at a time, and each is taken back before the next."""
    mine = ApprovalVote.objects.filter(user__username="other")
    for columns in VOTES:
        was = mine.values(*columns).get()
        name = columns.get("name", "other")
        found = (f"call {voted.call_id}: the vote of {name} was changed",)
        mine.update(**columns)
        assert [verify(full=full).problems for full in (True, False)] == [found, found], columns
        mine.update(**was)
    assert [verify(full=full).problems for full in (True, False)] == [(), ()]


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize("body", ["{}", "[]", "no JSON"])
def test_forged_entry_of_a_vote_is_reported_and_hides_nothing(voted, body):
    entry = AuditEntry.objects.filter(kind="approval.vote", subject=f"call:{voted.call_id}").first()
    with unguarded():
        AuditEntry.objects.filter(pk=entry.pk).update(body=body)
    assert (
        f"{entry.writer} #{entry.seq}: its text does not match its hash"
        in verify(full=True).problems
    )


def test_a_vote_that_was_given_to_somebody_else_is_found(voted):
    ApprovalVote.objects.filter(user__username="other").update(
        user=User.objects.get(username="root")
    )
    assert "the vote of other was changed" in verify(full=True).problems[0]


@pytest.mark.exhaustive
def test_a_vote_that_was_taken_away_or_added_is_found(voted):
    vote = ApprovalVote.objects.get(user__username="other")
    vote.delete()
    assert verify(full=True).problems == (f"call {voted.call_id}: one of its votes is missing",)
    ApprovalVote.objects.create(
        request=voted,
        name="Eve",
        approve=True,
        arguments_hash=vote.arguments_hash,
        via="web",
        at=vote.at,
    )
    assert "the vote of Eve was changed" in verify(full=True).problems[0]


def test_a_vote_outlives_its_account(voted):
    User.objects.get(username="other").delete()
    assert ApprovalVote.objects.filter(user=None).exists()
    assert verify(full=True).problems == ()


@pytest.mark.both_databases
def test_every_way_to_end_a_call_binds_it(live_db):
    """Also that of the services, which recorder and clock do not go through."""
    populate(calls=20)
    sealed_anew()
    request = hold("git", "git_push")
    call = Invocation.objects.get(pk=request.call_id)
    now = timezone.now()
    ended = ending.build_end_columns(
        InvocationState.CANCELLED,
        received_at=call.received_at,
        now=now,
        reason="Enough.",
        code="CANCELLED",
    )
    assert ending.write_end(call, ended, actor="test")
    seal()
    assert verify(full=True).problems == ()
    change(call.pk, reason="It was not wanted.", error_code="X")
    assert len(verify(full=True).problems) == 2


@pytest.mark.both_databases
async def test_a_call_that_is_put_into_a_conversation_later_is_found(recorded):
    await db_call(change, REFUSED, conversation_id="c1")
    assert await told() == [f"call {REFUSED}: {TALK}"]
