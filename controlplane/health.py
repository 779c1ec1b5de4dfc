"""Two probes for whoever watches the process.

``/healthz``: the process answers at all; touches nothing else. ``/readyz``: it may get traffic, that is,
the database answers, its migrations are applied, a call could be recorded, the process hears of changes (or
asks for them), and the gateway holds its snapshot. Says so within two seconds, also while the database is away.
Both answer to any host name: probes come by address.
"""

from __future__ import annotations

import asyncio
import json

import structlog
from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor

from mcpregistry.calls.recording.readiness import obstacle
from mcpregistry.calls.recording.recorder import Recorder
from mcpregistry.calls.watch.changes import Feed
from mcpregistry.calls.watch.changes import State as FeedState
from mcpregistry.db import db_call

log = structlog.get_logger(__name__)

PROBES = frozenset({"/healthz", "/readyz"})
PATIENCE = 1.5  # seconds for the database: whoever probes gives up after a few
_WELL = {"ok", FeedState.POLLING.value}


def unapplied_migrations() -> list[str]:
    """Names like ``mcpregistry.0002_more``; raises the database's error when it does not answer."""
    executor = MigrationExecutor(connections[DEFAULT_DB_ALIAS])
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return [f"{migration.app_label}.{migration.name}" for migration, _ in plan]


class HealthProbes:
    """The ASGI application behind ``/healthz`` and ``/readyz``; the shell sets ``gateway``, and ``feed`` and
    ``recorder`` once they exist."""

    def __init__(self) -> None:
        self.gateway = "starting"
        self.feed: Feed | None = None
        self.recorder: Recorder | None = None
        self._migrated = False

    def answers(self, path: str) -> bool:
        """Whether the path is a probe's."""
        return path in PROBES

    async def __call__(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer a probe: 200 or 503, with the state of each part as JSON."""
        state = {} if scope["path"] == "/healthz" else await self._state()
        healthy = all(value in _WELL for value in state.values())
        body = json.dumps({"status": "ok" if healthy else "not ready", **state}).encode()
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        status = 200 if healthy else 503
        await send({"type": "http.response.start", "status": status, "headers": headers, "trailers": False})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _state(self) -> dict[str, str]:
        changes = {"changes": self.feed.state.value} if self.feed is not None else {}
        return await self._database() | changes | {"gateway": self.gateway}

    async def _database(self) -> dict[str, str]:
        """Migrations are compared until they are complete once: this process's code does not change later."""
        try:
            async with asyncio.timeout(PATIENCE):  # the thread that asks may hang for longer
                self._migrated = self._migrated or not await db_call(unapplied_migrations)
                if not self._migrated:
                    return {"database": "ok", "migrations": "missing: run manage.py migrate"}
                return {"database": "ok", "migrations": "ok", "recording": await self._obstacle() or "ok"}
        except Exception:  # a probe reports, whatever the driver throws
            log.warning("The database does not answer", exc_info=True)
            return {"database": "unreachable", "migrations": "unknown"}

    async def _obstacle(self) -> str:
        if self.recorder is not None and not self.recorder.running:
            return "the recorder of this process has stopped: restart the process"
        return await db_call(obstacle)
