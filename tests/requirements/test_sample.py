"""The sample configuration of the sub-agent's design: imported, confirmed, tested, and its tools
called by an agent."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Agent, Credential, Endpoint, Invocation, Server
from mcpregistry.services.access import agents, credentials, grants
from mcpregistry.services.definitions import decisions
from mcpregistry.services.exchange.importing import import_file
from mcpregistry.services.servers import lifecycle
from subagents.domain.maintenance import Kind
from tests.calls.conftest import journal, site
from tests.externals import node_program, npm_module
from tests.fakes.http import Echo, fake_http
from tests.fakes.receiver import Receiver, listening
from tests.fakes.targets import SERVERS
from tests.subagents.maintenance.conftest import ask, ended, manager
from tests.waiting import HANG_LIMIT

__all__ = ["journal", "manager", "site"]  # fixtures
pytestmark = [pytest.mark.one_database, pytest.mark.node, pytest.mark.e2e]
FILESYSTEM = "@modelcontextprotocol/server-filesystem/dist/index.js"
ACTOR = "user:ann"


def sample(folder: Path, github: str) -> bytes:
    """As designed, but for what cannot be had here: the file server is started as it is installed,
    GitHub's by its address,

    and in place of PyPI's fetch server, whose packages nothing else here needs, one that has its
    tool.
    """
    files = {"command": node_program(), "args": [npm_module(FILESYSTEM), str(folder)]}
    return json.dumps(
        {
            "servers": [
                {"id": "filesystem", "name": "filesystem", "enabled": True, **files},
                {
                    "id": "github",
                    "name": "github",
                    "enabled": True,
                    "url": github,
                    "headers": {"Authorization": "Bearer ${cred:github}"},
                },
                {
                    "id": "fetch",
                    "name": "fetch",
                    "enabled": True,
                    "command": sys.executable,
                    "args": ["-S", str(SERVERS / "fetch.py")],
                },
                {
                    "id": "web-search",
                    "name": "brave-search",
                    "command": "npx",
                    "args": ["-y", "x"],
                    "enabled": False,
                    "env": {"BRAVE_API_KEY": "${BRAVE_API_KEY}"},
                },
            ],
            "subAgentEnabled": True,
            "autoDiscoveryEnabled": False,
            "toolApprovalRequired": False,
        }
    ).encode()


def brought(raw: bytes, port: int) -> list[str]:
    """The file is imported; the token is kept for GitHub alone; fetch may reach ``port`` alone; all
    launches are confirmed."""
    credential = Credential(name="github")
    credentials.save_credential(
        credential=credential, value="ghp_s3cret", scope=["server:github"], actor=ACTOR
    )
    found = import_file(raw=raw, path="mcp-servers.json", actor=ACTOR, may_rule=True)
    assert found.saved, found.refused
    Server.objects.filter(slug="github").update(allowed_networks=["127.0.0.0/8"])
    Server.objects.filter(slug="filesystem").update(connect_timeout=HANG_LIMIT)
    Server.objects.filter(slug="fetch").update(
        sandbox="enforce",
        sandbox_network="ports",
        sandbox_connect=[port],
        sandbox_read=[str(SERVERS)],
    )
    states = [f"{row.slug} {row.lifecycle}" for row in Server.objects.order_by("slug")]
    for row in Server.objects.exclude(slug="web-search"):
        lifecycle.confirm_launch(server=row, actor=ACTOR, launch_hash=row.launch_hash())
    agent = agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR)
    agents.save_endpoint(endpoint=Endpoint(slug="default", naming_style="single"), actor=ACTOR)
    for row in Server.objects.all():
        grants.grant_access(agent=agent, server=row, actor=ACTOR)
    return states


def approved(slug: str) -> int:
    return decisions.approve_waiting(server=Server.objects.get(slug=slug), actor=ACTOR)


@pytest.mark.exhaustive
async def test_the_sample_is_imported_confirmed_tested_and_called(
    site: Callable[..., Any], manager: Any, tmp_path: Path
) -> None:
    (tmp_path / "note.txt").write_text("grüße")
    page = Receiver(otherwise=(200, {}, "<p>grüße</p>".encode()))
    tools = [{"name": "create_issue", "inputSchema": {"type": "object"}}]
    with listening(page):
        await used(site, manager, tmp_path, tools, page.url)
    names = await db_call(lambda: sorted(Invocation.objects.values_list("exposed_name", flat=True)))
    assert names == [
        "fetch_fetch",
        "fetch_fetch",
        "filesystem_read_text_file",
        "github_create_issue",
    ]


async def used(
    site: Callable[..., Any], manager: Any, tmp_path: Path, tools: list[dict[str, Any]], page: str
) -> None:
    async with fake_http(Echo(tools=tools)) as github:
        states = await db_call(brought, sample(tmp_path, github.url), urlsplit(page).port or 0)
        assert states == ["fetch draft", "filesystem draft", "github draft", "web-search disabled"]
        sub_agent = await manager()
        for slug in ("fetch", "filesystem", "github"):
            tested = await ended(sub_agent, await db_call(ask, Kind.TEST, server=slug))
            assert tested.result["ok"], tested.result
            assert await db_call(approved, slug) >= 1
        here = await site()
        fetched = await here.call("fetch_fetch", {"url": page})
        assert fetched.result["content"][0]["text"] == f"Contents of {page}:\n<p>grüße</p>"
        refused = await here.call("fetch_fetch", {"url": github.url})
        assert (refused.state, refused.result["isError"]) == (InvocationState.TOOL_ERROR, True), (
            "its sandbox names the page's port alone"
        )
        read = await here.call("filesystem_read_text_file", {"path": str(tmp_path / "note.txt")})
        assert read.state == InvocationState.SUCCEEDED, read
        assert read.result["content"][0]["text"] == "grüße"
        made = await here.call("github_create_issue", {"title": "x"})
        assert made.state == InvocationState.SUCCEEDED
        sent = [each for each in github.requests if each.message.get("method") == "tools/call"]
        assert sent[-1].headers["authorization"] == "Bearer ghp_s3cret"
        assert "ghp_s3cret" not in json.dumps(made.result), "its echo of the token is masked"
