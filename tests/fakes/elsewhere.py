"""Another site, whose database is empty: a folder of its own with SQLite, or a new database on the
test's PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import connections

from tests import forkserver, migrated
from tests.conftest import child_env
from tests.waiting import HANG_LIMIT

PASSPHRASE = "correct horse battery"
_SHOW = "import django; django.setup(); import json; print(json.dumps({expression}, default=str))"


@dataclass(frozen=True)
class Site:
    """``env`` is for its processes."""

    env: dict[str, str]

    @property
    def var(self) -> Path:
        return Path(self.env["SLIPSNISSE_VAR"])

    def run(self, *words: str, stdin: str = "", **env: str) -> tuple[int, str]:
        """``manage.py words``: exit code, and what it said on both channels.

        Only what needs the passphrase has it: processes of one environment share what they have
        read, and a restore changes the keys.
        """
        if words[0] in ("backup", "restore"):
            env = {"SLIPSNISSE_BACKUP_PASSPHRASE": PASSPHRASE} | env
        with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as given:
            given.write(stdin)
            given.seek(0)
            process = forkserver.popen(
                ["manage.py", *words], env=self.env | env, stdin=given, stdout=said, stderr=said
            )
            code = process.wait(timeout=4 * HANG_LIMIT)  # a backup or a restore may take minutes
            said.seek(0)
            return code, said.read()

    def shown(self, expression: str) -> Any:
        """The value of an expression there, after JSON; models are looked up with
        ``apps.get_model``."""
        code = "from django.apps import apps; " + _SHOW.format(expression=expression)
        process = forkserver.popen(["-c", code], env=self.env, stdout=subprocess.PIPE)
        assert process.stdout
        text = process.stdout.read()
        assert process.wait(timeout=HANG_LIMIT) == 0
        return json.loads(text)

    def assert_whole(self) -> None:
        """The audit log and the invariants hold there, as an operator would look."""
        assert self.run("audit", "verify")[0] == 0
        code, said = self.run("invariants")
        assert code == 0, said


def here() -> Site:
    """The test's own database, for commands in processes of their own."""
    return Site(child_env())


def on_sqlite(var: Path, *, migrate: bool = True) -> Site:
    """A new site in a folder; ``migrate`` spares whoever restores into it the making of tables."""
    if migrate:
        migrated.put_into(var)
    env = child_env() | {"SLIPSNISSE_VAR": str(var)}
    del env["DATABASE_URL"]
    return Site(env)


def on_postgres(var: Path, *, migrate: bool = True) -> Site:
    """A new site with a database of its own, on the server that the test's database is on;
    ``migrate`` as above."""
    name = f"site_{uuid.uuid4().hex[:12]}"
    with connections["default"].cursor() as cursor:
        cursor.execute(
            f"CREATE DATABASE {name} TEMPLATE {migrated.NEW_SITE if migrate else 'template1'}"
        )
    env = child_env()
    url = f"{env['DATABASE_URL'].rpartition('/')[0]}/{name}"
    return Site(env | {"SLIPSNISSE_VAR": str(var), "DATABASE_URL": url})


def of_the_same_kind(var: Path, *, migrate: bool = True) -> Site:
    """On a database like the test's."""
    on = on_postgres if connections["default"].vendor == "postgresql" else on_sqlite
    return on(var, migrate=migrate)
