"""What is told is written where it happens: once, to those who want it, without secrets."""

from __future__ import annotations

import pytest
from django.db import transaction

from mcpregistry.domain.errors import ConfigInvalid, Conflict
from mcpregistry.domain.notifications.events import NotificationEvent
from mcpregistry.domain.notifications.mail import compose_mail
from mcpregistry.models import AuditEntry, Channel, Delivery, PolicyRule
from mcpregistry.services.notifications import outbox
from mcpregistry.services.servers import checks
from mcpregistry.services.upkeep import retention
from tests.services import telling
from tests.services.rows import confirmed
from tests.services.telling import email, held, slack_room, tell, webhook
from tests.services.test_health import FOUND

pytestmark = pytest.mark.django_db
URL = "https://hooks.example.org/path-canary"


@pytest.fixture(autouse=True)
def woken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    sent: list[str] = []
    monkeypatch.setattr(outbox, "wake_worker", lambda task, *ids: sent.append(task) is None)
    return sent


def told(request) -> set[str]:
    return set(Delivery.objects.filter(request=request).values_list("channel__name", flat=True))


def test_an_event_is_owed_once_to_every_channel_and_the_worker_is_woken(
    woken, django_capture_on_commit_callbacks
):
    webhook(URL), email()
    request = held()
    with django_capture_on_commit_callbacks(execute=True):
        assert outbox.enqueue("asked", request) == 2
        outbox.enqueue("asked", request)
    assert sorted(Delivery.objects.values_list("channel__name", "event", "state")) == [
        ("hook", "asked", "waiting"),
        ("mail", "asked", "waiting"),
    ]
    assert set(woken) == {"deliver_notifications"}


def test_what_is_rolled_back_is_not_told(woken):
    webhook(URL)
    request = held()

    with transaction.atomic():
        outbox.enqueue("asked", request)
        assert Delivery.objects.exists()
        transaction.set_rollback(True)
    assert not Delivery.objects.exists()
    assert woken == []


def test_nobody_to_tell_costs_nothing(woken, django_assert_num_queries):
    request = held()
    with django_assert_num_queries(1):
        assert outbox.enqueue("asked", request) == 0


@pytest.mark.parametrize(
    ("fields", "hears"),
    [
        ({}, {"low", "high"}),
        ({"enabled": False}, set()),
        ({"events": ["approved"]}, set()),
        ({"events": ["asked", "approved"]}, {"low", "high"}),
        ({"minimum_risk": 2}, {"high"}),
    ],
)
def test_a_channel_hears_what_its_filters_let_through(fields, hears):
    webhook(URL, **fields)
    requests = {risk: held(risk) for risk in ("low", "high")}
    for request in requests.values():
        tell("asked", request)
    assert {risk for risk, request in requests.items() if told(request)} == hears


def test_a_channel_may_listen_to_some_servers_and_rules_only():
    server = confirmed("echo")
    rule = PolicyRule.objects.create(name="writes")
    outbox.save_channel(channel=email(name="by server"), actor="test", servers=[server])
    outbox.save_channel(channel=email(name="by rule"), actor="test", rules=[rule])
    here = held(call={"server_slug": "echo"})
    there = held(rule=rule)
    tell("asked", here), tell("asked", there)
    assert (told(here), told(there)) == ({"by server"}, {"by rule"})


def test_new_definitions_of_one_look_are_one_message():
    server = confirmed("echo")
    (
        email(name="all"),
        email(name="calls only", events=["asked"]),
        email(name="high", minimum_risk=3),
    )
    assert outbox.enqueue_definitions(server=server, added=["a", "b"], changed=["c"]) == 2
    assert outbox.enqueue_definitions(server=server, added=[], changed=[]) == 0
    facts = Delivery.objects.get(channel__name="all").facts
    assert facts["type"] == "definitions.waiting"
    assert facts["data"]["added"] == ["a", "b"]
    assert facts["data"]["changed"] == ["c"]


def test_secrets_in_arguments_are_masked_in_the_row():
    webhook(URL)
    secret = "canary-b2f1"
    arguments = {
        "path": "x",
        "api_key": secret,
        "deep": [{"password": secret}],
        "text": f"Bearer {secret}",
    }
    tell("asked", held(arguments=arguments))
    body = Delivery.objects.get().body
    assert secret not in body
    assert '"arguments_whole":false' in body
    assert "path" in Delivery.objects.get().facts["data"]["arguments"]


def test_secrets_of_a_channel_are_stored_sealed_only():
    webhook(URL)
    slack_room("https://slack.example.org/token-canary/api")
    stored = telling.everything_stored()
    for secret in ("canary", telling.SIGNING, "xoxb"):
        assert secret not in stored
    assert Channel.objects.get(name="hook").access["url"] == URL
    assert Channel.objects.get(name="hook").origin == "https://hooks.example.org"


def test_parts_of_the_access_that_are_not_given_stay():
    channel = webhook(URL)
    outbox.save_channel(channel=channel, actor="test", access={"url": "https://b.example.org/"})
    assert Channel.objects.get().access == {
        "url": "https://b.example.org/",
        "signing": telling.SIGNING,
    }
    assert AuditEntry.objects.filter(kind="channel.changed").count() == 1


@pytest.mark.parametrize(
    ("fields", "access", "says"),
    [
        (
            {"kind": "webhook"},
            {"url": "ftp://a.example.org", "signing": telling.SIGNING},
            "plain http",
        ),
        (
            {"kind": "webhook"},
            {"url": "https://u:p@a.example.org", "signing": telling.SIGNING},
            "plain http",
        ),
        ({"kind": "webhook"}, {"url": URL, "signing": "whsec_tooshort"}, "24 to 64 bytes"),
        ({"kind": "webhook"}, {"url": URL}, "whsec_"),
        (
            {"kind": "webhook", "allowed_networks": ["10.0.0.0/99"]},
            {"url": URL, "signing": telling.SIGNING},
            "CIDR",
        ),
        (
            {"kind": "webhook", "events": ["asked", "sneezed"]},
            {"url": URL, "signing": telling.SIGNING},
            "sneezed",
        ),
        (
            {"kind": "webhook", "events": "asked"},
            {"url": URL, "signing": telling.SIGNING},
            "list of texts",
        ),
        ({"kind": "email"}, {}, "An e-mail address is required"),
        (
            {"kind": "email", "addresses": ["ann@example.org\nBcc: x@y.z"]},
            {},
            "not a valid e-mail address",
        ),
        ({"kind": "slack", "room": "C1"}, {}, "bot token"),
        ({"kind": "slack"}, {"token": "xoxb-1"}, "bot token"),
        ({"kind": "pigeon"}, {}, "not a kind of channel"),
    ],
)
def test_what_could_never_be_delivered_is_refused_with_the_remedy(fields, access, says):
    channel = Channel(name="odd", **fields)
    with pytest.raises(ConfigInvalid, match=says) as refused:
        outbox.save_channel(channel=channel, actor="test", access=access)
    assert refused.value.remedy
    assert "canary" not in str(refused.value)
    assert not Channel.objects.exists()


def test_a_test_message_and_a_repetition_by_hand():
    channel = webhook(URL)
    delivery = outbox.send_test(channel=channel, actor="test")
    assert (delivery.event, delivery.state) == ("test", "waiting")
    with pytest.raises(Conflict, match="still being sent"):
        outbox.redeliver(delivery=delivery, actor="test")
    Delivery.objects.update(state="given up", next_at=None, last_error="HTTP 500")
    again = outbox.redeliver(delivery=delivery, actor="test")
    assert (again.state, again.last_error, again.uid) == ("waiting", "", delivery.uid)
    channel.enabled = False
    with pytest.raises(Conflict, match="disabled"):
        outbox.send_test(channel=channel, actor="test")


def test_messages_are_forgotten_with_the_payloads_unless_they_are_still_owed():
    from datetime import timedelta

    from django.utils import timezone

    webhook(URL)
    for number, state in enumerate(("sent", "waiting")):
        tell("asked", held())
        next_at = None if state == "sent" else timezone.now()
        newest = Delivery.objects.order_by("-id")[:1].get()
        Delivery.objects.filter(pk=newest.pk).update(
            state=state, next_at=next_at, created_at=timezone.now() - timedelta(days=400 + number)
        )
    retention.prune(timezone.now())
    assert list(Delivery.objects.values_list("state", flat=True)) == ["waiting"]


def test_the_doctor_names_channels_whose_newest_message_failed():
    from controlplane import doctor

    webhook(URL, "good"), webhook(URL, "bad"), webhook(URL, "off", enabled=False)
    assert [finding.ok for finding in doctor._check_channels()] == [True]
    for name, state in (("good", "failed"), ("good", "sent"), ("bad", "sent"), ("bad", "given up")):
        Delivery.objects.update(next_at=None)
        delivery = outbox.send_test(channel=Channel.objects.get(name=name), actor="test")
        Delivery.objects.filter(pk=delivery.pk).update(
            state=state, attempts=1, last_error="HTTP 500"
        )
    (finding,) = doctor._check_channels()
    assert (finding.ok, finding.what) == (False, "the channel 'bad' cannot send messages: HTTP 500")
    assert "send a test message" in finding.remedy


def test_a_server_in_trouble_is_told_once_and_so_is_its_return():
    server = confirmed("echo")
    email(name="all"), email(name="calls only", events=["asked"])
    for _ in range(5):
        checks.mark_failed(server_id=server.pk, code="TIMEOUT", message="No answer within 30 s.")
    (down,) = Delivery.objects.filter(event="unavailable")
    assert (
        down.facts["data"]["reason"] == "The server failed 3 times in a row: No answer within 30 s."
    )
    assert down.facts["data"]["url"].endswith(f"/admin/mcpregistry/server/{server.pk}/change/")
    assert (
        compose_mail(NotificationEvent.UNAVAILABLE, down.facts["data"]).subject
        == "[Slipsnisse] A server does not answer: echo"
    )
    for _ in range(2):
        checks.mark_ok(server_id=server.pk, discovery=FOUND)
    assert [row.facts["type"] for row in Delivery.objects.order_by("id")] == [
        "server.unavailable",
        "server.available",
    ]
