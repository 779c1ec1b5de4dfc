"""One table of variables: documented, typed, and strict about typing errors."""

from __future__ import annotations

import re

import pytest
from django.core.exceptions import ImproperlyConfigured

from controlplane import env
from tests.externals import ROOT


def test_the_documentation_lists_exactly_the_variables_of_the_table():
    rows = re.findall(
        r"^\| `([A-Z_]+)` \| (.*?) ?\| (.*) \|$",
        (ROOT / "docs/settings.md").read_text(),
        re.MULTILINE,
    )
    assert rows == [(v.name, f"`{v.default}`" if v.default else "", v.about) for v in env.TABLE]


def test_no_code_reads_a_variable_that_is_not_in_the_table():
    named = re.compile(r"""env\.(?:text|flag|words|choice|number|mail)\(\s*["']([A-Z_]+)""")
    sources = [
        path
        for folder in ("controlplane", "mcpregistry", "subagents")
        for path in (ROOT / folder).rglob("*.py")
    ]
    read = {name for path in sources for name in named.findall(path.read_text())}
    assert read <= {variable.name for variable in env.TABLE}


def test_a_value_may_come_from_a_file_and_the_variable_itself_wins(monkeypatch, tmp_path):
    (tmp_path / "url").write_text("postgres://from-file\n")
    monkeypatch.setenv("DATABASE_URL_FILE", str(tmp_path / "url"))
    assert env.text("DATABASE_URL") == "postgres://from-file"
    monkeypatch.setenv("DATABASE_URL", " postgres://direct ")
    assert env.text("DATABASE_URL") == "postgres://direct"


def test_an_unreadable_file_is_named_with_its_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("DATABASE_URL_FILE", str(tmp_path / "absent"))
    with pytest.raises(ImproperlyConfigured, match=r"DATABASE_URL_FILE names .*absent"):
        env.text("DATABASE_URL")


@pytest.mark.parametrize(
    ("given", "meant"), [("1", True), ("Yes", True), ("0", False), ("off", False), ("", False)]
)
def test_flags_understand_the_usual_words(monkeypatch, given, meant):
    monkeypatch.setenv("SLIPSNISSE_STDIO", given)
    assert env.flag("SLIPSNISSE_STDIO") is meant


def test_a_misspelt_flag_is_refused_instead_of_guessed(monkeypatch):
    monkeypatch.setenv("SLIPSNISSE_STDIO", "flase")
    with pytest.raises(ImproperlyConfigured, match="SLIPSNISSE_STDIO must be 0 or 1"):
        env.flag("SLIPSNISSE_STDIO")


def test_a_choice_names_what_is_allowed(monkeypatch):
    monkeypatch.setenv("SLIPSNISSE_LOG_FORMAT", "xml")
    with pytest.raises(ImproperlyConfigured, match="auto, text, json"):
        env.choice("SLIPSNISSE_LOG_FORMAT", "auto", "text", "json")


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("smtp://127.0.0.1:2525", {"EMAIL_HOST": "127.0.0.1", "EMAIL_PORT": 2525}),
        (
            "smtp+tls://ann:p%40ss@mail.example.org:587",
            {"EMAIL_HOST_PASSWORD": "p@ss", "EMAIL_USE_TLS": True},
        ),
        ("smtp+ssl://mail.example.org:465", {"EMAIL_USE_SSL": True}),
    ],
)
def test_a_mail_server_is_one_address(monkeypatch, url, settings):
    monkeypatch.setenv("EMAIL_URL", url)
    assert settings.items() <= env.mail("EMAIL_URL").items()


@pytest.mark.parametrize(
    "url", ["mail.example.org", "pigeon://ann:canary@x", "smtp://", "smtp://u:canary@h:port"]
)
def test_an_odd_mail_address_is_refused_without_being_quoted(monkeypatch, url):
    monkeypatch.setenv("EMAIL_URL", url)
    with pytest.raises(ImproperlyConfigured, match="EMAIL_URL must look like") as refused:
        env.mail("EMAIL_URL")
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", None),
        ("10.0.0.5", ("10.0.0.5", 0, 0)),
        ("a.internal:7000", ("a.internal", 7000, 7000)),
        ("[fd00::1]:7000-7099", ("[fd00::1]", 7000, 7099)),
    ],
)
def test_an_address_may_have_ports_to_choose_from(monkeypatch, text, place):
    monkeypatch.setenv("SLIPSNISSE_PEER_ADDRESS", text)
    assert env.host_and_ports("SLIPSNISSE_PEER_ADDRESS") == place


@pytest.mark.parametrize(
    "text", ["fd00::1", "a:b", "a:7099-7000", "a:70000", "https://a", ":7000", "a:7000-", "a,b"]
)
def test_an_odd_address_is_refused(monkeypatch, text):
    monkeypatch.setenv("SLIPSNISSE_PEER_ADDRESS", text)
    with pytest.raises(ImproperlyConfigured, match="must look like"):
        env.host_and_ports("SLIPSNISSE_PEER_ADDRESS")


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "many", "²"])
def test_a_number_is_a_whole_number(monkeypatch, text):
    monkeypatch.setenv("SLIPSNISSE_MAX_CONNECTIONS", text)
    with pytest.raises(ImproperlyConfigured, match="whole number of at least 1"):
        env.number("SLIPSNISSE_MAX_CONNECTIONS")
