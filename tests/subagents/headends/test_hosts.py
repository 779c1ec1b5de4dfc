"""Claude Code and Codex, unmodified, with an expert tool as their model."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest

from mcpregistry.db import db_call
from subagents.models import Run
from tests import externals
from tests.subagents.headends.conftest import headend, token
from tests.subagents.kit import Bench, offered
from tests.waiting import HANG_LIMIT

pytestmark = [pytest.mark.exhaustive, pytest.mark.e2e, pytest.mark.one_database]

ASKED = "Say hello."
_CODEX = """
model = "expert"
model_provider = "slipsnisse"

[model_providers.slipsnisse]
name = "Slipsnisse"
base_url = "{address}/v1"
env_key = "SLIPSNISSE_TOKEN"
wire_api = "responses"
"""
_QUIET = (
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "DISABLE_AUTOUPDATER",
    "DISABLE_TELEMETRY",
    "DISABLE_ERROR_REPORTING",
)
WORDS = {
    "claude-code": ["-p", ASKED, "--model", "expert"],
    "codex": ["exec", "--skip-git-repo-check", ASKED],
}


@pytest.mark.parametrize(
    "slug", [pytest.param(slug, marks=pytest.mark.host(slug)) for slug in WORDS]
)
async def test_a_coding_agent_shows_the_experts_answer(
    bench: Bench, serving: Any, tmp_path: Path, slug: str
) -> None:
    def prepare() -> str:
        offered(bench, {"text": "It is an expert."})
        headend("anthropic" if slug == "claude-code" else "openai")
        return token()

    key = await db_call(prepare)
    served = await serving()
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text(_CODEX.format(address=served.address))
    places = {
        "HOME": str(tmp_path),
        "CODEX_HOME": str(tmp_path / ".codex"),
        "TMPDIR": str(tmp_path),
    }
    keys = {
        "SLIPSNISSE_TOKEN": key,
        "ANTHROPIC_AUTH_TOKEN": key,
        "ANTHROPIC_BASE_URL": served.address,
    }
    path = f"{externals.node_of_hosts().parent}:{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        str(externals.HOSTS.programs[slug]),
        *WORDS[slug],
        cwd=tmp_path,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"PATH": path, **dict.fromkeys(_QUIET, "1"), **places, **keys},
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), 2 * HANG_LIMIT)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said.decode()
    assert "It is an expert." in re.sub(r"\x1b\[[0-9;]*m", "", said.decode())
    run = await db_call(Run.objects.get)
    assert ASKED in run.arguments
    assert "coding agent" not in run.arguments, "its own instructions are not the expert's"
