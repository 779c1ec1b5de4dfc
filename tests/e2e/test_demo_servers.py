"""The two servers of the first run, through both doors and in both eras."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from mcp import Client
from mcp.client.stdio import stdio_client

from mcpregistry.models import Agent, PolicyRule, Server, Tool
from mcpregistry.services.access import tokens
from mcpregistry.services.policy import rules
from tests.externals import ROOT
from tests.fakes.stage import ACTOR, MODERN, Stage, Web, folder
from tests.launcher import Launcher
from tests.waiting import HANG_LIMIT

pytestmark = [pytest.mark.e2e, pytest.mark.one_database]
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def repository() -> Path:
    path = folder()
    for command in (
        ["init", "-q"],
        [
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.org",
            "commit",
            "-q",
            "--allow-empty",
            "-m",
            "The first",
        ],
    ):
        subprocess.run(["git", "-C", str(path), *command], check=True)
    return path


@pytest.fixture(scope="module")
def token(stage: Stage, site: Web, repository: Path) -> str:
    stage.endpoint()
    time = stage.real(
        "time",
        "get_current_time",
        command=[str(BIN / "mcp-server-time")],
        connect_timeout=HANG_LIMIT,
    )
    command = [str(BIN / "mcp-server-git"), "--repository", str(repository)]
    git = stage.real(
        "git",
        "git_create_branch",
        "git_log",
        "git_status",
        command=command,
        connect_timeout=HANG_LIMIT,
    )
    token = stage.agent("local", time, git)
    site.wait_known(token)
    return token


@contextlib.asynccontextmanager
async def door(
    kind: str, mode: str, launched: Launcher, site: Web, token: str
) -> AsyncIterator[Client]:
    if kind == "http":
        async with site.client(token, mode) as client:
            yield client
        return
    with tempfile.TemporaryFile("w+") as log:
        parameters = launched.parameters("manage.py", "runmcp")
        async with Client(stdio_client(parameters, errlog=log), mode=mode, cache=None) as client:
            yield client


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["legacy", MODERN])
@pytest.mark.parametrize("kind", ["http", "stdio"])
async def test_time_and_git_answer(launched, site, token, repository, kind, mode):
    async with door(kind, mode, launched, site, token) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == [
            "git__git_create_branch",
            "git__git_log",
            "git__git_status",
            "time__get_current_time",
        ]
        now = await client.call_tool("time__get_current_time", {"timezone": "Asia/Tokyo"})
        log = await client.call_tool("git__git_log", {"repo_path": str(repository)})
        wrong = await client.call_tool("time__get_current_time", {"timezone": "Nowhere/Land"})
    assert "Asia/Tokyo" in now.content[0].text
    assert "The first" in log.content[0].text
    assert wrong.is_error


@pytest.mark.exhaustive
def test_the_quick_start_of_rest_does_what_it_says(stage, site, token, repository):
    agent = stage.agent("rest", *Server.objects.filter(slug__in=("time", "git")))
    approver = User.objects.create_user("ann", is_superuser=True)
    branch = Tool.objects.get(name="git_create_branch")
    rules.save_rule(
        rule=PolicyRule(
            name="changes", outcome="ask", agent=Agent.objects.get(slug="rest"), tool=branch
        ),
        actor=ACTOR,
    )
    site.wait_known(agent)
    _, of_person = tokens.issue_token(name="rest", user=approver, actor=ACTOR)
    script = "\n".join(
        re.findall(r"```sh\n(.*?)```", (ROOT / "docs/rest.md").read_text(), re.DOTALL)
    )
    script = re.sub("^SITE=.*", f"SITE=http://{site.address}/api/v1", script, flags=re.MULTILINE)
    script = re.sub("^AGENT_TOKEN=.*", f"AGENT_TOKEN={agent}", script, flags=re.MULTILINE)
    script = re.sub("^PERSON_TOKEN=.*", f"PERSON_TOKEN={of_person}", script, flags=re.MULTILINE)
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    tools, tokyo, approved, result, oslo, calls = [
        json.loads(line) for line in ran.stdout.splitlines()
    ]
    assert {"git__git_create_branch", "time__get_current_time"} <= {
        tool["name"] for tool in tools["tools"]
    }
    assert tokyo["success"]
    assert (approved["state"], approved["decided_reason"]) == ("ready", "a branch does no harm")
    assert result["success"], result
    assert "from-rest" in subprocess.check_output(
        ["git", "-C", str(repository), "branch"], text=True
    )
    assert oslo["result"]["timezone"] == "Europe/Oslo"
    assert {call["state"] for call in calls["items"]} == {"succeeded"}
