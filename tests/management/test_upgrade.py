"""A site of an earlier release, with its rows, triggers and sealed secrets, is brought to this one."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests import migrated, releases
from tests.fakes import elsewhere

pytestmark = [pytest.mark.e2e, pytest.mark.one_database, pytest.mark.timeout(400), pytest.mark.django_db]


def test_a_site_of_an_earlier_release_comes_to_this_one_whole(tmp_path: Path) -> None:
    site = elsewhere.on_sqlite(tmp_path / "var", migrate=False)
    site.env.update(releases.KEYS)
    releases.put("site_0012", site.var)
    before = site.shown("apps.get_model('mcpregistry.Configuration').objects.values_list('revision', flat=True)[0]")
    code, said = site.run("migrate", "--verbosity", "0")
    assert code == 0, said
    site.assert_whole()
    calls, agents, scope, revision = site.shown(
        "[list(apps.get_model('mcpregistry.Invocation').objects.values_list('state', flat=True)), "
        "list(apps.get_model('mcpregistry.Agent').objects.values_list('slug', flat=True)), "
        "apps.get_model('mcpregistry.Credential').objects.get(name='db').scope, "
        "apps.get_model('mcpregistry.Configuration').load().revision]"
    )
    assert (calls, agents, scope) == (["succeeded"], ["robot"], ["server:db"])
    assert revision > before, "running processes look anew"
    assert site.shown(
        "__import__('mcpregistry.services.servers.targets').services.servers.targets.target_for(1).env"
    ) == {"TOKEN": "not-a-secret"}
    migrated.put_into(tmp_path / "new")
    assert schema(site.var) == schema(tmp_path / "new"), "a new site's tables are made at once, and are the same"
    assert site.run("migrate", "--verbosity", "0")[0] == 0
    again = site.shown("apps.get_model('mcpregistry.Configuration').load().revision")
    assert again == revision, "where there is nothing to do, nobody looks anew"


def schema(var: Path) -> dict[str, Any]:
    """Of the database in this folder: each table's columns, foreign keys and constraints, each index and trigger."""
    found: dict[str, Any] = defaultdict(list)
    with closing(sqlite3.connect(var / "slipsnisse.sqlite3")) as database:
        for kind, name, written in database.execute("SELECT type, name, sql FROM sqlite_master"):
            found[f"{kind} {name}"].append(_pieces(written))
            if kind == "table":
                keys = database.execute(f'PRAGMA foreign_key_list("{name}")')
                found[f"keys of {name}"] = sorted(key[2:] for key in keys)
    return dict(found)


def _pieces(written: str | None) -> list[str]:
    """Columns and constraints, whatever their order: those that came later stand last."""
    return sorted(re.split(r', (?="|CONSTRAINT)', (written or "").removesuffix(")")))
