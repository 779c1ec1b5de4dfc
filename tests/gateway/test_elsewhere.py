"""A request that only another process of the site can answer is answered by that process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from mcpregistry.downstream.peers.server import Handlers, PeerServer
from mcpregistry.gateway.http.request_relay import (
    RelayedAnswer,
    can_belong_elsewhere,
    make_request_handler,
)
from tests.waiting import until

BODY = b'{"jsonrpc":"2.0","id":1,"params":{"requestState":"s"}}'
SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/mcp/ü",
    "query_string": b"a=1",
    "headers": [(b"authorization", b"Bearer \xfc")],
}
START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream")],
}
OWN = [START | {"status": 400}, {"type": "http.response.body", "body": b"gone", "more_body": False}]


class Other:
    """The door of another process."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self.asked: list[tuple[dict[str, Any], bytes]] = []
        self.left = False
        self.goes_on = asyncio.Event()

    async def app(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.asked.append((scope, (await receive())["body"]))
        await send(START)
        await send({"type": "http.response.body", "body": b"\x00one", "more_body": True})
        going = asyncio.ensure_future(self.goes_on.wait())
        leaving = asyncio.ensure_future(receive())
        await asyncio.wait({going, leaving}, return_when=asyncio.FIRST_COMPLETED)
        self.left = leaving.done()
        leaving.cancel()
        await send({"type": "http.response.body", "body": b"two"})


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[Other]:
    made = Other(tmp_path / "run" / "other.sock")
    server = PeerServer(
        Handlers(
            "web",
            owns=bool,
            perform=cast(Any, None),
            hear=cast(Any, None),
            serve=make_request_handler(made.app),
        )
    )
    await server.start(Path(made.address))
    yield made
    await server.close()


class Request:
    """A request as this process handles it."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.left = asyncio.Event()

    async def send(self, event: dict[str, Any]) -> None:
        self.sent.append(event)

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def handle(self, *addresses: str) -> None:
        elsewhere = RelayedAnswer(self.send)
        elsewhere.addresses.extend(addresses)
        for event in OWN:
            await elsewhere.send(event)
        await elsewhere.finish(SCOPE, BODY, self.receive)


async def test_it_is_answered_there_and_what_this_process_says_is_dropped(other: Other) -> None:
    request = Request()
    other.goes_on.set()
    await request.handle(other.address)
    assert [event.get("body", b"") for event in request.sent] == [b"", b"\x00one", b"two"]
    assert request.sent[0] == START
    assert [event.get("more_body") for event in request.sent[1:]] == [True, False]
    ((scope, body),) = other.asked
    assert body == BODY
    assert {key: scope[key] for key in SCOPE} == SCOPE
    assert not can_belong_elsewhere(scope, BODY), "it is passed on only once"
    assert can_belong_elsewhere(SCOPE, BODY)
    assert not can_belong_elsewhere(SCOPE, b"{}")


async def test_a_host_that_leaves_is_left_there_too(other: Other) -> None:
    request = Request()
    handling = asyncio.ensure_future(request.handle(other.address))
    await until(lambda: len(request.sent) == 2)
    request.left.set()
    await handling
    await until(lambda: other.left)


@pytest.mark.parametrize("addresses", [(), ("/nowhere",)])
async def test_this_process_answers_if_no_other_can(
    other: Other, addresses: tuple[str, ...]
) -> None:
    request = Request()
    await request.handle(*addresses)
    assert request.sent == OWN
    assert other.asked == []
