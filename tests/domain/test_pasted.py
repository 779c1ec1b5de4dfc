"""Whatever people paste to add a server is read into words, and what looks like a secret is taken
out of them."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import pytest

from mcpregistry.domain.formats import pasted
from mcpregistry.domain.formats.document import ServerEntry
from mcpregistry.domain.formats.notes import FileInvalid
from mcpregistry.domain.formats.pasted import secrets

TOKEN = "ghp_abcdefghijklmnop1234"


def only(text: str) -> ServerEntry:
    """The one entry of what was pasted."""
    (entry,) = pasted.read(text).document.servers
    return entry


def facts(text: str) -> dict[str, Any]:
    """What the entry says, besides what it leaves empty."""
    entry = only(text)
    said = {name: getattr(entry, name) for name in ("key", "url", "cwd", "env", "headers")}
    return {name: value for name, value in said.items() if value} | (
        {"command": " ".join(entry.command)} if entry.command else {}
    )


EVERYTHING = {"key": "everything", "command": "npx -y @modelcontextprotocol/server-everything"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("npx -y @modelcontextprotocol/server-everything", EVERYTHING),
        ("$ npx -y \\\n    @modelcontextprotocol/server-everything\n", EVERYTHING),
        ("`npx -y @modelcontextprotocol/server-everything`", EVERYTHING),
        ("```bash\n# start it\nnpx -y @modelcontextprotocol/server-everything\n```", EVERYTHING),
        ("@modelcontextprotocol/server-everything", EVERYTHING),
        (
            "A=1 B='two words' uvx mcp-server-time",
            {"key": "time", "command": "uvx mcp-server-time", "env": {"A": "1", "B": "two words"}},
        ),
        (
            "export A=1\nuvx mcp-server-time",
            {"key": "time", "command": "uvx mcp-server-time", "env": {"A": "1"}},
        ),
        (
            "env A=1 uvx mcp-server-time@2.1",
            {"key": "time", "command": "uvx mcp-server-time@2.1", "env": {"A": "1"}},
        ),
        (
            "cd /srv/tides && node build/index.js",
            {"key": "tides", "command": "node build/index.js", "cwd": "/srv/tides"},
        ),
        (
            "python3 /srv/weather/server.py",
            {"key": "weather", "command": "python3 /srv/weather/server.py"},
        ),
        (
            "uvx --from git+https://example.org/x/serena serena start-mcp-server",
            {
                "key": "serena",
                "command": "uvx --from git+https://example.org/x/serena serena start-mcp-server",
            },
        ),
        ("clock --home $HOME", {"key": "clock", "command": "clock --home ${HOME}"}),
        (
            "docker run -i --rm -e A=1 --env=B=2 -v /x:/y ghcr.io/github/github-mcp-server",
            {
                "key": "github",
                "command": "docker run -i --rm -e A --env=B -v /x:/y ghcr.io/github/github-mcp-server",
                "env": {"A": "1", "B": "2"},
            },
        ),
    ],
)
def test_a_command_line_becomes_its_words(text: str, expected: dict[str, Any]) -> None:
    assert facts(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "claude mcp add gh -s user -e A=1 -e B=2 -- npx -y gh-mcp --read-only",
            {"key": "gh", "command": "npx -y gh-mcp --read-only", "env": {"A": "1", "B": "2"}},
        ),
        (
            "claude mcp add --env A=1 B=2 --scope project gh -- uvx gh",
            {"key": "gh", "command": "uvx gh", "env": {"A": "1", "B": "2"}},
        ),
        (
            "claude mcp add --transport http linear https://mcp.linear.app/mcp --header 'X-Team: blue'",
            {"key": "linear", "url": "https://mcp.linear.app/mcp", "headers": {"X-Team": "blue"}},
        ),
        (
            """claude mcp add-json time '{"type": "stdio", "command": "uvx", "args": ["mcp-server-time"]}'""",
            {"key": "time", "command": "uvx mcp-server-time"},
        ),
        (
            "codex mcp add docs --env A=1 -- npx -y docs-mcp",
            {"key": "docs", "command": "npx -y docs-mcp", "env": {"A": "1"}},
        ),
        (
            "codex mcp add lin --url https://mcp.linear.app/mcp --bearer-token-env-var LIN",
            {
                "key": "lin",
                "url": "https://mcp.linear.app/mcp",
                "headers": {"Authorization": "Bearer ${LIN}"},
            },
        ),
        (
            "gemini mcp add -s user -e A=1 gw python3 srv.py --port 80",
            {"key": "gw", "command": "python3 srv.py --port 80", "env": {"A": "1"}},
        ),
        (
            "gemini mcp add -t http -H 'X-Team: blue' gw https://example.org/mcp",
            {"key": "gw", "url": "https://example.org/mcp", "headers": {"X-Team": "blue"}},
        ),
        (
            "copilot mcp add --env A=1 gw -- uvx gw",
            {"key": "gw", "command": "uvx gw", "env": {"A": "1"}},
        ),
        (
            "opencode mcp add gw --url https://example.org/mcp --header X-Team=blue",
            {"key": "gw", "url": "https://example.org/mcp", "headers": {"X-Team": "blue"}},
        ),
        (
            """code --add-mcp '{"name": "pw", "command": "npx", "args": ["@playwright/mcp@latest"]}'""",
            {"key": "pw", "command": "npx @playwright/mcp@latest"},
        ),
    ],
)
def test_what_adds_a_server_to_a_host_adds_it_here(text: str, expected: dict[str, Any]) -> None:
    assert facts(text) == expected


ENTRY: dict[str, Any] = {"command": "uvx", "args": ["mcp-server-time"]}
TIME = {"key": "time", "command": "uvx mcp-server-time"}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"mcpServers": {"time": ENTRY}}, TIME),
        ({"time": ENTRY}, TIME),
        (ENTRY, TIME),
        ({"name": "clock", **ENTRY}, {**TIME, "key": "clock"}),
        ({"servers": {"time": ENTRY}}, TIME),
        ({"servers": {"time": {"type": "stdio", **ENTRY}}, "inputs": []}, TIME),
        ({"mcp": {"servers": {"time": ENTRY}}}, TIME),
        (
            {
                "mcp": {
                    "time": {
                        "type": "local",
                        "command": ["uvx", "mcp-server-time"],
                        "environment": {"A": "1"},
                    }
                }
            },
            {**TIME, "env": {"A": "1"}},
        ),
        (
            {
                "context_servers": {
                    "time": {"command": {"path": "uvx", "args": ["mcp-server-time"]}}
                }
            },
            TIME,
        ),
        ({"amp.mcpServers": {"time": ENTRY}}, TIME),
        ({"mcpServers": [{"name": "time", **ENTRY}]}, TIME),
        (
            {"mcpServers": {"x": {"httpUrl": "https://example.org/mcp"}}},
            {"key": "x", "url": "https://example.org/mcp"},
        ),
        (
            {"mcpServers": {"x": {"serverUrl": "https://example.org/sse"}}},
            {"key": "x", "url": "https://example.org/sse"},
        ),
    ],
)
def test_a_block_of_any_hosts_file_is_read(data: dict[str, Any], expected: dict[str, Any]) -> None:
    assert facts(json.dumps(data, indent=2)) == expected


def test_a_part_of_a_file_is_read_without_its_braces() -> None:
    assert facts('"time": {"command": "uvx", "args": ["mcp-server-time"]},') == TIME


def test_toml_of_codex_is_read() -> None:
    text = '[mcp_servers.docs]\ncommand = "npx"\nargs = ["-y", "docs"]\n\n[mcp_servers.docs.env]\nA = "1"\n'
    assert facts(text) == {"key": "docs", "command": "npx -y docs", "env": {"A": "1"}}
    assert only(
        '[mcp_servers.x]\nurl = "https://x.org/mcp"\nhttp_headers = { A = "b" }'
    ).headers == {"A": "b"}


def test_yaml_is_read() -> None:
    assert facts("mcpServers:\n  time:\n    command: uvx\n    args: [mcp-server-time]\n") == TIME


def test_several_servers_are_all_there() -> None:
    found = pasted.read(
        json.dumps(
            {"mcpServers": {"time": ENTRY, "git": {"command": "uvx", "args": ["mcp-server-git"]}}}
        )
    )
    assert [entry.key for entry in found.document.servers] == ["time", "git"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://mcp.linear.app/mcp", {"key": "linear", "url": "https://mcp.linear.app/mcp"}),
        ("http://127.0.0.1:8080/mcp", {"key": "local", "url": "http://127.0.0.1:8080/mcp"}),
        (
            "https://example.org/mcp\nX-Team: blue",
            {"key": "example", "url": "https://example.org/mcp", "headers": {"X-Team": "blue"}},
        ),
    ],
)
def test_an_address_with_headers_below_it_is_read(text: str, expected: dict[str, Any]) -> None:
    assert facts(text) == expected


def test_links_of_badges_are_read() -> None:
    packed = base64.b64encode(json.dumps({"command": "uvx mcp-server-time"}).encode()).decode()
    assert (
        facts(f"cursor://anysphere.cursor-deeplink/mcp/install?name=time&config={packed}") == TIME
    )
    assert facts(f"vscode:mcp/install?{quote(json.dumps({'name': 'time', **ENTRY}))}") == TIME


def test_a_registrys_name_leads_to_the_registry() -> None:
    assert pasted.read("io.github.example/tides").registry == "io.github.example/tides"
    assert (
        pasted.read(json.dumps({"name": "io.github.example/tides", "packages": []})).registry
        == "io.github.example/tides"
    )


@pytest.mark.parametrize(
    ("text", "says", "remedy"),
    [
        ("  \n", "is empty", "README"),
        ("npm install x && node y", "needs a shell", "script"),
        ("cat x | y", "needs a shell", "script"),
        ("npm install x\nnode y", "more than one command", "one line"),
        ("export A=1", "starts no program", "one line"),
        ("echo 'half", "not closed", "both"),
        ("https://github.com/example/tides", "page about a server", "README"),
        ("https://example.org/mcp\nand then", "are not headers", "Name: value"),
        ("cursor://anysphere.cursor-deeplink/settings", "does not install a server", "host's file"),
        ("cursor://x/mcp/install?name=a&config=!!", "cannot be read", "host's file"),
        ("claude mcp add", "does not name a server", "whole line"),
        ("claude mcp add gh -e A=1", "neither a program to start", "whole line"),
        ("claude mcp add-json gh {", "JSON in the command is not valid", "quotation"),
        ('{"mcpServers": {}}', "contains no server", "command or the address"),
        ('{"mcpServers": ', "Line 1", "Correct"),
        ("[mcp_servers.x]\ncommand = ", "not valid TOML", "Correct"),
        ("x" * 300_000, "256 KiB", "import"),
        ("uvx \x07", "control character", "plain text"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_to_do(text: str, says: str, remedy: str) -> None:
    with pytest.raises(FileInvalid) as refused:
        pasted.read(text)
    assert says in refused.value.note.sentence
    assert remedy in refused.value.note.remedy


@pytest.mark.parametrize(
    ("text", "left", "taken"),
    [
        (
            f"GITHUB_TOKEN={TOKEN} uvx gh",
            {"env": {"GITHUB_TOKEN": "${cred:gh-github-token}"}},
            [("env", TOKEN)],
        ),
        (f"THING={TOKEN} uvx gh", {"env": {"THING": "${cred:gh-thing}"}}, [("env", TOKEN)]),
        ("API_KEY=YOUR_API_KEY uvx gh", {"env": {"API_KEY": "${cred:gh-api-key}"}}, [("env", "")]),
        ("API_KEY=<your key> uvx gh", {"env": {"API_KEY": "${cred:gh-api-key}"}}, [("env", "")]),
        ("API_KEY=${API_KEY} uvx gh", {"env": {"API_KEY": "${API_KEY}"}}, []),
        (
            "uvx gh --token abc --mode fast",
            {"command": "uvx gh --token ${cred:gh-token} --mode fast"},
            [("command", "abc")],
        ),
        (
            "uvx gh --api-key=abc",
            {"command": "uvx gh --api-key=${cred:gh-api-key}"},
            [("command", "abc")],
        ),
        (f"uvx gh {TOKEN}", {"command": "uvx gh ${cred:gh-argument}"}, [("command", TOKEN)]),
        (
            "uvx gh postgresql://me:hunter2@db/x",
            {"command": "uvx gh postgresql://me:${cred:gh-address-password}@db/x"},
            [("command", "hunter2")],
        ),
        (
            "npx gh --header 'Authorization: Bearer abc'",
            {"command": "npx gh --header Authorization: Bearer ${cred:gh-authorization}"},
            [("command", "abc")],
        ),
        (
            "DATABASE_URI=postgresql://me:hunter2@db/x uvx gh",
            {"env": {"DATABASE_URI": "postgresql://me:${cred:gh-database-uri-password}@db/x"}},
            [("env", "hunter2")],
        ),
        (
            "https://gh.org/mcp?api_key=abc&mode=fast",
            {"url": "https://gh.org/mcp?api_key=${cred:gh-api-key}&mode=fast"},
            [("url", "abc")],
        ),
        (
            '{"gh": {"url": "${SCHEME}://me:hunter2@gh.org/mcp"}}',
            {"url": "${SCHEME}://me:${cred:gh-address-password}@gh.org/mcp"},
            [("url", "hunter2")],
        ),
        (
            "https://gh.org/mcp\nAuthorization: Bearer abc",
            {"headers": {"Authorization": "Bearer ${cred:gh-authorization}"}},
            [("headers", "abc")],
        ),
        (
            "MAX_TOKENS=100 CACHE_DIR=/tmp uvx gh --max-tokens 5",
            {"env": {"MAX_TOKENS": "100", "CACHE_DIR": "/tmp"}},
            [],
        ),
    ],
)
def test_what_looks_like_a_secret_is_taken_out(
    text: str, left: dict[str, Any], taken: list[tuple[str, str]]
) -> None:
    plain, found = secrets.extract_secrets(only(text))
    assert [(each.place, each.value) for each in found] == taken
    for name, value in left.items():
        assert (" ".join(plain.command) if name == "command" else getattr(plain, name)) == value


def test_two_secrets_of_one_name_get_two_names() -> None:
    _, found = secrets.extract_secrets(only("uvx gh --token abc --token def"))
    assert [each.name for each in found] == ["gh-token", "gh-token-2"]
    assert all(each.value not in repr(each) for each in found)


@pytest.mark.parametrize(
    "text",
    [
        "https://[foo",
        "vscode:mcp/install?[1]",
        "cursor://anysphere.cursor-deeplink/mcp/install?name=x&config=[1]",
        '{"command": "npx", "args": 5}',
        '[mcp_servers.x]\nurl = "https://mcp.example.org"\nhttp_headers = "x"',
        '[mcp_servers.x]\nurl = "https://mcp.example.org"\nenv_http_headers = "x"',
        '{"mcpServers": {"x": {"url": "https://mcp.example.org", "headers": "x", "bearer_token_env_var": "T"}}}',
        """claude mcp add-json x '{"command": 5}'""",
        """claude mcp add-json x '{"command": "npx", "env": [1]}'""",
    ],
)
def test_what_is_of_a_wrong_type_is_refused_by_name(text: str) -> None:
    assert _refusal(text)


def _refusal(text: str) -> str:
    try:
        document = pasted.read(text).document
    except FileInvalid as error:
        return str(error)
    assert not document.servers
    return " ".join(map(str, document.refused))


def test_a_dollar_in_single_quotes_is_only_a_dollar() -> None:
    line = "claude mcp add x -e PASSWORD='pa$word' -e TOKEN=$HERE -- npx some-server"
    (entry,) = pasted.read(line).document.servers
    assert (entry.env["PASSWORD"], entry.env["TOKEN"]) == ("pa$word", "${HERE}")
