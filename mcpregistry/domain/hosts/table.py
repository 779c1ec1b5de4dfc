"""The hosts that are known, one row each. docs/hosts.md says with which versions the rows were
tried."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import quote

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import NotFound
from mcpregistry.domain.hosts.connection import EndpointConnection
from mcpregistry.domain.hosts.entries import CodexSpelling, Entry, Spelling
from mcpregistry.domain.hosts.places import Places, make_same_places, make_system_places

_INPUT = "slipsnisse-token"


@dataclass(frozen=True, slots=True)
class HostProgram:
    """One host. ``section`` is the key in its file below which servers stand by name.

    ``project``: the file in a project's folder that it reads as well; empty if there is none.
    ``link`` makes an address that has the host add the entry itself, ``command`` a line of its own
    that does; neither ever holds a token. ``after``: what a person does once the entry stands
    there.
    """

    slug: str
    title: str
    places: Places
    section: str
    spelling: Spelling
    after: str
    project: str = ""
    language: Literal["json", "toml"] = "json"
    link: Callable[[EndpointConnection], str] | None = None
    command: Callable[[EndpointConnection], str] | None = None

    def entry(self, connection: EndpointConnection) -> Entry:
        """What stands below ``section``. Raises ``ConfigInvalid`` where the host's file cannot say
        it."""
        return self.spelling.entry(connection)


def _build_cursor_link(connection: EndpointConnection) -> str:
    entry = json.dumps(CURSOR.entry(replace(connection, token="")), separators=(",", ":"))
    config = quote(base64.b64encode(entry.encode()).decode(), safe="")
    return f"cursor://anysphere.cursor-deeplink/mcp/install?name={quote(connection.key, safe='')}&config={config}"


def _build_vscode_link(connection: EndpointConnection) -> str:
    """VS Code asks its person for the token, and keeps it with its own secrets."""
    entry: Entry = {"name": connection.key} | VSCODE.entry(
        replace(connection, token=f"${{input:{_INPUT}}}")
    )
    if connection.http:
        asked = {
            "type": "promptString",
            "id": _INPUT,
            "description": "Token of Slipsnisse",
            "password": True,
        }
        entry["inputs"] = [asked]
    return f"vscode:mcp/install?{quote(json.dumps(entry, separators=(',', ':')), safe='')}"


def _build_claude_command(connection: EndpointConnection) -> str:
    words = ["claude", "mcp", "add", "--scope", "user"]
    if connection.http:
        token = CLAUDE_CODE.entry(replace(connection, token=""))["headers"]["Authorization"]
        return shlex.join(
            [
                *words,
                "--transport",
                "http",
                connection.key,
                connection.url,
                "--header",
                f"Authorization: {token}",
            ]
        )
    variables = [
        word for name, value in connection.env.items() for word in ("--env", f"{name}={value}")
    ]
    return shlex.join([*words, connection.key, *variables, "--", *connection.command])


CLAUDE_CODE = HostProgram(
    "claude-code",
    "Claude Code",
    make_same_places(".claude.json", "CLAUDE_CONFIG_DIR"),
    "mcpServers",
    Spelling(stdio_type="stdio", http_type="http"),
    "Check with: claude mcp list. In a running session: /mcp.",
    project=".mcp.json",
    command=_build_claude_command,
)
CLAUDE_DESKTOP = HostProgram(
    "claude-desktop",
    "Claude Desktop",
    make_system_places("Claude/claude_desktop_config.json"),
    "mcpServers",
    Spelling(url=""),
    "Quit Claude Desktop completely and start it again.",
)
CURSOR = HostProgram(
    "cursor",
    "Cursor",
    make_same_places(".cursor/mcp.json"),
    "mcpServers",
    Spelling(variable="${{env:{}}}"),
    "Open Cursor's settings, Tools & MCP, and enable the server.",
    project=".cursor/mcp.json",
    link=_build_cursor_link,
)
VSCODE = HostProgram(
    "vscode",
    "VS Code",
    make_system_places("Code/User/mcp.json"),
    "servers",
    Spelling(variable="${{env:{}}}", stdio_type="stdio", http_type="http"),
    "Run “MCP: List Servers” in the command palette and start the server.",
    project=".vscode/mcp.json",
    link=_build_vscode_link,
)
CODEX = HostProgram(
    "codex",
    "Codex",
    make_same_places(".codex/config.toml", "CODEX_HOME"),
    "mcp_servers",
    CodexSpelling(always={"required": True}),
    "Check with: codex mcp list. Because of “required” in the entry, Codex waits for the tools. Without it, Codex waits only one second.",
    project=".codex/config.toml",
    language="toml",
)
GEMINI = HostProgram(
    "gemini",
    "Gemini CLI",
    make_same_places(".gemini/settings.json"),
    "mcpServers",
    Spelling(url="httpUrl"),
    "Check with: gemini mcp list. Gemini CLI starts servers only in folders that you trust.",
    project=".gemini/settings.json",
)
OPENCODE = HostProgram(
    "opencode",
    "opencode",
    Places(
        "~/.config/opencode/opencode.json",
        "~/.config/opencode/opencode.json",
        "%USERPROFILE%\\.config\\opencode\\opencode.json",
    ),
    "mcp",
    Spelling(
        variable="{{env:{}}}",
        env="environment",
        stdio_type="local",
        http_type="remote",
        whole_command=True,
        at_first={"enabled": True},
    ),
    "Check with: opencode mcp list.",
    project="opencode.json",
)
COPILOT = HostProgram(
    "copilot",
    "Copilot CLI",
    make_same_places(".copilot/mcp-config.json", "COPILOT_HOME"),
    "mcpServers",
    Spelling(stdio_type="local", http_type="http", at_first={"tools": ["*"]}),
    "Check with: copilot mcp list.",
    project=".mcp.json",
)
QWEN = HostProgram(
    "qwen",
    "Qwen Code",
    make_same_places(".qwen/settings.json"),
    "mcpServers",
    Spelling(url="httpUrl"),
    "Check with: qwen mcp list.",
    project=".qwen/settings.json",
)
WINDSURF = HostProgram(
    "windsurf",
    "Windsurf",
    make_same_places(".codeium/windsurf/mcp_config.json"),
    "mcpServers",
    Spelling(url="serverUrl", variable="${{env:{}}}"),
    "Press Refresh in Windsurf's MCP settings.",
)
ZED = HostProgram(
    "zed",
    "Zed",
    Places(
        "~/.config/zed/settings.json",
        "~/.config/zed/settings.json",
        "%APPDATA%\\Zed\\settings.json",
    ),
    "context_servers",
    Spelling(variable=""),
    "Zed reads the file as soon as it is saved; the Agent panel's settings show a green dot.",
    project=".zed/settings.json",
)

HOSTS = {
    host.slug: host
    for host in (
        CLAUDE_CODE,
        CLAUDE_DESKTOP,
        CURSOR,
        VSCODE,
        CODEX,
        GEMINI,
        OPENCODE,
        COPILOT,
        QWEN,
        WINDSURF,
        ZED,
    )
}


def find_host(slug: str) -> HostProgram:
    """The host of this name. Raises ``NotFound``, which lists all."""
    if slug not in HOSTS:
        raise NotFound(
            error_texts.say_not_found("host", slug),
            remedy=f"Choose one of these hosts: {', '.join(HOSTS)}.",
        )
    return HOSTS[slug]
