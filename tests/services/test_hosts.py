"""Connecting hosts: their files on disk, the tokens in them, and which entries still lead here."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from django.conf import settings
from django.core.management import call_command
from pytest_django import Settings

from mcpregistry.domain.errors import ConfigInvalid, Conflict, NotFound
from mcpregistry.domain.hosts.table import HOSTS
from mcpregistry.models import Agent, AuditEntry, Endpoint, Token
from mcpregistry.services.access.tokens import find_token, issue_token, revoke_token
from mcpregistry.services.hosts import host_connections
from mcpregistry.services.hosts.connecting import ConnectOutcome, Signing, connect, disconnect
from mcpregistry.services.hosts.files import (
    FIRST,
    LAST,
    HostFile,
    open_project_file,
    open_user_file,
)
from mcpregistry.services.hosts.listing import EntryStanding, list_standing, rewrite_entry

pytestmark = [pytest.mark.django_db, pytest.mark.one_database]


@pytest.fixture(autouse=True)
def rows(settings: Settings, tmp_path: Path) -> None:
    settings.SITE_URL = "http://127.0.0.1:8000"
    settings.VAR_DIR = tmp_path / "var"
    settings.VAR_DIR.mkdir()
    Endpoint.objects.get_or_create(slug="default")
    Agent.objects.get_or_create(slug="local")
    Agent.objects.create(slug="ann")


def file_of(tmp_path: Path, slug: str = "claude-code", content: str = "") -> HostFile:
    file = open_user_file(HOSTS[slug], {"HOME": str(tmp_path)})
    if content:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        file.path.write_text(content)
    return file


def put(
    file: HostFile,
    agent: str = "ann",
    *,
    http: bool = True,
    signing: Signing | None = None,
    dry: bool = False,
) -> ConnectOutcome:
    return connect(
        file=file,
        endpoint="default",
        agent=agent,
        http=http,
        actor="connect",
        signing=signing,
        dry=dry,
    )


def bearer_in(file: HostFile) -> str:
    return str(
        json.loads(file.path.read_text())["mcpServers"]["slipsnisse"]["headers"]["Authorization"]
    ).removeprefix("Bearer ")


def only(file: HostFile) -> EntryStanding:
    (entry,) = list_standing([file])
    return entry


def test_a_stdio_entry_starts_this_site_as_the_agent_and_is_told(tmp_path: Path) -> None:
    file = file_of(tmp_path, content='{\n  // mine\n  "theme": "dark"\n}\n')
    file.path.chmod(0o644)
    outcome = put(file, http=False)
    text = file.path.read_text()
    assert "// mine" in text
    assert outcome.kept is not None
    assert outcome.kept.read_text() == '{\n  // mine\n  "theme": "dark"\n}\n'
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o644
    entry = json.loads(text.replace("// mine", ""))["mcpServers"]["slipsnisse"]
    assert entry["args"] == [
        str(host_connections.find_program()),
        "runmcp",
        "--endpoint",
        "default",
        "--agent",
        "ann",
    ]
    assert entry["env"]["SLIPSNISSE_VAR"] == str(settings.VAR_DIR)
    assert not Token.objects.exists()
    told = json.loads(AuditEntry.objects.get(kind="host.connected").body)
    assert (told["subject"], told["agent"], told["way"]) == ("host:claude-code", "ann", "stdio")
    assert only(file) == EntryStanding(file, "slipsnisse", "default", "ann")
    assert not put(file, http=False).changed


def test_over_http_the_file_gets_a_token_of_its_own_that_ends_with_the_entry(
    tmp_path: Path,
) -> None:
    file = file_of(tmp_path, content="{}")
    file.path.chmod(0o644)
    put(file)
    first = bearer_in(file)
    token = find_token(first)
    assert token is not None
    assert token.agent is not None
    assert token.agent.slug == "ann"
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert not put(file).changed  # and no second token
    put(file, "local")
    assert find_token(first) is None
    second = bearer_in(file)
    disconnect(file=file, key="slipsnisse", actor="connect")
    assert find_token(second) is None
    assert json.loads(file.path.read_text()) == {"mcpServers": {}}
    assert not disconnect(file=file, key="slipsnisse", actor="connect").changed


def test_a_token_that_was_given_is_used_and_never_revoked(tmp_path: Path) -> None:
    _, raw = issue_token(name="mine", actor="ann", agent=Agent.objects.get(slug="ann"))
    file = file_of(tmp_path)
    put(file, signing=Signing(raw))
    assert bearer_in(file) == raw
    disconnect(file=file, key="slipsnisse", actor="connect")
    assert find_token(raw) is not None
    with pytest.raises(ConfigInvalid, match='not a valid token of the agent "local"'):
        put(file, "local", signing=Signing(raw))


def test_without_a_token_in_the_file_the_host_reads_the_variable(tmp_path: Path) -> None:
    file = file_of(tmp_path)
    put(file, signing=Signing(by_environment=True))
    assert bearer_in(file) == "${SLIPSNISSE_TOKEN}"
    assert only(file) == EntryStanding(file, "slipsnisse", "default", "", True)


def test_a_projects_file_never_gets_a_token(tmp_path: Path) -> None:
    file = open_project_file(HOSTS["cursor"], tmp_path)
    put(file)
    assert "${env:SLIPSNISSE_TOKEN}" in file.path.read_text()
    assert not Token.objects.exists()
    with pytest.raises(ConfigInvalid, match="belongs to a project"):
        put(file, signing=Signing("slp_x"))
    with pytest.raises(ConfigInvalid, match="does not support project files"):
        open_project_file(HOSTS["windsurf"], tmp_path)


def test_a_look_ahead_changes_nothing(tmp_path: Path) -> None:
    file = file_of(tmp_path)
    outcome = put(file, dry=True)
    assert outcome.changed
    assert "slp_…" in outcome.text
    assert not file.path.exists()
    assert not Token.objects.exists()


@pytest.mark.parametrize("content", ["{", "[]", '{"mcpServers": []}'])
def test_a_file_that_cannot_be_read_stays_and_no_token_is_made(
    tmp_path: Path, content: str
) -> None:
    file = file_of(tmp_path, content=content)
    with pytest.raises(ConfigInvalid):
        put(file)
    assert file.path.read_text() == content
    assert not Token.objects.exists()
    assert only(file).key == ""


def test_a_file_that_somebody_writes_meanwhile_is_left_alone(tmp_path: Path) -> None:
    file = file_of(tmp_path, content="{}")
    with pytest.raises(Conflict, match="Run the command again"):
        file.replace('{"a": 1}', '{"a": 2}', secret=False)
    assert file.path.read_text() == "{}"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "dotfiles/claude.json").write_text("{}")
    file = file_of(tmp_path)
    file.path.symlink_to(tmp_path / "dotfiles/claude.json")
    put(file, http=False)
    assert file.path.is_symlink()
    assert "slipsnisse" in (tmp_path / "dotfiles/claude.json").read_text()


def test_names_that_are_not_there_are_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"Available: .*ann"):
        put(file_of(tmp_path), "nobody")
    Endpoint.objects.update(enabled=False)
    with pytest.raises(NotFound, match="First enable an endpoint"):
        put(file_of(tmp_path))


def test_entry_for_project_files_is_written_listed_and_mended(tmp_path: Path) -> None:
    file = file_of(tmp_path)
    connect(file=file, endpoint="", agent="", http=False, actor="connect")
    (entry,) = json.loads(file.path.read_text())["mcpServers"].values()
    assert entry["args"] == [str(host_connections.find_program()), "runmcp", "--workspace"]
    assert only(file) == EntryStanding(file, "project-slipsnisse")
    file.path.write_text(
        file.path.read_text().replace(str(host_connections.find_program()), "/gone/manage.py")
    )
    rewrite_entry(entry=only(file), actor="connect")
    assert only(file).problem == ""
    with pytest.raises(NotFound):
        connect(file=file, endpoint="", agent="nobody", http=False, actor="connect")


@pytest.mark.parametrize("slug", ["claude-code", "codex", "opencode"])
def test_what_no_longer_starts_this_site_is_stale_and_mended(tmp_path: Path, slug: str) -> None:
    file = file_of(tmp_path, slug)
    put(file, http=False)
    assert only(file).problem == ""
    old = file.path.read_text()
    for broken in (
        old.replace(str(host_connections.find_program()), "/gone/manage.py"),
        old.replace(str(settings.VAR_DIR), "/gone/var"),
        old.replace("required = true", "required = false"),
    ):
        if broken == old:
            continue
        file.path.write_text(broken)
        entry = only(file)
        assert (bool(entry.problem), entry.mendable) == (True, True)
        rewrite_entry(entry=entry, actor="connect")
        assert only(file).problem == ""


@pytest.mark.parametrize(
    "words",
    [
        ["ssh", "far", "python", "/srv/gone/manage.py", "runmcp"],
        [
            sys.executable,
            str(host_connections.find_program()),
            "runmcp",
            "--config",
            "/srv/experts.yaml",
        ],
        [sys.executable, str(host_connections.find_program()), "runmcp", "--endpoint", "default"],
        [
            sys.executable,
            str(host_connections.find_program()),
            "runmcp",
            "--endpoint",
            "default",
            "--agent",
            "ann",
            "--conversation",
            "c",
        ],
    ],
)
def test_an_entry_that_somebody_has_written_otherwise_is_shown_and_left_alone(
    tmp_path: Path, words: list[str]
) -> None:
    entry = {
        "command": words[0],
        "args": words[1:],
        "env": {host_connections.VAR: str(settings.VAR_DIR)},
    }
    standing_one = only(
        file_of(tmp_path, content=json.dumps({"mcpServers": {"slipsnisse": entry}}))
    )
    assert (standing_one.problem, standing_one.mendable, standing_one.elsewhere) == (
        "",
        False,
        False,
    )


def test_a_variable_of_ours_that_is_not_needed_any_more_is_taken_out_and_others_stay(
    tmp_path: Path,
) -> None:
    file = file_of(tmp_path)
    put(file, http=False)
    data = json.loads(file.path.read_text())
    (entry,) = data["mcpServers"].values()
    entry["env"] |= {"DATABASE_URL_FILE": "/srv/old", "TZ": "Europe/Oslo"}
    file.path.write_text(json.dumps(data))
    assert "DATABASE_URL_FILE" in only(file).problem
    rewrite_entry(entry=only(file), actor="connect")
    assert only(file).problem == ""
    (entry,) = json.loads(file.path.read_text())["mcpServers"].values()
    assert ("DATABASE_URL_FILE" in entry["env"], entry["env"]["TZ"]) == (False, "Europe/Oslo")


def test_what_a_file_held_before_all_of_its_entries_were_mended_is_kept(tmp_path: Path) -> None:
    gone = {
        "command": "/gone/python",
        "args": ["/gone/manage.py", "runmcp", "--endpoint", "default", "--agent", "ann"],
    }
    before = json.dumps({"mcpServers": {"one": gone, "two": gone}})
    file = file_of(tmp_path, content=before)
    with patch.dict(os.environ, {"HOME": str(tmp_path)}):
        call_command("connect", "claude-code", "--repair", project=str(tmp_path / "nothing"))
    assert [entry.problem for entry in list_standing([file])] == ["", ""]
    assert file.path.with_name(file.path.name + FIRST).read_text() == before


def test_later_edits_of_a_file_keep_its_first_backup(tmp_path: Path) -> None:
    original = '{\n  // mine\n  "theme": "dark"\n}\n'
    file = file_of(tmp_path, content=original)
    first = put(file, http=False).kept
    connected = file.path.read_text()
    last = put(file, http=True).kept
    assert first is not None
    assert last is not None
    assert (first.name, last.name) == (file.path.name + FIRST, file.path.name + LAST)
    assert first.read_text() == original
    assert last.read_text() == connected
    again = put(file, http=False).kept
    assert again == last
    assert first.read_text() == original


def test_what_somebody_has_narrowed_stays_narrow(tmp_path: Path) -> None:
    file = file_of(tmp_path, "copilot")
    put(file, http=False)
    narrowed = file.path.read_text().replace('"*"', '"read"')
    file.path.write_text(narrowed)
    put(file, http=False)
    assert '"read"' in file.path.read_text()
    assert '"*"' not in file.path.read_text()


def test_an_address_that_has_changed_and_a_token_that_has_ended_are_mended(
    tmp_path: Path, settings: Settings
) -> None:
    file = file_of(tmp_path)
    put(file)
    settings.SITE_URL = "http://127.0.0.1:9000"
    assert "is now http://127.0.0.1:9000/mcp/default" in only(file).problem
    rewrite_entry(entry=only(file), actor="connect")
    token = find_token(bearer_in(file))
    assert token is not None
    revoke_token(token=token, actor="ann")
    assert only(file).problem == "The token of the entry was revoked."
    rewrite_entry(entry=only(file), actor="connect")
    assert find_token(bearer_in(file)) is not None
    assert only(file).problem == ""


def test_what_leads_elsewhere_is_none_of_our_business(tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "var").mkdir(parents=True)
    (other / "manage.py").touch()
    (other / "var/keys.json").touch()
    servers = {
        "theirs": {"command": "python", "args": [str(other / "manage.py"), "runmcp"]},
        "slipsnisse-far": {"url": "https://far.example.org/mcp/default"},
        "git": {"command": "git-mcp"},
        "unlike": {"url": "https://far.example.org/mcp/default"},
    }
    file = file_of(tmp_path, content=json.dumps({"mcpServers": servers}))
    assert [(entry.key, entry.elsewhere, entry.mendable) for entry in list_standing([file])] == [
        ("theirs", True, False),
        ("slipsnisse-far", True, False),
    ]


def test_an_agent_that_is_gone_is_told_and_not_mended(tmp_path: Path) -> None:
    file = file_of(tmp_path)
    put(file, http=False)
    Agent.objects.filter(slug="ann").delete()
    entry = only(file)
    assert 'No enabled agent named "ann"' in entry.problem
    assert not entry.mendable


def test_secrets_of_the_environment_go_by_the_names_of_their_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://u:5ecret@db/x")
    monkeypatch.delenv("SLIPSNISSE_KEYS", raising=False)
    monkeypatch.setenv("SLIPSNISSE_KEYS_FILE", "/run/secrets/keys")
    assert host_connections.build_environment()["SLIPSNISSE_KEYS_FILE"] == "/run/secrets/keys"
    assert "5ecret" not in str(host_connections.build_environment())
    assert "DATABASE_URL" in host_connections.list_withheld_variables()
    assert "SLIPSNISSE_KEYS" not in host_connections.list_withheld_variables()
