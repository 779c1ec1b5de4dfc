"""Two probes for whoever watches the process.

``/healthz``: the process answers at all; touches nothing else. ``/readyz``: it may get traffic,
that is, the database answers, its migrations are applied, no trigger or role is missing, a call
could be recorded, the process hears of changes (or asks for them), and the gateway holds its
snapshot. Says so within two seconds, also while the database is away. It also reports work that no
worker takes; that is no reason to send this process no traffic. Both answer to any host name:
probes come by address.
"""

from __future__ import annotations

import asyncio
import json
import time

import structlog
from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor

from controlplane.unclaimed_work import find_unclaimed_work
from mcpregistry.calls.recording.readiness import find_obstacle
from mcpregistry.calls.recording.recorder import Recorder
from mcpregistry.calls.watch.changes import Feed, FeedState
from mcpregistry.db import db_call
from mcpregistry.services.upkeep.completeness import explain_missing_parts

log = structlog.get_logger(__name__)

PROBES = frozenset({"/healthz", "/readyz"})
PATIENCE = 1.5  # seconds for the database: whoever probes gives up after a few
_WORK = "work"  # reported, but no reason to send this process no traffic
_LOOK_EVERY = 10.0  # seconds between looks at it
_MOMENT = 0.3  # seconds for which an answer waits for such a look
_WELL = {"ok", FeedState.POLLING.value}


def list_unapplied_migrations() -> list[str]:
    """Names like ``mcpregistry.0002_more``; raises the database's error when it does not answer."""
    executor = MigrationExecutor(connections[DEFAULT_DB_ALIAS])
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return [f"{migration.app_label}.{migration.name}" for migration, _ in plan]


def _describe_unclaimed_work() -> str:
    return "; ".join(f"{each.count} {each.words}" for each in find_unclaimed_work()) or "ok"


class HealthProbes:
    """The ASGI application behind ``/healthz`` and ``/readyz``; the shell sets ``gateway``, and
    ``feed`` and ``recorder`` once they exist."""

    def __init__(self) -> None:
        self.gateway = "starting"
        self.feed: Feed | None = None
        self.recorder: Recorder | None = None
        self._migrated = False
        self._unclaimed = "unknown"
        self._looked = float("-inf")
        self._look: asyncio.Task[None] | None = None

    def answers(self, path: str) -> bool:
        """Whether the path is a probe's."""
        return path in PROBES

    async def __call__(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Answer a probe: 200 or 503, with the state of each part as JSON."""
        state = {} if scope["path"] == "/healthz" else await self._check_state()
        healthy = all(value in _WELL for part, value in state.items() if part != _WORK)
        body = json.dumps({"status": "ok" if healthy else "not ready", **state}).encode()
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        status = 200 if healthy else 503
        await send(
            {"type": "http.response.start", "status": status, "headers": headers, "trailers": False}
        )
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _check_state(self) -> dict[str, str]:
        changes = {"changes": self.feed.state.value} if self.feed is not None else {}
        database = await self._check_database()
        work = {_WORK: await self._check_work()} if "recording" in database else {}
        return database | work | changes | {"gateway": self.gateway}

    async def _check_database(self) -> dict[str, str]:
        """Migrations are compared until they are complete once: this process's code does not change
        later."""
        try:
            async with asyncio.timeout(PATIENCE):  # the thread that asks may hang for longer
                self._migrated = self._migrated or not await db_call(list_unapplied_migrations)
                if not self._migrated:
                    return {"database": "ok", "migrations": "missing: run `manage.py migrate`"}
                if lacking := await db_call(explain_missing_parts):
                    return {"database": "ok", "migrations": lacking}
                return {
                    "database": "ok",
                    "migrations": "ok",
                    "recording": await self._find_obstacle() or "ok",
                }
        except Exception:  # a probe reports, whatever the driver throws
            log.warning("The database is unavailable", exc_info=True)
            return {"database": "unreachable", "migrations": "unknown"}

    async def _check_work(self) -> str:
        """What no worker takes, in words; "ok" if there is nothing. A look that takes long is
        reported by a later answer."""
        if self._look is None and time.monotonic() - self._looked > _LOOK_EVERY:
            self._look = asyncio.ensure_future(self._look_at_work())
        if self._look is not None:
            await asyncio.wait({self._look}, timeout=_MOMENT)
        return self._unclaimed

    async def _look_at_work(self) -> None:
        try:
            self._unclaimed = await db_call(_describe_unclaimed_work)
        except Exception:  # the database's own state is reported beside it
            log.warning("The work that waits for a worker could not be read", exc_info=True)
            self._unclaimed = "unknown"
        finally:
            self._look = None
            self._looked = time.monotonic()

    async def _find_obstacle(self) -> str:
        if self.recorder is not None and not self.recorder.running:
            return "the recorder of this process has stopped: restart the process"
        return await db_call(find_obstacle)
