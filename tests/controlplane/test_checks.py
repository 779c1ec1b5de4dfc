"""An operator's mistakes are found before they hurt."""

from __future__ import annotations

from functools import partial

import pytest
from django.db import connection

from controlplane import checks, doctor
from mcpregistry.calls.watch import sources
from mcpregistry.downstream.transports import bubblewrap, confinement
from mcpregistry.models import Server
from mcpregistry.services.servers import lifecycle
from subagents.models import Provider
from tests.waiting import HANG_LIMIT


@pytest.fixture
def var(tmp_path, settings):
    settings.VAR_DIR = tmp_path
    tmp_path.chmod(0o700)
    return tmp_path


def test_a_key_file_that_others_can_read_is_an_error(var):
    (var / "keys.json").write_text("{}")
    (var / "keys.json").chmod(0o640)
    assert [problem.id for problem in checks.key_file_is_private()] == ["slipsnisse.E001"]
    (var / "keys.json").chmod(0o600)
    assert checks.key_file_is_private() == []


def test_an_open_folder_is_a_warning_with_the_command_that_closes_it(var):
    var.chmod(0o755)
    (problem,) = checks.folder_is_private()
    assert problem.hint == f"Run: chmod 700 {var}"


def test_kept_connections_are_an_error(settings, monkeypatch):
    monkeypatch.setitem(settings.DATABASES["default"], "CONN_MAX_AGE", 60)
    assert [problem.id for problem in checks.connections_are_not_kept_by_age()] == [
        "slipsnisse.E002"
    ]


@pytest.mark.parametrize(
    ("debug", "hosts", "found"),
    [(True, ["tools.example.org"], 1), (True, ["localhost"], 0), (False, ["tools.example.org"], 0)],
)
def test_tracebacks_are_for_this_machine_only(settings, debug, hosts, found):
    settings.DEBUG = debug
    settings.ALLOWED_HOSTS = hosts
    assert len(checks.tracebacks_stay_at_home()) == found


def test_any_host_name_is_refused(settings):
    settings.ALLOWED_HOSTS = ["*"]
    assert [problem.id for problem in checks.any_host_is_no_host()] == ["slipsnisse.E004"]


@pytest.mark.parametrize(
    "wrong",
    [
        "http://host/",
        "localhost:6274",
        "https://Host",
        "https://host:443",
        "http://host:80",
        "*",
        "null",
    ],
)
def test_what_no_browser_sends_as_its_origin_is_named(settings, wrong):
    right = [
        "http://localhost:6274",
        "https://host",
        "http://[::1]:1",
        "vscode-webview://0a-1f",
        "http://host:443",
    ]
    settings.MCP_ALLOWED_ORIGINS = ["http://own", *right, wrong]
    assert [wrong in problem.msg for problem in checks.origins_are_origins()] == [True]


@pytest.mark.attack
def test_code_that_runs_at_every_start_of_python_is_reported(tmp_path, monkeypatch):
    (tmp_path / "litellm_init.pth").write_text("import os; os.system('true')\n")
    (tmp_path / "distutils-precedence.pth").write_text("import os; __import__('evil')\n")
    (tmp_path / "paths_only.pth").write_text("/opt/somewhere\n# import nothing\n")
    monkeypatch.setattr(doctor, "_folders", lambda: [tmp_path])
    found = list(doctor._check_startup_code())
    assert [finding.ok for finding in found] == [False, False]
    assert "litellm_init.pth" in found[1].what


def test_the_startup_code_of_setuptools_is_known(tmp_path, monkeypatch):
    line = "import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os.environ.get(var, 'local') == 'local'; enabled and __import__('_distutils_hack'); "
    (tmp_path / "distutils-precedence.pth").write_text(line)
    monkeypatch.setattr(doctor, "_folders", lambda: [tmp_path])
    assert [finding.ok for finding in doctor._check_startup_code()] == [True]


def test_the_doctor_proves_that_notifications_come_and_that_the_pools_have_room(
    live_db, settings, monkeypatch
):
    """PostgreSQL only: SQLite needs neither."""
    settings.DATABASES["default"] = connection.settings_dict
    if connection.vendor == "sqlite":
        assert [*doctor._check_change_feed(), *doctor._check_connections()] == []
        return
    monkeypatch.setattr(sources, "check_delivery", partial(sources.check_delivery, HANG_LIMIT))
    assert [
        finding.ok for finding in (*doctor._check_change_feed(), *doctor._check_connections())
    ] == [True, True]
    # as behind PgBouncer in transaction mode
    monkeypatch.setattr(sources, "check_delivery", lambda: False)
    (finding,) = doctor._check_change_feed()
    assert not finding.ok
    assert "session mode" in finding.remedy


def test_doctor_lists_secrets_in_commands_and_addresses(db):
    assert [*doctor._check_exposed_secrets()] == []
    Server.objects.create(slug="flag", command=["/bin/x", "--api-key=canary"])
    Server.objects.create(
        slug="plain", command=["/bin/x", "--api-key=${cred:x}", "https://db.example/"]
    )
    Provider.objects.create(
        slug="far", kind="openai", base_url="https://app:canary@models.example/v1"
    )
    (finding,) = doctor._check_exposed_secrets()
    assert finding.what.endswith("server flag, provider far")
    assert "canary" not in str(finding)
    assert "${cred:NAME}" in finding.remedy


def test_the_doctor_says_how_far_servers_can_be_confined_and_which_are_not(db, monkeypatch):
    monkeypatch.setattr(confinement, "is_filter_supported", lambda: True)
    server = lifecycle.save_server(server=Server(slug="bare", command=["x"]), actor="test")
    lifecycle.confirm_launch(server=server, actor="test", launch_hash=server.launch_hash())
    monkeypatch.setattr(confinement, "get_landlock_version", lambda: 7)
    monkeypatch.setattr(bubblewrap, "explain_missing", lambda: "")
    whole, strict, bare = doctor._check_sandbox()
    assert (whole.ok, strict.ok, bare.ok) == (True, True, True)
    assert ("bare" in bare.what, "bubblewrap" in strict.what) == (True, True)
    monkeypatch.setattr(bubblewrap, "explain_missing", lambda: "bubblewrap is not installed")
    _, strict, _ = doctor._check_sandbox()
    assert (strict.ok, "apt install bubblewrap" in strict.what) == (True, True), (
        "no server asks for it"
    )
    Server.objects.update(sandbox="strict")
    _, strict = doctor._check_sandbox()
    assert (strict.ok, "bare" in strict.what, "not started" in strict.what) == (False, True, True)
    assert "apt install bubblewrap" in strict.remedy
    monkeypatch.setattr(confinement, "get_landlock_version", lambda: 0)
    none = next(iter(doctor._check_sandbox()))
    assert (none.ok, "no Landlock" in none.what, "6.12" in none.remedy) == (False, True, True)


def test_doctor_says_with_what_packages_are_installed(monkeypatch, tmp_path):
    said = {finding.what: finding.ok for finding in doctor._check_installers()}
    assert len(said) == 2
    assert any(message.startswith("packages can be installed with uv") for message in said)
    monkeypatch.setenv("PATH", str(tmp_path))
    without = [*doctor._check_installers()][1]
    assert (without.ok, "Node.js is required" in without.what) == (True, True)
    assert without.remedy
