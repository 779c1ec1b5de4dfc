"""The doors whose connections last: HTTP+SSE and WebSocket, with official clients, with strangers,
and at their end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from mcpregistry.domain.errors import QueueFullError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.gateway.caller_identity import Caller
from mcpregistry.gateway.http import access, duplex_connections, websocket
from mcpregistry.gateway.server import GatewayServer
from mcpregistry.models import Agent, Grant, HostSession
from mcpregistry.services import host_sessions
from mcpregistry.services.access import grants, tokens
from tests.fakes.journals import cancelled
from tests.fakes.stage import (
    ACTOR,
    MODERN,
    Stage,
    Web,
    envelope,
    folder,
    fresh,
    listed,
    outside,
    web,
)
from tests.fakes.websockets import dial
from tests.waiting import HANG_LIMIT, until

pytestmark = [pytest.mark.e2e, pytest.mark.one_database]
DOORS = ["sse", "ws"]
Message = dict[str, Any]


def progress_of(host: Any) -> list[Any]:
    return [m for m in host.said if m.get("method") == "notifications/progress"]


@pytest.fixture(scope="module")
def journal() -> Path:
    return folder() / "journal"


@pytest.fixture(scope="module")
def token(stage: Stage, site: Web, journal: Path) -> str:
    stage.endpoint(instructions="Ask for the time first.")
    stage.endpoint("second")
    slow = stage.fake("slow", listed("count"), FAKE_JOURNAL=str(journal))
    token = stage.agent("local", stage.fake("echo", listed("echo", "pid")), slow)
    site.wait_known(token)
    return token


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> str:
    return request.param


class Raw:
    """A host that sees every message. ``said`` are those of the server; ``over`` says how it has
    ended."""

    def __init__(self, send: Callable[[bytes], Awaitable[Any]]) -> None:
        self.send = send
        self.said: list[Message] = []
        self.over: Any = None

    async def ask(self, request_id: Any, method: str, **params: Any) -> Message:
        await self.tell(id=request_id, method=method, params=params)
        return await self.answer(request_id)

    async def tell(self, **message: Any) -> None:
        await self.send(json.dumps({"jsonrpc": "2.0"} | message).encode())

    async def answer(self, request_id: Any) -> Message:
        return await until(lambda: next((m for m in self.said if m.get("id") == request_id), None))

    async def handshake(self) -> None:
        info = {"name": "raw", "version": "1"}
        await self.ask(
            0, "initialize", protocolVersion="2024-11-05", capabilities={}, clientInfo=info
        )
        await self.tell(method="notifications/initialized")


@contextlib.asynccontextmanager
async def raw(site: Web, token: str, door: str, endpoint: str = "default") -> AsyncIterator[Raw]:
    opened = _raw_ws if door == "ws" else _raw_sse
    async with opened(site, token, endpoint) as host:
        yield host


@contextlib.asynccontextmanager
async def _raw_ws(site: Web, token: str, endpoint: str) -> AsyncIterator[Raw]:
    async with dial(f"{site.url(endpoint)}/ws", token) as socket:
        host = Raw(lambda data: socket.send(data.decode()))

        async def listen() -> None:
            with contextlib.suppress(ConnectionClosed):
                async for frame in socket:
                    host.said.append(json.loads(frame))
            host.over = socket.close_code

        listening = asyncio.create_task(listen())
        yield host
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


@contextlib.asynccontextmanager
async def _raw_sse(site: Web, token: str, endpoint: str) -> AsyncIterator[Raw]:
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with site.raw(token) as http:
        host = Raw(_never)

        async def listen() -> None:
            async with http.stream("GET", f"{site.url(endpoint)}/sse") as stream:
                kind = ""
                async for line in stream.aiter_lines():
                    name, _, value = line.partition(": ")
                    kind = value if name == "event" else kind
                    if name == "data" and kind == "endpoint":
                        address.set_result(f"http://{site.address}{value}")
                    elif name == "data":
                        host.said.append(json.loads(value))
            host.over = "ended in good order"

        listening = asyncio.create_task(listen())
        url = await address
        host.send = lambda data: http.post(url, content=data)
        try:
            yield host
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


async def _never(data: bytes) -> None:
    raise AssertionError


@pytest.mark.exhaustive(but=("sse-legacy-2025-11-25",))
@pytest.mark.parametrize(
    ("mode", "version"), [("legacy", "2025-11-25"), ("auto", MODERN), (MODERN, MODERN)]
)
async def test_the_sdks_client_lists_calls_and_hears_progress(
    site, stage, token, door, mode, version
):
    heard: list[float] = []

    async def note(progress: float, *_: object) -> None:
        heard.append(progress)

    mark = fresh("mark")
    async with site.client(token, mode, door=door) as client:
        assert client.protocol_version == version
        # pinned, it asks nothing
        assert client.instructions == ("Ask for the time first." if mode != MODERN else None)
        names = [tool.name for tool in (await client.list_tools()).tools]
        result = await client.call_tool("echo__echo", {"text": "grüß 漢字", "mark": mark})
        counted = await client.call_tool(
            "slow__count", {"steps": 3, "pause": 0.01}, progress_callback=note
        )
    assert names == ["echo__echo", "echo__pid", "slow__count"]
    assert result.structured_content["arguments"] == {"text": "grüß 漢字", "mark": mark}
    assert counted.content[0].text == "3 steps"
    assert heard
    (record,) = await outside(stage.calls, arguments__contains=mark)
    assert (record.state, record.origin, record.endpoint_slug) == (
        InvocationState.SUCCEEDED,
        "http",
        "default",
    )


@pytest.mark.exhaustive(one_in=2)
async def test_a_host_is_told_that_its_list_has_changed_and_sent_away_when_its_token_is_revoked(
    site, stage, token, door
):
    slug = fresh("agent")
    secret = await outside(stage.agent, slug)
    more = await outside(stage.fake, "echo", listed("echo"), slug=fresh("more"))
    await outside(site.wait_known, secret)
    async with raw(site, secret, door) as host:
        await host.handshake()
        assert (await host.ask(1, "tools/list"))["result"]["tools"] == []
        agent = await outside(Agent.objects.get, slug=slug)
        await outside(
            grants.save_grant, grant=Grant(agent=agent, server=more, kind=""), actor=ACTOR
        )
        await until(
            lambda: "notifications/tools/list_changed" in [m.get("method") for m in host.said]
        )
        assert len((await host.ask(2, "tools/list"))["result"]["tools"]) == 1
        held = await outside(stage.token, slug)
        await outside(tokens.revoke_token, token=held, actor=ACTOR)
        assert await until(lambda: host.over) == (1008 if door == "ws" else "ended in good order")


NOTHING = {"jsonrpc": "2.0", "method": "notifications/x"}
STRANGERS = {
    "no token": ({"Authorization": ""}, 401),
    "an unknown token": ({"Authorization": "Bearer slp_nobody"}, 401),
    "a page of another site": ({"Origin": "https://evil.example"}, 403),
    "a name that rebinds to us": ({"Host": "127.0.0.1.evil.example"}, (400, 403)),
}


@pytest.mark.attack
@pytest.mark.parametrize("stranger", STRANGERS)
async def test_strangers_are_refused(site, token, door, stranger):
    given, status = STRANGERS[stranger]
    address = f"{site.url()}/{door}"
    if door == "sse":
        async with site.raw(token) as http:
            found = [
                (await http.request(method, address, headers=given)).status_code
                for method in ("GET", "POST")
            ]
    else:
        known = {"Authorization": f"Bearer {token}", **given}
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        async with site.raw() as http:  # the WebSocket client would set Host and Origin itself
            answer = await http.get(
                address, headers=known | upgrade | {"Sec-WebSocket-Key": "x" * 22 + "=="}
            )
        found = [answer.status_code]
    assert set(found) <= ({status} if isinstance(status, int) else set(status)), found


async def test_each_door_says_what_it_is_for(site, token):
    async with site.raw(token) as http:
        answers = {
            "a page asks": (await http.get(f"{site.url()}/ws")).status_code,
            "deleted": (await http.delete(f"{site.url()}/sse")).status_code,
            "no such stream": (
                await http.post(f"{site.url()}/sse?session_id=guessed", json=NOTHING)
            ).status_code,
            "no such endpoint": (await http.get(f"{site.url('nowhere')}/sse")).status_code,
        }
    assert answers == {
        "a page asks": 426,
        "deleted": 405,
        "no such stream": 404,
        "no such endpoint": 404,
    }
    for address, subprotocols, status in (
        (f"{site.url()}/ws", ("graphql-ws",), 400),
        (f"{site.url('nowhere')}/ws", ("mcp",), 404),
        (site.url(), ("mcp",), 404),
        (f"http://{site.address}/admin/", ("mcp",), 403),
    ):
        with pytest.raises(InvalidStatus) as caught:
            await dial(address, token, subprotocols=subprotocols)
        assert caught.value.response.status_code == status
    async with dial(f"{site.url()}/ws", token, subprotocols=()) as socket:
        assert socket.subprotocol is None


@pytest.mark.attack
async def test_one_agent_cannot_take_every_place(monkeypatch):
    monkeypatch.setattr(duplex_connections, "MOST", 3)
    monkeypatch.setattr(duplex_connections, "MOST_OF_AGENT", 2)
    connections = duplex_connections.DuplexConnections(cast("Any", None), GatewayServer("quiet"))
    with contextlib.ExitStack() as taken:
        for _ in range(2):
            taken.enter_context(connections.reserve_place("greedy"))
        with (
            pytest.raises(QueueFullError, match="This agent has 2 open connections"),
            connections.reserve_place("greedy"),
        ):
            pass
        with (
            connections.reserve_place("other"),
            pytest.raises(QueueFullError, match="Too many hosts"),
            connections.reserve_place("third"),
        ):
            pass
    with connections.reserve_place("greedy"):
        assert dict(connections._taken) == {"greedy": 1}


@pytest.mark.attack
async def test_nobody_speaks_on_anothers_stream(site, stage, token):
    other = await outside(stage.agent, fresh("other"))
    await outside(site.wait_known, other)
    async with raw(site, token, "sse") as host:
        await host.handshake()
        address = str(
            (await host.send(b'{"jsonrpc":"2.0","method":"notifications/x"}')).request.url
        )
        async with site.raw(other) as http:
            message = {"jsonrpc": "2.0", "id": 9, "method": "tools/list"}
            assert (await http.post(address, json=message)).status_code == 404
        async with site.raw(token) as http:
            assert (
                await http.post(address.replace("/default/", "/second/"), json=message)
            ).status_code == 404
            assert (await http.post(address, json=message)).status_code == 202
        await host.answer(9)


NO_MESSAGES = [
    (b"{", None, -32700),
    (b"\xc3\xa4", None, -32700),
    (b"[]", None, -32600),
    (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', None, -32600),
    (b'{"id":1,"method":"ping"}', None, -32600),
    (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', None, -32600),
    (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', None, -32600),
    (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":[]}', 7, -32600),
    (
        b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":%s}}' % (b"[" * 500 + b"]" * 500),
        7,
        -32700,
    ),
    (
        b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":%s}}' % (b"[" * 9999 + b"]" * 9999),
        7,
        -32700,
    ),
    (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":NaN}}', 7, -32700),
    (b'{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"cursor":"0.1"}}', 7, -32602),
    (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":7}}', 7, -32602),
    (b'{"jsonrpc":"2.0","id":7,"method":"no/such"}', 7, -32601),
    (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"q":"1","q":"2"}}', 7, -32600),
]


@pytest.mark.attack
async def test_what_is_no_message_is_answered_as_json_rpc_says_and_harms_nobody(site, token, door):
    async with raw(site, token, door) as host:
        await host.handshake()
        for data, request_id, code in NO_MESSAGES:
            host.said.clear()
            reply = await host.send(data)
            if door == "sse" and reply.status_code != 202:
                found = reply.json()
            else:
                found = await until(lambda: next((m for m in host.said if "error" in m), None))
            assert (found["id"], found["error"]["code"]) == (request_id, code), data[:80]
            assert "pydantic" not in found["error"]["message"]
        assert (await host.ask(99, "ping"))["result"] == {}


@pytest.mark.attack
async def test_a_message_over_4_mib_is_refused(site, token, door):
    async with raw(site, token, door) as host:
        reply = host.send(b" " * (4 * 1024 * 1024 + 1))
        if door == "sse":
            assert (await reply).status_code == 413
        else:
            with contextlib.suppress(ConnectionClosed):
                await reply
            assert await until(lambda: host.over) == 1009


async def test_a_host_that_leaves_takes_its_calls_along(site, stage, token, door, journal):
    mark = fresh("leaving")
    async with raw(site, token, door) as host:
        await host.handshake()
        call = {"name": "slow__count", "arguments": {"steps": 1000, "pause": 0.05, "mark": mark}}
        await host.tell(id=1, method="tools/call", params=call)
        await until(lambda: journal.exists() and mark in journal.read_text())

    def ended() -> bool:
        (record,) = stage.calls(arguments__contains=mark)
        return (record.state, record.error_code) == (InvocationState.UNKNOWN, "CANCELLED")

    await until(lambda: outside(ended))
    await until(lambda: cancelled(journal, mark))  # it is told beside the call's end


# -- the end of the site ---------------------------------------------------------------------------


@pytest.fixture
def own(stage: Stage, token: str) -> Iterator[Web]:
    """A web process for this test alone."""
    with web(stage.env) as running:
        running.wait_known(token)
        yield running


async def test_a_site_that_stops_answers_what_is_in_flight_then_ends_its_connections(own, token):
    async with contextlib.AsyncExitStack() as stack:
        hosts = [await stack.enter_async_context(raw(own, token, door)) for door in DOORS]
        modern = await stack.enter_async_context(raw(own, token, "ws"))
        for host in hosts:
            await host.handshake()
            arguments = {"steps": 10, "pause": 0.1}
            params = {
                "name": "slow__count",
                "arguments": arguments,
                "_meta": {"progressToken": "p"},
            }
            await host.tell(id=1, method="tools/call", params=params)
            await until(partial(progress_of, host))
        listening = {"notifications": {"toolsListChanged": True}, "_meta": envelope()}
        await modern.tell(id="l", method="subscriptions/listen", params=listening)
        await until(lambda: modern.said)
        own.terminate()
        assert (await modern.answer("l"))["result"]["resultType"] == "complete"
        assert await until(lambda: modern.over) == 1001
        for host in hosts:
            assert (await host.answer(1))["result"]["content"][0]["text"] == "10 steps"
        assert [await until(lambda: host.over) for host in hosts] == ["ended in good order", 1001]  # noqa: B023
        await asyncio.to_thread(own.processes[0].wait, HANG_LIMIT)


async def test_a_connection_that_lasts_has_a_row_and_ends_with_it(site, token, door):
    """Seen by people with its host's name while it lasts; gone with it, and ended by hand."""
    shown = {"ws": "WebSocket", "sse": "HTTP+SSE"}[door]

    def story(host_name: str) -> HostSession | None:
        rows = HostSession.objects.filter(host_name=host_name, ended_at=None)
        return next((row for row in rows if row.door == shown), None)

    async def one() -> HostSession | None:
        return await outside(story, "raw")

    async def none() -> bool:
        return await one() is None

    await until(none)  # those of other tests have ended with their connections
    async with raw(site, token, door) as host:
        await host.handshake()
        row = cast(HostSession, await until(one))
        assert (row.host_version, row.endpoint_slug) == ("1", "default")
    await until(none)
    async with raw(site, token, door) as host:
        await host.handshake()
        row = cast(HostSession, await until(one))
        await outside(host_sessions.end_session, row.pk)
        assert await until(lambda: host.over) == (1000 if door == "ws" else "ended in good order")


@pytest.mark.exhaustive
async def test_what_is_posted_finds_its_stream_whichever_process_it_meets(site, stage, own, token):
    async with raw(site, token, "sse") as host, own.raw(token) as elsewhere:
        await host.handshake()
        address = str(
            (await host.send(b'{"jsonrpc":"2.0","method":"notifications/x"}')).request.url
        )
        address = address.replace(site.address, own.address)
        call = {"name": "echo__echo", "arguments": {"n": 1}}
        for number in range(1, 4):
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call}
            assert (await elsewhere.post(address, json=message)).status_code == 202
        for number in range(1, 4):
            assert (await host.answer(number))["result"]["structuredContent"]["arguments"] == {
                "n": 1
            }
        other = await outside(stage.agent, fresh("other"))
        await outside(own.wait_known, other)
        async with own.raw(other) as stranger:
            assert (await stranger.post(address, json=message)).status_code == 404
    stream = address.partition("session_id=")[2]

    async def over() -> bool:
        return await outside(host_sessions.find_running_session, stream) is None

    await until(over)


async def test_a_door_that_is_switched_off_is_not_there(stage, token):
    with web(stage.env | {"SLIPSNISSE_DOORS": ""}) as site:
        async with site.raw(token) as http:
            assert (await http.get(f"{site.url()}/sse")).status_code == 404
        with pytest.raises(InvalidStatus) as caught:
            await dial(f"{site.url()}/ws", token)
        assert caught.value.response.status_code == 404


async def test_a_token_that_runs_out_ends_a_connection_on_which_nothing_is_said(monkeypatch):
    live = ["hash"]
    agent = SimpleNamespace(slug="local")
    current = SimpleNamespace(endpoints={"default": None})
    engine = SimpleNamespace(
        find_agent=lambda token: agent if token in live else None,
        live=SimpleNamespace(current=current),
    )
    engine.live.listeners = []
    monkeypatch.setattr(access, "LOOK_SECONDS", 0.01)
    looking = access.Access(cast("Any", engine))
    looking.start()
    connections = duplex_connections.DuplexConnections(looking, GatewayServer("quiet"))
    scope = {"type": "websocket", "path": "/mcp/default/ws", "headers": []}
    arrival = access.Arrival(Caller("local", "default", "http"), "hash", scope, _never, _never)
    connection = connections.make(arrival, _never)
    serving = asyncio.ensure_future(connections.serve(connection))
    await until(lambda: connections.find(connection.id, arrival.caller))
    live.clear()
    assert await asyncio.wait_for(serving, HANG_LIMIT) == access.REVOKED
    looking.close()


async def test_a_host_that_vanishes_while_we_write_is_no_error():
    """The web server reports it as an OSError, and logs a traceback if that leaves the
    application."""
    engine = SimpleNamespace(find_agent=lambda _: None, live=SimpleNamespace(current=None))
    connections = duplex_connections.DuplexConnections(
        access.Access(cast("Any", engine)), GatewayServer("quiet")
    )
    connections.is_still_welcome = lambda _: True  # type: ignore[method-assign]
    wrote = asyncio.Event()
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    frames = [json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})]

    async def receive() -> Message:
        if frames:
            return {"type": "websocket.receive", "text": frames.pop()}
        await wrote.wait()
        return {"type": "websocket.disconnect"}

    async def send(event: Message) -> None:
        if event["type"] == "websocket.send":
            wrote.set()
            raise ConnectionResetError

    @contextlib.asynccontextmanager
    async def row(*_: Any) -> AsyncIterator[None]:
        yield

    scope = {"type": "websocket", "path": "/mcp/default/ws", "headers": [], "subprotocols": []}
    arrival = access.Arrival(Caller("local", "default", "http"), "hash", scope, receive, send)
    await websocket.serve_socket(
        connections, cast("Any", SimpleNamespace(record_connection=row)), arrival, 1000
    )
    assert wrote.is_set()


@pytest.mark.exhaustive(one_in=2)
async def test_an_older_host_on_its_own_connection_has_a_session_of_its_own(
    stage, site, token, door
):
    server = await outside(stage.fake, "echo", listed("pid"), fresh("own"))
    server.shared_by = "session"
    await outside(server.save)
    whose = fresh("agent")
    other = await outside(stage.agent, whose, server)
    await outside(site.wait_known, other)
    async with raw(site, other, door) as one, raw(site, other, door) as two:
        pids = []
        for host in (one, two, one):
            if not host.said:
                await host.handshake()
            answer = await host.ask(
                len(pids) + 1, "tools/call", name=f"{server.slug}__pid", arguments={}
            )
            pids.append(answer["result"]["content"][0]["text"])
    assert pids[0] == pids[2] != pids[1]
