"""A site with a server that makes tasks (over HTTP and over stdio), one whose calls people are
asked about, and hosts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User

from mcpregistry.calls.background_engine import BackgroundEngine
from mcpregistry.models import PolicyRule
from tests.fakes import sdk
from tests.fakes.hosts import FORM, TASKS, Host, http_host, stdio_host
from tests.fakes.servers import conformance_server, tasks_server
from tests.fakes.stage import Stage, Web, folder, listed
from tests.fakes.targets import LOOPBACK, SERVERS
from tests.waiting import HANG_LIMIT

ABLE = TASKS | FORM
Open = Callable[..., Any]
IMPATIENT: dict[str, Any] = {"connect_timeout": HANG_LIMIT, "idle_timeout": 1}


@pytest.fixture(scope="module")
def maker() -> tasks_server.TasksServer:
    """The server behind HTTP, whose own tasks a test can look at."""
    return tasks_server.TasksServer()


@pytest.fixture(scope="module")
def addresses(maker: tasks_server.TasksServer) -> Iterator[dict[str, str]]:
    asking = conformance_server.make_server()
    requesting = conformance_server.make_server(by_request=True)
    with (
        sdk.serving(maker.server.streamable_http_app()) as one,
        sdk.serving(asking.streamable_http_app()) as two,
        sdk.serving(requesting.streamable_http_app()) as three,
    ):
        yield {"remote": f"{one}/mcp", "asks": f"{two}/mcp", "requests": f"{three}/mcp"}


@pytest.fixture(scope="module")
def journal() -> Path:
    """What reached the server whose calls are held."""
    return folder() / "journal"


@pytest.fixture(scope="module")
def bob(stage: Stage) -> User:
    user = User.objects.create_user("bob", first_name="Bob")
    user.groups.set([Group.objects.get(name="approver")])
    return user


@pytest.fixture(scope="module")
def token(stage: Stage, site: Web, addresses: dict[str, str], journal: Path) -> str:
    stage.endpoint()
    stage.endpoint("other")
    reachable = {"transport": "http", "allowed_networks": list(LOOPBACK)}
    command = [sys.executable, str(SERVERS / "tasks_server.py")]
    rows = [
        stage.server("remote", tasks_server.TOOLS, url=addresses["remote"], **reachable),
        stage.server(
            "asks", conformance_server.TOOLS, url=addresses["asks"], asks_roots=True, **reachable
        ),
        stage.server(
            "older",
            conformance_server.TOOLS,
            url=addresses["asks"],
            protocol_mode="legacy",
            **reachable,
        ),
        stage.server("requests", conformance_server.TOOLS, url=addresses["requests"], **reachable),
        stage.server("local", tasks_server.TOOLS, command=command, connect_timeout=HANG_LIMIT),
        stage.server(
            "sleepy", tasks_server.TOOLS, command=command, env={"FAKE_POLL_MS": "2500"}, **IMPATIENT
        ),
        stage.fake("echo", listed("echo"), FAKE_JOURNAL=str(journal)),
    ]
    PolicyRule.objects.create(name="ask about echo", server=rows[-1], outcome="ask")
    stage.agent("eve", *rows)
    token = stage.agent("local", *rows)
    site.wait_known(token)
    return token


@pytest.fixture(scope="module")
def worker(token: str) -> Iterator[BackgroundEngine]:
    """What runs approved calls in a worker process."""
    running = BackgroundEngine()
    yield running
    running.close()


@pytest.fixture(params=["http", "stdio"])
def door(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def opened(stage: Stage, site: Web, token: str) -> Open:
    """``async with opened(door, **options) as host``: a host of agent "local" with tasks and
    forms."""

    @contextlib.asynccontextmanager
    async def open_host(door: str = "http", **options: Any) -> AsyncIterator[Host]:
        options = {"abilities": ABLE} | options
        if door == "http":
            async with http_host(
                options.pop("site", site), options.pop("token", token), **options
            ) as host:
                yield host
        else:
            async with stdio_host(stage, "--agent", "local", **options) as host:
                yield host

    return open_host
