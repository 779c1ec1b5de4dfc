"""The table of who can call what over REST."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.utils import timezone

from mcpregistry.models import Endpoint, Grant, Server, Tool
from mcpregistry.services.access import agents, grants
from mcpregistry.services.policy import findings
from tests.api.conftest import new_agent, new_call, new_server, new_tool

pytestmark = pytest.mark.django_db


def test_the_table_comes_in_pages_and_is_narrowed(caller):
    tool = new_tool(new_server())
    new_tool(tool.server, "hear")
    grants.grant_access(agent=new_agent("robot"), tool=tool, actor="test")
    new_agent("ann")
    agents.save_endpoint(endpoint=Endpoint(slug="default"), actor="test")
    Server.objects.update(lifecycle="active")
    viewer = caller("viewer")
    first = viewer.get("/access?limit=1").json()
    second = viewer.get(f"/access?limit=1&cursor={first['next']}").json()
    assert [row["tool"] for answer in (first, second) for row in answer["items"]] == [
        "echo::hear",
        "echo::say",
    ]
    assert second["next"] is None
    cells = {
        cell["agent"]: (cell["standing"], cell["word"], cell["lacks"])
        for cell in second["items"][0]["agents"]
    }
    assert cells == {"ann": ("hidden", "not granted", ["agent"]), "robot": ("ask", "no rule", [])}
    (row,) = viewer.get("/access?agent=robot&search=say&risk=high&server=echo").json()["items"]
    assert [cell["agent"] for cell in row["agents"]] == ["robot"]
    assert [
        cell["agent"] for cell in viewer.get("/access?after_agent=ann").json()["items"][0]["agents"]
    ] == ["robot"]
    assert viewer.get("/access?risk=low").json()["items"] == []
    assert viewer.get("/access?endpoint=no").status_code == 404
    assert viewer.get("/access?agent=no").status_code == 404


def test_a_narrower_grant_is_proposed_and_applied(caller):
    tool = new_tool(new_server())
    new_tool(tool.server, "hear")
    grant = grants.grant_access(agent=new_agent("robot"), server=tool.server, actor="test")
    Grant.objects.update(created_at=timezone.now() - timedelta(days=60))
    Tool.objects.update(first_seen_at=timezone.now() - timedelta(days=60))
    new_call(1, arguments="{}", binding="b")
    (found,) = caller("viewer").get("/access/proposals?agent=robot").json()["items"]
    assert (found["as_of"], found["proposal"]) == (None, None)
    findings.refresh_findings(now := timezone.now().replace(microsecond=0), seconds=60)
    (found,) = caller("viewer").get("/access/proposals?agent=robot").json()["items"]
    assert datetime.fromisoformat(found["as_of"]) == now
    (alone,) = caller("viewer").get(f"/access/proposals?grant={grant.pk}&days=31").json()["items"]
    assert caller("viewer").get("/access/proposals?days=31").status_code == 422, (
        "the clock does not analyze 31 days"
    )
    assert alone["proposal"]["key"] == found["proposal"]["key"]
    proposal = found["proposal"]
    assert (found["grant"], proposal["kind"], proposal["stopped"], proposal["calls"]) == (
        grant.pk,
        "tools",
        0,
        1,
    )
    assert [row["tool"] for row in proposal["after"]] == ["echo::say"]
    path = f"/access/proposals/{grant.pk}"
    admin = caller("admin")
    assert admin.post(path, {"key": "x"}).status_code == 409
    assert caller("approver").post(path, {"key": proposal["key"]}).status_code == 403
    assert admin.post(path, {"key": proposal["key"]}).json() == {"grants": 1}
    assert [row.tool for row in Grant.objects.all()] == [tool]
    assert admin.post(path, {"key": proposal["key"]}).status_code == 404
    # too new to tell
    assert caller("viewer").get("/access/proposals").json()["items"][0]["proposal"] is None


@pytest.mark.parametrize(
    ("method", "path", "needed"),
    [
        ("GET", "/access", {"view_grant", "view_agent", "view_tool", "view_policyrule"}),
        ("GET", "/access/proposals", {"view_invocation", "view_grant"}),
        (
            "POST",
            "/access/proposals/1",
            {"change_grant", "add_grant", "delete_grant", "view_grant", "view_invocation"},
        ),
    ],
)
def test_a_group_of_ones_own_needs_all_that_the_pages_need(caller, method, path, needed):
    somebody = caller("viewer")
    user = User.objects.get()
    user.groups.clear()
    group = Group.objects.create(name="own")
    user.groups.add(group)
    body = None if method == "GET" else {"key": "x"}
    for missing in sorted(needed):
        group.permissions.set(Permission.objects.filter(codename__in=needed - {missing}))
        answer = somebody.call(method, path, body)
        assert (answer.status_code, f"'{missing}'" in answer.content.decode()) == (403, True), (
            missing
        )
    group.permissions.set(Permission.objects.filter(codename__in=needed))
    assert somebody.call(method, path, body).status_code != 403
