"""What the settings promise, read by fresh processes as an operator would start them."""

from __future__ import annotations

import base64
import os
import subprocess
import sys

import pytest
from django.conf import settings

from tests.externals import ROOT

_PRODUCTION = {
    "SLIPSNISSE_HTTPS": "1",
    "SLIPSNISSE_HOSTS": "tools.example.org",
    "SLIPSNISSE_URL": "https://tools.example.org",
    "SLIPSNISSE_SECRET_KEY": "s3cret-" + "abcdefghij" * 5,
    "SLIPSNISSE_KEYS": "k1:" + base64.b64encode(bytes(32)).decode(),
    "DATABASE_URL": "postgres://site:pw@db.example.org/site",
    "CELERY_BROKER_URL": "redis://broker.example.org:6379/0",
}


def _python(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=os.environ | env, capture_output=True, text=True
    )


@pytest.mark.exhaustive
def test_production_settings_pass_djangos_deployment_checks_without_a_warning():
    done = _python("manage.py", "check", "--deploy", "--fail-level", "WARNING", **_PRODUCTION)
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


@pytest.mark.exhaustive
def test_a_half_finished_production_site_is_told_all_that_is_missing():
    env = {
        name: value
        for name, value in _PRODUCTION.items()
        if name not in ("CELERY_BROKER_URL", "SLIPSNISSE_KEYS")
    }
    done = _python("manage.py", "check", "--deploy", "--fail-level", "WARNING", **env)
    assert done.returncode == 1
    assert "slipsnisse.W002" in done.stderr
    assert "slipsnisse.W003" in done.stderr


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize("process", ["runmcp", "worker", "beat"])
def test_lean_processes_load_no_pages_no_litellm_no_scanner_and_no_mcp_client_at_their_start(
    process,
):
    large = {"unfold", "ninja", "litellm", "mcp", "mcpregistry.domain.definitions.scanner"}
    code = f"import sys, django; django.setup(); print(sorted({large} & set(sys.modules)))"
    done = _python("-c", code, SLIPSNISSE_PROCESS=process)
    assert done.stdout == "[]\n", done.stderr


def test_tasks_are_repeated_after_a_crash_and_only_json_is_understood():
    from controlplane.celery import app

    assert app.conf.task_acks_late
    assert app.conf.task_reject_on_worker_lost
    assert app.conf.worker_prefetch_multiplier == 1
    assert app.conf.accept_content == ["json"]
    assert app.conf.worker_redirect_stdouts is False
    assert app.conf.broker_transport_options["unacked_restore_throttle"] == 1


def test_every_tick_names_a_task_that_exists():
    from controlplane.celery import app

    app.loader.import_default_modules()
    assert set(settings.TICKS) <= set(app.tasks)
    assert {
        entry["task"]: entry["schedule"] for entry in settings.CELERY_BEAT_SCHEDULE.values()
    } == settings.TICKS


def test_redis_options_are_not_pressed_on_another_broker():
    code = "from django.conf import settings; print(hasattr(settings, 'CELERY_BROKER_TRANSPORT_OPTIONS'))"
    assert _python("-c", code, CELERY_BROKER_URL="amqp://broker").stdout == "False\n"


def test_a_relative_folder_is_taken_from_the_project_wherever_a_host_starts_us(tmp_path):
    code = "from django.conf import settings; print(settings.VAR_DIR)"
    env = os.environ | {
        "SLIPSNISSE_VAR": "somewhere",
        "SLIPSNISSE_SECRET_KEY": "x",
        "SLIPSNISSE_KEYS": _PRODUCTION["SLIPSNISSE_KEYS"],
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.stdout == f"{ROOT / 'somewhere'}\n", done.stderr
