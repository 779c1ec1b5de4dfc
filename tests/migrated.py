"""The migrated database, kept for as long as the code stays as it is: each test process copies it
instead of migrating.

A process that migrates costs 3 s of CPU, and a run of the suite has six. The first that finds
nothing kept makes it, while the others wait; they meet at a lock on a file beside it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg
from django.core.management import call_command
from django.db import connection
from psycopg import sql

from tests.externals import ROOT

# on PostgreSQL: the migrated database once more, for whoever makes another one like it
NEW_SITE = "new_site"
_KEPT = ROOT / ".cache" / "databases"
STATE = (
    # in the environment: the state of the code whose database serves, although the code has changed
    "TESTS_MIGRATED"
)
_STATES = 4  # of the code, whose databases are kept


class Kept:
    """One database: a file of SQLite, or the data folder of PostgreSQL."""

    def __init__(self, vendor: str) -> None:
        self._path = _KEPT / f"{vendor}-{os.environ.get(STATE) or state_of_code()}"

    @contextmanager
    def found(self) -> Iterator[Path | None]:
        """What is kept. If that is nothing, others wait until the block ends, in which it should be
        made and kept."""
        _KEPT.mkdir(parents=True, exist_ok=True)
        with (_KEPT / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._path.exists():
                fcntl.flock(lock, fcntl.LOCK_UN)
                with suppress(OSError):
                    os.utime(self._path)
                yield self._path
            else:
                yield None

    def keep(self, data: Path) -> None:
        """Call it right after migrating, while nobody writes to the database."""
        half = self._path.with_suffix(".half")
        shutil.rmtree(half, ignore_errors=True)
        half.unlink(missing_ok=True)
        if data.is_dir():
            _copy_as_template()
            with connection.cursor() as cursor:
                # what is copied now, a server takes for its own after a power failure
                cursor.execute("CHECKPOINT")
            shutil.copytree(data, half, ignore=shutil.ignore_patterns("postmaster.*"))
        else:
            with closing(sqlite3.connect(data)) as source, closing(sqlite3.connect(half)) as target:
                source.backup(target)
        half.rename(self._path)
        _forget_old()


def _copy_as_template() -> None:
    """PostgreSQL copies a database that nobody is connected to, so from the one beside it."""
    default = connection.settings_dict
    connection.close()
    connection.close_pool()  # type: ignore[attr-defined]
    where = {"host": default["HOST"], "port": default["PORT"], "user": default["USER"]}
    with psycopg.connect(dbname="template1", autocommit=True, **where) as beside:
        beside.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                *map(sql.Identifier, (NEW_SITE, default["NAME"]))
            )
        )


def put_into(var: Path) -> None:
    """The embedded database of a new site in ``var``, as `manage.py migrate` leaves it there."""
    var.mkdir(parents=True, exist_ok=True, mode=0o700)
    data = var / "slipsnisse.sqlite3"
    kept = Kept("sqlite")
    with kept.found() as found:
        if found:
            shutil.copy(found, data)
        else:
            env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
            command = [sys.executable, "manage.py", "migrate", "--verbosity=0"]
            subprocess.run(command, cwd=ROOT, env=env | {"SLIPSNISSE_VAR": str(var)}, check=True)
            kept.keep(data)
    data.chmod(0o600)


def migrate() -> None:
    call_command("migrate", verbosity=0, interactive=False)


def state_of_code() -> str:
    """Of all code that migrating may run, and of the libraries."""
    seen = hashlib.sha256((ROOT / "requirements-dev.lock").read_bytes())
    for package in ("controlplane", "mcpregistry", "subagents"):
        for path in sorted((ROOT / package).rglob("*.py")):
            seen.update(path.read_bytes())
    return seen.hexdigest()[:16]


def _forget_old() -> None:
    newest_first = sorted(_KEPT.glob("*-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in newest_first[2 * _STATES :]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
