"""The outbox is emptied: real receivers on loopback, refusals, retries, dead workers, hostile
text."""

from __future__ import annotations

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Channel, Delivery, Invocation
from mcpregistry.services.notifications import outbox, senders
from mcpregistry.services.notifications.delivery import claim, settle
from tests import forkserver
from tests.conftest import child_env
from tests.externals import ROOT
from tests.fakes import slack as slack_fake
from tests.fakes.receiver import Receiver, listening
from tests.fakes.slack import slack
from tests.fakes.smtp import mailbox
from tests.services import telling
from tests.services.telling import deliver, due_again, email, held, only, slack_room, tell, webhook
from tests.waiting import HANG_LIMIT, eventually

pytestmark = [
    pytest.mark.usefixtures("live_db", "_no_broker"),
    pytest.mark.exhaustive(on="postgresql"),
]


@pytest.fixture
def _no_broker(monkeypatch):
    monkeypatch.setattr(outbox, "wake_worker", lambda *_: True)


@pytest.fixture
def receiver():
    with listening(Receiver()) as fake:
        yield fake


@pytest.fixture
def post_office(settings):
    with mailbox() as box:
        settings.MAIL_CONFIGURED = True
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST = "127.0.0.1"
        settings.EMAIL_PORT = box.port
        yield box


def verify(headers: dict[str, str], body: bytes, secret: str) -> bool:
    """A receiver's check, exactly as docs/notifications.md gives it to receivers."""
    example = (
        (ROOT / "docs/notifications.md").read_text().partition("```python")[2].partition("```")[0]
    )
    names: dict[str, Any] = {}
    exec(example, names)
    return names["verify"](headers, body, secret)


def after(over: threading.Event):
    """An answer that comes only then."""

    def answer(_: object) -> tuple[int, dict[str, str], bytes]:
        over.wait(HANG_LIMIT)
        return 200, {}, b""

    return answer


def waits(began: datetime, least: float, most: float) -> list[bool]:
    """Of each message whether it waits that many seconds, from some moment between ``began`` and
    now; give or take one."""
    first = began + timedelta(seconds=least - 1)
    last = timezone.now() + timedelta(seconds=most + 1)
    return [first < row.next_at < last for row in Delivery.objects.all()]


# Webhooks


def test_a_webhook_gets_the_facts_signed(receiver):
    webhook(receiver.url + "/in?key=canary")
    request = held()
    (delivery,) = tell("asked", request)
    deliver()
    (got,) = receiver.requests
    assert verify(got.headers, got.body, telling.SIGNING)
    assert not verify(got.headers, got.body + b" ", telling.SIGNING)
    assert not verify({**got.headers, "webhook-id": "another"}, got.body, telling.SIGNING)
    assert (got.path, got.headers["content-type"]) == ("/in?key=canary", "application/json")
    assert got.headers["webhook-id"] == delivery.uid.hex
    told = json.loads(got.body)
    assert told["type"] == "approval.asked"
    assert told["data"]["url"] == f"http://127.0.0.1:8000/approvals/{request.pk}/"
    assert told["data"]["tool"] == "delete_file"
    assert (only().state, only().response_code, only().attempts, only().next_at) == (
        "sent",
        200,
        1,
        None,
    )


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((500, {}, b"canary-in-answer"), "HTTP 500"),
        ((404, {}, b""), "HTTP 404"),
        (
            (302, {"Location": "http://127.0.0.1:1/"}, b""),
            "HTTP 302, which is a redirect. The site does not follow redirects",
        ),
    ],
)
def test_a_refusal_is_noted_and_tried_again_with_the_same_id(receiver, answer, says):
    webhook(receiver.url)
    receiver.answers.append(answer)
    tell("asked", held())
    began = timezone.now()
    deliver()
    row = only()
    assert (row.state, row.attempts) == ("failed", 1)
    assert says in row.last_error
    assert "canary" not in row.last_error
    assert waits(began, 3.75, 6.25) == [True]
    # a busy machine gets no further in that time
    Delivery.objects.update(next_at=F("next_at") + timedelta(hours=1))
    deliver()
    assert len(receiver.requests) == 1, "not before its time"
    due_again()
    deliver()
    assert only().state == "sent"
    assert len({got.headers["webhook-id"] for got in receiver.requests}) == 1
    assert [verify(got.headers, got.body, telling.SIGNING) for got in receiver.requests] == [
        True,
        True,
    ]


@pytest.mark.both_databases
def test_a_receiver_that_asks_for_patience_gets_it_for_all_its_messages(receiver):
    webhook(receiver.url)
    receiver.answers.append((429, {"Retry-After": "600"}, b""))
    tell("asked", held()), tell("asked", held())
    began = timezone.now()
    deliver()
    assert len(receiver.requests) == 1
    assert waits(began, 600, 600) == [True, True]


def test_a_receiver_that_is_gone_is_not_asked_again(receiver):
    webhook(receiver.url)
    receiver.answers.append((410, {}, b""))
    tell("asked", held())
    deliver()
    assert (only().state, only().next_at) == ("given up", None)


@pytest.mark.both_databases
def test_after_a_day_it_is_given_up_and_can_be_sent_by_hand(receiver):
    webhook(receiver.url)
    receiver.otherwise = (503, {}, b"")
    tell("asked", held())
    Delivery.objects.update(give_up_at=timezone.now())
    deliver()
    assert (only().state, only().next_at) == ("given up", None)
    receiver.otherwise = (204, {}, b"")
    outbox.redeliver(delivery=only(), actor="test")
    deliver()
    assert (only().state, only().response_code) == ("sent", 204)


def test_a_private_address_is_refused_unless_the_channel_names_its_network(receiver):
    webhook(receiver.url, allowed_networks=[])
    tell("asked", held())
    deliver()
    assert receiver.requests == []
    assert "is private or reserved" in only().last_error
    assert "allowed networks of the channel" in only().last_error
    Channel.objects.update(allowed_networks=telling.LOOPBACK)
    due_again()
    deliver()
    assert only().state == "sent"


@pytest.mark.exhaustive
def test_one_that_never_answers_delays_nobody_else(receiver, monkeypatch):
    monkeypatch.setattr(senders, "SEND_SECONDS", 6.0)
    over = threading.Event()
    with listening(Receiver(otherwise=after(over))) as dead:
        webhook(dead.url, "a dead one"), webhook(receiver.url, "a good one")
        for _ in range(20):
            tell("asked", held())
        with telling.working() as deliverer:
            deliverer.kick()
            eventually(lambda: len(receiver.requests) == 20)
            assert len(dead.requests) == 1, "still waiting for its first answer"
            deliverer.run_until_idle()
        over.set()
    good, bad = (
        Delivery.objects.filter(channel__name=name) for name in ("a good one", "a dead one")
    )
    assert set(good.values_list("state", flat=True)) == {"sent"}
    assert sorted(bad.values_list("attempts", flat=True)) == [0] * 19 + [1], (
        "the others were not even tried"
    )
    assert bad.get(attempts=1).last_error == "The message could not be sent in time."
    assert not bad.filter(next_at__lte=timezone.now()).exists()


def test_nobody_listening_is_a_failure_with_a_plain_sentence(receiver):
    webhook("http://127.0.0.1:1/canary")
    tell("asked", held())
    deliver()
    assert "The receiver cannot be reached" in only().last_error


@pytest.mark.both_databases
def test_what_concerns_one_call_arrives_in_order(receiver):
    webhook(receiver.url)
    receiver.answers.append((500, {}, b""))
    request = held()
    tell("asked", request), tell("approved", request)
    deliver()
    assert len(receiver.requests) == 1, "the approval waits until the question has arrived"
    due_again()
    deliver()
    kinds = [json.loads(got.body)["type"] for got in receiver.requests]
    assert kinds == ["approval.asked", "approval.asked", "approval.approved"]


def test_a_channel_that_is_switched_off_drops_what_waits(receiver):
    channel = webhook(receiver.url)
    tell("asked", held())
    channel.enabled = False
    outbox.save_channel(channel=channel, actor="test")
    deliver()
    assert receiver.requests == []
    assert (only().state, only().last_error) == ("given up", outbox.OFF)


def test_secrets_that_do_not_open_are_told_and_end_in_time(receiver):
    webhook(receiver.url)
    Channel.objects.update(sealed_access="v1.lost.AAAA")
    tell("asked", held())
    deliver()
    assert only().state == "failed"
    assert 'encrypted with the key "lost"' in only().last_error


# Many at once, and deaths


@pytest.mark.both_databases
def test_duplicate_wake_ups_and_two_workers_send_each_message_once(receiver):
    webhook(receiver.url)
    for _ in range(30):
        tell("asked", held())
    with telling.working() as one, telling.working() as other, ThreadPoolExecutor(4) as threads:
        for _ in range(10):
            threads.submit(one.kick), threads.submit(other.kick)
        one.run_until_idle(), other.run_until_idle()
        eventually(lambda: not Delivery.objects.open().exists())
    ids = [got.headers["webhook-id"] for got in receiver.requests]
    assert (len(ids), len(set(ids))) == (30, 30)
    assert set(Delivery.objects.values_list("attempts", flat=True)) == {1}


@pytest.mark.both_databases
@pytest.mark.fault
def test_a_worker_killed_in_the_middle_is_followed_by_another_one(receiver):
    """At least once, with the same id: the receiver had it already, nobody knew."""
    webhook(receiver.url)
    over = threading.Event()
    receiver.answers.append(after(over))
    tell("asked", held())
    code = (
        "import django; django.setup()\n"
        "from mcpregistry.services.notifications.delivery import Deliverer\n"
        "Deliverer().kick()\n"
        "import signal; signal.pause()"
    )
    child = forkserver.popen(["-c", code], env=child_env())
    try:
        eventually(lambda: receiver.requests)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait(HANG_LIMIT)
        over.set()
    row = only()
    assert (row.state, row.attempts) == ("waiting", 1)
    deliver()
    assert len(receiver.requests) == 1, "its lease still runs"
    due_again()
    deliver()
    assert (only().state, only().attempts) == ("sent", 2)
    assert len({got.headers["webhook-id"] for got in receiver.requests}) == 1


@pytest.mark.both_databases
def test_a_failure_told_late_does_not_disturb_the_next_one_who_tries(receiver):
    webhook(receiver.url)
    tell("asked", held())
    first = claim(Channel.objects.get().pk, timezone.now())
    due_again()
    second = claim(Channel.objects.get().pk, timezone.now())
    assert (first.attempt, second.attempt) == (1, 2)
    late = senders.Receipt("The message could not be sent in time.", reached=False)
    settle(first.id, first.attempt, late, timezone.now())
    assert (only().state, only().last_error) == ("waiting", "")
    settle(second.id, second.attempt, senders.Receipt(code=200), timezone.now())
    settle(first.id, first.attempt, late, timezone.now())
    assert only().state == "sent"


# E-mail


def test_a_mail_says_it_in_plain_text_and_html_with_a_link_and_no_secret(post_office):
    email("ann@example.org", "bob@example.org")
    request = held("medium", {"path": "a.txt", "token": "canary-77"})
    tell("asked", request)
    deliver()
    (letter,) = post_office.letters
    (to,) = post_office.recipients
    assert to == ["ann@example.org", "bob@example.org"]
    assert letter["Subject"] == "[Slipsnisse] A call waits for approval: files::delete_file"
    assert letter["Message-ID"] == f"<{only().uid.hex}@slipsnisse>"
    assert letter["Auto-Submitted"] == "auto-generated"
    text, html = (letter.get_body((kind,)).get_content() for kind in ("plain", "html"))
    for part in (text, html):
        assert f"http://127.0.0.1:8000/approvals/{request.pk}/" in part
        assert "Ask before writing" in part
        assert "canary" not in part
    assert "approve" not in html.lower().replace("waits for approval", ""), (
        "nothing in a mail decides"
    )
    assert (only().state, only().response_code) == ("sent", 250)


def test_a_mail_names_the_person_who_asked_where_one_is_known(post_office):
    email()
    tell("asked", held(call={"requester": "ann"}))
    tell("asked", held())
    deliver()
    by_ann, by_nobody = [
        "Requested by" in part.get_body(("plain",)).get_content() for part in post_office.letters
    ]
    assert (by_ann, by_nobody) == (True, False)


HOSTILE = 'x\r\nBcc: eve@example.org\r\n\r\n<script>alert(1)</script> & "q" \u202e\x1b[2J<!channel> *b* `c` ```d```'


def test_hostile_names_neither_forge_headers_nor_markup(post_office):
    email()
    call = {"tool_name": HOSTILE, "agent_slug": "robot", "requester": HOSTILE[:150]}
    tell("asked", held(arguments={HOSTILE: HOSTILE}, call=call, rule_name=HOSTILE[:150]))
    deliver()
    (letter,) = post_office.letters
    assert letter["Bcc"] is None
    assert post_office.recipients == [["ann@example.org"]]
    html = letter.get_body(("html",)).get_content()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    for part in (html, letter.get_body(("plain",)).get_content(), str(letter["Subject"])):
        assert "\u202e" not in part
        assert "\x1b" not in part


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    ("verb", "reply", "says", "code"),
    [
        ("DATA", b"451 canary later", "rejected the message", 451),
        ("RCPT", b"550 canary no such box", "rejected all addresses", 550),
        ("MAIL", b"421 canary closing", "rejected the message", 421),
    ],
)
def test_a_mail_server_that_refuses_is_tried_again(post_office, verb, reply, says, code):
    email()
    post_office.refuse[verb] = reply
    tell("asked", held())
    deliver()
    assert (only().state, only().response_code) == ("failed", code)
    assert says.split()[0] in only().last_error
    assert "canary" not in only().last_error
    post_office.refuse.clear()
    due_again()
    deliver()
    assert only().state == "sent"


def test_without_a_mail_server_the_row_says_what_to_set():
    email()
    tell("asked", held())
    deliver()
    assert (
        only().last_error == "No mail server is configured. Set EMAIL_URL, then restart the site."
    )


@pytest.mark.both_databases
def test_people_are_not_asked_about_what_was_decided_meanwhile(post_office, receiver):
    email(), webhook(receiver.url)
    request = held()
    tell("asked", request)
    Invocation.objects.filter(pk=request.call_id).update(state=InvocationState.REJECTED)
    tell("rejected", request)
    deliver()
    asked = Delivery.objects.get(channel__kind="email", event="asked")
    assert (asked.state, asked.last_error) == ("given up", outbox.MOOT)
    assert [str(letter["Subject"]) for letter in post_office.letters] == [
        "[Slipsnisse] Rejected: files::delete_file"
    ]
    assert len(receiver.requests) == 2, "programs keep the whole story"


# Slack


def test_slack_is_asked_with_buttons_and_the_message_changes_when_it_is_decided():
    with slack() as fake:
        slack_room(fake.url)
        request = held("medium", {"path": "a.txt"})
        tell("asked", request)
        deliver()
        ((stamp, message),) = fake.messages.items()
        assert actions(message) == ["approve", "deny", "open"]
        assert '"path": "a.txt"' in json.dumps(message["blocks"]).replace('\\"', '"')
        request.decided_reason = "not this one"
        tell("rejected", request)
        deliver()
        assert list(fake.messages) == [stamp]
        assert actions(fake.messages[stamp]) == ["open"]
        assert "not this one" in json.dumps(fake.messages[stamp])
        assert set(Delivery.objects.values_list("state", flat=True)) == {"sent"}


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize(
    ("risk", "arguments"),
    [
        ("high", {"path": "a.txt"}),
        ("low", {"text": "x" * 5_000}),
        ("low", {"password": "canary-9"}),
        ("low", {"text": "invisible \u200b here"}),
        ("low", {"text": "y" * 200_000}),
    ],
)
def test_what_is_not_shown_whole_or_risky_is_decided_on_the_page(risk, arguments):
    with slack() as fake:
        slack_room(fake.url)
        tell("asked", held(risk, arguments))
        deliver()
        (message,) = fake.messages.values()
        assert actions(message) == ["open"]
        assert "canary" not in json.dumps(message)
        assert "on the page" in json.dumps(message)


def test_nothing_in_slack_is_parsed_as_markup():
    with slack() as fake:
        slack_room(fake.url)
        tell(
            "asked",
            held(arguments={"x": HOSTILE}, call={"tool_name": HOSTILE}, rule_name=HOSTILE[:150]),
        )
        deliver()
        (message,) = fake.messages.values()
        assert {text["type"] for text in texts(message["blocks"])} <= {"plain_text", "text"}
        assert "<" not in message["text"]
        assert (message["parse"], message["mrkdwn"], message["link_names"]) == (
            "none",
            False,
            False,
        )


@pytest.mark.parametrize("fields", [{"room": "C0OTHER"}, {}])
def test_what_slack_refuses_is_noted_by_its_word(fields, monkeypatch):
    with slack() as fake:
        channel = slack_room(fake.url, **{})
        if fields:
            Channel.objects.filter(pk=channel.pk).update(**fields)
        else:
            monkeypatch.setattr(slack_fake, "TOKEN", "xoxb-another")
        tell("asked", held())
        deliver()
    expected = "channel_not_found" if fields else "invalid_auth"
    assert only().last_error == f"Slack answered: {expected}."
    assert only().state == "failed"


def test_slack_that_asks_for_patience_gets_it():
    with slack() as fake:
        fake.answers.append((429, {"Retry-After": "30"}, b"{}"))
        slack_room(fake.url)
        tell("asked", held())
        began = timezone.now()
        deliver()
        assert waits(began, 30, 30) == [True]
        due_again()
        deliver()
        assert len(fake.messages) == 1


def test_an_odd_answer_of_slack_is_a_failure():
    with slack() as fake:
        fake.answers += [
            (200, {}, b"<html>canary</html>"),
            (200, {}, b'{"ok": false, "error": "canary token!"}'),
        ]
        slack_room(fake.url)
        tell("asked", held())
        for says in ("a text that is not a JSON object", "an error without a name"):
            deliver()
            assert only().last_error == f"Slack answered: {says}."
            due_again()


# Secrets


@pytest.mark.attack
def test_no_secret_reaches_a_log_or_a_row_whatever_goes_wrong(receiver, caplog, capfd):
    receiver.otherwise = lambda got: (500, {}, json.dumps({"echo": dict(got.headers)}).encode())
    webhook(receiver.url + "/canary-path")
    slack_room(receiver.url + "/canary-path", "slack")
    tell("asked", held())
    deliver()
    webhook("http://127.0.0.1:1/canary-path", "dead")
    tell("expired", held())
    deliver()
    said = telling.everything_stored() + caplog.text + "".join(capfd.readouterr())
    for secret in (
        "canary",
        telling.SIGNING.removeprefix("whsec_"),
        slack_fake.TOKEN,
        slack_fake.SIGNING,
    ):
        assert secret not in said
    assert (
        repr(senders.Parcel("1", 1, "webhook", "test", "{}", {"url": "canary"})).count("canary")
        == 0
    )


def actions(message: dict) -> list[str]:
    found = [block for block in message["blocks"] if block["type"] == "actions"]
    return [element["action_id"] for block in found for element in block["elements"]]


def texts(value: object) -> list[dict]:
    """Every object that holds a text."""
    if isinstance(value, list):
        return [found for item in value for found in texts(item)]
    if not isinstance(value, dict):
        return []
    return ([value] if isinstance(value.get("text"), str) else []) + texts(list(value.values()))
