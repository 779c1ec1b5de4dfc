"""The one place that turns a database address into Django's settings, for the site and for its tests.

SQLite runs in WAL mode and opens every transaction as a writer: no lost update and no
"database is locked" between web, worker and ``runmcp``. PostgreSQL gets a small pool per process,
because under ASGI every request has its own thread and kept connections would pile up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import environ

_SQLITE = (
    "PRAGMA journal_mode=WAL;PRAGMA synchronous=NORMAL;PRAGMA temp_store=MEMORY;"
    "PRAGMA mmap_size=134217728;PRAGMA journal_size_limit=27103364;PRAGMA cache_size=-20000;"
)


def settings_for(url: str, var: Path) -> dict[str, Any]:
    """``DATABASES["default"]`` for ``url``; an empty address means SQLite in the folder ``var``."""
    parsed: dict[str, Any] = dict(environ.Env.db_url_config(url)) if url else {"ENGINE": "django.db.backends.sqlite3"}
    if parsed["ENGINE"] == "django.db.backends.sqlite3":
        return parsed | {
            "NAME": str(parsed.get("NAME") or var / "slipsnisse.sqlite3"),
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": _SQLITE},
        }
    # libpq's form for a unix socket: postgres://user@%2Frun%2Fpostgresql/name
    host = unquote(parsed.get("HOST") or "")
    pool = {"pool": {"min_size": 1, "max_size": 8}}
    return parsed | {"HOST": host, "CONN_MAX_AGE": 0, "OPTIONS": parsed.get("OPTIONS", {}) | pool}
