"""Deciding from Slack: genuine, fresh and single presses of people we know, under the rules of the
page."""

from __future__ import annotations

import json
import time

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from mcpregistry.models import Agent, ApprovalRequest, ApprovalVote, Channel, SlackIdentity
from mcpregistry.services.approvals import requests, votes
from mcpregistry.services.notifications import outbox
from mcpregistry.web import slack as web_slack
from tests.fakes import slack as slack_fake
from tests.fakes.slack import TEAM, slack
from tests.services.telling import deliver, held, slack_room, tell
from tests.waiting import HANG_LIMIT

pytestmark = [pytest.mark.usefixtures("live_db"), pytest.mark.one_database]


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch):
    for module in ("notifications.outbox", "approvals.votes"):
        monkeypatch.setattr(f"mcpregistry.services.{module}.wake_worker", lambda *_: True)


@pytest.fixture(autouse=True)
def _slack_is_waited_for(monkeypatch):
    """Two seconds are all that Slack's own patience leaves; a busy machine may need more to carry a
    word to the fake."""
    monkeypatch.setattr(web_slack, "_WHISPER_SECONDS", HANG_LIMIT)


@pytest.fixture
def room():
    """Slack with one channel of ours; ``ask`` puts a question there and returns (request, time
    stamp)."""
    with slack() as fake:
        channel = slack_room(fake.url)
        fake.channel = channel
        fake.address = f"/hooks/slack/{channel.uid}/"

        def ask(risk="low", **fields):
            request = held(risk, **fields)
            tell("asked", request)
            deliver()
            return request, list(fake.messages)[-1]

        fake.ask = ask
        yield fake


def person(name: str = "ann", *, role: str = "approver", member: str = "U0ANN") -> User:
    user = User.objects.create(username=name, password="!")
    user.groups.add(Group.objects.get(name=role))
    identity = SlackIdentity(team=TEAM, member=member, user=user)
    outbox.save_slack_identity(identity=identity, actor="test")
    return user


def state(request: ApprovalRequest) -> str:
    return ApprovalRequest.objects.select_related("call").get(pk=request.pk).call.state


def test_a_person_approves_with_a_button_and_the_vote_says_where(room):
    person()
    request, stamp = room.ask()
    assert room.press(room.address, stamp, "approve").status_code == 200
    vote = ApprovalVote.objects.get()
    assert (vote.user.username, vote.approve, vote.via) == ("ann", True, "slack")
    assert vote.arguments_hash == requests.hash_current_arguments(request)
    assert state(request) == "ready"
    assert room.whispers == []


def test_a_denial_asks_for_the_reason_in_a_dialog(room):
    person()
    request, stamp = room.ask()
    room.press(room.address, stamp, "deny")
    assert state(request) == "pending", "only the dialog denies"
    assert room.views[0]["type"] == "modal"
    answer = room.submit(room.address, reason="not on a Friday")
    assert (answer.status_code, answer.content) == (200, b"")
    assert state(request) == "rejected"
    request.refresh_from_db()
    assert request.decided_reason == "not on a Friday"
    deliver()
    assert "not on a Friday" in json.dumps(room.messages[stamp])


def test_a_stranger_is_told_what_to_do(room):
    request, stamp = room.ask()
    room.press(room.address, stamp, "approve", member="U0EVE")
    assert state(request) == "pending"
    assert (
        "Ask an administrator to add your account on the page Slack members, with the workspace T0NISSE and the member U0EVE."
        in room.whispers[0]["text"]
    )
    assert room.whispers[0]["user"] == "U0EVE"
    room.press(room.address, stamp, "deny", member="U0EVE")
    assert room.views == []


@pytest.mark.attack
def test_who_asked_does_not_approve_with_a_button(room):
    asked = person()
    request, stamp = room.ask(call={"origin": "rest", "requester": "ann", "requester_id": asked.pk})
    room.press(room.address, stamp, "approve")
    assert (state(request), ApprovalVote.objects.count()) == ("pending", 0)
    assert "You requested this call" in room.whispers[0]["text"]


def test_the_rules_of_the_page_hold_in_slack(room):
    owner = person("ann")
    Agent.objects.create(slug="robot", owner=owner)
    person("vera", role="viewer", member="U0VERA")
    gone = person("gone", member="U0GONE")
    User.objects.filter(pk=gone.pk).update(is_active=False)
    request, stamp = room.ask()
    for member, says in (
        ("U0ANN", "You own the agent"),
        ("U0VERA", "the approver role"),
        ("U0GONE", "not linked to a user"),
    ):
        room.press(room.address, stamp, "approve", member=member)
        assert says in room.whispers[-1]["text"], member
    assert state(request) == "pending"
    assert not ApprovalVote.objects.exists()


def test_a_second_person_is_needed_where_the_rule_says_so(room):
    person(), person("bob", member="U0BOB")
    request, stamp = room.ask(quorum=2)
    room.press(room.address, stamp, "approve")
    assert "More approvers must approve" in room.whispers[-1]["text"]
    room.press(room.address, stamp, "approve")
    assert state(request) == "pending", "the same person does not count twice"
    room.press(room.address, stamp, "approve", member="U0BOB")
    assert state(request) == "ready"


@pytest.mark.exhaustive
def test_what_was_decided_or_edited_meanwhile_is_not_decided_again(room):
    person()
    request, stamp = room.ask()
    ApprovalRequest.objects.filter(pk=request.pk).update(edited='{"path":"b.txt"}')
    room.press(room.address, stamp, "approve")
    assert state(request) == "pending"
    assert len(room.whispers) == 1
    ApprovalRequest.objects.filter(pk=request.pk).update(edited="")
    votes.vote(
        request_id=request.pk, user=User.objects.get(), approve=False, reason="no", via="web"
    )
    room.press(room.address, stamp, "approve")
    assert state(request) == "rejected"
    assert len(room.whispers) == 2


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("change", [{"risk": "high"}, {"edited": '{"password":"x"}'}])
def test_an_old_button_does_not_decide_what_belongs_on_the_page(room, change):
    person()
    request, stamp = room.ask()
    ApprovalRequest.objects.filter(pk=request.pk).update(**change)
    for action in ("approve", "deny"):
        room.press(room.address, stamp, action)
        assert "on the page" in room.whispers[-1]["text"]
    assert (state(request), room.views) == ("pending", [])


@pytest.mark.exhaustive
def test_a_dialog_shows_the_refusal_itself(room):
    user = person()
    _, stamp = room.ask()
    room.press(room.address, stamp, "deny")
    user.groups.clear()
    answer = json.loads(room.submit(room.address, reason="no").content)
    assert answer["response_action"] == "errors"
    assert "the approver role" in answer["errors"]["reason"]


def test_opening_the_page_decides_nothing(room):
    person()
    request, stamp = room.ask("high")
    assert room.press(room.address, stamp, "open").status_code == 200
    assert state(request) == "pending"
    assert room.whispers == []


# Genuine, fresh, once


@pytest.mark.exhaustive(one_in=9)
@pytest.mark.attack
@pytest.mark.parametrize(
    "signing",
    [
        {"secret": "another secret"},
        {"tamper": b"&x=1"},
        {"signature": ""},
        {"signature": "v0="},
        {"signature": "v0=é"},
        {"at": 0},
        {"at": -600},
        {"at": 600},
    ],
    ids=str,
)
def test_what_slack_did_not_sign_just_now_is_refused(room, signing):
    person()
    request, stamp = room.ask()
    if signing.get("at"):
        signing = {"at": time.time() + signing["at"]}
    assert room.press(room.address, stamp, "approve", **signing).status_code == 401
    assert state(request) == "pending"


@pytest.mark.attack
def test_the_same_request_is_not_taken_twice(room):
    person()
    _, stamp = room.ask(quorum=2)
    at = time.time()
    payload = {
        "type": "block_actions",
        "user": {"id": "U0ANN", "team_id": TEAM},
        "actions": [
            {
                "action_id": "approve",
                "value": room.messages[stamp]["blocks"][-1]["elements"][0]["value"],
            }
        ],
    }
    assert slack_fake.post(room.address, payload, at=at).status_code == 200
    assert slack_fake.post(room.address, payload, at=at).status_code == 409
    assert ApprovalVote.objects.count() == 1
    assert len(room.whispers) == 1


@pytest.mark.attack
def test_a_signature_of_one_channel_does_not_open_another(room):
    person()
    request, stamp = room.ask()
    other = slack_room(room.url, "another that was not told")
    room.press(f"/hooks/slack/{other.uid}/", stamp, "approve")
    assert "not notified about this call" in room.whispers[-1]["text"]
    with_other_app = {"access": {"signing": "the secret of another app"}}
    outbox.save_channel(channel=other, actor="test", **with_other_app)
    assert room.press(f"/hooks/slack/{other.uid}/", stamp, "approve").status_code == 401
    assert state(request) == "pending"


def test_other_ways_in_are_closed(room):
    request, stamp = room.ask()
    assert Client().get(room.address).status_code == 405
    assert Client().post("/hooks/slack/00000000-0000-0000-0000-000000000000/").status_code == 404
    Channel.objects.update(enabled=False)
    assert room.press(room.address, stamp, "approve").status_code == 404
    assert state(request) == "pending"


def test_a_channel_without_a_signing_secret_takes_nothing(room):
    _, stamp = room.ask()
    channel = Channel.objects.get()
    channel.access = {name: text for name, text in channel.access.items() if name != "signing"}
    channel.save()
    assert room.press(room.address, stamp, "approve", secret="").status_code == 401


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.attack
@pytest.mark.parametrize(
    ("payload", "status"),
    [
        ("text", 400),
        (None, 400),
        ([], 400),
        ({}, 400),
        ({"type": "message_action"}, 200),
        ({"type": "block_actions"}, 200),
        ({"type": "block_actions", "actions": {"a": 1}}, 200),
        (
            {"type": "block_actions", "actions": [{"action_id": "approve", "value": "x" * 9_000}]},
            200,
        ),
        (
            {
                "type": "block_actions",
                "actions": [{"action_id": "approve", "value": "\x00\ud800.x"}],
            },
            200,
        ),
        (
            {"type": "view_submission", "view": {"callback_id": "deny", "state": {"values": []}}},
            200,
        ),
        ({"type": "view_submission", "view": "deny"}, 200),
    ],
)
@pytest.mark.both_databases
def test_odd_payloads_do_nothing(room, payload, status):
    request, _ = room.ask()
    assert slack_fake.post(room.address, payload).status_code == status
    assert state(request) == "pending"


@pytest.mark.both_databases
def test_when_slack_is_away_the_decision_stands(room):
    person()
    request, stamp = room.ask()
    Channel.objects.filter(pk=room.channel.pk).update(allowed_networks=[])
    assert room.press(room.address, stamp, "approve").status_code == 200
    assert state(request) == "ready"
