"""Many sessions of hosts: 200 opened and dropped, and a web process killed with 50 open. Nothing
leaks, and what is lost is said."""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import timedelta
from typing import Any

import httpx2
import psutil
import pytest

from mcpregistry.calls.connection_placement import STATE_IS_NEW
from mcpregistry.models import HostConnection, HostMessage, HostSession, HostStream, SessionOwner
from mcpregistry.services import host_sessions, host_streams
from mcpregistry.services.servers import lifecycle
from tests.calls.conftest import broken
from tests.fakes.stage import ACTOR, Stage, Web, fresh, listed, outside, web
from tests.processes import runs
from tests.waiting import until

pytestmark = pytest.mark.e2e
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "crowd", "version": "1"},
}


@pytest.fixture
def slug(stage: Stage, site: Web) -> str:
    """An agent and its endpoint, with a server whose every session has a process of its own."""
    name = fresh("crowd")
    stage.endpoint(name)
    server = stage.fake("echo", listed("echo", "pid"), slug=name)
    server.shared_by = "session"
    server.max_sessions = 100
    server = lifecycle.save_server(server=server, actor=ACTOR)
    lifecycle.confirm_launch(server=server, actor=ACTOR, launch_hash=server.launch_hash())
    site.wait_known(stage.agent(name, server))
    return name


class Crowd:
    """Hosts of one agent at one web process."""

    def __init__(self, site: Web, http: httpx2.AsyncClient, slug: str) -> None:
        self._url = site.url(slug)
        self._http = http
        self._slug = slug

    async def open(self) -> str:
        """A session; its id."""
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}
        answer = await self._http.post(self._url, json=body)
        return str(answer.headers["mcp-session-id"])

    async def pid(self, session: str) -> int:
        """Of the session's own process at the server."""
        return int((await self.told(session))[-1])

    async def told(self, session: str) -> list[str]:
        """The id of that process, after a note if it is not the one that the session had."""
        answer = await self.send(
            session, "POST", "tools/call", name=f"{self._slug}__pid", arguments={}
        )
        line = next(line for line in answer.text.splitlines() if "jsonrpc" in line)
        return [
            part["text"] for part in json.loads(line.removeprefix("data: "))["result"]["content"]
        ]

    async def send(
        self, session: str, verb: str, method: str = "", **params: Any
    ) -> httpx2.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params} if method else None
        headers = {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
        return await self._http.request(verb, self._url, json=body, headers=headers)

    @contextlib.asynccontextmanager
    async def listening(self, session: str) -> Any:
        headers = {
            "mcp-session-id": session,
            "mcp-protocol-version": "2025-11-25",
            "accept": "text/event-stream",
        }
        async with self._http.stream("GET", self._url, headers=headers) as stream:
            assert stream.status_code == 200
            yield stream


@contextlib.asynccontextmanager
async def crowd(site: Web, stage: Stage, slug: str) -> Any:
    async with site.raw(stage.tokens[slug]) as http:
        yield Crowd(site, http, slug)


def rows(slug: str) -> int:
    return HostSession.objects.filter(agent_slug=slug, ended_at=None).count()


@pytest.mark.exhaustive
async def test_200_sessions_opened_and_dropped_leave_nothing(stage: Stage, slug: str):
    """Half of them are ended by their hosts, the others idle until the clock ends them; some had a
    process of their own."""
    with web(stage.env, processes=2) as site:
        await outside(site.wait_known, stage.tokens[slug])
        processes = [psutil.Process(each.pid) for each in site.processes]
        async with crowd(site, stage, slug) as hosts:
            warm = await asyncio.gather(*(hosts.open() for _ in range(20)))
            await asyncio.gather(*(hosts.pid(session) for session in warm))
            await asyncio.gather(*(hosts.send(session, "DELETE") for session in warm))
            await until(lambda: not children(processes))
            before = [each.num_fds() for each in processes]
            sessions = [await hosts.open() for _ in range(200)]
            assert await outside(rows, slug) == 200
            own = [await hosts.pid(session) for session in sessions[:20]]
            assert len({*own}) == await outside(owned, slug) == 20
            for session in sessions[::2]:
                assert (await hosts.send(session, "DELETE")).status_code == 200
            assert await outside(rows, slug) == 100
            await outside(idle, slug)
            await until(lambda: not any(runs(pid) for pid in own))
            for session in sessions[:4]:
                assert (await hosts.send(session, "POST", "ping")).status_code == 404
        await until(lambda: not children(processes) and all(map(_has_no_more, processes, before)))
        await until(lambda: outside(lambda: owned(slug) == 0))
    assert await outside(left, slug) == 0
    assert await outside(broken) == []


def children(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [child for each in processes for child in each.children(recursive=True)]


def served_by(process: int) -> set[int]:
    """Ids of the servers of a web process."""
    return {child.pid for child in psutil.Process(process).children(recursive=True)}


def _has_no_more(process: psutil.Process, files: int) -> bool:
    """But for connections to the database, which it keeps: less than one file for each connection
    of a session to a server."""
    return process.num_fds() < files + 20


def owned(slug: str) -> int:
    """How many connections of sessions have an owner."""
    return SessionOwner.objects.filter(server__slug=slug).count()


def idle(slug: str) -> None:
    """As after half an hour without a word."""
    then = (
        HostSession.objects.filter(agent_slug=slug).latest("seen_at").seen_at
        + host_sessions.IDLE * 2
    )
    # A minute later than need be: who was here just now may be noted only after this was read.
    host_sessions.end_idle_sessions(then - host_sessions.IDLE + timedelta(minutes=1))
    assert rows(slug) == 0


def left(slug: str) -> int:
    """Rows of it when everything has been forgotten."""
    later = HostSession.objects.filter(agent_slug=slug).latest("ended_at").ended_at + timedelta(
        days=2
    )
    host_streams.delete_old_streams(later)
    host_sessions.end_idle_sessions(later)
    found = (
        model.objects.filter(session__agent_slug=slug)
        for model in (HostMessage, HostStream, HostConnection)
    )
    return sum(each.count() for each in found) + HostSession.objects.filter(agent_slug=slug).count()


@pytest.mark.exhaustive
async def test_a_web_process_that_is_killed_loses_none_of_50_sessions_and_leaves_no_process(
    stage: Stage, site: Web, slug: str
):
    """Two processes serve them. The sessions whose connection the killed one had go on with a new
    one, and are told that its state is new."""
    with web(stage.env, processes=2) as doomed:
        await outside(doomed.wait_known, stage.tokens[slug])
        async with contextlib.AsyncExitStack() as stack:
            hosts = await stack.enter_async_context(crowd(doomed, stage, slug))
            sessions = [await hosts.open() for _ in range(50)]
            own = await asyncio.gather(*(hosts.pid(session) for session in sessions))
            assert len({*own}) == 50
            dead, other = sorted(
                doomed.processes, key=lambda each: own[0] not in served_by(each.pid)
            )
            killed = served_by(dead.pid)
            streams = [
                await stack.enter_async_context(hosts.listening(session))
                for session in sessions[5:15]
            ]
            out = asyncio.ensure_future(hosts.pid(sessions[0]))
            await asyncio.wait({out})
            dead.kill()
            await until(lambda: dead.poll() is not None)
            # their connections do not end at the killed process
            async with crowd(doomed, stage, slug) as others:
                after = {session: await others.told(session) for session in sessions}
                again = {session: await others.told(session) for session in sessions}
            other.kill()
            for stream in streams:  # each host hears that its stream is lost
                with contextlib.suppress(httpx2.HTTPError):
                    assert await stream.aread() is not None
        await until(lambda: not any(runs(pid) for pid in own))
    assert killed & {*own}
    for session, pid in zip(sessions, own, strict=True):
        lost = pid in killed
        assert (after[session][0] == STATE_IS_NEW) is lost
        assert (after[session][-1] != str(pid)) is lost
        assert again[session] == after[session][-1:]
    async with crowd(site, stage, slug) as elsewhere:
        for session in sessions:
            assert (await elsewhere.send(session, "POST", "ping")).status_code == 200
        # another process, which remembers nothing
        assert await elsewhere.pid(sessions[0]) not in own
        async with elsewhere.listening(sessions[5]):
            pass
        for session in sessions:
            assert (await elsewhere.send(session, "DELETE")).status_code == 200
    assert await outside(rows, slug) == 0
    assert await outside(broken) == []
