"""A server with a process for each agent or host session: who meets whom, over HTTP in both eras,
and how it ends."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any, cast

import httpx2
import pytest

from mcpregistry.db import db_call, estimate_database_now
from mcpregistry.gateway.http import session_cache as module
from mcpregistry.gateway.http.mcp_app import McpApp
from mcpregistry.gateway.http.session_cache import HostSessionCache
from mcpregistry.services import host_sessions
from mcpregistry.services.host_sessions import News
from mcpregistry.services.servers import lifecycle
from tests.fakes.stage import ACTOR, MODERN, Stage, envelope, fresh, listed, outside
from tests.gateway.doors import doors
from tests.logs import logged
from tests.processes import runs
from tests.waiting import until

pytestmark = pytest.mark.one_database


def rows(stage: Stage) -> tuple[str, str]:
    """Two agents, and a server for each way of sharing that tells its process id."""
    slug = fresh("own")
    other = fresh("other")
    stage.endpoint(slug)
    servers = [
        stage.fake("crash", listed("pid"), slug=f"{slug}-{by}")
        for by in ("agent", "session", "everybody")
    ]
    for server, by in zip(servers, ("agent", "session", "everybody"), strict=True):
        server.shared_by = by
        lifecycle.save_server(server=server, actor=ACTOR)
        lifecycle.confirm_launch(server=server, actor=ACTOR, launch_hash=server.launch_hash())
    for agent in (slug, other):
        stage.agent(agent, *servers)
    return slug, other


class Caller:
    """One agent at the door; ``session`` is what it sends in the header."""

    def __init__(
        self, app: McpApp, endpoint: str, token: str, headers: dict[str, str] | None = None
    ) -> None:
        self.app = app
        self.path = f"/mcp/{endpoint}"
        self.headers = {
            "authorization": f"Bearer {token}",
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
        } | (headers or {})

    async def send(self, verb: str, message: Any = None, **headers: str) -> httpx2.Response:
        transport = httpx2.ASGITransport(app=self.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://testserver") as http:
            return await http.request(verb, self.path, json=message, headers=self.headers | headers)

    async def modern(self, tool: str, **meta: Any) -> int:
        params = {"name": tool, "arguments": {}, "_meta": envelope() | meta}
        headers = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": tool}
        return _pid(
            await self.send(
                "POST",
                {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params},
                **headers,
            )
        )

    async def handshake(self) -> None:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"},
        }
        answer = await self.send(
            "POST", {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        )
        self.headers |= {
            "mcp-session-id": answer.headers["mcp-session-id"],
            "mcp-protocol-version": "2025-11-25",
        }
        await self.send("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def legacy(self, tool: str) -> int:
        params = {"name": tool, "arguments": {}}
        return _pid(
            await self.send(
                "POST", {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
            )
        )


def _pid(answer: httpx2.Response) -> int:
    text = answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        text = next(
            line for line in reversed(text.splitlines()) if line.startswith("data: {")
        ).removeprefix("data: ")
    return int(json.loads(text)["result"]["content"][0]["text"])


async def test_calls_meet_in_a_process_only_as_their_server_is_shared(stage: Stage):
    slug, other = await outside(rows, stage)
    async with doors(slug, stage.tokens[slug]) as both:
        mine, theirs = [Caller(both.app, slug, stage.tokens[agent]) for agent in (slug, other)]

        assert await mine.modern(f"{slug}-everybody__pid") == await theirs.modern(
            f"{slug}-everybody__pid"
        )

        by_agent = f"{slug}-agent__pid"
        assert await mine.modern(by_agent) == await mine.modern(
            by_agent, **{"slipsnisse/session": "x"}
        )
        assert await mine.modern(by_agent) != await theirs.modern(by_agent)

        by_session = f"{slug}-session__pid"
        named = Caller(both.app, slug, stage.tokens[slug], {"slipsnisse-session": "x"})
        seen = [
            await mine.modern(by_session),
            await named.modern(by_session),
            await theirs.modern(by_session),
        ]
        seen.append(await theirs.modern(by_session, **{"slipsnisse/session": "x"}))
        first, second = [Caller(both.app, slug, stage.tokens[slug]) for _ in range(2)]
        for older in (first, second):
            await older.handshake()
            seen.append(await older.legacy(by_session))
        assert len(set(seen)) == 6
        assert (
            await named.modern(by_session)
            == seen[1]
            == await mine.modern(by_session, **{"slipsnisse/session": "x"})
        )
        assert await first.legacy(by_session) == seen[4]

        # the host's session ends, and its process with it
        assert (await first.send("DELETE")).status_code == 200
        await until(lambda: not runs(seen[4]))
        assert await second.legacy(by_session) == seen[5]
        assert await named.modern(by_session) == seen[1]


async def test_a_request_that_names_two_sessions_is_refused(stage: Stage):
    slug, _ = await outside(rows, stage)
    tool = f"{slug}-session__pid"
    async with doors(slug, stage.tokens[slug]) as both:
        named = Caller(both.app, slug, stage.tokens[slug], {"slipsnisse-session": "x"})
        params = {"name": tool, "arguments": {}, "_meta": envelope() | {"slipsnisse/session": "y"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        modern = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": tool}
        answer = await named.send("POST", body, **modern)
        assert answer.json()["error"]["message"].startswith(
            "The request names two different sessions."
        )
        transport = httpx2.ASGITransport(app=both.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://testserver") as http:
            twice = [*(named.headers | modern).items(), ("slipsnisse-session", "y")]
            answer = await http.post(named.path, json=body, headers=twice)
        assert (answer.status_code, answer.json()["error"]["data"]["code"]) == (
            400,
            "ARGUMENTS_INVALID",
        )


async def test_a_session_whose_host_does_not_read_keeps_no_other_waiting():
    heard: list[tuple[str, int]] = []
    reads = asyncio.Event()

    async def deliver(session: str, message: dict[str, Any]) -> None:
        if session == "stuck":
            await reads.wait()
        heard.append((session, message["id"]))

    sessions = HostSessionCache(cast("Any", None))
    sessions.deliver = deliver
    sent = [("stuck", 1), ("stuck", 2), ("other", 3)]
    news = [
        (number, session, json.dumps({"id": number})) for number, (session, _) in enumerate(sent, 1)
    ]
    sessions._apply_news(News([], news))
    sessions._apply_news(News(["gone"], news))  # told twice
    await until(lambda: heard == [("other", 3)])
    reads.set()
    await until(lambda: heard[1:] == [("stuck", 1), ("stuck", 2)])
    assert not sessions._waiting


@pytest.mark.parametrize(
    "needed",
    [{"id": 4, "result": {}}, {"method": "notifications/cancelled", "params": {"requestId": 4}}],
    ids=["answer", "cancellation"],
)
async def test_beyond_the_bound_notices_are_left_out_and_what_is_needed_ends_its_session(
    live_db, monkeypatch, needed
):
    monkeypatch.setattr(module, "_MOST_WAITING", 3)
    heard: list[str] = []
    ended: list[str] = []
    reads = asyncio.Event()

    async def deliver(session: str, message: dict[str, Any]) -> None:
        await reads.wait()
        heard.append(f"{session} {message.get('method') or message['id']}")

    sessions = HostSessionCache(cast("Any", None))
    sessions.deliver = deliver
    sessions.ended.append(ended.append)

    def said(session: str, *messages: dict[str, Any]) -> None:
        known = len(sessions._told)
        news = [(known + n, session, json.dumps(message)) for n, message in enumerate(messages, 1)]
        sessions._apply_news(News([], news))

    for slow in ("s", "t"):
        whose = {"agent": "a", "endpoint": "e", "version": "2025-11-25", "client": "{}"}
        await db_call(host_sessions.begin_session, session_id=slow, **whose)
    with logged(module) as logs:
        said("s", *({"method": f"notice/{n}"} for n in range(5)))
        said("t", *({"method": f"notice/{n}"} for n in range(3)), needed)
        await until(lambda: ended == ["t"])
        reads.set()
        await until(lambda: not sessions._waiting)
    assert sorted(heard) == ["s notice/0", "s notice/1", "s notice/2", "t notice/0"]
    told = {
        entry["session"]: entry["count"]
        for entry in logs
        if entry["event"] == "sessions.messages_left_out"
    }
    assert told == {"s": 2, "t": 1}
    assert [entry["session"] for entry in logs if entry["event"] == "sessions.ended_for_full"] == [
        "t"
    ]
    assert await db_call(host_sessions.find_running_session, "s") is not None
    assert await db_call(host_sessions.find_running_session, "t") is None


async def test_a_message_that_comes_while_taken_ones_are_forgotten_is_delivered_once(
    live_db, monkeypatch
):
    heard: list[int] = []
    forgetting = asyncio.Event()
    go_on = asyncio.Event()

    async def deliver(session: str, message: dict[str, Any]) -> bool:
        await asyncio.sleep(0)  # as a door does while it hands the message to the host's connection
        heard.append(message["id"])
        return True

    async def forget(self: HostSessionCache, keys: list[int]) -> None:
        forgetting.set()
        await go_on.wait()
        keys.clear()

    monkeypatch.setattr(HostSessionCache, "_forget_messages", forget)
    sessions = HostSessionCache(cast("Any", None))
    sessions.deliver = deliver
    sessions._apply_news(News([], [(1, "s", json.dumps({"id": 1}))]))
    await forgetting.wait()
    sessions._apply_news(News([], [(number, "s", json.dumps({"id": number})) for number in (2, 3)]))
    go_on.set()
    await until(lambda: not sessions._tasks)
    assert heard == [1, 2, 3]
    assert not sessions._waiting


async def test_news_brings_each_message_once_and_not_all_at_once(live_db, monkeypatch):
    def story() -> list[list[str]]:
        monkeypatch.setattr(host_sessions, "_AT_ONCE", 2)
        host_sessions.begin_session(
            session_id="s", agent="a", endpoint="e", version="2025-11-25", client="{}"
        )
        for body in "123":
            host_sessions.send_host_message("s", body)
        told: set[int] = set()
        found: list[list[str]] = []
        while (
            news := host_sessions.read_news(estimate_database_now() - timedelta(minutes=1), told)
        ).messages:
            told |= {key for key, _, _ in news.messages}
            found.append([body for _, _, body in news.messages])
        return found

    assert await db_call(story) == [["1", "2"], ["3"]]
