"""Seals at a webhook and in a bucket: all of them, in order, once; and whatever the place answers
is told, not believed."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from django.core.management import call_command
from hypothesis import given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st

from controlplane import checks, doctor
from mcpregistry.domain.notifications.events import build_webhook_headers
from mcpregistry.models import AuditSeal
from mcpregistry.services.records import audit, remote_sinks, sigv4, sinks
from tests.fakes.receiver import OK, Answer, Received, Receiver, listening
from tests.fakes.tampered import seal, sealed_anew
from tests.logs import logged
from tests.waiting import HANG_LIMIT

pytestmark = pytest.mark.django_db
KEY_ID = "AKIDEXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
REGION = "eu-north-1"
WEBHOOK_SECRET = "whsec_" + "QUJD" * 8

_FIRST = datetime(2000, 1, 1)  # noqa: DTZ001 -- as in a certificate
_LAST = datetime(2090, 1, 1)  # noqa: DTZ001
SLOW_DOWN: Answer = (503, {}, b"<Error><Code>SlowDown</Code></Error>")


def made(count: int) -> None:
    """So many seals, the first of them the site's own."""
    sealed_anew()
    for number in range(1, count):
        audit.record_entry(kind="test", actor="ann", subject="x", number=number)
        assert seal(10 - number) is not None


class Bucket(Receiver):
    """Answers as S3 does: looks at the signature as botocore makes it, and writes over nothing."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self.readable = options.get("readable", True)
        self.before = list[Answer | Callable[[Received], Answer]]()

    def answer(self, request: Received) -> Answer:
        self.requests.append(request)
        if self.before:
            told = self.before.pop(0)
            return told(request) if callable(told) else told
        if not _signed_by_us(self.url, request):
            return 403, {}, b"<Error><Code>SignatureDoesNotMatch</Code></Error>"
        if request.method == "GET":
            found = self.objects.get(request.path)
            return (
                (200, {}, found) if found is not None and self.readable else (403, {}, b"<Error/>")
            )
        if request.path in self.objects and request.headers.get("if-none-match") == "*":
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        self.objects[request.path] = request.body
        return OK


def _signed_by_us(url: str, request: Received) -> bool:
    given = request.headers
    stamp = given["x-amz-date"]
    names = given["authorization"].split("SignedHeaders=")[1].split(",")[0].split(";")
    asked = AWSRequest(request.method, url + request.path, data=request.body)
    for name in names:
        if name not in ("host", "x-amz-date", "x-amz-content-sha256"):
            asked.headers[name] = given[name]
    return given["authorization"] == _botocore(asked, stamp) and (
        given["x-amz-content-sha256"] == hashlib.sha256(request.body).hexdigest()
    )


def _botocore(asked: AWSRequest, stamp: str, region: str = REGION) -> str:
    asked.context["timestamp"] = stamp
    asked.context["payload_signing_enabled"] = True
    auth = S3SigV4Auth(Credentials(KEY_ID, SECRET), "s3", region)
    asked.headers["X-Amz-Date"] = stamp
    asked.headers["X-Amz-Content-SHA256"] = auth.payload(asked)
    whole = auth.canonical_request(asked)
    signature = auth.signature(auth.string_to_sign(asked, whole), asked)
    names = auth.signed_headers(auth.headers_to_sign(asked))
    return f"AWS4-HMAC-SHA256 Credential={auth.scope(asked)}, SignedHeaders={names}, Signature={signature}"


@pytest.fixture
def bucket(settings) -> Iterator[Bucket]:
    settings.AUDIT_NETWORKS = ["127.0.0.0/8"]
    settings.AUDIT_BUCKET_KEY_ID = KEY_ID
    settings.AUDIT_BUCKET_SECRET = SECRET
    settings.AUDIT_BUCKET_REGION = REGION
    with listening(Bucket()) as receiver:
        settings.AUDIT_BUCKET = f"{receiver.url}/seals/site a"
        yield receiver  # type: ignore[misc]


@pytest.fixture
def webhook(settings) -> Iterator[Receiver]:
    settings.AUDIT_NETWORKS = ["127.0.0.0/8"]
    settings.AUDIT_WEBHOOK_SECRET = WEBHOOK_SECRET
    with listening(Receiver()) as receiver:
        settings.AUDIT_WEBHOOK = f"{receiver.url}/seals"
        yield receiver


def told() -> list[tuple[str, str]]:
    """(place, error) of what was not kept."""
    with logged(sinks) as said:
        sinks.deliver_seals()
    return [
        (each["place"], each["error"]) for each in said if each["event"] == "audit.not_kept_outside"
    ]


def numbers(receiver: Receiver) -> list[int]:
    return [json.loads(json.loads(request.body)["seal"])["number"] for request in receiver.requests]


def test_the_webhook_gets_each_seal_in_order_signed_and_once(webhook):
    made(3)
    began = int(time.time())
    assert told() == []
    assert told() == []
    assert numbers(webhook) == [1, 2, 3]
    first = webhook.requests[0]
    seconds = int(first.headers["webhook-timestamp"])
    assert began <= seconds <= time.time()
    expected = build_webhook_headers(
        message="seal-1", seconds=seconds, body=first.body, secret=WEBHOOK_SECRET
    )
    assert {name: first.headers[name] for name in expected} == expected


def test_a_webhook_that_was_away_gets_all_it_lacks_in_order(webhook, settings):
    made(4)
    webhook.answers = [OK, SLOW_DOWN]
    assert told() == [("webhook", "NotKept: it answered HTTP 503")]
    assert numbers(webhook) == [1, 2]
    away = list(webhook.requests)
    settings.AUDIT_WEBHOOK_SECRET = ""
    webhook.requests.clear()
    assert told() == []
    assert numbers(webhook) == [2, 3, 4]
    assert webhook.requests[0].headers["webhook-id"] == away[1].headers["webhook-id"], (
        "the receiver knows it again"
    )
    assert "webhook-signature" not in webhook.requests[0].headers


def test_the_bucket_gets_an_object_for_each_seal_that_verify_takes(bucket, tmp_path):
    made(3)
    assert told() == []
    assert sorted(bucket.objects) == [f"/seals/site%20a/{number:010}.json" for number in (1, 2, 3)]
    for path, body in bucket.objects.items():
        (tmp_path / path.rsplit("/", 1)[1]).write_bytes(body)
    out = io.StringIO()
    call_command("audit", "verify", "--against", str(tmp_path), stdout=out)
    assert "gone" not in out.getvalue()
    second = tmp_path / "0000000002.json"
    second.write_text(json.dumps(json.loads(second.read_text()) | {"hash": "0" * 64}))
    with pytest.raises(SystemExit):
        call_command("audit", "verify", "--against", str(tmp_path), stdout=out)


def test_an_answer_that_was_lost_is_found_in_the_bucket(bucket):
    made(2)
    assert told() == []
    remote_sinks.Figure.objects.filter(name="audit.bucket").update(value=0)
    assert told() == []
    assert [request.method for request in bucket.requests] == [
        "PUT",
        "PUT",
        "PUT",
        "GET",
        "PUT",
        "GET",
    ]


@pytest.mark.attack
def test_something_else_in_its_place_is_told_and_not_written_over(bucket):
    made(2)
    path = "/seals/site%20a/0000000001.json"
    bucket.objects[path] = b"mine"
    assert told() == [("bucket", "NotKept: another object is stored in the place of checkpoint 1")]
    assert bucket.objects == {path: b"mine"}


def test_an_object_that_we_may_not_read_counts_as_ours_and_is_told(bucket):
    made(1)
    bucket.objects["/seals/site%20a/0000000001.json"] = b"unseen"
    bucket.readable = False
    with logged(remote_sinks) as said:
        assert told() == []
    assert [each["event"] for each in said] == ["audit.kept_unseen"]


@pytest.mark.attack
@pytest.mark.parametrize(
    "answer",
    [SLOW_DOWN, (307, {"Location": "http://127.0.0.1:9/"}, b""), (403, {}, SECRET.encode())],
)
def test_what_a_bucket_answers_is_neither_followed_nor_quoted(bucket, answer):
    made(1)
    bucket.before = [answer]
    assert told() == [("bucket", f"NotKept: it answered HTTP {answer[0]}")]
    assert len(bucket.requests) == 1
    assert told() == []


def test_one_place_that_fails_keeps_no_other_from_its_seals(bucket, settings, tmp_path):
    made(2)
    settings.AUDIT_WEBHOOK = "http://127.0.0.1:9/"
    settings.AUDIT_FILE = str(tmp_path / "no" / "file")
    assert [place for place, _ in told()] == ["file", "webhook"]
    assert len(bucket.objects) == 2


@pytest.mark.attack
def test_private_addresses_are_refused_where_no_network_is_named(webhook, settings):
    settings.AUDIT_NETWORKS = []
    made(1)
    assert [place for place, _ in told()] == ["webhook"]
    assert webhook.requests == []


def test_another_address_is_another_place(webhook, settings):
    made(2)
    assert told() == []
    settings.AUDIT_WEBHOOK += "/new"
    assert told() == []
    assert numbers(webhook) == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("name", "url", "wrong"),
    [
        ("bucket", "https://bucket.example.org", "must contain the bucket"),
        ("bucket", "s3://bucket/x", "plain http or https"),
        ("webhook", "https://a:b@hook.example.org/", "without a password"),
        ("webhook", "hook.example.org", "plain http or https"),
        ("webhook", "https://[hook/", "plain http or https"),
        ("bucket", "https://store.example.org:x/b", "plain http or https"),
    ],
)
def test_a_setting_that_cannot_work_is_told_with_the_remedy(settings, name, url, wrong):
    settings.AUDIT_BUCKET_KEY_ID = KEY_ID
    settings.AUDIT_BUCKET_SECRET = SECRET
    setattr(settings, f"AUDIT_{name.upper()}", url)
    made(1)
    assert wrong in told()[0][1]
    [problem] = checks.places_of_seals_can_be_used()
    assert (problem.id, wrong in problem.msg, [*doctor._check_checkpoints()]) == (
        "slipsnisse.E005",
        True,
        [],
    )


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("AUDIT_SYSLOG", "tcp://log.example.org", "SLIPSNISSE_AUDIT_SYSLOG must be"),
        ("AUDIT_SYSLOG", "udp://log.example.org:x", "SLIPSNISSE_AUDIT_SYSLOG must be"),
        ("AUDIT_NETWORKS", ["10.0.0.0/8", "home"], "SLIPSNISSE_AUDIT_NETWORKS must contain"),
    ],
)
def test_other_settings_that_cannot_work_are_told_at_the_start(settings, name, value, wrong):
    assert checks.places_of_seals_can_be_used() == []
    setattr(settings, name, value)
    [problem] = checks.places_of_seals_can_be_used()
    assert wrong in problem.msg


def test_a_secret_that_cannot_sign_is_told_and_not_shown(webhook, settings):
    settings.AUDIT_WEBHOOK_SECRET = "hunter2hunter2"
    made(1)
    (place, error) = told()[0]
    found = checks.places_of_seals_can_be_used()
    assert (place, "whsec_" in error, ["whsec_" in each.msg for each in found]) == (
        "webhook",
        True,
        [True],
    )
    assert "hunter2" not in f"{error}{found}"
    assert webhook.requests == []


@pytest.mark.attack
@pytest.mark.parametrize("line", ["5", "[]", "{}", '{"seal": "{}"}', '{"seal": 1}', "text", "null"])
def test_a_file_that_is_none_of_ours_keeps_no_other_place_from_its_seals(
    webhook, settings, tmp_path, line
):
    made(1)
    strange = tmp_path / "strange"
    strange.write_text(f"{line}\n")
    settings.AUDIT_FILE = str(strange)
    assert [place for place, _ in told()] == ["file"]
    assert (numbers(webhook), strange.read_text()) == ([1], f"{line}\n")


def test_a_slow_place_does_not_hold_the_clock_up(webhook, monkeypatch):
    monkeypatch.setattr(remote_sinks, "ROUND_SECONDS", 0.0)
    made(3)
    for sent in ([1], [1, 2], [1, 2, 3]):
        assert told() == []
        assert numbers(webhook) == sent


def test_a_place_that_does_not_answer_is_left_in_time(webhook, monkeypatch):
    answer = threading.Event()
    webhook.answers = [lambda _: OK if answer.wait(HANG_LIMIT) else SLOW_DOWN]
    made(2)
    with monkeypatch.context() as patch:
        patch.setattr(remote_sinks, "SECONDS", 1.0)
        said = told()
    answer.set()
    assert said[0][1].startswith("TimeoutError")
    assert told() == []
    assert [request.headers["webhook-id"] for request in webhook.requests] == [
        "seal-1",
        "seal-1",
        "seal-2",
    ]


def _hung_up(_: Received) -> Answer:
    raise ConnectionError  # after the request was read: nothing is answered


@pytest.mark.attack
def test_a_bucket_that_hangs_up_has_what_it_kept_once(bucket):
    made(2)

    def kept(request: Received) -> Answer:
        bucket.objects[request.path] = request.body
        raise ConnectionError

    bucket.before = [kept, _hung_up]  # a PUT that may be repeated is sent again at once
    [(place, error)] = told()
    assert (place, len(bucket.objects), SECRET in error) == ("bucket", 1, False)
    assert told() == []
    assert len(bucket.objects) == 2


def test_a_webhook_that_hangs_up_gets_the_seal_again_with_its_id(webhook):
    made(2)
    webhook.answers = [_hung_up]
    assert [place for place, _ in told()] == ["webhook"]
    assert told() == []
    assert [request.headers["webhook-id"] for request in webhook.requests] == [
        "seal-1",
        "seal-1",
        "seal-2",
    ]


@pytest.mark.attack
def test_no_secret_of_a_place_that_fails_is_in_the_log(bucket, settings):
    token = "T0KEN-in-the-path"
    settings.AUDIT_WEBHOOK = f"http://127.0.0.1:9/{token}"
    settings.AUDIT_WEBHOOK_SECRET = WEBHOOK_SECRET
    bucket.before = [SLOW_DOWN]
    made(1)
    said = told()
    assert [place for place, _ in said] == ["webhook", "bucket"]
    assert not [word for word in (token, WEBHOOK_SECRET, SECRET, KEY_ID) if word in str(said)]


def test_doctor_says_how_many_a_place_lacks(webhook):
    made(5)
    assert [(finding.ok, finding.what) for finding in doctor._check_checkpoints()] == [
        (False, "the webhook lacks 5 checkpoints of the audit log")
    ]
    assert told() == []
    assert [(finding.ok, finding.what) for finding in doctor._check_checkpoints()] == [
        (True, "the webhook lacks 0 checkpoints of the audit log")
    ]


@pytest.mark.exhaustive
@hypothesis(max_examples=60, deadline=None)
@given(
    path=st.lists(
        st.text(
            st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=8
        ),
        min_size=1,
        max_size=4,
    ),
    body=st.binary(max_size=60),
    header=st.text("abc  xyz", min_size=1, max_size=12),
    at=st.datetimes(_FIRST, _LAST),
    region=st.sampled_from(["us-east-1", "eu-north-1"]),
)
def test_requests_are_signed_as_botocore_signs_them(path, body, header, at, region):
    url = f"https://store.example.org:9000/{sigv4.encode_path(*path)}"
    keys = sigv4.SigningKeys(KEY_ID, SECRET, region)
    ours = sigv4.sign_request(
        "PUT", url, body, {"Content-Type": header}, keys=keys, now=at.replace(tzinfo=UTC)
    )
    asked = AWSRequest("PUT", url, data=body, headers={"Content-Type": header})
    assert ours["Authorization"] == _botocore(asked, ours["X-Amz-Date"], region)
    assert SECRET not in repr(keys)


def test_a_round_is_bounded(webhook, monkeypatch):
    monkeypatch.setattr(remote_sinks, "AT_ONCE", 2)
    made(5)
    assert told() == []
    assert len(webhook.requests) == 2
    assert AuditSeal.objects.count() == 5
