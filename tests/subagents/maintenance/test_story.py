"""The whole way of a server: found in a registry, installed, tried, approved by people, called by
the agent that asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Agent, Install, Invocation, RegistryEntry, RegistrySource, Server
from mcpregistry.services.installs import install_work, requests
from mcpregistry.services.registry import sources, sync
from mcpregistry.services.registry.add_entries import AddRequest
from mcpregistry.services.servers import lifecycle
from subagents.domain.maintenance import Kind
from subagents.maintenance import proposals, tools
from subagents.models import MaintenanceMessage, MaintenanceRequest, TrialReport
from tests.calls.conftest import add_server, journal, site
from tests.fakes import registry as fake
from tests.fakes.packages import Packages
from tests.fakes.registry import entry
from tests.services.test_installs import packages
from tests.subagents.maintenance.conftest import ask, ended
from tests.subagents.maintenance.test_manager import ann

__all__ = ["journal", "packages", "site"]  # fixtures
PING = {
    "name": "ping",
    "description": "Answers with a word.",
    "inputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "small", "version": "1"},
}
IN_PYTHON = f"""
import json, sys
ANSWERS = {{"initialize": {HELLO!r}, "tools/list": {{"tools": [{PING!r}]}}}}
ANSWERS["tools/call"] = {{"content": [{{"type": "text", "text": "pong " + " ".join(sys.argv[1:])}}]}}
def main():
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked:
            answer = ANSWERS.get(asked["method"])
            said = {{"result": answer}} if answer else {{"error": {{"code": -32601, "message": "no"}}}}
            print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], **said}}), flush=True)
"""
IN_NODE = f"""#!/usr/bin/env node
const answers = {{"initialize": {json.dumps(HELLO)}, "tools/list": {{"tools": [{json.dumps(PING)}]}}}};
answers["tools/call"] = {{content: [{{type: "text", text: "pong " + process.argv.slice(2).join(" ")}}]}};
require("readline").createInterface({{input: process.stdin}}).on("line", line => {{
  const asked = JSON.parse(line);
  if (asked.id === undefined) return;
  const answer = answers[asked.method];
  const said = answer ? {{result: answer}} : {{error: {{code: -32601, message: "no"}}}};
  console.log(JSON.stringify({{jsonrpc: "2.0", id: asked.id, ...said}}));
}});
"""
ARGUMENTS = [{"type": "named", "name": "--zone", "isRequired": True}]


def published(served: Packages, kind: str) -> dict[str, Any]:
    """The package, in its index; what a registry says of it."""
    if kind == "pypi":
        served.add_wheel("pong", "1.0", {"pong.py": IN_PYTHON}, program="pong = pong:main")
        return {
            "registryType": kind,
            "identifier": "pong",
            "version": "1.0",
            "packageArguments": ARGUMENTS,
        }
    served.add_npm("@pong/server", "1.0.0", {"main.js": IN_NODE}, bin={"pong": "main.js"})
    return {
        "registryType": kind,
        "identifier": "@pong/server",
        "version": "1.0.0",
        "packageArguments": ARGUMENTS,
    }


def listed(address: str) -> RegistryEntry:
    """The registry is named and read; its entry."""
    source = RegistrySource(slug="official", base_url=address, allowed_networks=["127.0.0.0/8"])
    sync.sync_source(source_id=sources.save_source(source=source, actor="user:ann").pk)
    return RegistryEntry.objects.filter_offered().get()


def chosen(proposal: int, found: RegistryEntry) -> Install:
    """A person takes the entry, and enters what it asks for."""
    choice = proposals.ChosenEntry(
        found, AddRequest(0, "pong", {"argument --zone": "CET"}, found.sha256)
    )
    applied = proposals.apply(proposal_id=proposal, user=ann(), actor="user:ann", choice=choice)
    assert applied.install is not None
    return applied.install


def made_of(install: Install) -> Server:
    """Its lock is approved, it is installed, a server is made of it, and that one's launch
    confirmed."""
    install_work.work_on_install(install_id=install.pk)
    install.refresh_from_db()
    requests.approve_lock(install=install, lock_sha256=install.lock_sha256, actor="user:ann")
    install_work.work_on_install(install_id=install.pk)
    server = requests.use_install(install=install, actor="user:ann")
    return lifecycle.confirm_launch(
        server=server, actor="user:eve", launch_hash=server.launch_hash()
    )


def messages(request: MaintenanceRequest) -> list[Any]:
    return list(
        MaintenanceMessage.objects.filter(request=request, kind="tool_available").values_list(
            "data", flat=True
        )
    )


def status(request: MaintenanceRequest) -> Any:
    return tools._status("ann", request.pk)["trial"]["verdict"]


@pytest.mark.exhaustive(but=("pypi",))
@pytest.mark.one_database
@pytest.mark.parametrize("kind", ["pypi", pytest.param("npm", marks=pytest.mark.node)])
async def test_a_server_is_found_installed_tried_approved_and_called(
    kind: str, site: Callable[..., Any], manager: Any, packages: Packages, settings: Any
) -> None:
    settings.MCP_AUTO_DISCOVERY = True
    await db_call(add_server, "echo")  # and the agent with its endpoint
    with fake.running() as registry:
        registry.entries = [
            entry(
                "io.example/pong",
                "1.0.0",
                description="Answers",
                packages=[published(packages, kind)],
            )
        ]
        found = await db_call(listed, registry.url)
    sub_agent = await manager()
    agent = await db_call(Agent.objects.get, slug="ann")

    asked = await ended(
        sub_agent,
        await db_call(ask, Kind.ADD, actor="agent:ann", agent=agent, server="pong", purpose="x"),
    )
    assert [each["name"] for each in asked.result["registry_entries"]] == ["io.example/pong"]
    assert not await db_call(Install.objects.exists), "it only proposes"
    assert 5 <= asked.energy_total <= 10
    install = await db_call(chosen, asked.result["proposal"], found)
    server = await db_call(made_of, install)
    assert server.command[-2:] == ["--zone", "CET"]
    assert server.sandbox == "enforce"

    tested = await ended(sub_agent, await db_call(ask, Kind.TEST, server="pong"))
    assert (tested.result["ok"], tested.result["tools_waiting_for_approval"]) == (True, 1)
    tried = await ended(sub_agent, await db_call(ask, Kind.TRY, server="pong", for_agent="ann"))
    report = await db_call(TrialReport.objects.get, pk=tried.result["report"])
    assert report.verdict == "ok", report.findings
    await db_call(
        proposals.apply,
        proposal_id=tried.result["proposal"],
        user=await db_call(ann),
        actor="user:ann",
    )
    assert await db_call(messages, asked) == [{"server": "pong", "tools": ["ping"]}]
    assert await db_call(status, asked) == report.verdict

    here = await site()
    outcome = await here.call("pong__ping")
    assert (outcome.state, outcome.result["content"][0]["text"]) == (
        InvocationState.SUCCEEDED,
        "pong --zone CET",
    )
    record = await db_call(Invocation.objects.exclude(origin="trial").get)
    assert (record.server_slug, record.tool_name, record.agent_slug) == ("pong", "ping", "ann")
