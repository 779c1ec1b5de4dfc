"""Servers with state behind several web processes: it never splits, questions reach the host that
made the call, changes are heard.

Each case is a server, a number of web processes, the protocol version of the hosts, and whether
they keep their connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import itertools
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from mcp import Client
from mcp import types as t

from mcpregistry.models import Invocation
from tests.externals import BROWSER, PLAYWRIGHT, node_program, npm_module
from tests.fakes.stage import Stage, Web, folder, fresh, outside, web
from tests.fakes.targets import SERVERS
from tests.gateway.test_subscriptions import Told
from tests.waiting import HANG_LIMIT, until

pytestmark = pytest.mark.e2e

NAMES = ("Ann", "Bob")
CALLS = 24
QUESTIONS = 10
CHANGES = 24
LOOKS = 8
AT_ONCE = 4
EVERYTHING = "@modelcontextprotocol/server-everything/dist/index.js"


@dataclass(frozen=True)
class Case:
    """``apart``: the hosts are of two agents. Two hosts of one agent are told apart by their
    sessions, which the modern era has not."""

    processes: int
    mode: str
    kept: bool

    @property
    def apart(self) -> bool:
        return self.mode == "auto"


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    processes, host, kept = request.param.split("-")
    return Case(int(processes), {"older": "legacy", "modern": "auto"}[host], kept == "kept")


CASES = list(map("-".join, itertools.product(("2", "4"), ("older", "modern"), ("kept", "new"))))
every_case = pytest.mark.parametrize("case", CASES, indirect=True)


def served(stage: Stage, case: Case, shared_by: str, *names: str, **fields: Any) -> list[str]:
    """An endpoint and a server of the same name, and the agents of the two hosts."""
    slug = fresh("state")
    stage.endpoint(slug, naming_style="plain")
    fields |= {
        "connect_timeout": HANG_LIMIT,
        "request_timeout": HANG_LIMIT,
        "protocol_mode": "legacy",
    }
    server = stage.real(slug, *names, shared_by=shared_by, **fields)
    agents = [slug, f"{slug}-2"] if case.apart else [slug]
    for agent in agents:
        stage.agent(agent, server)
    return [agents[0], agents[-1]]


@dataclass
class Host:
    """One of two hosts at the same endpoint."""

    name: str
    client: Client
    told: Told
    asked: int = 0

    async def call(self, tool: str, **arguments: Any) -> str:
        """The texts of the result."""
        result = await self.client.call_tool(tool, arguments)
        return "\n".join(part.text for part in result.content if isinstance(part, t.TextContent))

    async def calls(self, tool: str, count: int) -> list[str]:
        """The texts of so many calls, some of them at the same time."""
        told: list[str] = []
        for _ in range(0, count, AT_ONCE):
            told += await asyncio.gather(*(self.call(tool) for _ in range(AT_ONCE)))
        return told

    async def questions(self, tool: str) -> list[str]:
        """The texts of calls that ask, one after the other: of several at once, a question may be
        put twice."""
        return [await self.call(tool) for _ in range(QUESTIONS)]


@contextlib.asynccontextmanager
async def two_hosts(
    site: Web, stage: Stage, case: Case, agents: list[str]
) -> AsyncIterator[list[Host]]:
    hosts: list[Host] = []
    async with contextlib.AsyncExitStack() as stack:
        for name, agent in zip(NAMES, agents, strict=True):
            await outside(site.wait_known, stage.tokens[agent])
            told = Told()
            streams = site.streams

            async def person(
                _: Any, params: t.ElicitRequestParams, number: int = len(hosts)
            ) -> t.ElicitResult:
                hosts[number].asked += 1
                return t.ElicitResult(action="accept", content={"name": hosts[number].name})

            options: dict[str, Any] = {"message_handler": told, "elicitation_callback": person}
            client = await stack.enter_async_context(
                site.client(stage.tokens[agent], case.mode, agents[0], kept=case.kept, **options)
            )
            hosts.append(Host(name, client, told))
            if case.mode == "legacy":
                await until(lambda streams=streams: site.streams > streams)
        yield hosts


async def heard(hosts: list[Host], mode: str, uri: str, change: Callable[[Host], Any]) -> list[int]:
    """How many of the changes of so many resources each host has heard of."""
    uris = [uri.format(number) for number in range(1, CHANGES + 1)]
    async with contextlib.AsyncExitStack() as stack:
        for host in hosts:
            taken = await stack.enter_async_context(host.told.hears(host.client, mode, *uris))
            assert len(taken) == CHANGES
        for host in hosts:
            host.told.uris.clear()
        await asyncio.gather(*(change(host) for host in hosts))
        with contextlib.suppress(AssertionError):
            await until(lambda: all({*host.told.uris} == {*uris} for host in hosts))
    return [len({*host.told.uris} & {*uris}) for host in hosts]


def processes_of_calls(server: str) -> int:
    """How many web processes have recorded calls of this server."""
    writers = Invocation.objects.filter(server_slug=server).values_list("writer", flat=True)
    return len({writer.rpartition(":")[0] for writer in writers})


async def check_spread(case: Case, slug: str) -> None:
    """Hosts that open a connection for each request meet several processes, or else a case shows
    nothing. On a busy machine they may not meet all."""
    if not case.kept:
        assert await outside(processes_of_calls, slug) > 1


def counter(stage: Stage, case: Case, shared_by: str) -> list[str]:
    command = [sys.executable, "-S", str(SERVERS / "counter.py")]
    return served(stage, case, shared_by, "add", "ask", "counter://{number}", command=command)


async def touched(host: Host) -> None:
    for number in range(1, CHANGES + 1):
        await host.call("add", number=number)


@pytest.mark.exhaustive
@every_case
async def test_a_counter_of_a_session(stage: Stage, case: Case) -> None:
    agents = await outside(counter, stage, case, "session")
    with web(stage.env, processes=case.processes) as site:
        async with two_hosts(site, stage, case, agents) as hosts:
            counts = await asyncio.gather(*(host.calls("add", CALLS) for host in hosts))
            answers = await asyncio.gather(*(host.questions("ask") for host in hosts))
            changes = await heard(hosts, case.mode, "counter://{}", touched)
            asked = [host.asked for host in hosts]
    await check_spread(case, agents[0])
    servers = [{count.split()[0] for count in each} for each in counts]
    assert [len(each) for each in servers] == [1, 1]
    assert servers[0] != servers[1]
    for each in counts:
        assert sorted(int(count.split()[1]) for count in each) == list(range(1, CALLS + 1))
    assert [
        sum(name in answer for answer in each) for name, each in zip(NAMES, answers, strict=True)
    ] == [QUESTIONS] * 2
    assert asked == [QUESTIONS] * 2
    assert changes == [CHANGES] * 2


@pytest.mark.exhaustive
@every_case
async def test_changes_of_a_counter_that_everybody_shares(stage: Stage, case: Case) -> None:
    """Each web process has a counter of its own. Changes of all of them are heard."""
    agents = await outside(counter, stage, case, "everybody")
    with web(stage.env, processes=case.processes) as site:
        async with two_hosts(site, stage, case, agents) as hosts:
            changes = await heard(hosts, case.mode, "counter://{}", touched)
    await check_spread(case, agents[0])
    assert changes == [CHANGES] * 2


def everything(stage: Stage, case: Case, shared_by: str) -> list[str]:
    names = (
        "toggle-subscriber-updates",
        "trigger-elicitation-request",
        "demo://resource/dynamic/text/{resourceId}",
    )
    return served(
        stage, case, shared_by, *names, command=[node_program(), npm_module(EVERYTHING), "stdio"]
    )


async def toggled(host: Host) -> None:
    """The server reports all resources that are subscribed to as changed, and again every five
    seconds until it is told to stop."""
    assert "Started" in await host.call("toggle-subscriber-updates")


@pytest.mark.node
@pytest.mark.exhaustive
@every_case
async def test_server_everything(stage: Stage, case: Case) -> None:
    agents = await outside(everything, stage, case, "session")
    with web(stage.env, processes=case.processes) as site:
        async with two_hosts(site, stage, case, agents) as hosts:
            states = [
                [await host.call("toggle-subscriber-updates") for _ in range(CALLS)]
                for host in hosts
            ]
            answers = await asyncio.gather(
                *(host.questions("trigger-elicitation-request") for host in hosts)
            )
            changes = await heard(hosts, case.mode, "demo://resource/dynamic/text/{}", toggled)
            asked = [host.asked for host in hosts]
    await check_spread(case, agents[0])
    for each in states:
        assert [state.split()[0] for state in each] == ["Started", "Stopped"] * (CALLS // 2)
    assert [
        sum(name in answer for answer in each) for name, each in zip(NAMES, answers, strict=True)
    ] == [QUESTIONS] * 2
    assert asked == [QUESTIONS] * 2
    assert changes == [CHANGES] * 2


@contextlib.contextmanager
def pages() -> Iterator[str]:
    """A site on loopback whose pages show their own path."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(f"<title>page</title><h1>This is {self.path[1:]}</h1>".encode())

        def log_message(self, *_: Any) -> None:
            """Write nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def browser(stage: Stage, case: Case) -> list[str]:
    options = ["--headless", "--isolated", "--no-sandbox", "--executable-path", str(BROWSER.found)]
    command = [node_program(), str(PLAYWRIGHT.found), *options, "--output-dir", str(folder())]
    return served(stage, case, "session", "browser_navigate", "browser_snapshot", command=command)


@pytest.mark.node
@pytest.mark.web
@pytest.mark.playwright
@pytest.mark.exhaustive
@every_case
async def test_playwright(stage: Stage, case: Case) -> None:
    agents = await outside(browser, stage, case)
    with pages() as address, web(stage.env, processes=case.processes) as site:
        async with two_hosts(site, stage, case, agents) as hosts:
            for host in hosts:
                await host.call("browser_navigate", url=f"{address}/{host.name}")
            seen = await asyncio.gather(*(host.calls("browser_snapshot", LOOKS) for host in hosts))
    await check_spread(case, agents[0])
    found = [
        {name for text in each for name in re.findall(r"This is (\w+)", text)} for each in seen
    ]
    assert found == [{name} for name in NAMES]
    assert [sum("This is" in text for text in each) for each in seen] == [LOOKS] * 2
