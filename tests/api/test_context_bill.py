"""The context bill over REST: the figures of the page, and hiding by name."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from mcpregistry.models import AuditEntry, Endpoint, Grant, Invocation, Tool
from mcpregistry.services.access import grants
from mcpregistry.services.servers import lifecycle
from tests.api.conftest import new_agent, new_server, new_tool

pytestmark = pytest.mark.one_database

BILL = "/context-bill?agent=robot"


@pytest.fixture
def admin(db, caller):
    server = new_server("echo")
    lifecycle.confirm_launch(server=server, actor="test", launch_hash=server.launch_hash())
    for name in ("say", "sing", "shout"):
        new_tool(server, name, description=name * 20)
    Endpoint.objects.create(slug="default", hide_unavailable=False)
    grants.grant_access(agent=new_agent("robot"), actor="test", server=server)
    before = timezone.now() - timedelta(days=90)
    Grant.objects.update(created_at=before)
    Tool.objects.update(first_seen_at=before)
    Invocation.objects.create(
        id="c",
        state="succeeded",
        server_slug="echo",
        tool_name="say",
        agent_slug="robot",
        received_at=timezone.now(),
    )
    return caller("admin")


def test_it_says_what_each_turn_carries_and_what_is_not_called(admin) -> None:
    bill = admin.get(BILL).json()
    lines = {line["tool"]: line for line in bill["tools"]}
    assert {tool: (line["calls"], line["unused"]) for tool, line in lines.items()} == {
        "echo::say": (1, False),
        "echo::sing": (0, True),
        "echo::shout": (0, True),
    }
    assert bill["tokens"] == bill["instructions"] + sum(line["tokens"] for line in lines.values())
    assert bill["unused"] == lines["echo::sing"]["tokens"] + lines["echo::shout"]["tokens"]
    assert (bill["complete"], bill["calls_looked_at"], bill["left_out"]) == (True, 1, 0)
    shorter = admin.get(f"{BILL}&limit=1").json()
    assert ([line["tool"] for line in shorter["tools"]], shorter["left_out"]) == (
        ["echo::shout"],
        2,
    )
    assert shorter["tokens"] == bill["tokens"]


def test_tools_are_hidden_by_name_and_only_those_that_are_on_the_bill(admin) -> None:
    body = {"agent": "robot", "tools": ["echo__sing", "echo::shout"]}
    before = admin.get(BILL).json()
    new_tool(new_server("other"), "say")
    refused = admin.post("/context-bill/hide", body | {"tools": ["echo::sing", "other::say"]})
    assert (refused.status_code, "other::say" in refused.json()["message"]) == (404, True)
    assert Grant.objects.get().server is not None
    assert admin.post("/context-bill/hide", body).json() == {
        "withdrawn": 1,
        "given": 1,
        "tokens_before": before["tokens"],
        "tokens_after": before["tokens"] - before["unused"],
    }
    assert str(Grant.objects.get().tool) == "echo::say"
    assert AuditEntry.objects.filter(kind="grant.created", actor__startswith="user:").exists()
    assert admin.post("/context-bill/hide", body).status_code == 404


def test_an_endpoint_without_a_list_and_one_that_is_off_are_told(admin) -> None:
    refused = admin.get(f"{BILL}&hide_from=endpoint")
    assert (
        refused.status_code,
        "no tool can be hidden on this endpoint" in refused.json()["message"],
    ) == (409, True)
    Endpoint.objects.update(scope="listed")
    assert admin.get(f"{BILL}&hide_from=endpoint").json()["tools"] == []
    Endpoint.objects.update(enabled=False)
    assert admin.get(BILL).status_code == 409
