"""Rows of docs/faults.md with the real parts: PostgreSQL is stopped under load and started again;
PgBouncer is before it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from django.db import connection, connections
from django.db.utils import load_backend

from mcpregistry.db import stream_rows
from mcpregistry.models import Agent, AuditEntry
from tests import pgbouncer
from tests.fault.load import Load, disagreements, served
from tests.fault.refusals import let_go
from tests.fault.test_database_errors import tidy
from tests.postgres import USER, Postgres
from tests.waiting import until

pytestmark = [pytest.mark.fault, pytest.mark.e2e, pytest.mark.postgres_only]


@contextmanager
def durable(server: Postgres) -> Iterator[None]:
    """Commits of others are on disk before they return, as in production and unlike in other tests.
    At the end it runs."""
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER ROLE {USER} SET synchronous_commit = on")
    try:
        yield
    finally:
        server.start()
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER ROLE {USER} RESET synchronous_commit")
        # connections opened since then keep the setting, and the next test would get one of them
        let_go()


def read_through(url: str) -> int:
    """How many entries the audit log has, read one by one by this address: others get each session
    in between."""
    settings = copy.deepcopy(connection.settings_dict) | {
        "HOST": unquote(urlsplit(url).hostname or ""),
        "PORT": "6432",
    }
    settings["OPTIONS"].pop("pool")
    through = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, "default")
    connections["default"] = through
    try:
        return sum(1 for _ in stream_rows(AuditEntry.objects.order_by("id"), 1))
    finally:
        through.close()


@pytest.mark.usefixtures("live_db")
def test_postgresql_is_stopped_under_load_and_started_again(
    database_server: Postgres, tmp_path: Path
) -> None:
    async def outage() -> None:
        async with load.running():
            await load.until_told(200)
            await asyncio.to_thread(database_server.stop)
            await load.until_told(503)
            assert (await load.until_ready(503))["database"] == "unreachable"
            # by this thread: the kernel ends it with the one that started it
            database_server.start()
            await load.until_ready(200)
            await load.until_told(200)

    with durable(database_server), served(tmp_path / "journal") as (site, token):
        load = Load(site, token)
        let_go()
        asyncio.run(outage())
    assert disagreements(load, tmp_path / "journal") == []
    tidy()


@pytest.mark.pgbouncer
@pytest.mark.usefixtures("live_db")
def test_behind_a_real_pgbouncer_that_pools_transactions(
    database_server: Postgres, tmp_path: Path
) -> None:
    async def polls() -> dict[str, str]:
        said = await load.until_ready(200)
        return said if said["changes"] == "polling" else {}

    async def used() -> dict[str, str]:
        async with load.running():
            await load.until_told(200)
            said = await until(polls)
            told = len(load.told)  # others are told meanwhile
            assert await asyncio.to_thread(read_through, url) > 2 * told
            await asyncio.to_thread(switched_off)
            await load.until_told(401)
        return said

    def switched_off() -> None:
        Agent.objects.filter(slug="local").update(enabled=False)
        connections.close_all()

    with (
        pgbouncer.running(str(database_server.folder), USER) as url,
        served(tmp_path / "journal", url) as (site, token),
    ):
        load = Load(site, token)
        assert asyncio.run(used())["recording"] == "ok"
    assert disagreements(load, tmp_path / "journal") == []
    tidy()
