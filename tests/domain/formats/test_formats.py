"""What each format's reader makes of a file: the columns, the notes, the refusals."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mcpregistry.domain.formats import FORMATS, read, recognise, write
from mcpregistry.domain.formats.document import Document, Oauth, ServerEntry
from mcpregistry.domain.formats.notes import FileInvalid
from tests.domain.formats.samples import IDS, SAMPLES, sample


def servers(name: str, path: str) -> dict[str, ServerEntry]:
    _, document = read(sample(path), path, name)
    assert not document.refused
    return {server.key: server for server in document.servers}


def refused(name: str, data: dict[str, object]) -> list[tuple[str, str]]:
    return [(note.pointer, note.sentence) for note in FORMATS[name].read(data, "x.json").refused]


HOSTS_NAMES = {"gemini", "windsurf", "zed", "amp", "codex"}
RECOGNISED = {
    "claude-code": "mcpservers",
    "copilot": "mcpservers",
    "slipsnisse-extended": "slipsnisse",
}


@pytest.mark.parametrize(("name", "path"), SAMPLES, ids=IDS)
def test_a_file_is_recognised_by_its_root(name: str, path: object) -> None:
    found, _ = read(sample(f"{name}/{path.name}"), f"{name}/{path.name}")
    assert found.name == RECOGNISED.get(name, name)


@pytest.mark.parametrize(
    ("data", "path", "name"),
    [
        ({"servers": {}}, ".vscode/mcp.json", "vscode"),
        ({"servers": {}}, "C:\\w\\.vscode\\mcp.json", "vscode"),
        ({"servers": {"a": {"type": "http"}}}, "x.json", "vscode"),
        ({"servers": {}, "inputs": []}, "x.json", "vscode"),
        ({"servers": {"a": {"command": "x"}}}, "x.json", "vscode"),
        ({"servers": {"a": {"command": "x"}}}, "w/.dispatch/mcp.json", "dispatch"),
        (
            {"servers": {"a": {"transport": "http", "url": "https://a.example"}}},
            "x.json",
            "dispatch",
        ),
        (
            {"servers": {"a": {"command": "x"}}, "mcpServers": {"b": {"command": "x"}}},
            "x.json",
            "vscode",
        ),
        ({"mcp": {}, "mcpServers": {"a": {"command": "x"}}}, "x.json", "gemini"),
        ({"mcp": {"servers": {"a": {"command": "x"}}, "inputs": []}}, "x.json", "vscode-settings"),
        ({"mcp": {"servers": {"a": {"type": "local", "command": ["x"]}}}}, "x.json", "opencode2"),
        ({"mcp": {"a": {"type": "stdio", "command": "x"}}}, "x.json", "crush"),
        ({"mcp": {"a": {"type": "local", "command": ["x"]}}}, "x.json", "opencode"),
        ({"a": {"command": "x"}, "b": 5}, "x.json", ""),
        ({"projects": {"/p": {"mcpServers": {}}}}, "x.json", "claude-user"),
        ({"extensions": {"a": {"type": "stdio", "cmd": "x"}}}, "x.yaml", "goose"),
        ({"extensions": {"a": {"enabled": True}}}, "x.yaml", ""),
        ({"mcp": {"servers": {"type": "local", "command": ["x"]}}}, "x.json", "opencode"),
        ({"mcp": {"servers": {}}}, "x.json", "opencode2"),
        ({"mcpServers": {}, "defaults": {}}, "x.json", "ai-agent"),
        ({"mcpServers": {}}, "home/.cursor/mcp.json", "cursor"),
    ],
)
def test_doubtful_roots_are_settled_as_documented(
    data: dict[str, object], path: str, name: str
) -> None:
    if name:
        assert recognise(data, path).name == name
    else:
        with pytest.raises(FileInvalid):
            recognise(data, path)


@pytest.mark.parametrize(
    ("text", "path", "url"),
    [
        (
            '{"theme": "x", "mcpServers": {"a": {"httpUrl": "https://a.example/mcp"}}}',
            "settings.json",
            True,
        ),
        ('{"mcpServers": {"a": {"serverUrl": "https://a.example/mcp"}}}', "mcp_config.json", True),
        (
            '{"context_servers": {"a": {"command": {"path": "uvx", "args": ["b"]}}}}',
            "settings.json",
            False,
        ),
        (
            '{"context_servers": {"a": {"source": "custom", "command": "uvx", "args": ["b"]}}}',
            "settings.json",
            False,
        ),
        ('{"amp.mcpServers": {"a": {"command": "uvx", "args": ["b"]}}}', "settings.json", False),
        ('model = "o3"\n[mcp_servers.a]\ncommand = "uvx"\nargs = ["b"]\n', "config.toml", False),
        (
            'seen = 2026-01-02\n[mcp_servers.a]\nurl = "https://a.example/mcp"\n',
            "pasted text",
            True,
        ),
    ],
)
def test_files_of_hosts_with_names_of_their_own_are_read(text: str, path: str, url: bool) -> None:
    found, document = read(text.encode(), path)
    assert found.name in HOSTS_NAMES
    assert document.refused == ()
    [entry] = document.servers
    assert entry.key == "a"
    assert (entry.url == "https://a.example/mcp") is url
    assert (list(entry.command) == ["uvx", "b"]) is not url


@pytest.mark.parametrize(
    ("text", "path", "place"),
    [
        ('[mcp_servers.a]\ncommand = "uvx"\nodd = 1\n', "config.toml", "/mcp_servers/a/odd"),
        (
            '{"context_servers": {"a": {"command": "uvx", "odd": 1}}}',
            "settings.json",
            "/context_servers/a/odd",
        ),
        (
            '{"amp.mcpServers": {"a": {"command": "uvx", "odd": 1}}}',
            "settings.json",
            "/amp.mcpServers/a/odd",
        ),
        ('{"mcpServers": {"a": {"command": "uvx", "odd": 1}}}', ".mcp.json", "/mcpServers/a/odd"),
    ],
)
def test_notes_name_the_root_that_the_file_has(text: str, path: str, place: str) -> None:
    pointers = {note.pointer for note in read(text.encode(), path)[1].notes}
    assert place in pointers
    assert {at.split("/")[1] for at in pointers if at} == {place.split("/")[1]}


def test_json_that_only_names_codexs_table_is_no_toml() -> None:
    text = '{"mcpServers": {"a": {"command": "uvx", "args":\n["mcp_servers"]\n}}}'
    assert read(text.encode(), "pasted text")[1].servers[0].command == ("uvx", "mcp_servers")


def test_a_broken_toml_file_is_refused_without_quoting_it() -> None:
    with pytest.raises(FileInvalid, match="not valid TOML") as refused:
        read(b'[mcp_servers.a]\nkey = "secret', "config.toml")
    assert "secret" not in str(refused.value)


def test_an_unknown_root_is_refused_with_the_list_of_formats() -> None:
    with pytest.raises(FileInvalid, match="slipsnisse, "):
        recognise({"foo": 1}, "x.json")


def test_mcp_servers_json_as_designed() -> None:
    _, document = read(sample("mcp-servers/mcp-servers.json"), "mcp-servers.json")
    web = document.servers[2]
    assert (web.key, web.name, web.enabled) == ("web-search", "brave-search", False)
    assert web.env == {"BRAVE_API_KEY": "${BRAVE_API_KEY}"}
    assert document.flags == {
        "subAgentEnabled": True,
        "autoDiscoveryEnabled": False,
        "toolApprovalRequired": True,
    }


def test_dispatch_files_as_designed() -> None:
    made = servers("dispatch", "dispatch/mcp.json")
    assert [server.transport for server in made.values()] == ["stdio", "stdio", "http"]
    assert servers("opencode", "opencode/older_shape.json")["freecad"].command == (
        "uvx",
        "freecad-mcp",
    )
    assert not servers("dispatch", "dispatch/remote_and_disabled.json")["remote"].enabled


def test_ai_agent_files_as_designed() -> None:
    made = servers("ai-agent", "ai-agent/ai-agent.json")
    assert {key: server.transport for key, server in made.items()} == {
        "words": "stdio",
        "array": "stdio",
        "both": "stdio",
        "socket": "websocket",
        "plain": "http",
        "events": "sse",
    }
    assert (
        made["words"].command == made["array"].command == made["both"].command == ("npx", "-y", "x")
    )
    assert {server.request_timeout_ms for server in made.values()} == {10000}
    _, document = read(sample("ai-agent/ai-agent.json"), ".ai-agent.json")
    assert document.providers["anthropic"]["models"]["haiku"]["contextWindow"] == 200000
    assert document.model_providers == {
        "anthropic": {
            "kind": "anthropic",
            "key": "${ANTHROPIC_API_KEY}",
            "base_url": "https://api.example",
            "tool_choice": "auto",
            "options": {"temperature": 0.7, "top_p": 1.0},
            "timeout": 120,
            "models": {
                "haiku": {
                    "context_window": 200000,
                    "tokenizer": "anthropic",
                    "buffer_tokens": 512,
                    "tool_choice": "required",
                    "overrides": {},
                }
            },
        },
        "ollama": {
            "kind": "ollama",
            "timeout": 120,
            "options": {"temperature": 0.7, "top_p": 1.0, "think": True, "num_ctx": 8192},
        },
    }
    said = {note.pointer: note.action for note in document.notes}
    assert said["/providers/anthropic"] == said["/defaults/llmTimeout"] == "translated"
    assert said["/providers/ollama/custom/stream"] == "parked"


def test_defaults_of_ai_agent_hold_where_a_provider_or_model_says_nothing() -> None:
    file = {
        "mcpServers": {},
        "providers": {
            "openai": {
                "models": {"a": {}, "b": {"contextWindowBufferTokens": 9}},
                "custom": {
                    "providerOptions": {
                        "openai": {"parallelToolCalls": False, "reasoningEffort": "low"}
                    }
                },
            },
            "at home": {"baseUrl": "http://127.0.0.1:1/v1"},
            "unheard-of": {"apiKey": "${K}"},
        },
        "defaults": {"parallelToolCalls": True, "contextWindowBufferTokens": 77},
    }
    _, document = read(json.dumps(file).encode(), ".ai-agent.json")
    openai = document.model_providers["openai"]
    home = document.model_providers["at-home"]
    assert openai["options"] == {"parallel_tool_calls": False, "reasoning_effort": "low"}
    assert openai["models"] == {"a": {"buffer_tokens": 77}, "b": {"buffer_tokens": 9}}
    assert (home["kind"], home["options"]) == ("compatible", {"parallel_tool_calls": True})
    assert "unheard-of" not in document.model_providers
    (note,) = (note for note in document.notes if note.pointer == "/providers/unheard-of")
    assert "baseUrl" in note.remedy


def test_what_changed_here_is_written_back_to_ai_agent_and_the_rest_left_as_it_was() -> None:
    form = FORMATS["ai-agent"]
    raw = json.loads(sample("ai-agent/ai-agent.json"))
    _, document = read(sample("ai-agent/ai-agent.json"), ".ai-agent.json")
    now = json.loads(json.dumps(document.model_providers))
    now["anthropic"]["models"]["haiku"] |= {
        "context_window": 1000,
        "tool_choice": "",
        "input_price": 3,
    }
    now["anthropic"]["base_url"] = ""
    now["anthropic"]["models"]["opus"] = {"buffer_tokens": 256}
    del now["ollama"]
    now["openai"] = {"kind": "openai", "key": "${OPENAI_API_KEY}", "options": {"top_p": 0.5}}
    now["eu"] = {"kind": "openai", "key": "${EU_KEY}"}
    written = form.write(replace(document, model_providers=now))
    expected = raw["providers"]["anthropic"]
    expected["models"] = {
        "haiku": {
            "contextWindow": 1000,
            "tokenizer": "anthropic",
            "contextWindowBufferTokens": 512,
            "overrides": {},
        },
        "opus": {"contextWindowBufferTokens": 256},
    }
    del expected["baseUrl"]
    custom = {"providerOptions": {"openai": {"top_p": 0.5}}}
    assert written.data["providers"] == {
        "anthropic": expected,
        "openai": {"apiKey": "${OPENAI_API_KEY}", "custom": custom},
    }
    told = " ".join(note.sentence for note in written.notes)
    assert "input_price" in told
    assert "eu is of the kind openai" in told


def test_a_key_that_is_written_out_is_taken_and_leaves_in_no_other_format() -> None:
    file = {"mcpServers": {}, "providers": {"openai": {"apiKey": "sk-5ecre7"}}}
    _, document = read(json.dumps(file).encode(), ".ai-agent.json")
    assert document.model_providers["openai"]["key"] == "sk-5ecre7"
    assert FORMATS["ai-agent"].write(document).data == file
    other = FORMATS["slipsnisse-extended"].write(document)
    assert other.data["providers"] == {"openai": {"kind": "openai"}}
    assert "sk-5ecre7" not in json.dumps(write(document, "ai-agent").data)


def test_opencode_files_of_both_versions() -> None:
    one = servers("opencode", "opencode/published.json")
    assert one["a"].env == {"K": "${V}"}
    assert one["a"].connect_timeout_ms == 5000
    assert one["b"].oauth == Oauth(client_secret="${S}", scopes=("a", "b"))
    assert one["c"].oauth == Oauth(off=True)
    assert one["c"].transport == "sse"
    two = servers("opencode2", "opencode2/published.json")
    assert (two["a"].cwd, two["a"].connect_timeout_ms, two["a"].request_timeout_ms) == (
        ".",
        30000,
        20000,
    )
    assert not two["b"].enabled


def test_vscode_inputs_become_credentials() -> None:
    _, document = read(sample("vscode/mcp.json"), ".vscode/mcp.json")
    assert document.credentials() == ("perplexity-key", "level")
    perplexity = document.servers[1]
    assert perplexity.env == {"PERPLEXITY_API_KEY": "${cred:perplexity-key}", "HOMEPATH": "${HOME}"}
    assert perplexity.cwd == "${workspace}/sub"
    parked = {note.pointer for note in document.notes if note.action == "parked"}
    assert parked >= {"/servers/perplexity/sandbox", "/servers/perplexity/dev"}


def test_a_credential_becomes_a_prompt_for_vscode() -> None:
    document = Document((ServerEntry("a", command=("x", "${cred:key}"), env={"K": "${cred:key}"}),))
    data = FORMATS["vscode"].write(document).data
    assert data["inputs"] == [
        {"id": "key", "type": "promptString", "description": "Value of key", "password": True}
    ]
    assert data["servers"]["a"]["args"] == ["${input:key}"]


def test_the_mcpservers_family() -> None:
    code = servers("claude-code", "claude-code/mcp.json")
    assert code["database"].command[0] == "${HOME:-/root}/bin/db-mcp"
    assert code["old"].oauth == Oauth(
        scopes=("read", "write"),
        callback_port=8080,
        metadata_url="https://id.example/.well-known/openid-configuration",
    )
    assert (code["streamable"].transport, code["streamable"].enabled) == ("http", False)
    assert code["streamable"].auto_approve == ("look",)
    cursor = servers("cursor", "cursor/mcp.json")
    assert cursor["local"].env == {"API_KEY": "${API_KEY}", "OTHER": "${PLAIN}"}
    assert cursor["local"].env_file == "${workspace}/.env"
    assert cursor["remote"].oauth == Oauth(
        client_id="me", client_secret="${CLIENT_SECRET}", scopes=("read", "write")
    )
    desktop = servers("claude-desktop", "claude-desktop/claude_desktop_config.json")
    assert desktop["Sequential-Thinking"].name == "Sequential Thinking"
    assert servers("copilot", "copilot/mcp-config.json")["web"].tools_allowed == ("one", "two")


def test_claude_desktop_takes_no_remote_server() -> None:
    document = Document((ServerEntry("far", transport="http", url="https://far.example"),))
    assert FORMATS["claude-desktop"].write(document).refused[0].pointer == "/mcpServers/far"


@pytest.mark.parametrize(
    ("entry", "pointer", "word"),
    [
        ([], "", "object"),
        ({}, "", "command or a url"),
        ({"command": ""}, "/command", "empty"),
        ({"command": 5}, "/command", "not text"),
        ({"command": "x", "args": "-y"}, "/args", "list"),
        ({"command": "x", "args": [1]}, "/args", "list"),
        ({"command": "x", "env": {"A": [1]}}, "/env/A", "not text"),
        ({"command": "x", "env": []}, "/env", "object"),
        ({"command": "x", "url": "https://a.example"}, "", "both"),
        ({"command": "x", "type": "carrier-pigeon"}, "/type", "not valid"),
        ({"type": "http"}, "", "url"),
        ({"url": "ftp://a.example"}, "/url", "start with"),
        ({"url": "https://u:p@a.example"}, "/url", "password"),
        ({"url": "https://"}, "/url", "host"),
        ({"url": "https://[a"}, "/url", "not valid"),
        ({"command": "x", "enabled": True, "disabled": True}, "", "contradict"),
        ({"command": "x", "disabled": "yes"}, "/disabled", "must be true or false"),
        ({"command": "x", "oauth": "yes"}, "/oauth", "object"),
        ({"command": "x", "oauth": {"callbackPort": "80"}}, "/oauth/callbackPort", "wrong type"),
    ],
)
def test_an_unusable_entry_is_refused_with_its_place(
    entry: object, pointer: str, word: str
) -> None:
    (found,) = refused("mcpservers", {"mcpServers": {"a": entry}})
    assert found[0] == "/mcpServers/a" + pointer
    assert word in found[1]


def test_a_transport_that_is_unknown_is_not_read_as_another() -> None:
    entry = {"url": "https://a.example", "type": "carrier-pigeon"}
    notes = read(json.dumps({"mcpServers": {"a": entry}}).encode(), "f", "mcpservers")[1].notes
    assert [note.action for note in notes if note.pointer == "/mcpServers/a/type"] == ["refused"]


@pytest.mark.parametrize(
    ("name", "data", "pointer"),
    [
        ("mcp-servers", {"servers": {}}, "/servers"),
        ("mcp-servers", {"servers": [{"name": "a"}]}, "/servers/0"),
        (
            "mcp-servers",
            {"servers": [{"id": "a", "name": "a", "command": "x", "args": []}]},
            "/servers/0",
        ),
        ("mcp-servers", {"servers": [], "subAgentEnabled": 1}, "/subAgentEnabled"),
        ("mcpservers", {"mcpServers": []}, "/mcpServers"),
        ("mcpservers", {"servers": {}}, ""),
        ("opencode2", {"mcp": {}}, "/mcp"),
        (
            "mcpservers",
            {"mcpServers": {"a b": {"command": "x"}, "a-b": {"command": "x"}}},
            "/mcpServers/a-b",
        ),
        ("mcpservers", {"mcpServers": {"--": {"command": "x"}}}, "/mcpServers/--"),
        (
            "ai-agent",
            {"mcpServers": {}, "defaults": {"toolTimeout": "10s"}},
            "/defaults/toolTimeout",
        ),
        (
            "opencode",
            {"mcp": {"a": {"type": "local", "command": ["x"], "timeout": 0}}},
            "/mcp/a/timeout",
        ),
        (
            "opencode2",
            {"mcp": {"servers": {"a": {"command": ["x"], "timeout": 5}}}},
            "/mcp/servers/a/timeout",
        ),
        (
            "opencode2",
            {"mcp": {"servers": {"a": {"command": ["x"], "timeout": {"request": "5"}}}}},
            "/mcp/servers/a/timeout/request",
        ),
        ("vscode", {"servers": {}, "inputs": {}}, "/inputs"),
        ("vscode", {"servers": {}, "inputs": [{"type": "promptString"}]}, "/inputs/0"),
        ("vscode", {"servers": {}, "inputs": [{"id": "a b"}]}, "/inputs/0/id"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(
    name: str, data: dict[str, object], pointer: str
) -> None:
    assert refused(name, data)[0][0] == pointer


def test_one_bad_server_does_not_hide_the_problems_of_another() -> None:
    found = refused("mcpservers", {"mcpServers": {"a": {"command": 1, "env": 2}, "b": {}}})
    assert [place for place, _ in found] == [
        "/mcpServers/a/command",
        "/mcpServers/a/env",
        "/mcpServers/b",
    ]


def test_every_key_of_an_entry_gets_a_note() -> None:
    entry = {
        "type": "stdio",
        "command": "x",
        "args": [],
        "env": {},
        "cwd": "/",
        "disabled": False,
        "colour": "blue",
    }
    notes = FORMATS["mcpservers"].read({"mcpServers": {"a": entry}, "top": 1}, "x.json").notes
    assert {note.pointer for note in notes} == {f"/mcpServers/a/{key}" for key in entry} | {"/top"}
    assert {note.pointer for note in notes if note.action == "parked"} == {
        "/mcpServers/a/colour",
        "/top",
    }


def test_notes_never_quote_a_value() -> None:
    secret = "sk-secret"
    entry = {
        "type": secret,
        "command": [secret, 1],
        "args": secret,
        "env": {"A": [secret]},
        "url": f"ftp://{secret}",
    }
    entry |= {
        "headers": secret,
        "oauth": {"clientId": [secret]},
        "disabled": secret,
        "tools": secret,
    }
    for name in FORMATS:
        for data in (
            {"mcpServers": {"a": entry}},
            {"servers": {"a": entry}},
            {"mcp": {"a": entry}},
        ):
            assert secret not in " ".join(map(str, FORMATS[name].read(data, "x.json").notes))
