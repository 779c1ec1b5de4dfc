"""Commands say what they found and end with an exit code that a script can use."""

from __future__ import annotations

import io
import json
import re
import stat

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from mcpregistry.models import Agent, AuditEntry, Endpoint, ServerTest
from mcpregistry.services.records import audit
from tests.externals import ROOT
from tests.fakes.tampered import sealed_anew, unguarded
from tests.services.rows import confirmed, dispatched, draft


def run(*words: str) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command(*words, stdout=out)
    except SystemExit as ended:
        return int(ended.code or 0), out.getvalue()
    return 0, out.getvalue()


def test_mcptest_shows_steps_tools_and_the_answer(live_db):
    confirmed()
    code, said = run("mcptest", "echo", "--call", "echo", "--args", '{"text": "\\u001b[2J"}')
    assert code == 0
    assert [line.split()[0] for line in said.splitlines()[1:5]] == [
        "connect",
        "list",
        "call",
        "total",
    ]
    assert "3: echo, refuse, pid" in said
    assert said.endswith("Passed\n")
    assert "\x1b" not in said
    assert ServerTest.objects.get().verdict == "passed"


def test_mcptest_fails_with_the_reason_and_the_servers_log(live_db):
    confirmed("crash", env={"FAKE_CRASH": "start"})
    code, said = run("mcptest", "crash")
    assert code == 1
    assert "CONNECTION_FAILED" in said
    assert "cannot find my configuration" in said


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["absent"], 'No server named "absent"'),
        (["new"], "is not confirmed"),
        (["echo", "--call", "echo", "--args", "[1]"], "not a JSON object"),
        (["echo", "--call", "echo", "--args", "{"], "not valid JSON"),
    ],
)
def test_mcptest_ends_with_2_when_nothing_could_be_tested(words, reason):
    confirmed()
    draft("new")
    with pytest.raises(CommandError, match=reason) as caught:
        run("mcptest", *words)
    assert caught.value.returncode == 2


@pytest.mark.django_db
def test_invariants_prints_a_table_and_ends_with_1_when_one_is_broken():
    assert run("invariants", "--strict")[0] == 0
    dispatched(lease_until=None)
    code, said = run("invariants")
    assert code == 1
    assert "FAILED 1 time     Every call in progress has a lease.\n" in said
    assert "1 failed." in said


@pytest.mark.django_db
def test_invariants_that_need_a_lost_key_are_reported_and_the_others_are_checked(
    settings: Settings,
) -> None:
    confirmed(env={"TOKEN": "x"})
    dispatched(lease_until=None)
    settings.SLIPSNISSE_KEYS = {"other": b"k" * 32}
    code, said = run("invariants")
    assert code == 1
    assert "FAILED 1 time     The launch of every active server is confirmed.\n" in said
    assert "The check failed:" in said
    assert "which this site does not have" in said
    assert "FAILED 1 time     Every call in progress has a lease.\n" in said


@pytest.mark.django_db
def test_audit_verifies_exports_and_compares(tmp_path):
    for number in range(3):
        audit.record_entry(kind="test", actor="ann", subject="s", number=number)
    file = tmp_path / "audit.jsonl"
    sealed_anew()
    note, result = run("audit", "verify")[1].splitlines()
    assert note.startswith("The file audit-newest-seal.json did not exist on this machine")
    assert re.fullmatch(
        r"The audit log is intact. 3 entries of 1 chain read in \d+\.\d s\.", result
    )
    assert "--full reads them again" in run("audit", "verify")[1]
    assert run("audit", "export", "--output", str(file))[0] == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run("audit", "export")[1] == file.read_text()
    assert [json.loads(line)["seq"] for line in file.read_text().splitlines()] == [1, 2, 3]
    with unguarded():
        AuditEntry.objects.filter(seq=3).delete()
    assert run("audit", "verify", "--full")[0] == 1
    code, said = run("audit", "verify", "--against", str(file))
    assert (code, "configuration #3: it was exported, and is missing" in said) == (1, True)
    with pytest.raises(CommandError, match="does not exist yet"):
        run("audit", "export", "--output", str(file))
    file.write_text("[]")
    with pytest.raises(CommandError, match="neither an export"):
        run("audit", "verify", "--against", str(file))


@pytest.mark.django_db
def test_demo_leaves_a_site_in_use_alone():
    draft()
    assert "no demo servers added" in run("demo")[1]


def test_connect_writes_lists_and_takes_out(db, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    Endpoint.objects.get_or_create(slug="default")
    Agent.objects.get_or_create(slug="local")
    assert "No hosts are connected" in run("connect", "--list")[1]
    assert '"runmcp"' in run("connect", "gemini", "--dry-run")[1]
    assert not (tmp_path / ".gemini").exists()
    assert "was added to" in run("connect", "gemini")[1]
    assert "already" in run("connect", "gemini")[1]
    said = run("connect", "--list")[1]
    assert "slipsnisse: endpoint default as local, stdio: connected" in said
    file = tmp_path / ".gemini/settings.json"
    entry = file.read_text()
    file.write_text(entry.replace('"runmcp"', '"runmcp", "--era", "legacy"'))
    assert "stdio: connected" in run("connect", "--list")[1], "somebody's own way to start it"
    file.write_text(entry.replace(str(ROOT / "manage.py"), "/gone/manage.py"))
    assert "stale: The file /gone/manage.py does not exist any more" in run("connect", "--list")[1]
    assert "rewritten" in run("connect", "--repair")[1]
    assert "“project-slipsnisse” was added to" in run("connect", "gemini", "--workspace")[1]
    said = run("connect", "--list")[1]
    assert (
        "project-slipsnisse: the project file of the directory as the agent of its workspace, stdio: connected"
        in said
    )
    assert "was removed from" in run("connect", "gemini", "--workspace", "--remove")[1]
    with pytest.raises(CommandError, match="over HTTP, the site does not see"):
        run("connect", "gemini", "--workspace", "--http")
    assert "was removed from" in run("connect", "gemini", "--remove")[1]
    assert json.loads(file.read_text()) == {"mcpServers": {}}
    monkeypatch.setattr("sys.stdin", io.StringIO("slp_nobodys\n"))
    with pytest.raises(CommandError, match="not a valid token"):
        run("connect", "codex", "--http", "--token-stdin")
    for words in (
        ["connect"],
        ["connect", "codex", "--in-environment"],
        ["connect", "windsurf", "--project"],
    ):
        with pytest.raises(CommandError):
            run(*words)
