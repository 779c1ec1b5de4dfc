"""The background sub-agent over REST: asked, watched, stopped; an agent sees its own, and proposals
are for people."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import IntegrityError, transaction
from django.utils import timezone

from mcpregistry.models import Agent, Grant, Server
from mcpregistry.services.access import agents, grants
from mcpregistry.services.configuration import dispatch
from subagents.domain.maintenance import Kind, RequestMessageKind, State
from subagents.maintenance import queue, supervision
from subagents.maintenance.plans import PLANS
from subagents.models import MaintenanceRequest, Proposal
from subagents.services import retention
from tests.calls.conftest import add_server, tool
from tests.subagents.maintenance.conftest import ask
from tests.subagents.test_api import Caller, agent, person

pytestmark = pytest.mark.django_db
REQUESTS = "/maintenance/requests"


def order(type: str, **params: Any) -> dict[str, Any]:
    return {"type": type, "params": params}


@pytest.mark.parametrize(
    ("type", "params"),
    [
        ("add_server", {"server": "git", "purpose": "history"}),
        ("remove_server", {"server": "echo"}),
        ("test_server", {"server": "echo"}),
        ("search_servers", {"query": "git"}),
        ("modify_server", {"server": "echo", "fields": {"idle_timeout": 60.0}}),
    ],
)
def test_each_kind_is_queued_and_its_status_has_the_keys_of_the_design(
    type: str, params: dict[str, Any]
) -> None:
    add_server("echo", tool("echo"))
    operator = person("operator")
    answer = operator.post(REQUESTS, order(type, **params) | {"priority": "high"})
    assert answer.status_code == 202, answer.content
    said = operator.get(f"{REQUESTS}/{answer.json()['requestId']}").json()
    facts = {
        name: said[name]
        for name in ("type", "state", "progress", "energyConsumed", "result", "error", "priority")
    }
    assert facts == {
        "type": type,
        "state": "queued",
        "progress": 0,
        "energyConsumed": 0,
        "result": None,
        "error": None,
        "priority": "high",
    }
    assert {name: value for name, value in said["params"].items() if name in params} == params
    assert said["message"] == "Waiting for a worker."
    assert said["requestId"] in [
        each["requestId"] for each in operator.get(REQUESTS).json()["items"]
    ]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (order("reboot"), "type"),
        (order("test_server"), "server"),
        (order("search_servers", query=""), "query"),
        (order("search_servers", query="x", limit=51), "limit"),
        (order("modify_server", server="echo", fields={"env": {"A": "secret"}}), "env"),
        (order("modify_server", server="echo", fields={"command": "ls"}), "command"),
        (order("test_server", server="echo", more=1), "more"),
        (order("test_server", server="echo") | {"priority": "urgent"}, "priority"),
    ],
)
def test_bad_parameters_are_refused_with_their_place(body: dict[str, Any], where: str) -> None:
    answer = person("operator").post(REQUESTS, body)
    assert (answer.status_code, where in answer.content.decode()) == (422, True), answer.content
    assert b"secret" not in answer.content
    assert not MaintenanceRequest.objects.exists()


def test_an_unknown_server_is_said_at_once() -> None:
    answer = person("operator").post(REQUESTS, order("test_server", server="none"))
    assert (answer.status_code, '"none"' in answer.json()["message"]) == (404, True)


def test_an_agent_sees_only_its_own_and_only_what_it_may_use() -> None:
    server = add_server("echo", tool("echo"))
    add_server("slow", tool("count"))
    robot = agent("robot")
    other = agent("other")
    grants.grant_access(agent=Agent.objects.get(slug="robot"), server=server, actor="test")
    made = robot.post(REQUESTS, order("test_server", server="echo"))
    assert made.status_code == 202
    key = made.json()["requestId"]
    hidden, absent = (
        robot.post(REQUESTS, order("test_server", server=slug)) for slug in ("slow", "nowhere")
    )
    assert (hidden.status_code, absent.status_code) == (404, 404)
    assert hidden.json()["message"].replace("slow", "nowhere") == absent.json()["message"]
    for path in ("", "/cancel", "/pause", "/resume"):
        answer = other.post(f"{REQUESTS}/{key}{path}") if path else other.get(f"{REQUESTS}/{key}")
        assert answer.status_code == 404, path
    assert other.get(REQUESTS).json()["items"] == []
    assert robot.post(REQUESTS, order("test_server", server="echo")).json()["requestId"] == key, (
        "asked twice, made once"
    )
    calls = robot.post(REQUESTS, order("test_server", server="echo", call_tool="echo"))
    assert calls.status_code == 403


def test_an_agent_learns_nothing_of_servers_by_asking_for_changes() -> None:
    """Neither what their fields hold, nor whether there is one."""
    server = add_server("echo", tool("echo"), description="secret plan")
    robot = agent("robot")
    grants.grant_access(agent=Agent.objects.get(slug="robot"), server=server, actor="test")
    guess = order("modify_server", server="echo", fields={"description": "secret plan"})
    for body in (guess, order("add_server", server="slow", fields={"command": ["true"]})):
        assert robot.post(REQUESTS, body).status_code == 202
    add_server("slow", tool("count"))
    for row in MaintenanceRequest.objects.all():
        for step in PLANS[Kind(row.kind)]:
            step.keep(row, None)
        assert row.result is not None
        assert row.result["fields"] == row.params["fields"]


def test_a_server_that_serves_the_agent_nothing_is_none_to_it() -> None:
    """Whether its grant has ended, or its capabilities do not reach so far."""
    server = add_server("echo", tool("echo"))
    robot = agent("robot")
    grants.grant_access(agent=Agent.objects.get(slug="robot"), server=server, actor="test")
    test = order("test_server", server="echo")
    assert robot.post(REQUESTS, test).status_code == 202
    Grant.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert robot.post(REQUESTS, test).status_code == 404
    Grant.objects.update(expires_at=None)
    incapable = Agent.objects.get(slug="robot")
    incapable.capabilities = ["mcp_other::*"]
    agents.save_agent(agent=incapable, actor="test")
    assert robot.post(REQUESTS, test).status_code == 404


def test_an_agent_cannot_fill_the_queue() -> None:
    robot = agent("robot")
    said = [
        robot.post(REQUESTS, order("search_servers", query=f"q{n}")).status_code
        for n in range(queue.MOST_OPEN + 1)
    ]
    assert said == [202] * queue.MOST_OPEN + [503]


def test_proposals_are_for_people_with_the_right_to_do_it_by_hand() -> None:
    server = add_server("echo", tool("echo"))
    request = ask(Kind.REMOVE, server="echo", reason="unused")
    row = Proposal.objects.create(
        request=request,
        server=server,
        server_revision=server.revision,
        server_saved_at=server.updated_at,
        created_at=request.created_at,
    )
    assert agent("robot").get("/maintenance/proposals").status_code == 403
    viewer = person("viewer")
    operator = person("operator")
    assert [
        each["id"] for each in viewer.get("/maintenance/proposals?state=waiting").json()["items"]
    ] == [row.pk]
    assert viewer.post(f"/maintenance/proposals/{row.pk}/apply").status_code == 403
    User.objects.get(username="operator").groups.clear()
    User.objects.get(username="operator").user_permissions.add(
        Permission.objects.get(codename="decide_proposal")
    )
    refused = operator.post(f"/maintenance/proposals/{row.pk}/apply")
    assert (refused.status_code, "mcpregistry.delete_server" in refused.json()["message"]) == (
        403,
        True,
    )
    User.objects.get(username="operator").groups.add(Group.objects.get(name="operator"))
    kept = operator.post(f"/maintenance/proposals/{row.pk}/apply")
    assert (kept.status_code, "grant" in kept.json()["message"]) == (409, True)
    User.objects.get(username="operator").user_permissions.add(
        Permission.objects.get(codename="delete_grant")
    )
    assert operator.post(f"/maintenance/proposals/{row.pk}/apply").json()["state"] == "applied"
    assert not Server.objects.exists()
    assert operator.post(f"/maintenance/proposals/{row.pk}/decline").status_code == 409


def test_messages_are_handed_out_once() -> None:
    request = ask(Kind.SEARCH, query="git")
    queue.end(request, State.COMPLETED, result={"servers": []})
    queue.tell(
        ask(Kind.SEARCH, actor="agent:robot", agent=Agent.objects.create(slug="x"), query="q"),
        RequestMessageKind.STATUS,
    )
    operator: Caller = person("operator")
    looked = operator.get("/maintenance/messages").json()["items"]
    assert [each["type"] for each in looked] == ["completion", "status_update"]
    key = {"Idempotency-Key": "k"}
    polled = [operator.post("/maintenance/messages/poll", **key).json()["items"] for _ in range(2)]
    assert polled == [looked, looked], "an answer that was lost is had again by its key"
    assert operator.post("/maintenance/messages/poll").json()["items"] == []
    assert operator.get("/maintenance/messages").json()["items"] == []
    assert operator.get("/maintenance/active").json() == {
        "enabled": True,
        "active": False,
        "open": 1,
    }
    assert operator.post("/maintenance/energy/poll").json() == {"energy": 0}


def test_the_sub_agent_is_stopped_and_started_by_those_who_may_change_the_site() -> None:
    admin = person("admin")
    operator = person("operator")
    assert operator.post("/maintenance/stop").status_code == 403
    assert agent("robot").post("/maintenance/start").status_code == 403
    assert admin.post("/maintenance/stop").json() == {"enabled": False, "active": False, "open": 0}
    add_server("echo", tool("echo"))
    made = operator.post(REQUESTS, order("test_server", server="echo"))
    assert (made.status_code, made.json()["state"]) == (202, "queued"), (
        "it may be asked all the same"
    )
    assert (
        operator.get(f"{REQUESTS}/{made.json()['requestId']}").json()["message"] == supervision.OFF
    )
    assert admin.post("/maintenance/start").json()["enabled"] is True
    assert (
        operator.get(f"{REQUESTS}/{made.json()['requestId']}").json()["message"]
        == "Waiting for a worker."
    )
    unknown = operator.post(
        REQUESTS, order("test_server", server="echo") | {"supervisor": "nobody"}
    )
    assert (unknown.status_code, "No hosted agent" in unknown.json()["message"]) == (404, True)


def test_with_the_broker_away_the_request_waits_and_the_answer_is_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "_carrier", lambda task, ids: False)
    monkeypatch.setattr("subagents.maintenance.queue.send_task", dispatch.send_task)
    began = time.monotonic()
    assert (
        person("operator").post(REQUESTS, order("search_servers", query="git")).status_code == 202
    )
    print(f"asked in {(time.monotonic() - began) * 1000:.0f} ms")
    assert MaintenanceRequest.objects.get().state == State.QUEUED


def test_the_database_itself_refuses_progress_beyond_its_end() -> None:
    ask(Kind.SEARCH, query="git")
    with pytest.raises(IntegrityError), transaction.atomic():
        MaintenanceRequest.objects.update(progress=101)


def test_what_is_kept_holds_no_more_than_was_asked() -> None:
    person("operator").post(REQUESTS, order("search_servers", query="git", limit=3))
    assert (
        json.dumps(MaintenanceRequest.objects.get().params, sort_keys=True)
        == '{"limit": 3, "query": "git"}'
    )


def test_old_requests_go_with_the_calls_of_their_time_but_not_what_waits_for_a_person() -> None:
    server = add_server("echo", tool("echo"))
    old, waiting, recent = (
        ask(Kind.REMOVE, server="echo", reason=reason) for reason in ("a", "b", "c")
    )
    for request in (old, waiting, recent):
        queue.end(request, State.COMPLETED, result={})
    for request in (old, waiting):
        MaintenanceRequest.objects.filter(pk=request.pk).update(
            finished_at=old.created_at - timedelta(days=4_000)
        )
    Proposal.objects.create(request=waiting, server=server, created_at=old.created_at)
    assert retention.prune(timezone.now())["maintenance"] == 1
    assert set(MaintenanceRequest.objects.values_list("pk", flat=True)) == {waiting.pk, recent.pk}
