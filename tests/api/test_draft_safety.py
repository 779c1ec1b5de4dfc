"""Nothing that can be said over REST makes a server run, short of a person confirming its
launch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from unittest import mock

import pytest

from mcpregistry.models import Server
from mcpregistry.services.servers.targets import build_target, refuse_unless_runnable
from tests.api.conftest import new_server
from tests.api.test_permissions import operations, take_a_body

pytestmark = [pytest.mark.attack, pytest.mark.one_database]

CONFIRM = "POST /servers/{slug}/confirm"
# Ways to hide a program in what looks like an argument list or an environment.
SMUGGLED = [
    {"command": ["/bin/sh", "-c", "true\nfalse"]},
    {"command": ["a\x00b"]},
    {"command": []},
    {"command": "rm -rf /"},
    {"env": {"LD_PRELOAD": "/tmp/x.so"}},
    {"env": {"BASH_ENV": "/tmp/x"}},
    {"env": {"PYTHONSTARTUP": "/tmp/x"}},
    {"env": {"NODE_OPTIONS": "--require /tmp/x"}},
    {"env": {"A=B": "c"}},
    {"env": {"A": "b\nc"}},
    {"command": ["x"], "url": "http://127.0.0.1/"},
    {"lifecycle": "active"},
    {"confirmed_launch": "0" * 64},
]


def bodies(canary: Path) -> list[object]:
    launch = {
        "command": ["/bin/sh", "-c", f"touch {canary}"],
        "transport": "stdio",
        "connect_mode": "eager",
    }
    return [
        {"slug": "evil", **launch},
        launch,
        {"call_tool": "x", **launch},
        {"params": {}, **launch},
        {},
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize("role", ["agent", "viewer", "operator", "approver", "admin"])
def test_no_operation_runs_an_unconfirmed_command(live_db, broker, caller, tmp_path, role):
    canary = tmp_path / "CANARY"
    new_server("evil", command=["/bin/sh", "-c", f"touch {canary}"])
    somebody = caller(role)
    sent: list[str] = []
    with mock.patch(
        "celery.current_app.send_task", side_effect=lambda name, **_: sent.append(name)
    ):
        for operation in operations():
            if operation == CONFIRM or operation.startswith("DELETE"):
                continue
            method, path = operation.split(" ")
            numbered = re.sub(r"{\w+_id}", "1", path).replace("{name}", "evil::x")
            for body in bodies(canary) if operation in take_a_body() else [None]:
                somebody.call(method, numbered.replace("{slug}", "evil"), body)
    assert not canary.exists()
    assert sent == []  # no worker was even asked
    assert {server.lifecycle for server in Server.objects.filter(slug="evil")} <= {
        "draft",
        "disabled",
    }
    assert not Server.objects.filter(lifecycle="active").exists()


def test_the_gate_below_rest_refuses_drafts_too(db):
    server = new_server("evil")
    with pytest.raises(Exception, match="confirm"):
        refuse_unless_runnable(server)
    with pytest.raises(Exception, match="confirm"):
        build_target(server.pk)


@pytest.mark.parametrize("what", SMUGGLED, ids=lambda what: json.dumps(what)[:40])
def test_smuggled_launches_are_refused_with_a_remedy(db, caller, what):
    response = caller("operator").post("/servers", {"slug": "evil", "command": ["evil"]} | what)
    assert response.status_code == 422
    assert response.json()["remedy"]
    assert not Server.objects.exists()


def test_an_imported_server_is_a_draft(db, caller, tmp_path):
    canary = tmp_path / "CANARY"
    file = json.dumps(
        {"mcpServers": {"evil": {"command": "/bin/sh", "args": ["-c", f"touch {canary}"]}}}
    )
    operator = caller("operator")
    response = operator.client.post(
        "/api/v1/config/import?format=claude-code&file=mcp.json",
        file,
        content_type="text/plain",
        headers={"Authorization": f"Bearer {operator.token}"},
    )
    assert response.status_code == 200, response.content
    assert Server.objects.get(slug="evil").lifecycle == "draft"
    assert not canary.exists()


def test_a_changed_launch_must_be_confirmed_anew(db, caller):
    admin = caller("admin")
    new_server("git", command=["git-server"])
    shown = admin.get("/servers/git/launch").json()
    assert shown["facts"]["command"] == ["git-server"]
    admin.patch("/servers/git", {"command": ["evil"]})
    stale = admin.post("/servers/git/confirm", {"launch_hash": shown["launch_hash"]})
    assert (stale.status_code, stale.json()["code"]) == (409, "CONFLICT")
    fresh = admin.get("/servers/git/launch").json()["launch_hash"]
    assert (
        admin.post("/servers/git/confirm", {"launch_hash": fresh}).json()["lifecycle"] == "active"
    )
    assert admin.patch("/servers/git", {"env": {"A": "b"}}).json()["lifecycle"] == "draft"
