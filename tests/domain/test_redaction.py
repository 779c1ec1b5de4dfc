"""Secrets of a server are found in what it says, in the forms that programs give them, and nothing
else is touched."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mcpregistry.domain.text.redaction import (
    REDACTED,
    SHORTEST,
    Redactor,
    count_characters,
    find_secrets,
    mask_log_event,
    mask_words,
    redact_bytes,
)

SECRET = 'canary/"7f3a+91'
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        f"before {SECRET} after",
        encoded(SECRET),
        base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="),
        *(encoded("x" * offset + SECRET + "y" * rest) for offset in range(4) for rest in range(4)),
        json.dumps({"token": SECRET}),
        f"?token={quote(SECRET, safe='')}&x=1",
        f"{SECRET}{SECRET}",
    ],
)
def test_a_secret_is_replaced_in_every_form(text):
    said = {
        "content": [{"type": "text", "text": text}],
        "structuredContent": {text: [text, 1, None]},
    }
    shown, found = Redactor([SECRET]).clean(said)
    assert found >= 3
    whole = json.dumps(shown)
    assert REDACTED in whole
    for piece in (SECRET, json.dumps(SECRET)[1:-1], encoded(SECRET)[:-4], quote(SECRET, safe="")):
        assert piece not in whole
    assert shown["structuredContent"][next(iter(shown["structuredContent"]))][1:] == [1, None]


def test_the_rest_of_a_longer_base64_text_stays():
    text = encoded("user:" + SECRET + ":and more")
    shown, _ = Redactor([SECRET]).clean(text)
    assert shown.startswith(text[:6])
    assert shown.endswith(text[-8:])


def test_a_value_that_is_split_is_not_found():
    """What the documentation says: only exact values and their usual forms."""
    text = "\u200b".join(SECRET)
    assert Redactor([SECRET]).clean(text) == (text, 0)


def test_of_two_secrets_of_which_one_holds_the_other_none_is_left_in_part():
    shown, found = Redactor(["secret-one", "secret-one-and-more"]).clean(
        "a secret-one-and-more b secret-one c"
    )
    assert (shown, found) == (f"a {REDACTED} b {REDACTED} c", 2)


@given(JSON)
def test_what_holds_no_secret_is_given_back_as_it_is(value):
    shown, found = Redactor([SECRET]).clean(value)
    assert shown is value
    assert found == 0
    assert Redactor([]).clean(value)[0] is value


@given(st.text(min_size=SHORTEST, max_size=40), JSON, st.integers(1, 3))
def test_whatever_the_secret_it_is_found(secret, other, copies):
    """Also lone surrogates, control characters and letters that JSON escapes."""
    assume(secret not in f"a{REDACTED}b")
    value = [other, *([f"a{secret}b"] * copies)]
    shown, found = Redactor([secret]).clean(value)
    assert found >= copies
    assert [text for text in shown[1:] if secret in text] == []
    assert count_characters(value) >= copies * len(secret)


def test_short_values_and_no_values_are_no_secrets():
    assert not Redactor(["", "short"])
    assert Redactor(["short"]).clean("a short text") == ("a short text", 0)
    assert redact_bytes(b"a short text", ["short", ""]) == b"a short text"


def test_a_deep_value_is_looked_through():
    deep: object = SECRET
    for _ in range(100):
        deep = [deep]
    assert Redactor([SECRET]).clean(deep)[1] == 1


def test_names_and_shapes_tell_which_values_are_secret():
    pairs = {
        "API_TOKEN": "value-of-token",
        "LOG_LEVEL": "verbose-and-long",
        "HOME": "/home/ann/project",
        "Authorization": "Bearer value-of-bearer",
        "Accept": "application/json",
        "Cookie": "session=value",
        "DATABASE_URI": "postgres://reader:value-of-password@db/x",
    }
    argv = [
        "run",
        "-H",
        "X-Key: value-of-header",
        "Server=db;Password=value-in-text;",
        "--api-key",
        "value-of-flag",
        "--token=value-of-equals",
        "--root",
        "/srv/project",
    ]
    found = find_secrets(
        pairs=pairs,
        argv=argv,
        url="https://x.example.org/mcp?api_key=value-of-query&page=long-page-name",
    )
    assert found == {
        "value-of-token",
        "Bearer value-of-bearer",
        "value-of-bearer",
        "session=value",
        "value-of-password",
        "value-of-flag",
        "value-of-equals",
        "value-of-query",
        "value-of-header",
        "value-in-text",
    }


@pytest.mark.attack
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["db", "postgresql://app:canary@db/prod"], ["db", "postgresql://app:***@db/prod"]),
        (
            ["x", "--database-url=postgresql://app:canary@db/prod"],
            ["x", "--database-url=postgresql://app:***@db/prod"],
        ),
        (["x", "--token", "canary"], ["x", "--token", "***"]),
        (["x", "--api-key=canary"], ["x", "--api-key=***"]),
        (["docker", "-e", "API_KEY=canary"], ["docker", "-e", "API_KEY=***"]),
        (["x", "-H", "Authorization: Bearer canary"], ["x", "-H", "Authorization: Bearer ***"]),
        (["x", "-H", "Cookie: canary"], ["x", "-H", "Cookie: ***"]),
        (["x", "--header=X-Api-Key: canary"], ["x", "--header=X-Api-Key: ***"]),
        (["x", "use bearer canary"], ["x", "use bearer ***"]),
        (["x", "ghp_canary1canary"], ["x", "***"]),
        (["x", "https://h/sk-canary1canary/mcp"], ["x", "https://h/***/mcp"]),
        (
            ["x", "Server=db;User Id=app;Password=canary;Pooling=true"],
            ["x", "Server=db;User Id=app;Password=***;Pooling=true"],
        ),
        (["https://h/mcp?page=2#access_token=canary"], ["https://h/mcp?page=2#access_token=***"]),
        (
            ["https://ann:canary@h/?api_key=canary&page=2"],
            ["https://ann:***@h/?api_key=***&page=2"],
        ),
        (
            ["x", "--token", "${cred:git}", "--key=${KEY}"],
            ["x", "--token", "${cred:git}", "--key=${KEY}"],
        ),
        (["sh", "-c", "exec x --token canary -v"], ["sh", "-c", "exec x --token *** -v"]),
        (
            ["sh", "-c", "x --password 'canary 1' --api-key=canary"],
            ["sh", "-c", "x --password '***' --api-key=***"],
        ),
        (
            ["sh", "-c", "curl -H 'X-Api-Key: canary' https://h"],
            ["sh", "-c", "curl -H 'X-Api-Key: ***' https://h"],
        ),
        (["x", "--env=GITHUB_TOKEN=canary"], ["x", "--env=GITHUB_TOKEN=***"]),
        (["x", "--cookie", "sid=canary"], ["x", "--cookie", "***"]),
        (
            ["x", '{"env": {"API_KEY": "canary"}, "port": "80"}'],
            ["x", '{"env": {"API_KEY": "***"}, "port": "80"}'],
        ),
        (["x", "host=h user=app password=canary"], ["x", "host=h user=app password=***"]),
        (
            ["x", "Protocol=https;AccountKey=canary;Suffix=h"],
            ["x", "Protocol=https;AccountKey=***;Suffix=h"],
        ),
        (["https://h/b?sv=2&sig=canary", "x"], ["https://h/b?sv=2&sig=***", "x"]),
        (["https://0123456789abcdefghijk@h/x.git"], ["https://***@h/x.git"]),
        (
            [
                "sh",
                "-c",
                'x --token $TOKEN --key "${KEY}" --token --verbose',
                "ssh://git@h/x",
                "/srv/key=1",
            ],
            [
                "sh",
                "-c",
                'x --token $TOKEN --key "${KEY}" --token --verbose',
                "ssh://git@h/x",
                "/srv/key=1",
            ],
        ),
        (
            [
                "https://secret.example/?page=2",
                "--path",
                "/a:b@c",
                "sk-learn-server",
                "/srv/secret_manager.py",
            ],
            [
                "https://secret.example/?page=2",
                "--path",
                "/a:b@c",
                "sk-learn-server",
                "/srv/secret_manager.py",
            ],
        ),
    ],
)
def test_secrets_in_the_words_of_a_command_are_masked_and_nothing_else(
    words: list[str], shown: list[str]
) -> None:
    assert mask_words(words) == shown


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:8635/v1/chat",
        "http://localhost:11434",
        "https://[::1]:8000/x",
        '{"url": "http://a.example:80"}',
    ],
)
def test_the_port_of_an_address_is_not_a_password(address: str) -> None:
    assert mask_log_event({"text": address}) == {"text": address}


@pytest.mark.parametrize(
    "address",
    [
        "https://me:8635@a.example/",
        "redis://:p4ss@a.example",
        "postgres://me:p4ss",
        "ftp://me:80/p4ss@a.example",
        "http://me:80p4ss@[::1]:80/",
    ],
)
def test_a_password_in_an_address_is_masked(address: str) -> None:
    shown = mask_log_event({"text": address})["text"]
    assert "***" in shown
    assert "8635" not in shown
    assert "p4ss" not in shown
