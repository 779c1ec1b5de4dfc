"""The entry of each host, word by word, and what leads a person there. ``golden`` holds what the
real hosts were tried with."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from mcpregistry.domain.errors import ConfigInvalid, NotFound
from mcpregistry.domain.formats import FORMATS
from mcpregistry.domain.hosts.connection import (
    EndpointConnection,
    build_command_line,
    make_entry_name,
    read_option,
)
from mcpregistry.domain.hosts.entry_file import build_new_file
from mcpregistry.domain.hosts.panel import CHOICES, PLACEHOLDER, build_panel
from mcpregistry.domain.hosts.table import HOSTS, find_host

GOLDEN = Path(__file__).parent / "golden"
COMMAND = build_command_line("/opt/s/.venv/bin/python", "/opt/s/manage.py", "work", "ann")
STDIO = EndpointConnection(
    "slipsnisse-work", "work", "ann", command=COMMAND, env={"SLIPSNISSE_VAR": "/opt/s/var"}
)
HTTP = EndpointConnection(
    "slipsnisse-work", "work", "ann", url="https://tools.example.org/mcp/work"
)
SIGNED = replace(HTTP, token="slp_5ecret")
WAYS = {"stdio": STDIO, "http": HTTP, "token": SIGNED}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("slug", HOSTS)
def test_each_host_gets_its_own_spelling_of_the_same_thing(slug: str, way: str) -> None:
    host = HOSTS[slug]
    try:
        text = build_new_file(host, "slipsnisse-work", host.entry(WAYS[way]))
    except ConfigInvalid as error:
        text = f"{error}\n"
    assert text == (GOLDEN / f"{slug}.{way}.txt").read_text()


@pytest.mark.parametrize("slug", sorted(set(HOSTS) & set(FORMATS)))
def test_what_is_written_is_what_an_import_of_that_host_reads(slug: str) -> None:
    host = HOSTS[slug]
    (server,) = (
        FORMATS[slug]
        .read(json.loads(build_new_file(host, "s", host.entry(STDIO))), "x.json")
        .servers
    )
    assert (server.command, dict(server.env)) == (COMMAND, dict(STDIO.env))


@pytest.mark.parametrize("slug", HOSTS)
def test_an_entry_is_read_back(slug: str) -> None:
    host = HOSTS[slug]
    assert host.spelling.read(host.entry(STDIO)) == (COMMAND, dict(STDIO.env), "", "")
    if host.spelling.url:
        assert host.spelling.read(host.entry(SIGNED)) == ((), {}, HTTP.url, "Bearer slp_5ecret")


def test_the_default_endpoint_has_the_short_name() -> None:
    assert (make_entry_name("default"), make_entry_name("work")) == (
        "slipsnisse",
        "slipsnisse-work",
    )


def test_entry_for_project_files_names_no_endpoint() -> None:
    assert make_entry_name("") == "project-slipsnisse"
    assert build_command_line("p", "m", "", "") == ("p", "m", "runmcp", "--workspace")
    assert build_command_line("p", "m", "", "ann") == (
        "p",
        "m",
        "runmcp",
        "--workspace",
        "--agent",
        "ann",
    )


def test_the_endpoint_and_the_agent_of_a_command_line_are_found() -> None:
    assert (
        read_option(COMMAND, "--endpoint", "default"),
        read_option(COMMAND, "--agent", "local"),
    ) == (
        "work",
        "ann",
    )
    assert read_option(["runmcp", "--agent=bob"], "--agent", "local") == "bob"
    assert read_option(["runmcp", "--agent"], "--agent", "local") == "local"


def test_a_panel_holds_the_file_of_each_system_and_the_whole_entry() -> None:
    shown = build_panel("vscode", STDIO)
    assert shown.files == {
        "Linux": "~/.config/Code/User/mcp.json",
        "macOS": "~/Library/Application Support/Code/User/mcp.json",
        "Windows": "%APPDATA%\\Code\\User\\mcp.json",
    }
    assert shown.project == ".vscode/mcp.json"
    assert (
        json.loads(shown.text)["servers"]["slipsnisse-work"]["command"] == "/opt/s/.venv/bin/python"
    )


def test_links_have_the_host_add_the_same_entry_and_hold_no_token() -> None:
    cursor = parse_qs(urlsplit(build_panel("cursor", STDIO).link).query)
    assert cursor["name"] == ["slipsnisse-work"]
    assert json.loads(base64.b64decode(cursor["config"][0])) == HOSTS["cursor"].entry(STDIO)
    vscode = json.loads(unquote(build_panel("vscode", SIGNED).link.partition("?")[2]))
    assert vscode["headers"] == {"Authorization": "Bearer ${input:slipsnisse-token}"}
    assert vscode["inputs"][0]["password"] is True


@pytest.mark.parametrize("slug", [slug for group in CHOICES.values() for slug in group])
def test_a_token_stands_in_the_entry_alone(slug: str) -> None:
    shown = build_panel(slug, SIGNED)
    assert ("slp_5ecret" in shown.text) is not bool(shown.refused)
    assert not any(
        "slp_5ecret" in text for text in (shown.link, shown.command, shown.after, repr(shown))
    )


def test_what_a_host_cannot_do_is_said_with_the_way_out() -> None:
    assert "Choose stdio" in build_panel("claude-desktop", HTTP).refused
    assert "Choose HTTP" in build_panel("curl", STDIO).refused
    assert PLACEHOLDER in build_panel("zed", HTTP).text
    with pytest.raises(NotFound, match="codex"):
        find_host("emacs")


@pytest.mark.parametrize(
    ("slug", "system", "environ", "path"),
    [
        ("codex", "linux", {}, "/home/ann/.codex/config.toml"),
        ("codex", "linux", {"CODEX_HOME": "/srv/codex"}, "/srv/codex/config.toml"),
        ("claude-code", "macos", {"CLAUDE_CONFIG_DIR": "/x"}, "/x/.claude.json"),
        ("vscode", "macos", {}, "/home/ann/Library/Application Support/Code/User/mcp.json"),
        (
            "opencode",
            "linux",
            {"XDG_CONFIG_HOME": "/home/ann/etc"},
            "/home/ann/etc/opencode/opencode.json",
        ),
        ("cursor", "linux", {"XDG_CONFIG_HOME": "/home/ann/etc"}, "/home/ann/.cursor/mcp.json"),
    ],
)
def test_a_file_is_where_the_host_looks(
    slug: str, system: str, environ: dict[str, str], path: str
) -> None:
    assert HOSTS[slug].places.path(system, "/home/ann", environ) == path


@pytest.mark.parametrize("connection", [STDIO, HTTP, SIGNED])
def test_the_python_example_is_python(connection: EndpointConnection) -> None:
    compile(build_panel("python", connection).text, "example.py", "exec")
