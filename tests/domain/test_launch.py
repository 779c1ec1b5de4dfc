"""What may be launched, and how values get into it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.domain.servers.launch import (
    check_command,
    check_env,
    check_networks,
    check_pairs,
    check_url,
    fill,
    fill_pairs,
)


@pytest.mark.parametrize(
    "command",
    [
        ["uvx", "mcp-server-time"],
        ["sh", "-c", "a; b && $(c) `d` | e > f"],
        ["/path with space/x", ""],
        ["x", "'", '"', "\\"],
        ["ünï", "日本"],
        ["x", "--flag=\u202e"],
    ],
)
def test_any_list_of_words_is_kept_as_it_is_for_no_shell_reads_it(command: list[str]):
    assert check_command(command) == command


@pytest.mark.attack
@pytest.mark.parametrize(
    "command",
    [
        [],
        "uvx time",
        None,
        {},
        [1],
        ["x", None],
        [["x"]],
        [""],
        ["  "],
        ["x", "a\x00b"],
        ["x", "a\nb"],
        ["x\n"],
        ("x",),
        b"x",
    ],
)
def test_anything_else_is_no_command(command: Any):
    with pytest.raises(ConfigInvalid) as caught:
        check_command(command)
    assert caught.value.remedy


@pytest.mark.attack
@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD",
        "ld_preload",
        "LD_LIBRARY_PATH",
        "LD_AUDIT",
        "BASH_ENV",
        "ENV",
        "PYTHONSTARTUP",
        "NODE_OPTIONS",
        "",
        "1A",
        "A B",
        "A=B",
        "A-B",
        "Ä",
        "A\n",
        "A\x00",
    ],
)
def test_an_environment_that_loads_other_code_or_has_no_name_is_refused(name: str):
    with pytest.raises(ConfigInvalid):
        check_env({name: "x"})


@pytest.mark.parametrize(
    "env", [{}, {"A": ""}, {"_": "x"}, {"PATH": "/bin"}, {"lower_1": "${cred:x}"}, {"K": "a=b ü"}]
)
def test_an_honest_environment_is_kept(env: dict[str, str]):
    assert check_env(env) == env


@pytest.mark.attack
@pytest.mark.parametrize(
    "pairs",
    [None, [], "A=B", {"a": 1}, {1: "a"}, {"a": "x\r\nSet-Cookie: y"}, {"a\n": "x"}, {"a": "\x00"}],
)
def test_pairs_are_texts_without_line_breaks(pairs: Any):
    with pytest.raises(ConfigInvalid):
        check_pairs(pairs, "Headers")


@pytest.mark.attack
@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "ftp://h/x",
        "file:///etc/passwd",
        "http://",
        "https:///x",
        "javascript:alert(1)",
        "//h/x",
        "http:h",
        "http://user:pw@h/",
        "http://user@h/",
        "http://[::1",
        "http://h]/",
        "http://h\n.evil/",
        " http://h/",
        "http://h/\x00",
    ],
)
def test_an_address_is_http_has_a_host_and_no_password(url: str):
    with pytest.raises(ConfigInvalid):
        check_url(url, ("http", "https"))


@pytest.mark.parametrize(
    "url",
    [
        "http://h/x",
        "https://h:8443/a?b=c",
        "http://[::1]:80/",
        "https://${HOST}:${PORT}/mcp",
        "HTTP://H",
    ],
)
def test_an_honest_address_is_kept(url: str):
    assert check_url(url, ("http", "https")) == url


@pytest.mark.parametrize(
    "networks", ["10.0.0.0/8", None, [1], [True], [None], ["10.0.0.1/8"], ["x"], [""], {"a": 1}]
)
def test_networks_are_a_list_of_networks(networks: Any):
    with pytest.raises(ConfigInvalid):
        check_networks(networks)


def test_honest_networks_are_kept():
    assert check_networks(["10.0.0.0/8", "::1/128", "127.0.0.1"]) == [
        "10.0.0.0/8",
        "::1/128",
        "127.0.0.1",
    ]


VARIABLES = {"A": "1", "EMPTY": "", "TRICK": "${cred:secret}", "D.OT": "dot"}


def filled(text: str) -> str | None:
    return fill(text, variables=VARIABLES, credential={"secret": "s3cret"}.get)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain", "plain"),
        ("", ""),
        ("${A}", "1"),
        ("x${A}y${A}", "x1y1"),
        ("${EMPTY}", None),
        ("${EMPTY:-other}", "other"),
        ("${NONE:-other}", "other"),
        ("${NONE:-}", ""),
        ("${NONE:-a b=c}", "a b=c"),
        ("${NONE}", None),
        ("${A}${NONE}", None),
        ("${cred:secret}", "s3cret"),
        ("${cred:none}", None),
        ("${cred:none:-x}", "x"),
        ("Bearer ${cred:secret}!", "Bearer s3cret!"),
        ("${D.OT}", "dot"),
        ("$A ${} ${ A } $${x y}", "$A ${} ${ A } $${x y}"),
        ("${env:A}", "${env:A}"),
    ],
)
def test_placeholders(text: str, result: str | None):
    assert filled(text) == result


@pytest.mark.attack
def test_a_value_is_never_read_for_placeholders_again():
    assert filled("${TRICK}") == "${cred:secret}"


@given(st.text())
def test_any_text_is_filled_or_missing_never_an_error(text: str):
    result = filled(text)
    assert result is None or "${" in text or result == text


def test_pairs_without_a_value_are_left_out_and_named():
    pairs = {"A": "${A}", "B": "${NONE}", "C": "x"}
    assert fill_pairs(pairs, variables=VARIABLES, credential=lambda _: None) == (
        {"A": "1", "C": "x"},
        ["B"],
    )
