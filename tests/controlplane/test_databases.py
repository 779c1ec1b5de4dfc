"""Both databases really are what the suite says, and forget everything between tests."""

from __future__ import annotations

import subprocess
from pathlib import Path
from threading import Thread

import pytest
from django.contrib.auth.models import Group
from django.db import connection, connections

from controlplane.databases import settings_for
from tests import forkserver


def test_sqlite_opens_writers_at_once_and_never_waits_for_a_lock_upgrade():
    settings = settings_for("", Path("/site"))
    assert settings["NAME"] == "/site/slipsnisse.sqlite3"
    assert settings["OPTIONS"]["transaction_mode"] == "IMMEDIATE"
    assert (
        settings_for("sqlite:////elsewhere/x.sqlite3", Path("/site"))["NAME"]
        == "/elsewhere/x.sqlite3"
    )


def test_postgres_gets_a_pool_and_keeps_no_connection_by_age():
    settings = settings_for("postgres://me:pw@%2Frun%2Fpg:5433/site?sslmode=require", Path("/site"))
    assert (settings["HOST"], settings["PORT"], settings["NAME"]) == ("/run/pg", 5433, "site")
    assert settings["CONN_MAX_AGE"] == 0
    assert settings["CONN_HEALTH_CHECKS"] is True  # a pooled connection is tried when it is taken
    assert settings["OPTIONS"]["sslmode"] == "require"
    assert settings["OPTIONS"]["pool"] == {
        "min_size": 1,
        "max_size": 20,
        "timeout": 3.0,
        "reconnect_timeout": 2.0,
    }
    assert (
        settings_for("postgres://me@db/site", Path("/site"), 50)["OPTIONS"]["pool"]["max_size"]
        == 50
    )


def test_what_the_address_says_of_timeouts_goes_first():
    options = settings_for("postgres://me@db/site?connect_timeout=9", Path("/site"))["OPTIONS"]
    assert (str(options["connect_timeout"]), options["tcp_user_timeout"]) == ("9", 8_000)


@pytest.mark.django_db
def test_the_suite_runs_on_the_database_that_was_asked_for(pytestconfig):
    assert connection.vendor == ("postgresql" if pytestconfig.getoption("--postgres") else "sqlite")
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            assert cursor.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("_round", [1, 2])
def test_live_rows_are_seen_by_other_threads_and_gone_afterwards(live_db, _round):
    assert not Group.objects.filter(name="seen").exists()
    Group.objects.create(name="seen")
    found: list[bool] = []

    def look() -> None:
        found.append(Group.objects.filter(name="seen").exists())
        connections.close_all()

    thread = Thread(target=look)
    thread.start()
    thread.join()
    assert found == [True]


def test_live_rows_are_seen_by_a_child_process(site_env):
    Group.objects.create(name="seen")
    code = "import django; django.setup(); from django.contrib.auth.models import Group; print(Group.objects.filter(name='seen').count())"
    child = forkserver.popen(["-c", code], env=site_env, stdout=subprocess.PIPE)
    assert (child.communicate(), child.wait()) == (("1\n", None), 0)
