"""Leases are written and compared by the database's clock: machines whose own clocks differ do not
steal work."""

from __future__ import annotations

import socket
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from mcpregistry import db, tasks
from mcpregistry.db import note_clock, read_database_now
from mcpregistry.models import Invocation, Server, SiteProcess
from mcpregistry.services.servers.checks import claim_due
from mcpregistry.services.servers.connections import make_process_name
from mcpregistry.services.tasks import remote_tasks
from mcpregistry.services.upkeep import reaping
from tests.services.rows import confirmed, dispatched


def assert_is_now() -> None:
    """The reading is this machine's time, as exact as the time that it took allows."""
    before = datetime.now(UTC)
    told = read_database_now()
    after = datetime.now(UTC)
    doubt = after - before + timedelta(seconds=1)
    assert before - doubt < told < after + doubt


def test_it_is_the_databases_time(db_reading: None, transactional_db: None) -> None:
    """On SQLite that is this machine's; PostgreSQL here runs on this machine, so the two agree as
    well."""
    assert_is_now()
    first = read_database_now()
    assert first <= read_database_now()


def test_a_machine_whose_clock_is_wrong_goes_by_the_databases(
    db_reading: None, transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading is reckoned on by the steady clock, whatever this machine's calendar says
    meanwhile."""
    if connection.vendor == "sqlite":  # one machine, one clock
        assert_is_now()
        return
    monkeypatch.setattr(db, "_CLOCK_HOLDS", 600.0)
    ahead = datetime.now(UTC) + timedelta(hours=5)
    began = time.monotonic()
    note_clock(ahead, began)
    told = read_database_now()
    assert ahead <= told <= ahead + timedelta(seconds=time.monotonic() - began)
    monkeypatch.setattr(db, "_CLOCK_HOLDS", 0.0)  # the reading is old: the database is asked again
    assert_is_now()


def test_a_worker_whose_clock_is_wrong_buries_nobody_else_with_its_predecessor(
    db_reading: None, transactional_db: None, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.PREDECESSOR = 47
    monkeypatch.setattr(db, "_CLOCK_HOLDS", 600.0)
    # that far is this machine ahead
    note_clock(datetime.now(UTC) - timedelta(hours=5), time.monotonic())
    alive = read_database_now() + timedelta(hours=1)
    own = f"worker:{socket.gethostname()[:24]}:47:aaaa"
    SiteProcess.objects.create(pk=own, name=make_process_name("worker", 47), lease_until=alive)
    dispatched("own", writer=f"{own}.1", lease_until=alive)
    dispatched("another", writer="web:elsewhere:12:bbbb", lease_until=alive)
    confirmed("checked")
    claim_due(1, answering=False, worker=own)
    tasks._bury_predecessor()
    assert not Server.objects.get().check_until
    assert dict(Invocation.objects.values_list("pk", "state")) == {
        "own": "unknown",
        "another": "dispatched",
    }


def test_a_clock_that_is_ahead_takes_no_living_call_or_task_for_dead(
    db_reading: None, transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # that far is this machine ahead
    note_clock(datetime.now(UTC) - timedelta(hours=5), time.monotonic())
    monkeypatch.setattr(db, "_CLOCK_HOLDS", 600.0)  # however long the next lines take
    alive = read_database_now() + timedelta(hours=1)
    monkeypatch.setattr(reaping, "note_clock_look", lambda now: True)
    dispatched("call", lease_until=alive)
    server = confirmed("far", transport="http", url="https://example.org/mcp", command=[])
    dispatched("task", lease_until=alive)
    followed = remote_tasks.adopt_task(
        call_id="task",
        fence=0,
        agent="local",
        endpoint="default",
        server_id=server.pk,
        downstream_id="theirs",
        ttl_ms=None,
        poll_ms=500,
    )
    tasks.reap()
    assert set(Invocation.objects.values_list("state", flat=True)) == {"dispatched"}
    assert remote_tasks.list_orphaned_tasks() == []
    assert remote_tasks.take_over_task(task_id=followed.task_id) is None
    # now they are over, by the same clock
    note_clock(datetime.now(UTC) + timedelta(hours=5), time.monotonic())
    if connection.vendor == "postgresql":
        assert remote_tasks.list_orphaned_tasks() == [followed.task_id]


@pytest.fixture
def db_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test notes is forgotten after it."""
    monkeypatch.setattr(db, "_reading", None)
