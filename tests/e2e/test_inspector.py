"""The MCP Inspector's command line against both doors, with the reference servers behind us."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.externals import ROOT, node_program, npm_module
from tests.fakes.stage import Stage, Web, folder
from tests.launcher import Launcher
from tests.waiting import HANG_LIMIT

pytestmark = [pytest.mark.e2e, pytest.mark.node, pytest.mark.one_database]
INSPECTOR = "@modelcontextprotocol/inspector/package.json"
EVERYTHING = "@modelcontextprotocol/server-everything/dist/index.js"
FILESYSTEM = "@modelcontextprotocol/server-filesystem/dist/index.js"


@pytest.fixture(scope="module")
def home() -> Path:
    path = folder().resolve()
    (path / "note.txt").write_text("grüße")
    return path


@pytest.fixture(scope="module")
def token(stage: Stage, site: Web, home: Path) -> str:
    stage.endpoint()
    everything = stage.real(
        "everything",
        "echo",
        "get-sum",
        "get-tiny-image",
        "get-structured-content",
        command=[node_program(), npm_module(EVERYTHING)],
        connect_timeout=HANG_LIMIT,
    )
    files = stage.real(
        "files",
        "read_text_file",
        command=[node_program(), npm_module(FILESYSTEM), str(home)],
        connect_timeout=HANG_LIMIT,
    )
    token = stage.agent("local", everything, files)
    site.wait_known(token)
    return token


def program() -> list[str]:
    package = json.loads(Path(npm_module(INSPECTOR)).read_text())
    return [
        node_program(),
        npm_module(f"@modelcontextprotocol/inspector/{package['bin']['mcp-inspector']}"),
        "--cli",
    ]


async def inspect(env: dict[str, str], target: list[str], *options: str) -> tuple[int, Any]:
    """The exit code and what was printed, as JSON. ``target`` may end with ``--`` and a command."""
    where = target.index("--") if "--" in target else len(target)
    patient = ["--connect-timeout", str(int(HANG_LIMIT * 1000))]
    words = [*program(), *target[:where], *options, *patient, "--format", "json", *target[where:]]
    own = {"MCP_INSPECTOR_SECRET_STORE": "memory", "HOME": str(folder())}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *words, cwd=ROOT, env=os.environ | env | own, stdout=pipe, stderr=pipe
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    try:
        return process.returncode, json.loads(out)
    except ValueError:
        return process.returncode, f"{out.decode()}\n{err.decode()}"


def targets(kind: str, era: str, stage: Stage, site: Web, token: str) -> list[str]:
    if kind == "http":
        header = f"Authorization: Bearer {token}"
        return [site.url(), "--transport", "http", "--protocol-era", era, "--header", header]
    # it hands no others on
    site_of = [f"{name}={stage.env[name]}" for name in ("DATABASE_URL", "SLIPSNISSE_VAR")]
    return ["--protocol-era", era, "--", "env", *site_of, sys.executable, "manage.py", "runmcp"]


def quick(kind: str, target: list[str], launched: Launcher) -> list[str]:
    """The same, and over stdio what it starts is forked."""
    if kind == "http":
        return target
    return [*target[: target.index("--") + 1], *launched.command("manage.py", "runmcp")]


@pytest.mark.exhaustive
@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("kind", ["http", "stdio"])
async def test_the_inspector_lists_and_calls(stage, site, token, home, launched, kind, era):
    target = targets(kind, era, stage, site, token)
    calls_at = quick(kind, target, launched)

    async def call(tool: str, *arguments: str) -> tuple[int, Any]:
        given = [word for argument in arguments for word in ("--tool-arg", argument)]
        return await inspect(
            stage.env, calls_at, "--method", "tools/call", "--tool-name", tool, *given
        )

    code, tools = await inspect(stage.env, target, "--method", "tools/list")
    assert code == 0, tools
    assert "everything__echo" in json.dumps(tools)
    code, echo = await call("everything__echo", "message=hello")
    assert code == 0, echo
    assert "Echo: hello" in json.dumps(echo)
    code, image = await call("everything__get-tiny-image")
    assert code == 0, image
    assert "image/png" in json.dumps(image)
    code, note = await call("files__read_text_file", f"path={home}/note.txt")
    assert "grüße" in json.dumps(note, ensure_ascii=False)
    code, outside = await call("files__read_text_file", "path=/etc/passwd")
    assert code == 5, outside
    assert "root:" not in json.dumps(outside)
