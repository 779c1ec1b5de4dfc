"""``manage.py runheadends``: headends on ports of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from django.core.management import CommandError, call_command

from controlplane.management.commands import runheadends
from mcpregistry.db import db_call
from mcpregistry.models import Agent, Endpoint, Invocation
from mcpregistry.services.access import agents
from subagents.domain.lifecycle import RunState
from subagents.leased import turn_queue
from subagents.models import Headend, Run
from subagents.services.headends import queue_places
from tests.calls.conftest import ACTOR
from tests.conftest import child_env
from tests.fakes.sdk import free_port
from tests.subagents.headends.conftest import headend, token
from tests.subagents.headends.test_endings import CHAT, COUNTS, asked
from tests.subagents.kit import Bench
from tests.waiting import HANG_LIMIT, until

pytestmark = pytest.mark.one_database


@pytest.fixture
def row(db: None) -> Any:
    agents.save_endpoint(endpoint=Endpoint(slug="default"), actor=ACTOR)
    return headend()


def test_ports_and_limits_are_those_of_the_command_line(
    row: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    headend("rest")
    served: list[Any] = []
    monkeypatch.setattr(turn_queue, "LIMITS", {})
    monkeypatch.setattr(runheadends, "LIMITS", turn_queue.LIMITS)
    monkeypatch.setattr(
        runheadends, "serve", lambda sockets, ports: served.append((len(sockets), ports))
    )
    monkeypatch.setattr(runheadends, "_bind_socket", lambda host, port: port)
    call_command("runheadends", "openai=8011", "rest", port=8012, openai_concurrency=3)
    call_command("runheadends", port=8013)
    assert served == [
        (2, {8011: frozenset({"openai"}), 8012: frozenset({"rest"})}),
        (1, {8013: frozenset()}),
    ]
    assert turn_queue.LIMITS == {"openai": 3}
    with pytest.raises(CommandError, match="Available headends: openai, rest"):
        call_command("runheadends", "nobody")


def test_a_taken_port_is_told_before_anything_starts(row: Any) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(CommandError, match="cannot be used"),
    ):
        call_command("runheadends", port=taken.getsockname()[1])


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """``manage.py runheadends`` with these words."""
    running = subprocess.Popen(
        [sys.executable, "manage.py", "runheadends", *words], env=child_env()
    )
    try:
        yield running
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(HANG_LIMIT)


@pytest.mark.exhaustive
async def test_two_processes_share_one_queue_and_a_killed_ones_run_is_given_up(
    bench: Bench, serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The door of this process and one of its own, with room for one run together; the latter is
    killed in the middle."""

    def prepare() -> str:
        server = bench.server("slow", "count")
        expert = bench.expert(bench.model("m", COUNTS, repeat=True), uses=[server])
        expert.users.add(Agent.objects.get(slug="ann"))
        expert.endpoints.add(Endpoint.objects.get(slug="default"))
        headend(concurrency=1)
        headend("rest")
        return token()

    async def healthy(port: int) -> bool:
        try:
            async with httpx.AsyncClient() as asks:
                return (await asks.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    key = await db_call(prepare)
    served = await serving()
    first = free_port()
    second = free_port()
    with process(f"openai={first}", f"rest={second}") as other:
        await until(lambda: healthy(first))
        head = {"authorization": f"Bearer {key}"}
        async with (
            httpx.AsyncClient(timeout=HANG_LIMIT, headers=head) as asks,
            served.client(key) as here,
        ):
            models = await asks.get(f"http://127.0.0.1:{first}/v1/models")
            elsewhere = await asks.get(f"http://127.0.0.1:{second}/v1/models")
            assert (models.status_code, elsewhere.status_code) == (200, 404)
            there = asyncio.ensure_future(
                asks.post(f"http://127.0.0.1:{first}{CHAT}", json=asked("there"))
            )
            await until(lambda: len(bench.sent()) == 1)
            waiting = asyncio.ensure_future(here.post(CHAT, json=asked("here")))
            await until(
                lambda: db_call(
                    lambda: (
                        queue_places.query_active_places(
                            Headend.objects.get(slug="openai").pk
                        ).count()
                        == 2
                    )
                )
            )
            assert await db_call(Run.objects.count) == 1
            os.kill(other.pid, signal.SIGKILL)
            with pytest.raises(httpx.TransportError):
                await there
            monkeypatch.setattr(queue_places, "LOST", queue_places.LEASE - queue_places.LEASE)
            await until(lambda: db_call(lambda: queue_places.sweep()["given_up"] == 1))
            await until(
                lambda: db_call(lambda: Run.objects.filter(state=RunState.CANCELLED).count() == 1)
            )
            await until(lambda: len(bench.sent()) == 2)
            waiting.cancel()
    await until(lambda: db_call(lambda: not Run.objects.open().exists()))
    assert await db_call(Invocation.objects.filter(exposed_name="expert").count) == 2
