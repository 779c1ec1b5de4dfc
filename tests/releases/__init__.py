"""Databases as earlier releases left them, to be brought to this one: SQLite's dump of a small site each.

``site_0012`` is from before secrets had scopes (migrations up to mcpregistry 0012 and subagents 0003). Its secrets are
sealed with KEYS.
"""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

KEYS = {"SLIPSNISSE_SECRET_KEY": "not-a-secret-" * 5, "SLIPSNISSE_KEYS": "k1:" + "A" * 43 + "="}


def put(name: str, var: Path) -> None:
    """Put this database into the site's folder, which is made."""
    var.mkdir(mode=0o700)
    dump = gzip.decompress((Path(__file__).parent / f"{name}.sql.gz").read_bytes()).decode()
    with closing(sqlite3.connect(var / "slipsnisse.sqlite3")) as database:
        database.executescript(dump)
