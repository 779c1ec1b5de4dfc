"""Placeholders of every host become ours and go back."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcpregistry.domain.formats.placeholders import (
    OURS,
    Dialect,
    Reading,
    expand,
    is_reference,
    read,
    write,
)

CURSOR = Dialect("env", defaults=False, folders=True)
VSCODE = Dialect("env", defaults=False, inputs=True, folders=True)
OPENCODE = Dialect("brace", defaults=False)
CLAUDE = Dialect()
DESKTOP = Dialect(none=True)
DIALECTS = [OURS, CURSOR, VSCODE, OPENCODE, CLAUDE, DESKTOP]

pieces = st.sampled_from(
    [
        "${A}",
        "${env:A}",
        "${input:a-b}",
        "${cred:a}",
        "{env:A}",
        "${A:-x y}",
        "${workspaceFolder}",
        "${workspace}",
        "${userHome}",
        "${home}",
        "$",
        "{",
        "}",
        "$A",
        "Bearer ",
        "${command:x}",
        "${}",
        "${env:}",
        "{file:x}",
        "${A:-}",
    ]
)


@pytest.mark.parametrize("dialect", DIALECTS, ids=repr)
@given(text=st.lists(pieces, max_size=5).map("".join))
@example(text="${{}")
@example(text="${env:A{}")
def test_every_spelling_comes_back(dialect: Dialect, text: str) -> None:
    reading = read(text, dialect)
    assert write(reading.text, dialect, reading.kinds).text == text


@pytest.mark.parametrize(
    ("host", "dialect", "ours"),
    [
        ("${env:TOKEN}", CURSOR, "${TOKEN}"),
        ("${input:key}", VSCODE, "${cred:key}"),
        ("{env:S}", OPENCODE, "${S}"),
        ("${workspaceFolder}/a:${userHome}", CURSOR, "${workspace}/a:${home}"),
        ("${A:-b}", CLAUDE, "${A:-b}"),
    ],
)
def test_a_hosts_own_spelling_is_translated_both_ways_without_a_memory(
    host: str, dialect: Dialect, ours: str
) -> None:
    reading = read(host, dialect)
    assert (reading.text, reading.kinds) == (ours, ())
    assert write(ours, dialect).text == host
    assert not write(ours, dialect).lost


@pytest.mark.parametrize(
    ("ours", "dialect", "written"),
    [
        ("${A:-b}", CURSOR, "${env:A}"),
        ("${cred:a}", CLAUDE, "${cred:a}"),
        ("${workspace}", CLAUDE, "${workspace}"),
        ("${A}", DESKTOP, "${A}"),
    ],
)
def test_what_a_host_cannot_understand_is_said(ours: str, dialect: Dialect, written: str) -> None:
    rendering = write(ours, dialect)
    assert rendering.text == written
    assert len(rendering.lost) == 1


def test_a_placeholder_of_another_program_is_noticed() -> None:
    assert read("${command:pick}", VSCODE).foreign
    assert not read("${A} {} ${B:-c} 5$ 100%", CLAUDE).foreign


@pytest.mark.parametrize(
    "text",
    ["Bearer $PAT", "%API_KEY%", "{{TOKEN}}", "$(cat key)", "{env:X}", "{file:x}", "${file:x}"],
)
def test_what_another_host_fills_in_is_noticed(text: str) -> None:
    assert read(text, CLAUDE) == Reading(text, changed=False, kinds=(), foreign=True)


def test_a_script_may_have_variables_of_its_own() -> None:
    assert not read('cd "$(git rev-parse)" && exec ./mcp.sh', CLAUDE).foreign


def test_the_content_of_a_file_becomes_a_credential() -> None:
    found = read("Bearer {file:~/.key}", OPENCODE)
    assert found.text == "Bearer ${cred:file-key}"
    assert write(found.text, OPENCODE, found.kinds).text == "Bearer {file:~/.key}"


def test_expansion_takes_values_then_defaults_and_names_what_is_missing() -> None:
    assert expand("${A}/${B:-b}/${C:-c}/${D}/${cred:x}", {"A": "1", "C": "3"}) == (
        "1/b/3/${D}/${cred:x}",
        ("D",),
    )


@pytest.mark.parametrize("text", ["", "${A}", "Bearer ${A}", "token ${cred:x}", "${A}${B}"])
def test_a_pure_reference_is_no_secret(text: str) -> None:
    assert is_reference(text)


@pytest.mark.parametrize("text", ["a", "Bearer sk", "${A:-secret}", "sk-1${A}", "$A"])
def test_anything_else_may_be_one(text: str) -> None:
    assert not is_reference(text)
