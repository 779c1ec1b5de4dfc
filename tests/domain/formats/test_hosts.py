"""Files of hosts that are only read: recognised by their shape, read in their own spelling, one
entry at a time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpregistry.domain.formats import FORMATS, READABLE, read, text
from mcpregistry.domain.formats.document import Document, ServerEntry
from mcpregistry.domain.formats.hosts import HOSTS
from mcpregistry.domain.formats.notes import FileInvalid
from tests.domain.formats import host_files
from tests.domain.formats.host_files import HOST_FILES, IDS
from tests.domain.formats.samples import keys, odd_entries


def plain(server: ServerEntry) -> dict[str, Any]:
    """The columns that differ from those of an empty entry."""
    empty = ServerEntry("")
    columns = {
        name: value for name, value in server.columns().items() if value != getattr(empty, name)
    }
    return {name: value for name, value in columns.items() if name != "key"}


def read_text(content: str, path: str) -> Document:
    return read(content.encode(), path)[1]


@pytest.mark.parametrize(("path", "content", "host", "expected"), HOST_FILES, ids=IDS)
def test_file_of_a_host_is_recognised_and_read(
    path: str, content: str, host: str, expected: dict[str, Any]
) -> None:
    found, document = read(content.encode(), path)
    assert found.name == host
    assert document.refused == ()
    assert {server.key: plain(server) for server in document.servers} == expected


@pytest.mark.parametrize(("path", "content", "host", "expected"), HOST_FILES, ids=IDS)
def test_servers_of_a_host_survive_an_export(
    path: str, content: str, host: str, expected: dict[str, Any]
) -> None:
    document = read_text(content, path)
    for target in ("slipsnisse-extended", "mcpservers"):
        written = FORMATS[target].write(document)
        back = FORMATS[target].read(text.load(text.dump(written.data).encode(), "x.json"), "x.json")
        assert not back.refused
        lost = {note.column for note in written.notes}
        for before, after in zip(document.servers, back.servers, strict=True):
            kept = {name: value for name, value in before.columns().items() if name not in lost}
            assert kept == {
                name: value for name, value in after.columns().items() if name not in lost
            }


@pytest.mark.parametrize(
    ("content", "path", "place", "names"),
    [
        (
            '[mcp_servers.git]\ncommand = 5\n[mcp_servers.ok]\ncommand = "x"\n',
            "config.toml",
            "[mcp_servers.git] command",
            ["ok"],
        ),
        (
            '[mcp_servers.git]\ncommand = "x"\nstartup_timeout_sec = "a"\n[mcp_servers.ok]\ncommand = "x"\n',
            "config.toml",
            "[mcp_servers.git] startup_timeout_sec",
            ["ok"],
        ),
        (
            '{"context_servers": {"git": 5, "ok": {"command": "x"}}}',
            "x.json",
            "/context_servers/git",
            ["ok"],
        ),
        (
            '{"context_servers": {"git": {"command": {"path": "x", "args": 5}}, "ok": {"command": "x"}}}',
            "x.json",
            "/context_servers/git/command/args",
            ["ok"],
        ),
        (
            '{"mcpServers": {"git": {"httpUrl": "ftp://x"}, "ok": {"command": "x"}}}',
            "x.json",
            "/mcpServers/git/httpUrl",
            ["ok"],
        ),
        (
            '{"mcpServers": {"git": {"serverUrl": "ftp://x"}, "ok": {"command": "x"}}}',
            "x.json",
            "/mcpServers/git/serverUrl",
            ["ok"],
        ),
        (
            "extensions: {git: {type: stdio, cmd: 5}, ok: {type: stdio, cmd: x}}",
            "x.yaml",
            "/extensions/git/cmd",
            ["ok"],
        ),
        (
            "mcpServers: [{name: git, command: 5}, {name: ok, command: x}]",
            "x.yaml",
            "/mcpServers/0/command",
            ["ok"],
        ),
        (
            '{"git": {"command": 5}, "ok": {"command": "x"}, "more": {"command": "x"}}',
            "x.json",
            "/git/command",
            ["ok", "more"],
        ),
        (
            '{"mcp": {"git": {"type": "http"}, "ok": {"type": "stdio", "command": "x"}}}',
            "x.json",
            "/mcp/git",
            ["ok"],
        ),
    ],
)
def test_bad_entry_costs_only_itself_and_is_named_as_in_the_file(
    content: str, path: str, place: str, names: list[str]
) -> None:
    found, document = read(content.encode(), path)
    left = document.drop_refused_entries()
    assert [server.key for server in left.servers] == names
    assert [
        note.pointer for note in found.spell_notes(left.notes) if note.action == "left out"
    ] == [place]


def test_file_in_which_every_entry_is_bad_is_refused() -> None:
    document = read_text('{"mcpServers": {"a": {}}}', "x.json").drop_refused_entries()
    assert [note.pointer for note in document.refused] == ["/mcpServers/a"]


@pytest.mark.parametrize(
    ("content", "path", "says"),
    [
        ("model: x\nother: [1]\n", "x.yaml", "model (text), other (a list)"),
        ("{}", "x.json", "it is empty"),
        ('model = "x"\n', "config.toml", "model (text)"),
        ('[table]\nkey = "x"\n', "pasted text", "table (an object)"),
        ('{"mcpServers": "./.mcp.json"}', "plugin.json", "mcpServers (text)"),
    ],
)
def test_unknown_format_says_what_was_seen_and_what_is_accepted(
    content: str, path: str, says: str
) -> None:
    with pytest.raises(FileInvalid) as refused:
        read_text(content, path)
    assert says in refused.value.note.sentence
    assert "mcp_servers" in refused.value.note.remedy
    assert "{" not in refused.value.note.remedy


def test_broken_toml_without_a_name_is_told_as_toml() -> None:
    with pytest.raises(FileInvalid, match="not valid TOML"):
        read_text('[mcp_servers.x]\ncommand = "half', "pasted text")


@pytest.mark.parametrize(
    "word",
    [
        "HTTP",
        "Http",
        "streamableHttp",
        "streamable-http",
        "streamable_http",
        "StreamableHTTP",
        "streamable",
    ],
)
def test_every_spelling_of_http_is_read(word: str) -> None:
    (server,) = read_text(
        json.dumps({"mcpServers": {"a": {"type": word, "url": "https://a.example/x"}}}), "x"
    ).servers
    assert server.transport == "http"


@pytest.mark.parametrize(
    ("word", "kind"),
    [("SSE", "sse"), ("STDIO", "stdio"), ("Stdio", "stdio"), ("WebSocket", "websocket")],
)
def test_every_spelling_of_the_other_transports_is_read(word: str, kind: str) -> None:
    if kind == "stdio":
        entry = {"command": "x"}
    else:
        entry = {"url": "wss://a.example" if kind == "websocket" else "https://a.example"}
    (server,) = read_text(json.dumps({"mcpServers": {"a": {"type": word, **entry}}}), "x").servers
    assert server.transport == kind


@pytest.mark.parametrize("name", ["高德地图", "карта", "مرحبا"])
def test_name_without_a_latin_letter_gets_a_legal_one(name: str) -> None:
    document = read_text(json.dumps({"mcpServers": {name: {"command": "x"}}}), "x")
    (server,) = document.servers
    assert server.key.startswith("server-")
    assert server.name == name
    assert FORMATS["mcpservers"].write(document).data == {"mcpServers": {name: {"command": "x"}}}


def test_numbers_and_null_in_an_environment_are_taken_and_come_back() -> None:
    file = {
        "servers": {
            "a": {
                "type": "stdio",
                "command": "x",
                "cwd": None,
                "env": {"N": 5, "F": 1.5, "T": True, "U": None, "S": "s"},
            }
        }
    }
    document = read_text(json.dumps(file), ".vscode/mcp.json")
    assert document.servers[0].env == {"N": "5", "F": "1.5", "T": "true", "S": "s"}
    assert FORMATS["vscode"].write(document).data == file


def test_switches_of_servers_of_another_file_are_no_mistake() -> None:
    file = {"mcp": {"other": {"enabled": False}, "a": {"type": "local", "command": ["x"]}}}
    document = read_text(json.dumps(file), "opencode.json")
    assert [server.key for server in document.servers] == ["a"]
    assert document.refused == ()
    assert FORMATS["opencode"].write(document).data["mcp"] == file["mcp"]


def test_vscode_file_with_both_roots_is_read_whole_and_comes_back() -> None:
    file = {
        "servers": {"a": {"command": "x", "envFile": "/e"}},
        "inputs": [{"id": "k"}],
        "mcpServers": {"b": {"command": "y"}},
    }
    found, document = read(json.dumps(file).encode(), "mcp.json")
    assert found.name == "vscode"
    assert [server.key for server in document.servers] == ["a", "b"]
    assert document.credentials() == ("k",)
    assert FORMATS["vscode"].write(document).data == file


@pytest.mark.parametrize(
    "value",
    ["Bearer $PAT", "%API_KEY%", "{{TOKEN}}", "$(pass show x)", "{env:X}", "{file:x}", "${file:x}"],
)
def test_placeholder_of_another_host_stays_text_with_a_warning(value: str) -> None:
    document = read_text(
        json.dumps({"mcpServers": {"a": {"command": "x", "env": {"K": value}}}}), "x.json"
    )
    assert document.servers[0].env == {"K": value}
    (note,) = (note for note in document.notes if note.pointer == "/mcpServers/a/env/K")
    assert "will not be replaced" in note.sentence


def test_each_project_of_claude_code_is_offered_as_a_workspace() -> None:
    document = read_text(host_files.CLAUDE_USER, ".claude.json")
    offers = {
        note.pointer: note.sentence for note in document.notes if "workspace" in note.sentence
    }
    assert list(offers) == ["/projects/~1home~1me~1one", "/projects/~1home~1me~1two"]
    assert "top-two, web-two" in offers["/projects/~1home~1me~1two"]
    one, two = document.projects
    assert (one.directory, one.own, one.shared) == ("/home/me/one", ("web",), ("top",))
    assert (two.directory, two.own, two.shared) == ("/home/me/two", ("top-two", "web-two"), ())


def test_project_leaves_out_the_shared_servers_that_it_disables() -> None:
    project = {"mcpServers": {"own": {"command": "x"}}, "disabledMcpServers": ["top", 5, {}]}
    file = {
        "mcpServers": {"top": {"command": "x"}, "other": {"command": "x"}},
        "projects": {
            "/home/me/one/": project,
            "C:\\one": project,
            "/odd": {**project, "disabledMcpServers": 5},
        },
    }
    document = read_text(json.dumps(file), ".claude.json")
    assert [(each.directory, each.shared) for each in document.projects] == [
        ("/home/me/one", ("other",)),
        ("/odd", ("top", "other")),
    ]


def test_nothing_but_servers_of_a_hosts_settings_is_kept() -> None:
    document = read_text(host_files.ZED, "settings.json")
    assert document.parked == {}
    assert any("other settings" in note.sentence for note in document.notes)


_ROOTS = {
    "codex": "mcp_servers",
    "hermes": "mcp_servers",
    "zed": "context_servers",
    "amp": "amp.mcpServers",
    "goose": "extensions",
    "gemini": "mcpServers",
    "librechat": "mcpServers",
    "windsurf": "mcpServers",
    "crush": "mcp",
    "claude-user": "mcpServers",
}
_own_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 9),
    st.text("a$%{}", max_size=4),
    st.lists(st.text("ab", max_size=2), max_size=2),
    st.dictionaries(st.sampled_from("ab"), st.text("a$", max_size=3), max_size=2),
)
_own_keys = st.sampled_from(
    [
        "httpUrl",
        "serverUrl",
        "cmd",
        "uri",
        "envs",
        "env_keys",
        "env_vars",
        "http_headers",
        "env_http_headers",
        "bearer_token_env_var",
        "bearer_token",
        "startup_timeout_sec",
        "tool_timeout_sec",
        "enabled_tools",
        "timeout",
        "connect_timeout",
        "tools",
        "customUserVars",
        "includeTools",
        "trust",
        "requestOptions",
        "transport",
        "apiKey",
        "display_name",
        "title",
        "available_tools",
        "initTimeout",
    ]
)
_entries = st.one_of(
    odd_entries,
    st.builds(
        lambda base, more: {**base, **more} if isinstance(base, dict) else base,
        odd_entries,
        st.dictionaries(_own_keys, _own_values, max_size=3),
    ),
)


@pytest.mark.exhaustive(one_in=12)
@pytest.mark.parametrize("name", [host.name for host in HOSTS if host.name in _ROOTS])
@settings(max_examples=25)
@given(entries=st.dictionaries(keys, _entries, max_size=3))
def test_any_entry_beside_a_good_one_costs_only_itself(name: str, entries: dict[str, Any]) -> None:
    data = {
        _ROOTS[name]: {**entries, "the-good-one": {"command": "x", "type": "stdio", "cmd": "x"}}
    }
    document = READABLE[name].read(data, "x").drop_refused_entries()
    assert "the-good-one" in {server.key for server in document.servers}
    assert all(
        note.pointer.startswith("/" + _ROOTS[name])
        for note in document.notes
        if note.action == "left out"
    )
    written = FORMATS["slipsnisse-extended"].write(document)
    again = FORMATS["slipsnisse-extended"].read(written.data, "x")
    assert not again.refused
