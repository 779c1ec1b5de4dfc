"""Leases are written and compared by the database's clock: machines whose own clocks differ do not steal work."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from mcpregistry import db
from mcpregistry.db import database_now, note_clock


def test_it_is_the_databases_time(db_reading: None, transactional_db: None) -> None:
    """On SQLite that is this machine's; PostgreSQL here runs on this machine, so the two agree as well."""
    assert abs(database_now() - datetime.now(UTC)) < timedelta(seconds=5)
    first = database_now()
    assert first <= database_now()


def test_a_machine_whose_clock_is_wrong_goes_by_the_databases(
    db_reading: None, transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading is reckoned on by the steady clock, whatever this machine's calendar says meanwhile."""
    if connection.vendor == "sqlite":  # one machine, one clock
        assert abs(database_now() - datetime.now(UTC)) < timedelta(seconds=5)
        return
    ahead = datetime.now(UTC) + timedelta(seconds=40)
    note_clock(ahead, time.monotonic())
    assert timedelta(seconds=39) < database_now() - datetime.now(UTC) < timedelta(seconds=45)
    monkeypatch.setattr(db, "_CLOCK_HOLDS", 0.0)  # the reading is old: the database is asked again
    assert abs(database_now() - datetime.now(UTC)) < timedelta(seconds=5)


@pytest.fixture
def db_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test notes is forgotten after it."""
    monkeypatch.setattr(db, "_reading", None)
