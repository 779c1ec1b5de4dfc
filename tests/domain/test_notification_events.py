"""What is told: arguments masked and cut, pauses that grow, signatures as their conventions have
them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.notifications.events import (
    KEPT_TRYING,
    SHOWN_CHARACTERS,
    Interest,
    NotificationEvent,
    build_webhook_headers,
    compose_title,
    compute_retry_delay,
    compute_slack_signature,
    decode_webhook_key,
    flatten_text,
    is_signed_by_slack,
    list_fact_lines,
    parse_retry_after,
    prepare_arguments,
)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "arguments",
    [
        {"password": "canary"},
        {"credentials": {"user": "ann", "pw": "canary"}},
        {"deep": [{"api_key": ["canary"]}]},
        {"header": "Authorization: Bearer canary"},
        {"url": "postgres://ann:canary@db/x"},
        {"secret": 123456, "note": "canary"} | {"note": "x"},
    ],
)
def test_secrets_are_masked_by_name_and_by_shape(arguments):
    shown = prepare_arguments(json.dumps(arguments))
    assert "canary" not in shown.text
    assert "123456" not in shown.text
    assert "•••" in shown.text
    assert not shown.whole


@pytest.mark.parametrize(
    ("arguments", "whole"),
    [
        ("{}", True),
        ('{"path":"a.txt","max_tokens":100,"token":""}', True),
        ('{"text":"' + "x" * (SHOWN_CHARACTERS - 100) + '"}', True),
        ('{"text":"' + "x" * SHOWN_CHARACTERS + '"}', False),
        ('{"text":"' + "x" * 100_000 + '"}', False),
        ('{"text":"a\\u202eb"}', False),
        ("[" * 5_000 + "]" * 5_000, False),
        ("", True),
    ],
)
def test_only_what_is_shown_as_it_is_counts_as_whole(arguments, whole):
    shown = prepare_arguments(arguments)
    assert shown.whole is whole
    assert len(shown.text) < SHOWN_CHARACTERS * 2


@given(st.text())
def test_a_line_is_one_line_whatever_is_in_it(text):
    line = flatten_text(text, 100)
    assert not set("\r\n\x00\x1b\u202e\x85\u2028") & set(line)


def test_the_pauses_grow_to_two_hours_and_are_spread():
    waits = [compute_retry_delay(attempt, 0.5) for attempt in range(1, 60)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (5.0, 7200.0)
    assert 15 <= sum(1 for n in range(1, 60) if sum(waits[:n]) < KEPT_TRYING.total_seconds()) <= 30
    assert compute_retry_delay(1, 0.0) < compute_retry_delay(1, 1.0)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("Sat, 21 Nov 2026 12:01:00 GMT", 60.0),
        ("Sat, 21 Nov 2026 11:00:00 GMT", 0.0),
        ("99999999999", KEPT_TRYING.total_seconds()),
        ("", 0.0),
        ("soon", 0.0),
        ("-5", 0.0),
        ("²", 0.0),
        ("1e9", 0.0),
    ],
)
def test_what_a_receiver_asks_for(header, seconds):
    assert parse_retry_after(header, NOW) == seconds


def test_the_signature_of_the_conventions_own_example():
    """From the specification of Standard Webhooks, section on symmetric signatures."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    found = build_webhook_headers(
        message="msg_p5jXN8AQM9LWM0D4loKWxJek", seconds=1614265330, body=body, secret=secret
    )
    assert found["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_signature_of_slacks_own_example():
    """From docs.slack.dev/authentication/verifying-requests-from-slack."""
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    secret = "8f742231b10e8888abcd99yyyzzz85a5"
    seconds = "1531420618"
    signature = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    assert compute_slack_signature(secret=secret, seconds=seconds, body=body) == signature
    facts = {"secret": secret, "seconds": seconds, "signature": signature, "body": body}
    assert is_signed_by_slack(**facts, now=1531420618 + 299)
    for change in (
        {"now": 1531420618 + 301},
        {"now": 1531420618 - 301},
        {"body": body + b"x"},
        {"secret": ""},
        {"signature": signature[:-1]},
        {"seconds": "1531420619"},
        {"seconds": "²"},
        {"seconds": "9" * 400},
    ):
        assert not is_signed_by_slack(**({"now": 1531420618} | facts | change)), change


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        "whsec_AAAA",
        "whsec_" + "A" * 200,
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_canary!",
    ],
)
def test_a_weak_signing_secret_is_refused_and_not_repeated(secret):
    with pytest.raises(ConfigInvalid) as refused:
        decode_webhook_key(secret)
    assert "canary" not in str(refused.value)


def test_any_key_of_the_allowed_size_signs_as_hmac_does():
    key = bytes(range(64))
    secret = "whsec_" + base64.b64encode(key).decode()
    found = build_webhook_headers(message="m", seconds=5, body=b"b", secret=secret)[
        "webhook-signature"
    ]
    assert (
        found == "v1," + base64.b64encode(hmac.new(key, b"m.5.b", hashlib.sha256).digest()).decode()
    )


def test_news_of_servers_ask_for_no_risk_and_no_rule():
    interest = Interest(rules=frozenset({7}), minimum_risk=3, servers=frozenset({"git"}))
    assert interest.is_interested_in(NotificationEvent.UNAVAILABLE, server="git")
    assert not interest.is_interested_in(NotificationEvent.UNAVAILABLE, server="other")
    assert not interest.is_interested_in(NotificationEvent.ASKED, server="git", rule=8, risk=3)
    assert interest.is_interested_in(NotificationEvent.ASKED, server="git", rule=7, risk=3)


def test_many_new_tools_are_counted_not_listed_for_ever():
    data = {"server": "git", "added": [f"tool-{n}" for n in range(300)], "changed": ["a\nb"]}
    assert compose_title(NotificationEvent.DEFINITIONS, data) == "301 new or changed tools of git"
    texts = dict(list_fact_lines(NotificationEvent.DEFINITIONS, data))
    assert texts["New"].endswith("tool-19 and 280 more")
    assert texts["Changed"] == "a b"


def test_a_budget_is_told_of_in_words_and_not_to_who_wants_to_hear_of_some_servers():
    data = {
        "budget": "daily",
        "agent": "ann",
        "spent": "$4.00",
        "mark": "$4.00",
        "ends": "2026-11-25T23:00:00+00:00",
        "url": "u",
    }
    assert (
        compose_title(NotificationEvent.BUDGET_SOFT, data)
        == "A budget has reached its soft limit: daily of ann"
    )
    of_endpoint = data | {"agent": "", "endpoint": "team"}
    assert (
        compose_title(NotificationEvent.BUDGET_SOFT, of_endpoint)
        == "A budget has reached its soft limit: daily of team"
    )
    assert list_fact_lines(NotificationEvent.BUDGET_SPENT, of_endpoint)[0] == ("Endpoint", "team")
    assert list_fact_lines(NotificationEvent.BUDGET_SPENT, data) == [
        ("Agent", "ann"),
        ("Spent", "$4.00"),
        ("Limit", "$4.00"),
        ("Resets", "2026-11-25 23:00 UTC"),
    ]
    heard = [Interest(), Interest(minimum_risk=3), Interest(events=frozenset({"budget_spent"}))]
    assert [each.is_interested_in(NotificationEvent.BUDGET_SPENT, server="") for each in heard] == [
        True
    ] * 3
    deaf = [Interest(servers=frozenset({"git"})), Interest(events=frozenset({"asked"}))]
    assert [each.is_interested_in(NotificationEvent.BUDGET_SPENT, server="") for each in deaf] == [
        False
    ] * 2
