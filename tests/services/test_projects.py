"""Project files of directories: reading, confirmation, refusals, and the lifecycle of their
servers."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from mcpregistry.domain.caller_rights import grant_all_rights
from mcpregistry.domain.errors import Conflict
from mcpregistry.domain.policy.access import may_see
from mcpregistry.models import (
    Agent,
    AuditEntry,
    Endpoint,
    Grant,
    ProjectFile,
    Server,
    Tool,
    Workspace,
)
from mcpregistry.models.server import Lifecycle
from mcpregistry.services.access import agents, grants
from mcpregistry.services.configuration.snapshot import load_snapshot
from mcpregistry.services.exchange import project_files, project_setup, projects
from mcpregistry.services.exchange.project_files import (
    ProjectFileUnusable,
    read_project,
    resolve_directory,
)
from mcpregistry.services.exchange.project_setup import set_up_project
from mcpregistry.services.servers import checks, lifecycle
from tests.fakes.stage import listed
from tests.fakes.targets import SERVERS

ACTOR = "user:ann"


def entry(*names: str, program: str = "echo", **more: Any) -> dict[str, Any]:
    env = {"FAKE_LISTED": json.dumps(listed(*names))}
    return {
        "command": sys.executable,
        "args": ["-S", str(SERVERS / f"{program}.py")],
        "env": env,
    } | more


def write(directory: Path, name: str = ".mcp.json", **servers: Any) -> Path:
    directory.mkdir(exist_ok=True)
    file = directory / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"mcpServers": servers}))
    return file


def note(directory: Path, **environ: str) -> ProjectFile:
    found = projects.note_project(
        directory=resolve_directory(directory), agent="", environ=environ, actor="runmcp"
    )
    assert found is not None
    return found


def confirm(row: ProjectFile) -> ProjectFile:
    return projects.confirm_project(project=row, shown=row.content, actor=ACTOR)


def set_up(directory: Path, **environ: str) -> ProjectFile:
    """A host that runs there, after a person has confirmed what it has noted."""
    confirm(note(directory, **environ))
    set_up_project(directory=resolve_directory(directory), environ=environ)
    return ProjectFile.objects.get(directory=str(resolve_directory(directory)))


def states() -> dict[str, str]:
    return dict(Server.objects.values_list("slug", "lifecycle"))


def test_a_start_writes_down_what_the_file_says_and_makes_no_server(
    db: None, tmp_path: Path
) -> None:
    write(
        tmp_path / "shop",
        git=entry("log") | {"args": ["--token", "sk-abcdefghijklmnop1234567890", "x"]},
    )
    row = note(tmp_path / "shop")
    assert (row.state, row.confirmed) == ("waiting", "")
    assert "sk-abcdefghijklmnop1234567890" not in json.dumps(row.summary)
    assert not Server.objects.exists()
    endpoint = Endpoint.objects.get(slug=row.endpoint_slug)
    assert endpoint.scope == Endpoint.Scope.LISTED
    before = ProjectFile.objects.values().get()
    note(tmp_path / "shop")
    assert ProjectFile.objects.values().get() == before


@pytest.mark.exhaustive
def test_two_directories_have_the_same_server_and_each_is_listed_in_its_own_alone(
    live_db: None, tmp_path: Path
) -> None:
    rows = []
    for name in ("shop", "web"):
        write(tmp_path / name, git=entry("log"))
        rows.append(set_up(tmp_path / name))
    assert states() == {"git": Lifecycle.ACTIVE, "git-web": Lifecycle.ACTIVE}
    agents.save_endpoint(endpoint=Endpoint(slug="default"), actor=ACTOR)
    snapshot = load_snapshot()
    agent = snapshot.agents["local"]

    def seen_on(endpoint: str) -> set[str]:
        place = snapshot.endpoints[endpoint]
        seen = [
            tool
            for tool in snapshot.tools.values()
            if may_see(agent, place, snapshot.servers[tool.server_id], tool, 0)
        ]
        return {snapshot.servers[tool.server_id].slug for tool in seen}

    assert seen_on(rows[0].endpoint_slug) == {"git"}
    assert seen_on(rows[1].endpoint_slug) == {"git-web"}
    assert seen_on("default") == set()
    assert {row.state for row in ProjectFile.objects.all()} == {"confirmed"}


def test_a_confirmation_is_refused_if_the_file_was_changed_after_it_was_shown(
    db: None, tmp_path: Path
) -> None:
    write(tmp_path / "shop", git=entry("log"))
    shown = note(tmp_path / "shop")
    write(tmp_path / "shop", git=entry("log", "push"))
    with pytest.raises(Conflict, match="changed after you opened it"):
        projects.confirm_project(project=shown, shown=shown.content, actor=ACTOR)
    row = ProjectFile.objects.get()
    assert row.confirmed == ""
    assert row.content != shown.content
    for wrong in ("", "5", row.content[:12], "0" * 64):
        with pytest.raises(Conflict):
            projects.confirm_project(project=row, shown=wrong, actor=ACTOR)
    confirm(row)
    assert AuditEntry.objects.filter(kind="project_file.confirmed", actor=ACTOR).count() == 1


def test_layout_and_comments_are_no_other_content_and_another_word_or_directory_is(
    db: None, tmp_path: Path
) -> None:
    file = write(tmp_path / "shop", git=entry("log"))
    content = note(tmp_path / "shop").content
    file.write_text("// a comment\n" + json.dumps(json.loads(file.read_text()), indent=4))
    assert note(tmp_path / "shop").content == content
    write(tmp_path / "web", git=entry("log"))
    assert note(tmp_path / "web").content != content
    write(tmp_path / "shop", git=entry("log", env={"FAKE_LISTED": "[]"}))
    assert note(tmp_path / "shop").content != content


def test_variables_in_commands_are_part_of_the_content_and_secret_ones_stay_references(
    db: None, tmp_path: Path
) -> None:
    server = {"command": "${TOOL}", "args": ["${GITHUB_TOKEN}"], "env": {"A": "${OTHER}"}}
    write(tmp_path / "shop", git=server)
    row = note(tmp_path / "shop", TOOL="good", GITHUB_TOKEN="secret-value", OTHER="x")
    assert row.variables == {"TOOL": "good"}
    assert "secret-value" not in json.dumps(row.summary)
    assert "good" in row.summary[0]
    assert "GITHUB_TOKEN, OTHER" in row.summary[0]
    again = note(tmp_path / "shop", TOOL="evil", GITHUB_TOKEN="secret-value", OTHER="y")
    assert again.content != row.content
    assert note(tmp_path / "shop", TOOL="good", OTHER="z").content == row.content


def test_a_changed_entry_stops_and_an_equal_one_stays_until_the_next_confirmation(
    live_db: None, tmp_path: Path
) -> None:
    write(tmp_path / "shop", git=entry("log"), web=entry("get"))
    set_up(tmp_path / "shop")
    write(tmp_path / "shop", git=entry("log"), web=entry("get", "post"), more=entry("x"))
    row = note(tmp_path / "shop")
    assert row.state == "waiting"
    assert states() == {"git": Lifecycle.ACTIVE, "web": Lifecycle.DRAFT}
    set_up_project(directory=tmp_path / "shop", environ={})
    assert states() == {"git": Lifecycle.ACTIVE, "web": Lifecycle.DRAFT}
    assert set_up(tmp_path / "shop").state == "confirmed"
    assert states() == {"git": Lifecycle.ACTIVE, "web": Lifecycle.ACTIVE, "more": Lifecycle.ACTIVE}


@pytest.mark.exhaustive
def test_a_file_that_returns_to_its_confirmed_content_needs_no_second_confirmation(
    live_db: None, tmp_path: Path
) -> None:
    file = write(tmp_path / "shop", git=entry("log"))
    set_up(tmp_path / "shop")
    tool = Tool.objects.get(name="log")
    Tool.objects.filter(pk=tool.pk).update(enabled=False)
    content = file.read_text()
    file.unlink()
    assert note(tmp_path / "shop").state == "unusable"
    assert states() == {"git": Lifecycle.DRAFT}
    file.write_text(content)
    assert note(tmp_path / "shop").state == "starting"
    set_up_project(directory=tmp_path / "shop", environ={})
    assert states() == {"git": Lifecycle.ACTIVE}
    assert not Tool.objects.get(name="log").enabled


def test_what_people_decide_after_the_confirmation_stands(live_db: None, tmp_path: Path) -> None:
    write(tmp_path / "shop", git=entry("log") | {"enabled": True})
    set_up(tmp_path / "shop")
    server = Server.objects.get()
    lifecycle.disable_server(server=server, actor=ACTOR)
    for grant in Grant.objects.filter(server=server, agent__isnull=False):
        grants.withdraw_grant(grant=grant, actor=ACTOR)
    note(tmp_path / "shop")
    set_up_project(directory=tmp_path / "shop", environ={})
    assert states() == {"git": Lifecycle.DISABLED}
    assert not Grant.objects.filter(server=server, agent__isnull=False).exists()


def change_file_and_put_it_back(directory: Path) -> None:
    """An agent that can write the file can do this without anybody."""
    file = directory / ".mcp.json"
    content = file.read_text()
    file.write_text("{}")
    note(directory)
    file.write_text(content)
    assert note(directory).state == "starting"
    set_up_project(directory=directory, environ={})


@pytest.mark.exhaustive
def test_tools_that_come_later_wait_and_withdrawn_grants_stay_when_the_file_returns(
    live_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFERED", json.dumps(listed("log")))
    write(tmp_path / "shop", git=entry() | {"env": {"FAKE_LISTED": "${OFFERED}"}})
    set_up(tmp_path / "shop")
    for grant in Grant.objects.filter(agent__isnull=False):
        grants.withdraw_grant(grant=grant, actor=ACTOR)
    monkeypatch.setenv("OFFERED", json.dumps(listed("log", "wipe")))
    change_file_and_put_it_back(tmp_path / "shop")
    assert states() == {"git": Lifecycle.ACTIVE}
    assert set(Tool.objects.filter(pinned=None).values_list("name", flat=True)) == {"wipe"}
    assert not Grant.objects.filter(agent__isnull=False).exists()


def test_a_launch_that_somebody_changed_is_not_confirmed_when_the_file_returns(
    live_db: None, tmp_path: Path
) -> None:
    write(tmp_path / "shop", git=entry("log"))
    set_up(tmp_path / "shop")
    server = Server.objects.get()
    server.asks_roots = not server.asks_roots
    lifecycle.save_server(server=server, actor="user:olga")
    assert states() == {"git": Lifecycle.DRAFT}
    change_file_and_put_it_back(tmp_path / "shop")
    assert states() == {"git": Lifecycle.DRAFT}
    row = ProjectFile.objects.get()
    assert (row.state, "on the page of the server" in row.problem) == ("starting", True)
    lifecycle.confirm_launch(
        server=Server.objects.get(), actor=ACTOR, launch_hash=Server.objects.get().launch_hash()
    )
    set_up_project(directory=tmp_path / "shop", environ={})
    assert (states(), ProjectFile.objects.get().state) == ({"git": Lifecycle.ACTIVE}, "confirmed")


@pytest.mark.exhaustive
def test_confirmation_taken_back_after_granting_leaves_no_grant(
    live_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "shop", git=entry("log"))
    row = confirm(note(tmp_path / "shop"))
    offer = project_setup._offer_servers

    def offer_and_take_back(*args: Any) -> None:
        offer(*args)
        assert Grant.objects.exists()
        projects.take_back_project(project=row, actor=ACTOR)

    with monkeypatch.context() as changed:
        changed.setattr(project_setup, "_offer_servers", offer_and_take_back)
        set_up_project(directory=tmp_path / "shop", environ={})
    assert states() == {"git": Lifecycle.DRAFT}
    assert not Grant.objects.exists()
    assert AuditEntry.objects.filter(kind="grant.withdrawn").count() == 2
    assert set_up(tmp_path / "shop").state == "confirmed"
    assert Grant.objects.count() == 2


@pytest.mark.exhaustive
def test_grants_of_a_file_that_changed_during_its_set_up_come_with_the_next_confirmation(
    live_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "shop", git=entry("log"))
    confirm(note(tmp_path / "shop"))
    offer = project_setup._offer_servers

    def offer_and_change(*args: Any) -> None:
        offer(*args)
        write(tmp_path / "shop", git=entry("log"), web=entry("get"))
        note(tmp_path / "shop")

    with monkeypatch.context() as changed:
        changed.setattr(project_setup, "_offer_servers", offer_and_change)
        set_up_project(directory=tmp_path / "shop", environ={})
    assert not Grant.objects.exists()
    assert set_up(tmp_path / "shop").state == "confirmed"
    assert {grant.server.slug for grant in Grant.objects.all() if grant.server} == {"git", "web"}


def test_a_confirmation_that_is_taken_back_stops_the_servers(live_db: None, tmp_path: Path) -> None:
    write(tmp_path / "shop", git=entry("log"))
    row = set_up(tmp_path / "shop")
    projects.take_back_project(project=row, actor=ACTOR)
    assert states() == {"git": Lifecycle.DRAFT}
    set_up_project(directory=tmp_path / "shop", environ={})
    assert states() == {"git": Lifecycle.DRAFT}
    assert ProjectFile.objects.get().state == "waiting"
    projects.delete_project(project=row, actor=ACTOR, rights=grant_all_rights)
    assert not ProjectFile.objects.exists()
    assert not Endpoint.objects.exists()


def test_a_server_that_does_not_work_leaves_nothing_and_the_others_are_served(
    live_db: None, tmp_path: Path
) -> None:
    broken = {"command": sys.executable, "args": ["-c", "raise SystemExit('no such port')"]}
    write(tmp_path / "shop", git=entry("log"), broken=broken)
    row = set_up(tmp_path / "shop")
    assert states() == {"git": Lifecycle.ACTIVE}
    assert "The server 'broken' does not work" in row.problem
    assert row.state == "starting"


def test_the_entry_that_starts_this_site_is_left_aside(db: None, tmp_path: Path) -> None:
    ours = {"command": "python", "args": ["/srv/manage.py", "runmcp", "--workspace"]}
    remote = {"type": "http", "url": f"{settings.SITE_URL}/mcp/default"}
    write(tmp_path / "shop", slipsnisse=ours, remote=remote)
    assert read_project(tmp_path / "shop", {}) is None
    write(tmp_path / "shop", ".cursor/mcp.json", slipsnisse=ours, git=entry("log"))
    assert note(tmp_path / "shop").summary[0].startswith("git: ")
    assert len(note(tmp_path / "shop").summary) == 1


def test_a_workspace_of_the_directory_decides_and_one_above_names_the_agent(
    db: None, tmp_path: Path
) -> None:
    ann = agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR)
    work = agents.save_endpoint(endpoint=Endpoint(slug="work"), actor=ACTOR)
    workspace = Workspace(directory=str(tmp_path), endpoint=work, agent=ann)
    agents.save_workspace(workspace=workspace, actor=ACTOR)
    for directory in (tmp_path, tmp_path / "shop"):
        write(directory, git=entry("log"))
    assert (note(tmp_path).endpoint_slug, note(tmp_path).agent_slug) == ("work", "ann")
    inside = note(tmp_path / "shop")
    assert inside.endpoint_slug.startswith("shop-")
    assert inside.agent_slug == "ann"


def test_a_file_that_cannot_be_used_says_where_and_what_to_do(
    db: None, tmp_path: Path, monkeypatch: Any
) -> None:
    file = write(tmp_path / "shop", git=entry("log"))
    file.write_text('{"mcpServers": {"git": {"command": 5,}')
    row = note(tmp_path / "shop")
    assert (row.state, row.content) == ("unusable", "")
    assert str(file) in row.problem
    assert "line" in row.problem.lower()
    with pytest.raises(Conflict, match="cannot be confirmed"):
        projects.confirm_project(project=row, shown="0" * 64, actor=ACTOR)
    write(tmp_path / "shop", git=entry("log"))
    file.chmod(0o666)
    assert "chmod o-w" in note(tmp_path / "shop").problem
    file.chmod(0o600)
    (tmp_path / "shop").chmod(0o777)
    assert "Every user" in note(tmp_path / "shop").problem
    (tmp_path / "shop").chmod(0o700)
    monkeypatch.setattr(project_files.os, "geteuid", lambda: os.getuid() + 1)
    if os.getuid() != 0:
        assert "another user" in note(tmp_path / "shop").problem


def test_a_link_to_the_directory_is_the_same_directory(db: None, tmp_path: Path) -> None:
    write(tmp_path / "shop", git=entry("log"))
    (tmp_path / "link").symlink_to(tmp_path / "shop")
    assert note(tmp_path / "link").pk == note(tmp_path / "shop").pk
    with pytest.raises(ProjectFileUnusable, match="is not a directory"):
        resolve_directory(tmp_path / "none")


@pytest.mark.exhaustive
def test_what_was_confirmed_for_one_agent_and_endpoint_is_not_given_to_others(
    live_db: None, tmp_path: Path
) -> None:
    write(tmp_path, git=entry("log"))
    row = set_up(tmp_path)
    ann = agents.save_agent(agent=Agent(slug="ann"), actor=ACTOR)
    wide = agents.save_endpoint(endpoint=Endpoint(slug="wide"), actor=ACTOR)
    agents.save_workspace(
        workspace=Workspace(directory=str(tmp_path), endpoint=wide, agent=ann), actor=ACTOR
    )
    assert (note(tmp_path).endpoint_slug, note(tmp_path).agent_slug) == (row.endpoint_slug, "local")
    with pytest.raises(Conflict, match="confirmed for the agent 'local'"):
        projects.note_project(
            directory=resolve_directory(tmp_path), agent="ann", environ={}, actor="runmcp"
        )
    projects.take_back_project(project=row, actor=ACTOR)
    assert (note(tmp_path).endpoint_slug, note(tmp_path).agent_slug) == ("wide", "ann")


@pytest.mark.exhaustive
def test_a_deleted_endpoint_takes_the_confirmation_with_it(live_db: None, tmp_path: Path) -> None:
    write(tmp_path, git=entry("log"))
    row = set_up(tmp_path)
    agents.delete_endpoint(
        endpoint=Endpoint.objects.get(slug=row.endpoint_slug), actor=ACTOR, rights=grant_all_rights
    )
    assert note(tmp_path).state == "waiting"
    assert states() == {"git": Lifecycle.DRAFT}


def test_a_command_that_is_too_long_to_be_looked_at_is_refused(db: None, tmp_path: Path) -> None:
    write(tmp_path, git={"command": "sh", "args": ["-c", "true; " * 1000]})
    assert "too long to review" in note(tmp_path).problem


def test_the_sites_clock_does_not_start_the_servers_of_a_project(
    live_db: None, tmp_path: Path
) -> None:
    write(tmp_path, git=entry("log"))
    set_up(tmp_path)
    assert Server.objects.get().next_check_at is not None
    assert checks.claim_due(10, answering=True) == checks.claim_due(10, answering=False) == []
