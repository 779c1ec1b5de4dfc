"""A database of the newest release is brought to this version; before the first release, one of the
last commit."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests import migrated
from tests.externals import ROOT
from tests.fakes import elsewhere

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.one_database,
    pytest.mark.exhaustive,
    pytest.mark.django_db,
]


def test_database_of_the_newest_release_is_migrated_to_this_version(tmp_path: Path) -> None:
    unpack(newest_release(), tmp_path / "code")
    site = elsewhere.on_sqlite(tmp_path / "var", migrate=False)
    subprocess.run(
        [sys.executable, "manage.py", "migrate"], cwd=tmp_path / "code", env=site.env, check=True
    )
    code, output = site.run("migrate", "--verbosity", "0")
    assert code == 0, output
    site.assert_whole()
    migrated.put_into(tmp_path / "new")
    assert schema(site.var) == schema(tmp_path / "new"), (
        "an upgraded site has the tables of a new one"
    )


def test_database_from_before_the_first_release_is_refused(tmp_path: Path) -> None:
    site = elsewhere.on_sqlite(tmp_path / "var", migrate=False)
    site.var.mkdir()
    with closing(sqlite3.connect(site.var / "slipsnisse.sqlite3")) as database:
        database.execute("CREATE TABLE mcpregistry_server (id INTEGER PRIMARY KEY)")
    before = schema(site.var)
    code, output = site.run("migrate")
    assert code == 1
    assert "before the first release" in output
    assert "Use an empty database" in output
    assert schema(site.var) == before


def newest_release() -> str:
    """Return the newest tag before this commit, or the commit itself if there is no tag."""
    found = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0"], cwd=ROOT, capture_output=True, text=True
    )
    return found.stdout.strip() or "HEAD"


def unpack(revision: str, folder: Path) -> None:
    packed = subprocess.run(
        ["git", "archive", revision], cwd=ROOT, capture_output=True, check=True
    ).stdout
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True)


def schema(var: Path) -> dict[str, Any]:
    """Each table's columns, foreign keys and constraints, and each index and trigger of the
    database in this folder."""
    found: dict[str, Any] = defaultdict(list)
    with closing(sqlite3.connect(var / "slipsnisse.sqlite3")) as database:
        for kind, name, written in database.execute("SELECT type, name, sql FROM sqlite_master"):
            found[f"{kind} {name}"].append(split_definition(written))
            if kind == "table":
                keys = database.execute(f'PRAGMA foreign_key_list("{name}")')
                found[f"keys of {name}"] = sorted(key[2:] for key in keys)
    return dict(found)


def split_definition(written: str | None) -> list[str]:
    """Columns and constraints in one order: in an upgraded table, those that were added later stand
    last."""
    return sorted(re.split(r', (?="|CONSTRAINT)', (written or "").removesuffix(")")))
