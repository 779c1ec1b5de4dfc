"""Projects of a configuration file as workspaces."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcpregistry.models import Agent, Endpoint, Grant, Server, Workspace
from mcpregistry.services.exchange.importing import ImportOutcome, import_file
from mcpregistry.services.exchange.workspaces import WorkspaceChoice

pytestmark = pytest.mark.django_db


def take(data: dict[str, Any], **options: Any) -> ImportOutcome:
    return import_file(raw=json.dumps(data).encode(), path=".claude.json", actor="test", **options)


PROJECTS = {
    "mcpServers": {"top": {"command": "x"}, "off": {"command": "x"}},
    "projects": {
        "/home/me/one": {
            "mcpServers": {"web": {"url": "https://one.example/mcp"}},
            "disabledMcpServers": ["off"],
        },
        "/srv/one": {"mcpServers": {"db": {"command": "db"}}},
    },
}


def listed_on(endpoint: str) -> list[str]:
    return [
        *Grant.objects.filter(endpoint__slug=endpoint)
        .values_list("server__slug", flat=True)
        .order_by("server__slug")
    ]


def test_projects_become_workspaces_only_if_they_are_chosen() -> None:
    agent = Agent.objects.create(slug="me")
    outcome = take(PROJECTS)
    assert [(each.directory, each.endpoint, each.exists) for each in outcome.projects] == [
        ("/home/me/one", "one", False),
        ("/srv/one", "one-2", False),
    ]
    assert not Workspace.objects.exists()
    Server.objects.all().delete()
    outcome = take(PROJECTS, workspaces=WorkspaceChoice(frozenset({"/srv/one"}), "me"), save=False)
    assert "workspace//srv/one" in outcome.format_diff()
    assert not Workspace.objects.exists()
    chosen = WorkspaceChoice(frozenset({"/home/me/one"}), "me")
    assert take(PROJECTS, workspaces=chosen, seen=take(PROJECTS, save=False).mark).saved
    workspace = Workspace.objects.get()
    assert (workspace.directory, workspace.agent, workspace.endpoint.slug) == (
        "/home/me/one",
        agent,
        "one",
    )
    assert workspace.endpoint.scope == Endpoint.Scope.LISTED
    assert listed_on("one") == ["top", "web"]
    assert not Grant.objects.filter(agent__isnull=False).exists()


def test_workspace_of_a_project_that_exists_gets_the_new_servers() -> None:
    mine = Endpoint.objects.create(slug="mine", scope=Endpoint.Scope.LISTED)
    Workspace.objects.create(
        directory="/srv/one", endpoint=mine, agent=Agent.objects.create(slug="me")
    )
    first = take(PROJECTS, workspaces=WorkspaceChoice(frozenset({"all"}), "me"))
    assert [(each.endpoint, each.exists) for each in first.projects] == [
        ("one", False),
        ("mine", True),
    ]
    assert listed_on("mine") == ["db", "off", "top"]
    assert [(each.slug, each.action) for each in first.changes if each.kind == "workspace"] == [
        ("/home/me/one", "created"),
        ("/srv/one", "changed"),
    ]
    again = take(PROJECTS, workspaces=WorkspaceChoice(frozenset({"all"}), "me"))
    assert {each.action for each in again.changes} == {"unchanged"}
    assert again.format_diff() == ""


def test_renamed_and_left_out_servers_of_a_project_are_listed_as_they_are() -> None:
    Server.objects.create(slug="web", command=["other"])
    Agent.objects.create(slug="local")
    file = json.loads(json.dumps(PROJECTS))
    file["projects"]["/home/me/one"]["mcpServers"]["bad"] = {"command": 5}
    file["projects"]["/home/me/none"] = {"mcpServers": {"worse": {"command": 5}}}
    outcome = take(file, on_conflict="rename", workspaces=WorkspaceChoice(frozenset({"all"})))
    assert outcome.saved, [str(note) for note in outcome.refused]
    assert [each.directory for each in outcome.projects] == ["/home/me/one", "/srv/one"]
    assert listed_on("one") == ["top", "web-2"]


def test_project_or_agent_that_does_not_exist_is_refused_with_the_choice() -> None:
    (note,) = take(PROJECTS, workspaces=WorkspaceChoice(frozenset({"/home/me/two"}))).refused
    assert "/home/me/one" in note.remedy
    (note,) = take(PROJECTS, workspaces=WorkspaceChoice(frozenset({"/srv/one"}), "nobody")).refused
    assert note.pointer == "/projects/~1srv~1one"
    assert '"nobody"' in note.sentence
    assert not Server.objects.exists()
    assert take(
        PROJECTS, workspaces=WorkspaceChoice(frozenset({"/home/me/two"}), may_be_missing=True)
    ).saved
