"""Rules, permits, what tools do and the why of a decision, over REST with the rules of the
pages."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from mcpregistry.models import Agent, Configuration, Endpoint, Permit, PolicyRule, Server
from mcpregistry.services.access import agents, grants
from mcpregistry.services.policy import rules
from mcpregistry.services.records import audit
from tests.api.conftest import new_agent, new_call, new_server, new_tool, new_user

pytestmark = [pytest.mark.django_db, pytest.mark.one_database]


@pytest.fixture
def admin(caller):
    new_user("approver")
    return caller("admin")


@pytest.mark.parametrize("spelling", ["echo::say", "echo__say", "say"])
def test_a_rule_names_its_tool_by_any_spelling(admin, spelling):
    new_tool(new_server("echo"), "say")
    made = admin.post("/rules", {"name": "spelt", "outcome": "ask", "tool": spelling})
    assert (made.status_code, made.json()["tool"]) == (201, "echo::say")
    assert admin.get(f"/tools/{spelling}/annotations").status_code == 200


def test_a_rule_lives_and_dies(admin):
    new_tool(new_server())
    body = {
        "name": "big",
        "outcome": "ask",
        "tool": "echo::say",
        "condition": "args.amount > 100",
        "approvers": "approver",
    }
    made = admin.post("/rules", body)
    assert made.status_code == 201, made.content
    rule = made.json()
    assert {key: rule[key] for key in body} == body
    assert rule["refusal_seconds"] == 300
    path = f"/rules/{rule['id']}"
    assert admin.get(path).json() == rule
    changed = admin.patch(path, {"tool": None, "server": "echo", "outcome": "deny"}).json()
    assert (changed["tool"], changed["server"], changed["outcome"], changed["name"]) == (
        None,
        "echo",
        "deny",
        "big",
    )
    assert admin.patch(path, {"refusal_seconds": 0}).json()["refusal_seconds"] == 0
    assert admin.patch(path, {"refusal_seconds": -1}).status_code == 422
    assert admin.delete(path).status_code == 204
    assert admin.get(path).status_code == 404


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"condition": "args.amount >"}, "column 14"),
        ({"condition": 'tool.rsk == "x"'}, "'tool' has no field 'rsk'"),
        ({"quorum": 9}, "could never be approved"),
        ({"server": "nobody"}, 'No server named "nobody"'),
        ({"approvers": "nobody"}, 'No group named "nobody"'),
        ({"name": "taken"}, "name"),
    ],
)
def test_what_the_pages_refuse_is_refused_here(admin, body, says):
    PolicyRule.objects.create(name="taken")
    answer = admin.post("/rules", {"name": "r", "outcome": "ask"} | body)
    assert answer.status_code in (400, 409, 422)
    assert says in answer.json()["message"]
    assert answer.json()["remedy"]
    assert PolicyRule.objects.count() == 1


@pytest.mark.both_databases
def test_rules_are_found(admin):
    server = new_server()
    agent = new_agent("robot")
    for name, fields in {
        "a": {"server": server},
        "b": {"agent": agent, "outcome": "deny"},
        "c": {"enabled": False},
    }.items():
        PolicyRule.objects.create(name=name, **fields)

    def found(query: str) -> list[str]:
        return [rule["name"] for rule in admin.get(f"/rules{query}").json()["items"]]

    assert found("") == ["a", "b", "c"]
    assert found("?server=echo") == ["a"]
    assert found("?agent=robot") == ["b"]
    assert found("?outcome=deny") == ["b"]
    assert found("?enabled=false") == ["c"]
    assert found("?q=B") == ["b"]


def test_starter_rules_and_one_click(admin):
    tool = new_tool(new_server())
    assert [rule["outcome"] for rule in admin.post("/rules/starter").json()] == [
        "allow",
        "ask",
        "allow",
    ]
    assert admin.post("/rules/starter").json() == []
    assert admin.post("/tools/echo::say/auto-approval").json()["tool"] == "echo::say"
    assert admin.post("/servers/echo/auto-approval").json()["server"] == "echo"
    assert rules.list_auto_rules(tool=tool)
    assert admin.delete("/tools/echo::say/auto-approval").status_code == 204
    assert admin.delete("/servers/echo/auto-approval").status_code == 204
    assert PolicyRule.objects.count() == 3


def test_a_draft_counts_when_it_is_made_live(admin):
    made = admin.post("/rules", {"name": "new", "outcome": "deny", "draft": True}).json()
    assert (made["draft"], made["enabled"]) == (True, False)
    assert [rule["name"] for rule in admin.get("/rules?draft=true").json()["items"]] == ["new"]
    live = admin.post(f"/rules/{made['id']}/live").json()
    assert (live["draft"], live["enabled"]) == (False, True)
    assert admin.post(f"/rules/{made['id']}/live").status_code == 409


def test_a_draft_is_tried_without_being_saved(admin):
    new_tool(new_server())
    new_agent("robot")
    agents.save_endpoint(endpoint=Endpoint(slug="default"), actor="test")
    Configuration.objects.update(default_outcome="allow")
    for number in range(3):
        new_call(number, arguments=f'{{"amount": {number}}}')
    tried = admin.post(
        "/rules/test", {"rule": {"outcome": "deny", "condition": "args.amount > 1"}, "days": 1}
    )
    report = tried.json()
    # Servers of this test are drafts, so nothing of them can be judged until they are active.
    assert (report["judged"], report["gone"]) == (0, 3)
    Server.objects.update(lifecycle="active")
    report = admin.post(
        "/rules/test", {"rule": {"outcome": "deny", "condition": "args.amount > 1"}, "days": 1}
    ).json()
    assert report["moved"] == {"allow>deny": 1, "allow>allow": 2}
    assert report["by_tool"] == {"echo::say": {"deny": 1, "allow": 2}}
    assert [example["after"] for example in report["examples"]] == ["deny"]
    assert report["changes"] == [
        {"agent": "robot", "tool": "echo::say", "before": "allow", "after": "deny", "calls": 1}
    ]
    assert not PolicyRule.objects.exists()
    assert admin.post("/rules/test", {"id": 987654, "rule": {}}).status_code == 404
    assert "column" in admin.post("/rules/test", {"rule": {"condition": "("}}).json()["message"]


def test_what_a_tool_does_is_confirmed(caller):
    new_tool(new_server(), annotations={"readOnlyHint": True})
    approver = caller("approver")
    before = approver.get("/tools/echo::say/annotations").json()
    assert (before["claimed"], before["risk"]) == ({"read_only": True}, "high")
    body = {"read_only": True, "destructive": None, "open_world": False}
    after = approver.call("PUT", "/tools/echo::say/annotations", body).json()
    assert (after["confirmed"], after["risk"]) == (body, "low")
    wrong = approver.call("PUT", "/tools/echo::say/annotations", body | {"destructive": True})
    assert wrong.status_code in (400, 422)
    assert (
        approver.call("PUT", "/tools/echo::say/annotations", {"read_only": True}).status_code == 422
    )
    stale = approver.call("PUT", "/tools/echo::say/annotations", body | {"seen": before["seen"]})
    assert (stale.status_code, stale.json()["code"]) == (409, "CONFLICT")
    assert (
        approver.call(
            "PUT", "/tools/echo::say/annotations", body | {"seen": after["seen"]}
        ).status_code
        == 200
    )


@pytest.mark.both_databases
def test_permits_are_listed_and_revoked(caller):
    tool = new_tool(new_server())
    agent = new_agent("robot")
    permit = Permit.objects.create(
        agent=agent,
        tool=tool,
        definition_hash="h",
        server_revision=1,
        expires_at=timezone.now() + timedelta(days=1),
    )
    approver = caller("approver")
    assert [p["id"] for p in approver.get("/permits?live=true").json()["items"]] == [permit.pk]
    assert approver.delete(f"/permits/{permit.pk}").status_code == 204
    assert approver.get("/permits?live=true").json()["items"] == []
    assert [p["id"] for p in approver.get("/permits?live=false&agent=robot").json()["items"]] == [
        permit.pk
    ]


def test_why_over_rest(caller):
    tool = new_tool(new_server())
    grants.grant_access(agent=new_agent("robot"), server=tool.server, actor="test")
    agents.save_endpoint(endpoint=Endpoint(slug="default"), actor="test")
    viewer = caller("viewer")
    query = "/why?agent=robot&endpoint=default&tool=echo::say"
    hidden = viewer.get(query).json()
    assert not hidden["listed"]
    assert [stage["name"] for stage in hidden["stages"] if stage["ok"] is False] == ["server"]
    Server.objects.update(lifecycle="active")
    found = viewer.get(query).json()
    assert (found["listed"], found["name"], found["outcome"]) == (True, "echo__say", "ask")
    PolicyRule.objects.create(name="big", outcome="deny", condition="args.amount > 1")
    body = {
        "agent": "robot",
        "endpoint": "default",
        "tool": "echo__say",
        "arguments": {"amount": 2},
    }
    denied = viewer.post("/why", body).json()
    assert (denied["outcome"], denied["rules"][0]["fit"]) == ("deny", "fits")
    assert viewer.get("/why?agent=robot&endpoint=default&tool=nobody").status_code == 404
    assert viewer.get("/why?agent=nobody&endpoint=default&tool=echo::say").status_code == 404
    assert Agent.objects.count() == 1


def test_rules_without_an_answer_are_in_the_metrics(caller):
    ids = [PolicyRule.objects.create(name=name).pk for name in ("a", "b", "c")]
    for rule in (ids[0], ids[0], ids[1]):
        audit.record_entry(kind=rules.CONDITION_FAILED, actor="policy", subject=f"rule:{rule}")
    text = caller("viewer").get("/metrics").content.decode()
    assert "slipsnisse_policy_conditions_failed 2.0" in text
