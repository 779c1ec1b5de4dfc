"""A PostgreSQL under one address, which leads to its standby after a failover.

The address is a link to the folder of the primary's socket, as a virtual IP address would be.
Commits are synchronous, so a failover loses none. The site has a role that owns the database, and
is no superuser.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from tests import postgres
from tests.fault import volume
from tests.fault.refusals import ROLE
from tests.waiting import eventually

DATABASE = "site"
_SETTINGS = ("synchronous_commit=on", "wal_level=replica", "hot_standby=on")
_MEGABYTES = 400  # of the volume of each server


class Cluster:
    """Make it by ``cluster``."""

    def __init__(self, address: Path, own_volume: bool) -> None:
        self.address = address
        self._volume = partial(volume.mounted, megabytes=_MEGABYTES) if own_volume else None
        self._begin(None)

    def url(self, role: str) -> str:
        """For ``DATABASE_URL``."""
        return f"postgres://{role}@{str(self.address).replace('/', '%2F')}:5432/{DATABASE}"

    def superuser(self, database: str = DATABASE) -> psycopg.Connection[Any]:
        """A session with the primary."""
        return psycopg.connect(
            host=str(self.address), user=postgres.USER, dbname=database, autocommit=True
        )

    def make_database(self) -> None:
        """An empty one for the site."""
        with self.superuser("postgres") as raw:
            raw.execute(f"CREATE ROLE {ROLE} LOGIN")
            raw.execute(f"CREATE DATABASE {DATABASE} OWNER {ROLE}")

    def stop(self) -> None:
        """End the server that is the primary now."""
        self._resources.close()

    @contextmanager
    def restarting(self) -> Iterator[None]:
        """The server is gone within."""
        self.primary.stop()
        yield
        self.primary.start()

    @contextmanager
    def failing_over(self) -> Iterator[None]:
        """The primary is lost, and the address leads to its standby, which is promoted at the
        end."""
        old = self._resources
        lost = self.primary
        self._begin(lost)
        self._follow(lost)
        lost.stop()
        self._lead()
        yield
        with self.superuser("postgres") as raw:
            raw.execute("SELECT pg_promote(true, 60)")
        old.close()

    @contextmanager
    def full(self) -> Iterator[None]:
        """The volume of the data has no room."""
        with volume.full(self.primary.data):
            yield

    @contextmanager
    def configured(self, setting: str, value: str) -> Iterator[None]:
        """The server has this setting in all sessions, also in those that are open."""
        with self.superuser("postgres") as raw:
            raw.execute(f"ALTER SYSTEM SET {setting} = '{value}'")
            raw.execute("SELECT pg_reload_conf()")
            yield
            raw.execute(f"ALTER SYSTEM RESET {setting}")
            raw.execute("SELECT pg_reload_conf()")

    @contextmanager
    def crowded(self) -> Iterator[None]:
        """The site's role may open no session more, and has lost those that it had."""
        with self.superuser() as raw:
            raw.execute(f"ALTER ROLE {ROLE} CONNECTION LIMIT 0")
            raw.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s",
                [ROLE],
            )
            yield
            raw.execute(f"ALTER ROLE {ROLE} CONNECTION LIMIT -1")

    def _begin(self, primary: postgres.Postgres | None) -> None:
        self._resources = ExitStack()
        self.primary = self._resources.enter_context(
            postgres.running(of=primary, settings=_SETTINGS, volume=self._volume)
        )
        if primary is None:
            self._lead()

    def _lead(self) -> None:
        fresh = self.address.with_suffix(".new")
        fresh.symlink_to(self.primary.folder)
        os.replace(fresh, self.address)

    def _follow(self, primary: postgres.Postgres) -> None:
        """From now on each commit waits for the standby."""
        with psycopg.connect(
            host=str(primary.folder), user=postgres.USER, dbname="postgres", autocommit=True
        ) as raw:
            raw.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            raw.execute("SELECT pg_reload_conf()")
            eventually(
                lambda: raw.execute(
                    "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
                ).fetchone()
            )


@contextmanager
def cluster(*, own_volume: bool) -> Iterator[Cluster]:
    """A primary with an empty database. ``own_volume``: it can be filled."""
    with tempfile.TemporaryDirectory(prefix="slipsnisse-cluster-", dir="/tmp") as folder:
        made = Cluster(Path(folder) / "current", own_volume)
        try:
            made.make_database()
            yield made
        finally:
            made.stop()
