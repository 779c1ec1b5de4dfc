"""The shell: who answers what, probes that tell the truth, and the gateway's life around it."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest
from django.db import OperationalError

from controlplane import asgi, health


class Gateway:
    """Stands in for the gateway: remembers what was asked of it."""

    def __init__(self, broken: bool = False) -> None:
        self.events: list[str] = []
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
    return Site(gateway, monkeypatch)


async def test_the_gateway_lives_as_long_as_the_server_and_gets_its_own_paths_only(site, gateway):
    async def traffic() -> None:
        assert (await site.get("/mcp/default"))[0] == 204
        assert (await site.get("/mcpother"))[0] == 404

    assert await site.live(traffic) == ["startup.complete", "shutdown.complete"]
    assert gateway.events == ["up", "/mcp/default", "down"]


async def test_a_signal_ends_listen_streams_at_once_and_the_handler_goes_with_the_server(site, gateway):
    before = signal.getsignal(signal.SIGTERM)

    async def stop() -> None:
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)
        assert gateway.events == ["up", "stopping"]

    await site.live(stop)
    assert signal.getsignal(signal.SIGTERM) is before


async def test_a_gateway_that_cannot_start_is_reported_without_its_words(monkeypatch):
    told = await Site(Gateway(broken=True), monkeypatch).live()
    assert len(told) == 1
    assert told[0].startswith("startup.failed")
    assert "hunter2" not in told[0]


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


async def test_not_ready_while_migrations_are_missing(live_db, site, monkeypatch):
    monkeypatch.setattr(health, "unapplied_migrations", lambda: ["mcpregistry.0002_more"])
    status, body = await site.get("/readyz")
    assert status == 503
    assert "manage.py migrate" in json.loads(body)["migrations"]


async def test_a_dead_database_is_said_without_its_words(live_db, site, monkeypatch):
    def dead() -> list[str]:
        raise OperationalError("password=hunter2")

    monkeypatch.setattr(health, "unapplied_migrations", dead)
    status, body = await site.get("/readyz")
    assert (status, json.loads(body)["database"]) == (503, "unreachable")
    assert b"hunter2" not in body
