"""``manage.py importconfig`` and ``manage.py exportconfig`` as an operator uses them."""

from __future__ import annotations

import io
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from mcpregistry.domain.formats import text
from mcpregistry.models import Agent, Endpoint, ImportedFile, Server, Workspace
from mcpregistry.services.policy import rules
from mcpregistry.services.servers.lifecycle import save_server
from tests import forkserver
from tests.domain.formats.samples import HERE, SAMPLES
from tests.waiting import HANG_LIMIT


def run(name: str, *words: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    out = io.StringIO()
    err = io.StringIO()
    try:
        call_command(name, *words, stdout=out, stderr=err, no_color=True)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


def put(path: Path, data: object) -> str:
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


@pytest.mark.django_db
@pytest.mark.exhaustive(one_in=9)
@pytest.mark.parametrize(("name", "path"), [item for item in SAMPLES if item[0] != "claude-code"])
def test_export_gives_back_what_import_took(name: str, path: Path, tmp_path: Path) -> None:
    file = shutil.copy(path, tmp_path)
    code, out, err = run("importconfig", str(file), "--format", name, "--no-expand")
    assert (code, err) == (0, "")
    assert "created" in out
    output = tmp_path / f"out{path.suffix}"
    words = ["--extended"] if name == "slipsnisse-extended" else []
    form = "slipsnisse" if words else name
    assert (
        run("exportconfig", "--format", form, *words, "--include-secrets", "-o", str(output))[0]
        == 0
    )
    assert text.load(output.read_bytes(), output.name) == text.load(path.read_bytes(), path.name)


@pytest.mark.django_db
def test_what_is_taken_as_it_stands_does_not_hide_the_rest(tmp_path: Path) -> None:
    file = put(
        tmp_path / "mcp.json",
        {"mcpServers": {"a": {"command": "x", "args": ["y"], "colour": "blue"}}},
    )
    every = run("importconfig", file, "-v", "2")[1].splitlines()
    plain = [line.endswith(": kept: Kept.") for line in every]
    assert any(plain)
    assert plain == sorted(plain, reverse=True), "what matters stands last, next to the summary"
    matters = every[sum(plain) : -1]
    assert matters
    count = f"{file}: {sum(plain)} values were taken unchanged. To list these values, use -v 2."
    assert run("importconfig", file)[1].splitlines()[:-1] == [count, *matters]
    assert run("importconfig", file, "-v", "0")[1].splitlines()[:-1] == matters
    assert run("importconfig", file, "--check")[1].splitlines()[0] == count


@pytest.mark.django_db
def test_an_address_that_begins_with_a_variable_takes_its_default() -> None:
    path = str(HERE / "samples" / "claude-code" / "mcp.json")
    code, _, err = run("importconfig", path, "--no-expand")
    assert code == 0
    assert "/mcpServers/api: left out" in err
    assert not Server.objects.filter(slug="api").exists()
    assert run("importconfig", path, "--on-conflict", "replace")[0] == 0
    assert Server.objects.get(slug="api").url == "https://api.example/mcp"


@pytest.mark.django_db
def test_exit_code_says_whether_anything_was_imported(tmp_path: Path) -> None:
    part = tmp_path / "config.toml"
    part.write_text('[mcp_servers.git]\ncommand = 5\n[mcp_servers.ok]\ncommand = "x"\n')
    code, out, err = run("importconfig", str(part), "--dry-run")
    assert code == 0
    assert "[mcp_servers.git] command: left out" in err
    assert "1 created, 1 left out (not saved)" in out
    nothing = put(tmp_path / "settings.json", {"mcp": {}, "mcpServers": {}})
    code, _, err = run("importconfig", nothing)
    assert code == 1
    assert "no servers to import" in err


@pytest.mark.django_db
def test_yaml_and_json_of_one_configuration_export_to_the_same_bytes() -> None:
    exported = set()
    for suffix in ("yaml", "json"):
        Server.objects.all().delete()
        ImportedFile.objects.all().delete()
        run("importconfig", str(HERE / "samples" / "slipsnisse" / f"worked_example.{suffix}"))
        exported.add(run("exportconfig", "--format", "slipsnisse")[1])
    assert len(exported) == 1


@pytest.mark.django_db
def test_one_line_is_printed_for_every_key(tmp_path: Path) -> None:
    file = put(
        tmp_path / "x.json",
        {"mcpServers": {"a": {"command": "x", "colour": "blue", "env": {"K": "${env:V}"}}}},
    )
    code, out, _ = run("importconfig", file, "-v", "2")
    assert code == 0
    lines = {line.split(": ")[1]: line.split(": ")[2] for line in out.splitlines()[:-1]}
    assert lines == {
        "/mcpServers/a/command": "kept",
        "/mcpServers/a/env": "kept",
        "/mcpServers/a/env/K": "translated",
        "/mcpServers/a/colour": "parked",
    }
    assert out.splitlines()[-1] == f"{file}: mcpservers: 1 created."


@pytest.mark.django_db
def test_a_refused_file_exits_1_names_file_key_and_remedy_and_saves_nothing(tmp_path: Path) -> None:
    file = put(tmp_path / "bad.yaml", "mcps:\n  fs: {command: npx, args: -y}\ntools: []\n")
    code, _, err = run("importconfig", file)
    assert code == 1
    assert (
        f"{file}: /mcps/fs/args: refused: The value is not of type array. Correct the value." in err
    )
    assert "nothing was saved" in err
    assert not Server.objects.exists()


@pytest.mark.parametrize("path", sorted((HERE / "verdicts").iterdir()), ids=lambda path: path.stem)
def test_check_gives_the_schemas_verdict_without_a_database(path: Path) -> None:
    code, out, err = run("importconfig", "--check", "--format", "slipsnisse", str(path))
    assert code == (1 if path.name.startswith("invalid") else 0)
    assert ("valid Slipsnisse file" in out) == (code == 0)
    assert bool(err) == (code == 1)


@pytest.mark.django_db
def test_the_extended_format_is_read_when_asked_for() -> None:
    file = str(HERE / "samples" / "slipsnisse-extended" / "remote.yaml")
    code, _, err = run("importconfig", file)
    assert code == 1
    assert "--extended" in err
    assert run("importconfig", file, "--extended")[0] == 0


@pytest.mark.django_db
def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'{"mcpServers": {"a": {"command": "x"}}}'))
    )
    assert run("importconfig", "-")[0] == 0
    assert Server.objects.get().slug == "a"


@pytest.mark.django_db
def test_a_dry_run_prints_a_diff_and_saves_nothing(tmp_path: Path) -> None:
    file = put(tmp_path / "x.json", {"mcpServers": {"a": {"command": "x"}}})
    code, out, _ = run("importconfig", file, "--dry-run")
    assert code == 0
    assert "+++ file/a" in out
    assert "1 created (not saved)" in out
    assert not Server.objects.exists()
    run("importconfig", file)
    assert "Nothing would change." in run("importconfig", file, "--dry-run")[1]


@pytest.mark.django_db
def test_variables_are_filled_in_from_the_environment_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELLO", "world")
    entry = {"command": "x", "args": ["${HELLO}", "${workspaceFolder}"], "env": {"A": "${HELLO}"}}
    file = put(tmp_path / "x.json", {"mcpServers": {"a": entry}})
    run("importconfig", file, "--no-expand")
    assert Server.objects.get().command == ["x", "${HELLO}", "${workspace}"]
    run("importconfig", file, "--on-conflict", "replace")
    assert Server.objects.get().command == ["x", "world", str(tmp_path)]
    assert Server.objects.get().env == {"A": "${HELLO}"}


@pytest.mark.django_db
def test_a_workspace_is_enough_to_find_the_file(tmp_path: Path) -> None:
    (tmp_path / ".dispatch").mkdir()
    shutil.copy(HERE / "samples" / "dispatch" / "mcp.json", tmp_path / ".dispatch")
    shutil.copy(HERE / "samples" / "opencode" / "older_shape.json", tmp_path / "opencode.json")
    code, _, err = run("importconfig", "--workspace", str(tmp_path))
    assert code == 0
    assert "are ignored" in err
    assert Server.objects.count() == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.json"], "cannot be read"),
        (["--workspace", "nowhere"], "is not a directory"),
        (["-", "--watch"], "--watch requires a file"),
        (["/dev/null", "--watch"], "--watch requires a file"),
    ],
)
def test_what_cannot_work_is_said_in_one_sentence(words: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        run("importconfig", *words)


@pytest.mark.django_db
def test_export_hides_secrets_and_says_so(tmp_path: Path) -> None:
    put(tmp_path / "x.json", {"mcpServers": {"a": {"command": "x", "env": {"T": "sk-5ecre7"}}}})
    run("importconfig", str(tmp_path / "x.json"))
    code, out, err = run("exportconfig", "--format", "dispatch")
    assert code == 0
    assert json.loads(out) == {"servers": {"a": {"command": "x", "env": {"T": "${T}"}}}}
    assert "--include-secrets" in err
    assert "sk-5ecre7" not in out + err
    assert "sk-5ecre7" in run("exportconfig", "--format", "dispatch", "--include-secrets")[1]


@pytest.mark.django_db
def test_an_export_that_the_format_cannot_express_exits_1_and_writes_nothing(
    tmp_path: Path,
) -> None:
    put(tmp_path / "x.json", {"mcpServers": {"far": {"url": "https://h.example"}}})
    run("importconfig", str(tmp_path / "x.json"))
    output = tmp_path / "out.yaml"
    code, out, err = run("exportconfig", "--format", "slipsnisse", "-o", str(output))
    assert (code, out, output.exists()) == (1, "", False)
    assert "/mcps/far: refused" in err
    assert run("exportconfig", "--format", "slipsnisse", "--extended", "-o", str(output))[0] == 0
    assert text.load(output.read_bytes(), "x.yaml")["mcps"]["far"]["url"] == "https://h.example"


@pytest.mark.django_db
def test_a_clients_entry_starts_runmcp_or_names_the_address() -> None:
    Endpoint.objects.get_or_create(slug="default")
    Agent.objects.get_or_create(slug="local")
    Agent.objects.create(slug="ann")
    entry = json.loads(run("exportconfig", "--client", "claude-code", "--agent", "ann")[1])[
        "mcpServers"
    ]["slipsnisse"]
    assert entry == {
        "type": "stdio",
        "command": sys.executable,
        "args": [
            str(settings.BASE_DIR / "manage.py"),
            "runmcp",
            "--endpoint",
            "default",
            "--agent",
            "ann",
        ],
        "env": entry["env"],
    }
    assert entry["env"]["SLIPSNISSE_VAR"] == str(settings.VAR_DIR)
    entry = json.loads(run("exportconfig", "--client", "vscode", "--http")[1])["servers"][
        "slipsnisse"
    ]
    assert entry["url"] == f"{settings.SITE_URL}/mcp/default"
    assert "required = true" in run("exportconfig", "--client", "codex")[1]
    with pytest.raises(CommandError, match="Choose stdio"):
        run("exportconfig", "--client", "claude-desktop", "--http")
    with pytest.raises(CommandError, match='No enabled endpoint named "nowhere"'):
        run("exportconfig", "--client", "cursor", "--endpoint", "nowhere")


@pytest.mark.parametrize("extended", [[], ["--extended"]])
def test_the_schema_of_our_own_format_is_printed(extended: list[str]) -> None:
    schema = json.loads(run("exportconfig", "--schema", *extended)[1])
    assert schema["$schema"].startswith("http://json-schema.org/")


class Watching:
    """A real ``importconfig --watch`` on this test's database."""

    def __init__(self, process: forkserver.Process, log: Path) -> None:
        self.process = process
        self.log = log

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + HANG_LIMIT
        while not holds():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def says(self, words: str) -> Callable[[], bool]:
        return lambda: words in self.log.read_text()


@pytest.fixture
def watching(site_env: dict[str, str], tmp_path: Path) -> Iterator[Callable[[str], Watching]]:
    started: list[forkserver.Process] = []

    def start(file: str) -> Watching:
        log = tmp_path / "log"
        words = ["manage.py", "importconfig", file, "--watch", "--interval", "0.05"]
        with log.open("w") as stream:
            process = forkserver.popen(words, env=site_env, stdout=stream, stderr=stream)
        started.append(process)
        return Watching(process, log)

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.e2e
def test_a_watched_file_is_imported_at_every_change_and_a_broken_one_changes_nothing(
    watching: Callable[[str], Watching], tmp_path: Path
) -> None:
    Server.objects.create(slug="mine", command=["x"], source="admin")

    def commands() -> dict[str, list[str]]:
        return dict(Server.objects.exclude(slug="mine").values_list("slug", "command"))

    path = tmp_path / "mcp.json"
    watch = watching(put(path, {"mcpServers": {"a": {"command": "one"}}}))
    watch.until(lambda: commands() == {"a": ["one"]})
    put(path, {"mcpServers": {"a": {"command": "two"}, "b": {"command": "three"}}})
    watch.until(lambda: commands() == {"a": ["two"], "b": ["three"]})

    put(path, '{"mcpServers": {"a": {"comm')
    watch.until(watch.says("the last imported state is kept"))
    put(path, {"mcpServers": {"a": {"command": "four"}, "b": {"command": 5}}})
    watch.until(watch.says("/mcpServers/b/command: left out"))
    watch.until(lambda: commands() == {"a": ["four"], "b": ["three"]})
    assert Server.objects.get(slug="b").lifecycle == "draft"

    path.unlink()
    watch.until(watch.says("no longer exists. Its servers are kept"))
    put(tmp_path / "new", {"mcpServers": {"a": {"command": "five"}}})
    (tmp_path / "new").replace(path)
    watch.until(lambda: commands() == {"a": ["five"], "b": ["three"]})
    watch.until(watch.says("b is no longer in the file: disabled"))
    assert Server.objects.get(slug="b").lifecycle == "disabled"
    put(path, {"mcpServers": {"a": {"command": "five"}, "b": {"command": "three"}}})
    watch.until(watch.says("b is in the file again: draft"))

    watch.process.send_signal(signal.SIGINT)
    assert watch.process.wait(HANG_LIMIT) == 0
    assert "is no longer watched" in watch.log.read_text()
    assert {server.lifecycle for server in Server.objects.all()} == {"draft"}


@pytest.mark.django_db
def test_a_file_is_kept_in_step_with_what_is_clicked_and_its_content_before_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mcp-servers.json"
    seen = list[Any]()

    def clicked(_: float) -> None:
        """What happens between two looks."""
        seen.append((json.loads(path.read_text()), path.stat().st_mtime_ns))
        match len(seen):
            case 1:
                server = save_server(server=Server(slug="echo", command=["echo"]), actor="user:ann")
                rules.auto_approve(server=server, actor="user:ann")
            case 3:
                path.unlink()
            case 4:
                raise KeyboardInterrupt

    # Of this module alone: other threads of the process sleep as well.
    monkeypatch.setattr(
        "mcpregistry.management.commands.exportconfig.time", SimpleNamespace(sleep=clicked)
    )
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(
        "mcpregistry.management.commands.exportconfig.close_old_connections", lambda: None
    )
    call_command("exportconfig", "--format", "mcp-servers", "-o", str(path), "--watch")
    contents, times = zip(*seen, strict=True)
    assert [each.get("id") for each in contents[1]["servers"]] == ["echo"]
    assert contents[1]["servers"][0]["autoApprove"] is True
    assert contents[0]["servers"] == []
    assert times[1] == times[2], "nothing changed, nothing was written"
    assert contents[3] == contents[1], "a file that somebody took away comes back"
    assert json.loads((tmp_path / "mcp-servers.json.bak").read_text()) == contents[0]
    with pytest.raises(CommandError, match="cannot be combined"):
        call_command(
            "exportconfig",
            "--format",
            "mcp-servers",
            "-o",
            str(path),
            "--watch",
            "--include-secrets",
        )


@pytest.mark.django_db
def test_projects_become_workspaces_if_they_are_named(tmp_path: Path) -> None:
    Agent.objects.create(slug="ann")
    projects = {
        f"/home/me/{name}": {"mcpServers": {name: {"command": name}}} for name in ("one", "two")
    }
    file = put(tmp_path / ".claude.json", {"projects": projects})
    assert (
        "projects without a workspace: /home/me/one, /home/me/two" in run("importconfig", file)[1]
    )
    printed = run("importconfig", file, "--project", "/home/me/one/", "--agent", "ann")[1]
    assert "projects without a workspace: /home/me/two" in printed
    assert Workspace.objects.get().directory == "/home/me/one"
    code, _, err = run("importconfig", file, "--project", "/home/me/three", "--agent", "ann")
    assert (code, "Choose from: /home/me/one, /home/me/two" in err) == (1, True)
    assert run("importconfig", file, "--project", "all", "--agent", "ann")[0] == 0
    assert Workspace.objects.count() == 2
