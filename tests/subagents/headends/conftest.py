"""The door of headends in the test's own process, over real HTTP, with the official clients as
callers."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn
from httpx._config import create_ssl_context

from mcpregistry.db import db_call
from mcpregistry.models import Agent, Endpoint
from mcpregistry.services.access import tokens
from subagents.headends.entry_point import Headends
from subagents.models import Headend
from subagents.services.headends import configuring
from tests.calls.conftest import ACTOR
from tests.subagents.kit import Bench
from tests.subagents.runs.conftest import bench, worker, working
from tests.waiting import HANG_LIMIT, until

_ssl_context = functools.cache(create_ssl_context)


@pytest.fixture(scope="module", autouse=True)
def _certificates_read_once() -> Iterator[None]:
    """Each client reads the certificates of this machine, which takes longer than its requests;
    here none uses TLS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", _ssl_context)
        yield


@dataclass
class Served:
    """A process that serves headends. ``answered``: method, path and status of each request, in the
    order of their ends."""

    address: str
    engine: Any
    doors: Headends
    answered: list[tuple[str, str, int]] = field(default_factory=list)

    def client(self, token: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.address, headers={"authorization": f"Bearer {token}"}, timeout=HANG_LIMIT
        )


def headend(kind: str = "openai", **fields: Any) -> Headend:
    facts = {"slug": kind, "kind": kind, "endpoint": Endpoint.objects.get(slug="default")} | fields
    return configuring.save_headend(row=Headend(**facts), actor=ACTOR)


def token(agent: str = "ann") -> str:
    return tokens.issue_token(agent=Agent.objects.get(slug=agent), name="client", actor=ACTOR)[1]


class Quiet(uvicorn.Server):
    """Leaves the signals of the test's process alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@pytest.fixture
async def serving(bench: Bench, working: Any) -> AsyncIterator[Callable[..., Any]]:
    """``await serving()`` starts the door on a port of its own, with a worker in the same
    process."""
    started: list[tuple[uvicorn.Server, asyncio.Task[None], Served]] = []

    async def make(**options: Any) -> Served:
        here = await working(**options)
        doors = Headends(here.engine)
        served = Served("", here.engine, doors)

        async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
            async def noted(message: dict[str, Any]) -> None:
                if message["type"] == "http.response.start":
                    served.answered.append((scope["method"], scope["path"], message["status"]))
                await send(message)

            assert doors.answers(scope), scope["path"]
            await doors(dict(scope), receive, noted)

        place = socket.create_server(("127.0.0.1", 0))
        server = Quiet(uvicorn.Config(app, lifespan="off", log_level="warning"))
        running = asyncio.ensure_future(server.serve(sockets=[place]))
        served.address = f"http://127.0.0.1:{place.getsockname()[1]}"
        started.append((server, running, served))
        await until(lambda: server.started)
        return served

    yield make
    for server, running, served in started:
        served.doors.begin_stop()
        server.should_exit = True
        await running
        await served.doors.close()


async def settled(served: Served, ready: Callable[[Any], bool]) -> None:
    """Until the process has heard of a change of the configuration."""
    await until(lambda: ready(served.engine.live.current))


__all__ = ["bench", "db_call", "worker", "working"]
