"""The lane for ``tools/list`` says what the SDK would say, to everything that anyone may ask."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from mcp import MCPError

from mcpregistry.gateway.http import McpApp
from mcpregistry.gateway.lists import ListLane
from mcpregistry.models import Server
from mcpregistry.services import servers
from tests.fakes.stage import ACTOR, MODERN, Stage, envelope, fresh, listed, outside

USUAL = {
    "accept": "application/json, text/event-stream",
    "content-type": "application/json",
    "mcp-protocol-version": MODERN,
    "mcp-method": "tools/list",
}
META = envelope()
V, C, WHO = (f"io.modelcontextprotocol/{key}" for key in ("protocolVersion", "clientCapabilities", "clientInfo"))


def request(**changes: Any) -> bytes:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}} | changes
    return json.dumps({key: value for key, value in message.items() if value is not ...}).encode()


def params(**changes: Any) -> bytes:
    return request(params={"_meta": META} | changes)


def meta(**changes: Any) -> bytes:
    return params(_meta={key: value for key, value in (META | changes).items() if value is not ...})


BODIES: dict[str, bytes] = {
    "plain": request(),
    **{
        f"id {value!r}": request(id=value) for value in (0, -1, 2**63, 1.5, 1.0, None, True, "", "x", "ü", [1], {}, ...)
    },
    "id surrogate": request(id="\ud800"),
    "id huge": request(id=10**400),
    **{f"version {value!r}": request(jsonrpc=value) for value in ("1.0", 2.0, None, ...)},
    **{f"method {value!r}": request(method=value) for value in ("tools/call", "Tools/List", 7, ...)},
    **{f"params {value!r}": request(params=value) for value in (None, [], {}, "x", ...)},
    "more on top": request(more=1),
    "more in params": params(more=1),
    **{f"cursor {value!r}": params(cursor=value) for value in (None, "", 1, "old.500", "x", ".", "\ud800")},
    "no version": meta(**{V: ...}),
    "other version": meta(**{V: "2025-11-25"}),
    "unknown version": meta(**{V: "2030-01-01"}),
    "version is a number": meta(**{V: 1}),
    "no capabilities": meta(**{C: ...}),
    "capabilities are a list": meta(**{C: []}),
    "strange capabilities": meta(**{C: {"tools": 7, "elicitation": "x", "roots": {"listChanged": "perhaps"}}}),
    "capabilities with extensions": meta(**{C: {"extensions": {"io.modelcontextprotocol/tasks": {}}}}),
    "bad extensions": meta(**{C: {"extensions": 5}}),
    "bad sampling": meta(**{C: {"sampling": []}}),
    "no client": meta(**{WHO: ...}),
    "client is null": meta(**{WHO: None}),
    "client without version": meta(**{WHO: {"name": "x"}}),
    "client is text": meta(**{WHO: "x"}),
    "progress token": meta(progressToken=5),
    "progress token is an object": meta(progressToken={}),
    "progress token is true": meta(progressToken=True),
    "log level": meta(**{"io.modelcontextprotocol/logLevel": "debug"}),
    "unknown log level": meta(**{"io.modelcontextprotocol/logLevel": "loud"}),
    "foreign meta": meta(**{"vendor/x": {"y": [1]}}),
    "meta is null": params(_meta=None),
    "a batch": b"[" + request() + b"]",
    "two objects": request() + request(),
    "spaces around": b" \r\n" + request() + b"\n ",
    "byte order mark": b"\xef\xbb\xbf" + request(),
    "utf-16": request().decode().encode("utf-16"),
    "bad utf-8": request().replace(b"tools/list", b"tools/\xff"),
    "not a number": request(id=...)[:-1] + b', "id": NaN}',
    "a key twice": request()[:-1] + b', "id": 2}',
    "deep": params(_meta=META | {"x": json.loads("[" * 200 + "]" * 200)}),
    "bottomless": request()[:-1] + b', "x": ' + b"[" * 3000 + b"]" * 3000 + b"}",
    "large": meta(**{"vendor/x": "x" * 70_000}),
    "empty": b"",
}
HEADERS: dict[str, list[tuple[str, str]]] = {
    **{f"accept {v}": [("accept", v)] for v in ("*/*", "application/json", "text/event-stream", "text/html", "")},
    "accept with weights": [("accept", "application/json;q=0.5, text/event-stream;q=0.1")],
    "accept refused by weight": [("accept", "application/json;q=0, text/event-stream")],
    "accept in capitals": [("accept", "Application/JSON, Text/Event-Stream")],
    "accept wildcards": [("accept", "application/*, text/*")],
    "accept looks alike": [("accept", "application/jsonx, text/event-stream")],
    "accept twice": [("accept", "application/json"), ("accept", "text/event-stream")],
    **{
        f"type {v}": [("content-type", v)]
        for v in ("text/plain", "application/json; charset=utf-8", "application/jsonx", "Application/JSON", "")
    },
    **{
        f"version {v}": [("mcp-protocol-version", v)]
        for v in ("2030-01-01", " 2026-07-28", "2026-07-28 ", "", "2025-03-26")
    },
    "version twice": [("mcp-protocol-version", MODERN)] * 2,
    "method twice": [("mcp-method", "tools/list")] * 2,
    "a name": [("mcp-name", "x")],
    "a param": [("mcp-param-x", "y")],
    "a session": [("mcp-session-id", "abc")],
    "last event": [("last-event-id", "1")],
}


class Doors:
    """The same application twice: with the lane and without."""

    def __init__(self, app: McpApp, endpoint: str, token: str) -> None:
        self.app, self.endpoint, self.token = app, endpoint, token
        self.differences: dict[str, Any] = {}

    async def ask(
        self, lane: bool, method: str, content: bytes, headers: list[tuple[str, str]]
    ) -> tuple[int, str, Any]:
        given = [*headers, ("authorization", f"Bearer {self.token}")]
        with pytest.MonkeyPatch.context() as patch:
            if not lane:
                patch.setattr(ListLane, "takes", staticmethod(lambda scope: False))
            transport = httpx2.ASGITransport(app=self.app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://testserver") as http:
                sent = http.build_request(method, f"/mcp/{self.endpoint}", content=content)
                sent.headers = httpx2.Headers([("host", "testserver"), ("content-length", str(len(content))), *given])
                answer = await http.send(sent)
        kind = answer.headers.get("content-type", "")
        return answer.status_code, kind, answer.json() if kind.startswith("application/json") else answer.text

    async def same(
        self, name: str, method: str, content: bytes, headers: list[tuple[str, str]]
    ) -> tuple[int, str, Any]:
        fast, slow = [await self.ask(lane, method, content, headers) for lane in (True, False)]
        if fast != slow:
            self.differences[name] = (fast, slow)
        return fast


@contextlib.asynccontextmanager
async def doors(stage: Stage) -> AsyncIterator[Doors]:
    """Not a fixture: the application must be started and stopped in one task."""

    def rows() -> str:
        slug = fresh("lane")
        stage.endpoint(slug)
        text = {"description": "Zeigt Grüße, 漢字 \u2028 </script>", "annotations": {"readOnlyHint": True}}
        stage.agent(slug, stage.fake("echo", listed("echo", "pid", **text), slug=slug))
        return slug

    slug = await outside(rows)
    app = McpApp()
    await app.startup()
    try:
        yield Doors(app, slug, stage.tokens[slug])
    finally:
        await app.shutdown()


async def test_every_odd_body_gets_the_same_answer_with_and_without_the_lane(stage):
    async with doors(stage) as both:
        answers = {
            name: await both.same(name, "POST", content, list(USUAL.items())) for name, content in BODIES.items()
        }
    assert both.differences == {}
    assert answers["plain"][0] == 200
    assert len(answers["plain"][2]["result"]["tools"]) == 2
    assert answers["plain"][2]["result"]["cacheScope"] == "private"
    assert answers["plain"][2]["result"]["ttlMs"] == 1000
    assert answers["no version"][0] == 400


async def test_every_odd_header_and_method_gets_the_same_answer_with_and_without_the_lane(stage):
    async with doors(stage) as both:
        for name, changed in HEADERS.items():
            names = {name for name, _ in changed}
            given = [(name, value) for name, value in USUAL.items() if name not in names] + changed
            await both.same(name, "POST", request(), given)
        for method in ("GET", "DELETE", "PUT", "OPTIONS"):
            assert (await both.same(method, method, request(), list(USUAL.items())))[0] == 405
    assert both.differences == {}


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_a_long_list_comes_in_pages_and_an_old_cursor_is_refused(stage, site, mode):
    def rows() -> tuple[str, Server]:
        slug = fresh("pages")
        stage.endpoint(slug)
        server = stage.fake("many", [], slug=slug)
        stage.bulk(server, listed(*(f"tool_{number:04}" for number in range(1201))))
        more = stage.fake("echo", listed("late"), slug=f"{slug}-more")
        servers.disable_server(server=more, actor=ACTOR)
        return stage.agent(slug, server, more), more

    token, more = await outside(rows)
    await outside(site.wait_known, token)
    slug = more.slug.removesuffix("-more")
    async with site.client(token, mode, slug) as client:
        names, cursor, pages = [], None, 0
        while pages == 0 or cursor:
            page = await client.list_tools(cursor=cursor)
            names += [tool.name for tool in page.tools]
            stale, cursor, pages = cursor, page.next_cursor, pages + 1
        assert names == [f"{slug}__tool_{number:04}" for number in range(1201)]
        assert pages == 3
        await outside(servers.enable_server, server=more, actor=ACTOR)
        await outside(_listed, site, token, slug, 1202)
        with pytest.raises(MCPError) as refusal:
            await client.list_tools(cursor=stale)
    assert refusal.value.code == -32602


def _listed(site: Any, token: str, slug: str, count: int) -> None:
    """Until the list holds that many tools."""
    for _ in range(500):
        found, cursor = 0, None
        while found == 0 or cursor:
            content = params(cursor=cursor) if cursor else request()
            answer = httpx2.post(
                site.url(slug), headers=USUAL | {"authorization": f"Bearer {token}"}, content=content, trust_env=False
            ).json()
            if "error" in answer:  # it changed while we read
                break
            found, cursor = found + len(answer["result"]["tools"]), answer["result"].get("nextCursor")
        if found == count and not cursor:
            return
    raise AssertionError(found)
