"""Configuration files over REST: large ones, and their projects."""

from __future__ import annotations

import json

import pytest

from mcpregistry.models import Agent, Credential, Server, Workspace

pytestmark = pytest.mark.one_database

FILE = {
    "mcpServers": {"top": {"command": "x"}},
    "projects": {
        "/home/me/one": {"mcpServers": {"web": {"url": "https://one.example/mcp"}}},
        "/home/me/two": {"mcpServers": {"db": {"command": "db"}}},
    },
}


@pytest.fixture
def admin(db, caller):
    return caller("admin")


@pytest.fixture
def operator(db, caller):
    return caller("operator")


def send(caller, query: str = "", **more):
    headers = {"Authorization": f"Bearer {caller.token}"}
    address = f"/api/v1/config/import?{query}"
    return caller.client.post(
        address, json.dumps({**FILE, **more}), content_type="text/plain", headers=headers
    )


def test_projects_of_a_file_become_workspaces_if_they_are_named(admin):
    Agent.objects.create(slug="ann")
    offered = send(admin, "dry_run=true").json()["projects"]
    assert [(each["directory"], each["servers"], each["exists"]) for each in offered] == [
        ("/home/me/one", ["web", "top"], False),
        ("/home/me/two", ["db", "top"], False),
    ]
    done = send(admin, "projects=/home/me/one&projects=/home/me/two&agent=ann")
    assert {"server": "workspace//home/me/one", "action": "created"} in done.json()["changes"]
    assert Workspace.objects.filter(agent__slug="ann").count() == 2
    assert [each["exists"] for each in send(admin).json()["projects"]] == [True, True]


def test_only_who_may_grant_makes_workspaces_of_projects(operator):
    refused = send(operator, "projects=all")
    assert (refused.status_code, "admin role" in refused.json()["remedy"]) == (403, True)
    assert not Server.objects.exists()
    assert send(operator).status_code == 200


def test_file_larger_than_other_requests_is_imported(admin):
    project = {"mcpServers": {"big": {"command": "x"}}, "history": ["x" * 1_000] * 6_000}
    answer = send(admin, projects={"/home/me/one": project})
    assert answer.status_code == 200, answer.json()
    assert Server.objects.filter(slug="big").exists()


def test_more_parameters_than_a_request_may_have_are_refused(admin):
    answer = send(admin, "&".join(f"projects={number}" for number in range(1_001)))
    assert (answer.status_code, answer.json()["code"]) == (413, "TOO_LARGE")


@pytest.mark.attack
def test_a_file_does_not_say_where_a_credential_may_go_for_those_who_may_not(operator, caller):
    """An operator could otherwise prepare an empty credential for a server of their own."""
    file = {
        "inputs": [{"id": "gh-token", "type": "promptString", "password": True}],
        "servers": {"gh": {"command": "gh-mcp", "env": {"TOKEN": "${input:gh-token}"}}},
    }
    address = "/api/v1/config/import?format=vscode&file=mcp.json"
    headers = {"Authorization": f"Bearer {operator.token}"}
    answer = operator.client.post(
        address, json.dumps(file), content_type="text/plain", headers=headers
    )
    assert answer.status_code == 200, answer.content
    assert Credential.objects.get().scope == []
    assert "No server can use " in answer.content.decode()
