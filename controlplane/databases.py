"""The one place that turns a database address into Django's settings, for the site and for its
tests.

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


# Seconds, unless the address says otherwise: whoever is cut off from the database hears it soon,
# also where the network just swallows what is sent, and what waits for a connection gives up while
# its caller still listens.
_PATIENCE = {
    "connect_timeout": 3,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 8_000,
}
_POOL_TIMEOUT = 3.0  # seconds that a thread waits for a connection
# a pool's own pauses grow without bound otherwise; whoever comes next makes it try again
_RECONNECT_SECONDS = 2.0
# connections of one process: 8 database threads, the recorder, and what web or worker threads hold
DEFAULT_POOL = 20


def settings_for(url: str, var: Path, pool_size: int = DEFAULT_POOL) -> dict[str, Any]:
    """``DATABASES["default"]`` for ``url``; an empty address means SQLite in the folder ``var``.

    Pooled connections are tried when they are taken (``CONN_HEALTH_CHECKS``): after a failover, or
    where a firewall cuts idle ones, nobody is handed a dead one.
    """
    parsed: dict[str, Any] = (
        dict(environ.Env.db_url_config(url)) if url else {"ENGINE": "django.db.backends.sqlite3"}
    )
    if parsed["ENGINE"] == "django.db.backends.sqlite3":
        return parsed | {
            "NAME": str(parsed.get("NAME") or var / "slipsnisse.sqlite3"),
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": _SQLITE},
        }
    # libpq's form for a unix socket: postgres://user@%2Frun%2Fpostgresql/name
    host = unquote(parsed.get("HOST") or "")
    pool = {
        "min_size": 1,
        "max_size": pool_size,
        "timeout": _POOL_TIMEOUT,
        "reconnect_timeout": _RECONNECT_SECONDS,
    }
    options = _PATIENCE | parsed.get("OPTIONS", {}) | {"pool": pool}
    return parsed | {
        "HOST": host,
        "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": options,
    }
