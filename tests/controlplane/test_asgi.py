"""The shell: who answers what, probes that tell the truth, and the gateway's life around it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, connection

from controlplane import asgi, health
from mcpregistry.calls.recording import readiness
from mcpregistry.calls.watch.changes import Feed
from mcpregistry.db import db_call
from mcpregistry.models import Invocation
from mcpregistry.models.guards import drop_guards
from mcpregistry.services.upkeep import completeness, reaping
from tests.services.rows import dispatched
from tests.waiting import HANG_LIMIT

PATIENCE = health.PATIENCE


@pytest.fixture(autouse=True)
def _patient_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the database answers is what is looked at here, not whether this machine is busy."""
    monkeypatch.setattr(health, "PATIENCE", HANG_LIMIT)


class Gateway:
    """Stands in for the gateway: remembers what was asked of it."""

    def __init__(self, broken: bool = False) -> None:
        self.events: list[str] = []
        self.engine = SimpleNamespace(
            feed=Feed(),
            recorder=SimpleNamespace(running=True),
            process="web",
            live=SimpleNamespace(current=SimpleNamespace(sections={}), listeners=[]),
        )
        self._broken = broken

    async def startup(self) -> None:
        if self._broken:
            raise RuntimeError("password=hunter2")
        self.events.append("up")

    async def shutdown(self) -> None:
        self.events.append("down")

    def begin_stop(self) -> None:
        self.events.append("stopping")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.events.append(scope["path"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Site:
    """One shell, driven as a server would."""

    def __init__(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(asgi, "McpApp", lambda: gateway)
        self.shell = asgi.Shell()

    async def live(self, inside: Any = None) -> list[str]:
        """Start, do ``inside``, stop. Returns what the server was told."""
        told: list[str] = []
        steps = iter(["lifespan.startup", "lifespan.shutdown"])

        async def receive() -> dict[str, Any]:
            step = next(steps)
            if step == "lifespan.shutdown" and inside is not None:
                await inside()
            return {"type": step}

        async def send(event: dict[str, Any]) -> None:
            told.append(event["type"].removeprefix("lifespan.") + event.get("message", ""))

        await self.shell({"type": "lifespan"}, receive, send)  # type: ignore[arg-type, typeddict-item]
        return told

    async def get(self, path: str) -> tuple[int, bytes]:
        sent: list[dict[str, Any]] = []

        body: list[dict[str, Any]] = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> dict[str, Any]:
            if not body:
                await asyncio.Event().wait()  # the client stays and says nothing more
            return body.pop()

        async def send(event: dict[str, Any]) -> None:
            sent.append(event)

        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "headers": [(b"host", b"localhost")],
            "query_string": b"",
        }
        await self.shell(scope, receive, send)  # type: ignore[arg-type]
        return sent[0]["status"], b"".join(event.get("body", b"") for event in sent[1:])


@pytest.fixture
def gateway():
    return Gateway()


@pytest.fixture
def site(gateway, monkeypatch):
    # most of these tests have no database
    monkeypatch.setattr(completeness, "require_complete", lambda: None)
    return Site(gateway, monkeypatch)


async def test_the_gateway_lives_as_long_as_the_server_and_gets_its_own_paths_only(site, gateway):
    async def traffic() -> None:
        assert (await site.get("/mcp/default"))[0] == 204
        assert (await site.get("/mcpother"))[0] == 404

    assert await site.live(traffic) == ["startup.complete", "shutdown.complete"]
    assert gateway.events == ["up", "/mcp/default", "down"]


async def test_a_signal_ends_listen_streams_at_once_and_the_handler_goes_with_the_server(
    live_db, site, gateway
):
    before = signal.getsignal(signal.SIGTERM)

    async def stop() -> None:
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)
        assert gateway.events == ["up", "stopping"]
        status, body = await site.get("/readyz")  # answered still, so that nobody sends more
        assert (status, json.loads(body)["gateway"]) == (503, "stopping")

    await site.live(stop)
    assert signal.getsignal(signal.SIGTERM) is before


async def test_a_gateway_that_cannot_start_is_reported_without_its_words(live_db, monkeypatch):
    told = await Site(Gateway(broken=True), monkeypatch).live()
    assert len(told) == 1
    assert told[0].startswith("startup.failed")
    assert "hunter2" not in told[0]


async def test_a_database_without_triggers_is_not_served(live_db, gateway, monkeypatch):
    await db_call(drop_guards)
    (told,) = await Site(gateway, monkeypatch).live()
    assert told.startswith("startup.failed")
    assert "manage.py migrate" in told
    assert gateway.events == []


async def test_not_ready_once_triggers_are_missing(live_db, site):
    async def look() -> None:
        assert (await site.get("/readyz"))[0] == 200
        await db_call(drop_guards)
        status, body = await site.get("/readyz")
        assert status == 503
        assert "manage.py migrate" in json.loads(body)["migrations"]

    await site.live(look)


async def test_alive_needs_no_database(site):
    status, body = await site.get("/healthz")
    assert (status, json.loads(body)) == (200, {"status": "ok"})


async def test_ready_once_database_migrations_and_gateway_are(live_db, site):
    status, body = await site.get("/readyz")
    assert (status, json.loads(body)["gateway"]) == (503, "starting")

    async def ask() -> None:
        status, body = await site.get("/readyz")
        assert (status, json.loads(body)["status"]) == (200, "ok")
        assert (await site.get("/readyz"))[0] == 200  # the second time without comparing migrations

    await site.live(ask)


async def test_work_that_no_worker_takes_is_told_and_the_process_is_ready_all_the_same(
    live_db, site, monkeypatch
):
    monkeypatch.setattr(
        health,
        "_describe_unclaimed_work",
        lambda: "2 packages have waited for a worker, the oldest one for 5 minutes",
    )

    async def ask() -> None:
        status, body = await site.get("/readyz")
        assert (status, json.loads(body)["work"]) == (
            200,
            "2 packages have waited for a worker, the oldest one for 5 minutes",
        )

    await site.live(ask)


async def test_a_report_of_work_that_fails_or_takes_long_keeps_the_process_ready(
    live_db, site, monkeypatch
):
    go_on = threading.Event()

    def hangs() -> str:
        assert go_on.wait(HANG_LIMIT)
        raise OperationalError("password=hunter2")

    monkeypatch.setattr(health, "_describe_unclaimed_work", hangs)

    async def ask() -> None:
        for _ in range(2):
            status, body = await site.get("/readyz")
            assert (status, json.loads(body)["work"]) == (200, "unknown")
            go_on.set()

    await site.live(ask)


async def test_not_ready_while_migrations_are_missing(live_db, site, monkeypatch):
    monkeypatch.setattr(health, "list_unapplied_migrations", lambda: ["mcpregistry.0002_more"])
    status, body = await site.get("/readyz")
    assert status == 503
    assert "manage.py migrate" in json.loads(body)["migrations"]


async def test_a_dead_database_is_said_without_its_words(live_db, site, monkeypatch):
    def dead() -> list[str]:
        raise OperationalError("password=hunter2")

    monkeypatch.setattr(health, "list_unapplied_migrations", dead)
    status, body = await site.get("/readyz")
    assert (status, json.loads(body)["database"]) == (503, "unreachable")
    assert b"hunter2" not in body


async def test_not_ready_in_time_while_the_database_does_not_answer(live_db, site, monkeypatch):
    monkeypatch.setattr(health, "PATIENCE", PATIENCE)
    answers = threading.Event()
    monkeypatch.setattr(
        health,
        "list_unapplied_migrations",
        lambda: [] if answers.wait(2 * HANG_LIMIT) else ["it went on"],
    )
    try:
        async with asyncio.timeout(HANG_LIMIT):
            status, body = await site.get("/readyz")
    finally:
        answers.set()
    assert (status, json.loads(body)["database"]) == (503, "unreachable")
    assert PATIENCE < 2


@pytest.mark.one_database
async def test_not_ready_while_the_disk_is_full(live_db, site, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "")

    async def look() -> None:
        assert (await site.get("/readyz"))[0] == 200
        with monkeypatch.context() as patched:
            patched.setattr(os, "posix_fallocate", full)
            status, body = await site.get("/readyz")
        said = json.loads(body)["recording"]
        assert (status, said) == (
            503,
            "the disk of the database is not writable: No space left on device",
        )
        assert (await site.get("/readyz"))[0] == 200

    await site.live(look)


@pytest.mark.one_database
async def test_not_ready_once_the_recorders_thread_has_ended(live_db, site, gateway):
    async def look() -> None:
        assert (await site.get("/readyz"))[0] == 200
        gateway.engine.recorder.running = False
        status, body = await site.get("/readyz")
        assert (status, json.loads(body)["recording"]) == (
            503,
            "the recorder of this process has stopped: restart the process",
        )

    await site.live(look)


def test_whether_a_folder_can_be_written_is_really_tried(tmp_path):
    assert readiness.explain_unwritable(tmp_path) == ""
    assert readiness.explain_unwritable(Path("/proc")) != ""
    assert list(tmp_path.iterdir()) == []


async def test_not_ready_while_a_newer_column_keeps_this_process_from_recording(live_db, site):
    """As in the middle of a rolling upgrade by a release that forgot the column's default."""

    def change(statement: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {Invocation._meta.db_table} {statement}")

    async def look() -> None:
        assert (await site.get("/readyz"))[0] == 200
        # SQLite itself refuses such a column without a default; its own rebuilding of the table
        # makes one all the same.
        if connection.vendor == "sqlite":
            return
        await db_call(change, "ADD COLUMN newer integer NOT NULL")
        try:
            status, body = await site.get("/readyz")
        finally:
            await db_call(change, "DROP COLUMN newer")
        assert status == 503
        assert (
            "mcpregistry_invocation.newer is newer than this process"
            in json.loads(body)["recording"]
        )
        assert (await site.get("/readyz"))[0] == 200

    await site.live(look)


async def test_a_process_that_asks_instead_of_hearing_is_ready_and_says_so_a_blind_one_is_not(
    live_db, site, gateway
):
    states = iter(["ok", "polling", "blind"])
    gateway.engine.feed = SimpleNamespace()

    async def look() -> None:
        for state in ("ok", "polling", "blind"):
            gateway.engine.feed.state = SimpleNamespace(value=next(states))
            status, body = await site.get("/readyz")
            assert (status, json.loads(body)["changes"]) == (
                503 if state == "blind" else 200,
                state,
            )

    await site.live(look)


async def test_calls_of_the_process_that_this_one_replaces_end_once_the_database_accepts_it(
    live_db, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.PREDECESSOR = 47
    host = socket.gethostname()[:24]
    await db_call(dispatched, "dead", writer=f"web:{host}:47:aaaa", lease=timedelta(hours=1))
    await db_call(dispatched, "alive", writer=f"web:{host}:48:aaaa", lease=timedelta(hours=1))
    bury = reaping.end_calls_of_predecessor
    refusals = iter([OperationalError("no connection")])

    def sometimes(kind: str, pid: int) -> int:
        for refusal in refusals:
            raise refusal
        return bury(kind, pid)

    monkeypatch.setattr(asgi, "PAUSE", 0)
    monkeypatch.setattr(reaping, "end_calls_of_predecessor", sometimes)
    await asgi.bury_predecessor()
    states = await db_call(lambda: dict(Invocation.objects.values_list("pk", "state")))
    assert states == {"dead": "unknown", "alive": "dispatched"}
