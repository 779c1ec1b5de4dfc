"""Hosts' own programs, without a person at them, a real model or the internet: how each is set up
and asked.

What a host needs for that was found out with the versions in ``.ci/programs``. Everything that it
writes lies in a home of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.externals import HOSTS, node_of_hosts

NOWHERE = "http://127.0.0.1:9"  # nothing listens there: who wants the internet is refused at once
Calls = Sequence[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Program:
    """One host. ``shown`` is how a tool of an entry is called before its model, ``{key}`` (or
    ``{plain}``, without hyphens) and ``{tool}`` filled in.

    ``settings`` writes its file as a person would have it before they connect us; ``env`` names the
    model's address. ``lists``: the words of its command that lists servers, and ``listed`` a line
    of that: where the command connects to them, that it is connected. ``turn``: the words for one
    turn without a person. ``named`` is how its name begins in what it sends. ``reads``: its own
    tool that reads a resource, and what that calls a server's name, if it does; ``prompt``: the
    words for a turn that begins with a server's prompt, its name and path.
    """

    slug: str
    named: str
    era: str
    shown: str
    env: Callable[[str], Mapping[str, str]]
    turn: Callable[[str], Sequence[str]]
    settings: Callable[[Path, str], None] = lambda home, model: None
    lists: Sequence[str] = ("mcp", "list")
    listed: str = r"{key}\b"
    asks: bool = False  # it says that it can ask its person
    reads: tuple[str, str] | None = None
    prompt: Callable[[str, str, str], Sequence[str]] | None = None

    def first(self, key: str, prompt: str, path: str) -> Sequence[str]:
        """The words for a turn, with a prompt where it can."""
        return self.prompt(key, prompt, path) if self.prompt else self.turn("Do all of it, please.")

    def call(self, key: str, tool: str) -> str:
        return self.shown.format(key=key, plain=key.replace("-", "_"), tool=tool)

    def command(self, words: Sequence[str]) -> list[str]:
        return [str(HOSTS.programs[self.slug]), *words]

    def environment(self, home: Path, model: str) -> dict[str, str]:
        """Nothing of ours, and no way out of this machine."""
        path = f"{node_of_hosts().parent}:{os.environ['PATH']}"
        usual = {
            "HOME": str(home),
            "PATH": path,
            "TMPDIR": str(home / "tmp"),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_COLOR": "1",
        }
        away = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), NOWHERE)
        here = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
        return usual | away | here | dict(self.env(model))


def _written(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _json(place: str, content: Any) -> Callable[[Path, str], None]:
    return lambda home, model: _written(home / place, json.dumps(content, indent=2))


def _codex(home: Path, model: str) -> None:
    _written(
        home / ".codex/config.toml",
        f"""# mine
model = "fake"
model_provider = "fake"
check_for_update_on_startup = false

[model_providers.fake]
name = "fake"
base_url = "{model}/v1"
env_key = "FAKE_KEY"
wire_api = "responses"
request_max_retries = 0

[analytics]
enabled = false
""",
    )


def _opencode(home: Path, model: str) -> None:
    options = {"baseURL": f"{model}/v1", "apiKey": "x"}
    models = {
        "fake": {"name": "fake", "tool_call": True, "limit": {"context": 100000, "output": 4000}}
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "fake",
        "options": options,
        "models": models,
    }
    content = {
        "model": "fake/fake",
        "small_model": "fake/fake",
        "autoupdate": False,
        "snapshot": False,
        "provider": {"fake": provider},
    }
    _written(home / ".config/opencode/opencode.json", json.dumps(content, indent=2))


_GEMINI = {
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"enableAutoUpdate": False},
}
_QWEN = {
    "security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": False}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"enableAutoUpdate": False},
}

CLAUDE_CODE = Program(
    "claude-code",
    "claude-code",
    "2026-07-28",
    "mcp__{key}__{tool}",
    env=lambda model: {
        "ANTHROPIC_BASE_URL": model,
        "ANTHROPIC_API_KEY": "sk-fake",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
    },
    turn=lambda said: [
        "-p",
        said,
        "--model",
        "claude-fake",
        "--output-format",
        "stream-json",
        "--verbose",
        "--allowedTools",
        "mcp__slipsnisse,mcp__slipsnisse-web,mcp__slipsnisse-brief,ReadMcpResourceTool",
    ],
    listed=r"{key}: .*✔ Connected",
    reads=("ReadMcpResourceTool", "server"),
    prompt=lambda key, name, path: CLAUDE_CODE.turn(f"/mcp__{key}__{name} {path}"),
    asks=True,
)
CODEX = Program(
    "codex",
    "codex-mcp-client",
    "2025-06-18",
    "mcp__{plain}/{tool}",
    env=lambda model: {"FAKE_KEY": "x"},
    turn=lambda said: [
        "exec",
        "--skip-git-repo-check",
        "--json",
        "-c",
        'sandbox_mode="danger-full-access"',
        said,
    ],
    settings=_codex,
    reads=("read_mcp_resource", "server"),
    asks=True,
)
GEMINI = Program(
    "gemini",
    "gemini-cli-mcp-client",
    "2025-06-18",
    "mcp_{key}_{tool}",
    env=lambda model: {
        "GEMINI_API_KEY": "fake",
        "GOOGLE_GEMINI_BASE_URL": model,
        "GEMINI_MODEL": "gemini-2.5-pro",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "GEMINI_CLI_NO_RELAUNCH": "true",
    },
    turn=lambda said: ["-p", said, "--approval-mode", "yolo", "--output-format", "stream-json"],
    settings=_json(".gemini/settings.json", _GEMINI),
    listed=r"✓ {key}: .*Connected",
    reads=("read_mcp_resource", ""),
    prompt=lambda key, name, path: GEMINI.turn(f"/{name} --path={path}"),
)
OPENCODE = Program(
    "opencode",
    "opencode",
    "2025-11-25",
    "{key}_{tool}",
    env=lambda model: {
        f"OPENCODE_DISABLE_{what}": "1"
        for what in (
            "AUTOUPDATE",
            "MODELS_FETCH",
            "LSP_DOWNLOAD",
            "DEFAULT_PLUGINS",
            "FFF",
            "EMBEDDED_WEB_UI",
        )
    },
    turn=lambda said: ["run", said, "--format", "json"],
    settings=_opencode,
    listed=r"✓ {key} .*connected",
    reads=("read_mcp_resource", "server"),
    prompt=lambda key, name, path: ["run", "--format", "json", "--command", f"{key}:{name}", path],
)
COPILOT = Program(
    "copilot",
    "copilot-cli",
    "2026-07-28",
    "{key}-{tool}",
    env=lambda model: {
        "COPILOT_OFFLINE": "true",
        "COPILOT_AUTO_UPDATE": "false",
        "COPILOT_PROVIDER_BASE_URL": f"{model}/v1",
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_PROVIDER_API_KEY": "x",
        "COPILOT_MODEL": "fake",
    },
    turn=lambda said: ["-p", said, "--allow-all-tools"],
    lists=(),
    asks=True,
)
QWEN = Program(
    "qwen",
    "qwen-cli-mcp-client",
    "2025-11-25",
    "mcp__{key}__{tool}",
    env=lambda model: {
        "OPENAI_API_KEY": "x",
        "OPENAI_BASE_URL": f"{model}/v1",
        "OPENAI_MODEL": "fake",
        "QWEN_CODE_NO_RELAUNCH": "true",
    },
    turn=lambda said: ["-p", said, "--approval-mode", "yolo"],
    settings=_json(".qwen/settings.json", _QWEN),
    listed=r"✓ {key}: .*Connected",
    reads=("read_mcp_resource", "server_name"),
    prompt=lambda key, name, path: QWEN.turn(f"/{name} --path={path}"),
)
PROGRAMS = {
    program.slug: program for program in (CLAUDE_CODE, CODEX, GEMINI, OPENCODE, COPILOT, QWEN)
}
