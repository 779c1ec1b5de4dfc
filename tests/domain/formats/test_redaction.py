"""No secret leaves in a file unless it was asked for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpregistry.domain.formats import FORMATS, write
from mcpregistry.domain.formats.document import Document, Oauth, Parked, ServerEntry
from mcpregistry.domain.text.secret_names import is_secret_name

SECRET = "sk-5ecre7"


def entries(server: ServerEntry, name: str = "claude-code") -> dict[str, object]:
    return write(Document((server,)), name).data["mcpServers"][server.key]


def test_literal_values_become_references_and_are_reported() -> None:
    server = ServerEntry("git", command=("x",), env={"TOKEN": SECRET, "REF": "${REF}", "EMPTY": ""})
    written = write(Document((server,)), "claude-code")
    assert written.data["mcpServers"]["git"]["env"] == {
        "TOKEN": "${TOKEN}",
        "REF": "${REF}",
        "EMPTY": "",
    }
    (note,) = written.notes
    assert (note.action, note.pointer, note.column) == ("translated", "/git/env/TOKEN", "env")
    assert "--include-secrets" in note.remedy


def test_headers_get_a_name_that_no_other_server_shares() -> None:
    server = ServerEntry(
        "git-hub",
        transport="http",
        url="https://h.example",
        headers={"Authorization": "Bearer x", "X": "Bearer ${T}"},
    )
    assert entries(server)["headers"] == {
        "Authorization": "${GIT_HUB_AUTHORIZATION}",
        "X": "Bearer ${T}",
    }


def test_secrets_in_arguments_and_addresses_are_found_by_their_names() -> None:
    argv = (
        "x",
        "--api-key",
        SECRET,
        f"--token={SECRET}",
        "--key",
        "--port",
        "80",
        "--max-tokens",
        "5",
        "API_KEY=" + SECRET,
    )
    assert entries(ServerEntry("a", command=argv))["args"] == [
        "--api-key",
        "${A_API_KEY}",
        "--token=${A_TOKEN}",
        "--key",
        "--port",
        "80",
        "--max-tokens",
        "5",
        "API_KEY=${A_API_KEY}",
    ]
    url = f"https://h.example/mcp?q=1&api_key={SECRET}#x"
    assert (
        entries(ServerEntry("a", transport="http", url=url))["url"]
        == "https://h.example/mcp?q=1&api_key=${A_API_KEY}#x"
    )


def everything() -> Document:
    parked = Parked(
        {"token": SECRET, "deep": [{"env": {"A": SECRET}}], "oauth": {"extraSecret": SECRET}},
        ("token",),
    )
    families = {form.family: parked for form in FORMATS.values()}
    local = ServerEntry(
        "a", command=("x",), env={"A": SECRET, "B": f"${{C:-{SECRET}}}"}, parked=families
    )
    oauth = Oauth(client_id="me", client_secret=SECRET)
    far = ServerEntry(
        "b",
        transport="http",
        url="https://h.example",
        headers={"A": SECRET},
        oauth=oauth,
        parked=families,
    )
    tool = {
        "name": "t",
        "description": "d",
        "internal_tools": {"a": []},
        "provider": "google",
        "model": "m",
        "api_key": SECRET,
    }
    return Document(
        (local, far),
        expert_tools=(tool,),
        providers={"p": {"apiKey": SECRET, "custom": {"headers": {"A": SECRET}}}},
        inputs=({"id": "i", "type": "promptString", "password": True, "default": SECRET},),
        parked=families,
    )


@pytest.mark.parametrize("name", FORMATS)
def test_no_format_lets_a_secret_out_unasked(name: str) -> None:
    written = write(everything(), name)
    assert SECRET not in json.dumps(written.data)
    assert SECRET not in " ".join(map(str, written.notes))


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_writes_secrets_when_asked(name: str) -> None:
    assert SECRET in json.dumps(write(everything(), name, include_secrets=True).data)


@settings(max_examples=50)
@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z_]\w{0,8}", fullmatch=True),
        st.text(max_size=5).map(lambda text: SECRET + text),
    )
)
def test_no_literal_environment_value_is_written(env: dict[str, str]) -> None:
    assert SECRET not in json.dumps(
        write(Document((ServerEntry("a", command=("x",), env=env),)), "dispatch").data
    )


@pytest.mark.parametrize(
    "name",
    [
        "token",
        "--api-key",
        "apiKey",
        "CLIENT_SECRET",
        "Authorization",
        "dbPassword",
        "x-auth",
        "PAT",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "maxTokens",
        "max_tokens",
        "monkey",
        "path",
        "contextWindowBufferTokens",
        "tokenizer",
        "author",
    ],
)
def test_names_of_other_things(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize("name", [*FORMATS])
def test_passwords_in_addresses_and_headers_of_a_command_leave_in_no_format(name: str) -> None:
    words = ("x", "postgresql://app:canary@db/prod", "-H", "Authorization: Bearer canary")
    servers = (
        ServerEntry("local", command=words),
        ServerEntry(
            "remote", transport="http", url="https://ann:canary@h.example/?api_key=canary&page=2"
        ),
    )
    written = json.dumps(write(Document(servers), name).data)
    assert "canary" not in written
    assert "db/prod" in written
