"""Two probes for whoever watches the process.

``/healthz``: the process answers at all; touches nothing else. ``/readyz``: it may get traffic, that is,
the database answers, its migrations are applied, and the gateway holds its snapshot.
Both answer to any host name: probes come by address.
"""

from __future__ import annotations

import json

import structlog
from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor

from mcpregistry.db import db_call

log = structlog.get_logger(__name__)

PROBES = frozenset({"/healthz", "/readyz"})


def unapplied_migrations() -> list[str]:
    """Names like ``mcpregistry.0002_more``; raises the database's error when it does not answer."""
    executor = MigrationExecutor(connections[DEFAULT_DB_ALIAS])
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return [f"{migration.app_label}.{migration.name}" for migration, _ in plan]


class HealthProbes:
    def __init__(self) -> None:
        self.gateway_is_up = False
        self._migrated = False

    def answers(self, path: str) -> bool:
        return path in PROBES

    async def __call__(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        state = {} if scope["path"] == "/healthz" else await self._state()
        healthy = all(value == "ok" for value in state.values())
        body = json.dumps({"status": "ok" if healthy else "not ready", **state}).encode()
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        status = 200 if healthy else 503
        await send({"type": "http.response.start", "status": status, "headers": headers, "trailers": False})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _state(self) -> dict[str, str]:
        database, migrations = await self._database()
        return {"database": database, "migrations": migrations, "gateway": "ok" if self.gateway_is_up else "starting"}

    async def _database(self) -> tuple[str, str]:
        """Migrations are compared until they are complete once: this process's code does not change later."""
        try:
            if not self._migrated:
                self._migrated = not await db_call(unapplied_migrations)
            else:
                await db_call(_ping)
        except Exception:  # a probe reports, whatever the driver throws
            log.warning("The database does not answer", exc_info=True)
            return "unreachable", "unknown"
        return "ok", "ok" if self._migrated else "missing: run manage.py migrate"


def _ping() -> None:
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute("SELECT 1")
