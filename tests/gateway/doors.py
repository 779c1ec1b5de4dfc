"""One HTTP door with and without its lanes, and everything odd that anyone may ask of it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2

from mcpregistry.gateway.http.mcp_app import McpApp
from tests.fakes.stage import MODERN, envelope

META = envelope()
OLDER = "2025-11-25"
V, C, WHO = (
    f"io.modelcontextprotocol/{key}"
    for key in ("protocolVersion", "clientCapabilities", "clientInfo")
)
Answer = tuple[int, str, Any]


class Corpus:
    """Requests of one method: ``params`` are those of an ordinary one, ``named`` what its
    ``Mcp-Name`` repeats.

    Those of a host with a ``session`` are of the older era.
    """

    def __init__(self, method: str, *, named: str = "", session: str = "", **params: Any) -> None:
        self.method = method
        self._params = params
        self._meta: dict[str, Any] = {"progressToken": 3} if session else META
        self.usual = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
        }
        if session:
            self.usual |= {"mcp-protocol-version": OLDER, "mcp-session-id": session}
        else:
            self.usual |= {"mcp-protocol-version": MODERN, "mcp-method": method} | (
                {"mcp-name": named} if named else {}
            )

    def request(self, **changes: Any) -> bytes:
        message = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": self.method,
            "params": {"_meta": self._meta} | self._params,
        } | changes
        return json.dumps(
            {key: value for key, value in message.items() if value is not ...}
        ).encode()

    def params(self, **changes: Any) -> bytes:
        found = {"_meta": self._meta} | self._params | changes
        return self.request(params={key: value for key, value in found.items() if value is not ...})

    def meta(self, **changes: Any) -> bytes:
        return self.params(
            _meta={key: value for key, value in (self._meta | changes).items() if value is not ...}
        )

    def bodies(self) -> dict[str, bytes]:
        request = self.request
        params = self.params
        meta = self.meta
        ids = (0, -1, 2**63, 10**25, 1.5, 1.0, None, True, "", "x", "ü", "\u2028", [1], {}, ...)
        return {
            "plain": request(),
            **{f"id {value!r}": request(id=value) for value in ids},
            "id surrogate": request(id="\ud800"),
            "id huge": request(id=10**400),
            **{f"version {value!r}": request(jsonrpc=value) for value in ("1.0", 2.0, None, ...)},
            **{
                f"method {value!r}": request(method=value)
                for value in ("prompts/list", self.method.title(), 7, ...)
            },
            **{f"params {value!r}": request(params=value) for value in (None, [], {}, "x", ...)},
            "more on top": request(more=1),
            "more in params": params(more=1),
            "no version": meta(**{V: ...}),
            "other version": meta(**{V: "2025-11-25"}),
            "unknown version": meta(**{V: "2030-01-01"}),
            "version is a number": meta(**{V: 1}),
            "no capabilities": meta(**{C: ...}),
            "capabilities are a list": meta(**{C: []}),
            "strange capabilities": meta(
                **{C: {"tools": 7, "elicitation": "x", "roots": {"listChanged": "perhaps"}}}
            ),
            "capabilities with extensions": meta(
                **{C: {"extensions": {"io.modelcontextprotocol/tasks": {}}}}
            ),
            "bad extensions": meta(**{C: {"extensions": 5}}),
            "bad sampling": meta(**{C: {"sampling": []}}),
            "no client": meta(**{WHO: ...}),
            "client is null": meta(**{WHO: None}),
            "client without version": meta(**{WHO: {"name": "x"}}),
            "client with more": meta(
                **{WHO: {"name": "ü\u2028", "version": "9" * 200, "title": "T", "more": [1]}}
            ),
            "client is text": meta(**{WHO: "x"}),
            "progress token": meta(progressToken=5),
            "progress token is text": meta(progressToken="ü"),
            "progress token is nothing": meta(progressToken=None),
            "progress token is an object": meta(progressToken={}),
            "progress token is true": meta(progressToken=True),
            "progress token is a fraction": meta(progressToken=1.5),
            "log level": meta(**{"io.modelcontextprotocol/logLevel": "debug"}),
            "unknown log level": meta(**{"io.modelcontextprotocol/logLevel": "loud"}),
            "foreign meta": meta(
                **{"vendor/x": {"y": [1]}, "claudecode/toolUseId": "toolu_7", "callId": 7}
            ),
            "trace": meta(
                traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", tracestate=7
            ),
            "meta is null": params(_meta=None),
            "a batch": b"[" + request() + b"]",
            "two objects": request() + request(),
            "spaces around": b" \r\n" + request() + b"\n ",
            "byte order mark": b"\xef\xbb\xbf" + request(),
            "utf-16": request().decode().encode("utf-16"),
            "bad utf-8": request().replace(self.method.encode(), b"tools/\xff"),
            "not a number": request(id=...)[:-1] + b', "id": NaN}',
            "a key twice": request()[:-1] + b', "id": 2}',
            "deep": params(_meta=META | {"x": json.loads("[" * 200 + "]" * 200)}),
            "bottomless": request()[:-1] + b', "x": ' + b"[" * 3000 + b"]" * 3000 + b"}",
            "large": meta(**{"vendor/x": "x" * 70_000}),
            "empty": b"",
        }

    def headers(self) -> dict[str, list[tuple[str, str]]]:
        """The ordinary headers, each time with a change."""
        return {name: self._changed(changed) for name, changed in self._changes().items()}

    def _changed(self, changed: list[tuple[str, str]]) -> list[tuple[str, str]]:
        names = {name for name, _ in changed}
        return [(name, value) for name, value in self.usual.items() if name not in names] + changed

    def _changes(self) -> dict[str, list[tuple[str, str]]]:
        accepts = ("*/*", "application/json", "text/event-stream", "text/html", "")
        types = (
            "text/plain",
            "application/json; charset=utf-8",
            "application/jsonx",
            "Application/JSON",
            "",
        )
        versions = ("2030-01-01", " 2026-07-28", "2026-07-28 ", "", "2025-03-26")
        return {
            **{f"accept {v}": [("accept", v)] for v in accepts},
            "accept with weights": [("accept", "application/json;q=0.5, text/event-stream;q=0.1")],
            "accept refused by weight": [("accept", "application/json;q=0, text/event-stream")],
            "accept in capitals": [("accept", "Application/JSON, Text/Event-Stream")],
            "accept wildcards": [("accept", "application/*, text/*")],
            "accept looks alike": [("accept", "application/jsonx, text/event-stream")],
            "accept twice": [("accept", "application/json"), ("accept", "text/event-stream")],
            **{f"type {v}": [("content-type", v)] for v in types},
            **{f"version {v}": [("mcp-protocol-version", v)] for v in versions},
            "version twice": [("mcp-protocol-version", MODERN)] * 2,
            "method twice": [("mcp-method", self.method)] * 2,
            "method of another": [("mcp-method", "prompts/list")],
            "a name": [("mcp-name", "x")],
            "no name": [("mcp-name", "")],
            "name in base64": [("mcp-name", "=?base64?eA==?=")],
            "name twice": [("mcp-name", self.usual.get("mcp-name", "x"))] * 2,
            "a param": [("mcp-param-x", "y")],
            "a session": [("mcp-session-id", "abc")],
            "last event": [("last-event-id", "1")],
        }


class Doors:
    """The same application twice: with its lanes and without."""

    def __init__(self, app: McpApp, endpoint: str, token: str) -> None:
        self.app = app
        self.endpoint = endpoint
        self.token = token
        self.lanes = dict(app.lanes)
        self.differences: dict[str, Any] = {}

    async def ask(
        self, lane: bool, method: str, content: bytes, headers: list[tuple[str, str]]
    ) -> Answer:
        given = [*headers, ("authorization", f"Bearer {self.token}")]
        self.app.lanes = self.lanes if lane else {}
        transport = httpx2.ASGITransport(app=self.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://testserver") as http:
            sent = http.build_request(method, f"/mcp/{self.endpoint}", content=content)
            sent.headers = httpx2.Headers(
                [("host", "testserver"), ("content-length", str(len(content))), *given]
            )
            answer = await http.send(sent)
        self.session = answer.headers.get("mcp-session-id", "")
        kind = answer.headers.get("content-type", "")
        return answer.status_code, kind, _read(kind, answer.text)

    async def same(
        self, name: str, method: str, content: bytes, headers: list[tuple[str, str]]
    ) -> Answer:
        fast, slow = [await self.ask(lane, method, content, headers) for lane in (True, False)]
        older = any(header == "mcp-session-id" for header, _ in headers)
        if (fast != slow) if not older else (said(fast) != said(slow)):
            self.differences[name] = (fast, slow)
        return fast

    async def opened(
        self, then: Doors | None = None, *, version: str = OLDER, **capabilities: Any
    ) -> str:
        """Shake hands as a host of the older era; the session's id. The end of the handshake is
        said to ``then``."""
        client = {"name": "raw", "version": "1"}
        params = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": client}
        begun = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        usual = [
            ("accept", "application/json, text/event-stream"),
            ("content-type", "application/json"),
        ]
        assert (await self.ask(True, "POST", json.dumps(begun).encode(), usual))[0] == 200
        session = self.session
        note = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
        assert (
            await (then or self).ask(True, "POST", note, [*usual, ("mcp-session-id", session)])
        )[0] == 202
        return session


def said(answer: Answer) -> tuple[int, Any]:
    """Without whether it was one body or a stream of one message: to the older era both say the
    same."""
    status, kind, read = answer
    if kind.startswith("text/event-stream"):
        return status, [message for _, message in read]
    return status, [read] if kind.startswith("application/json") and read else read


def _read(kind: str, text: str) -> Any:
    """The messages, without what differs from call to call: the ids that hosts and servers get from
    us."""
    if kind.startswith("application/json") and text:
        return json.loads(anonymous(text))
    if kind.startswith("text/event-stream"):
        frames = [
            dict(line.split(": ", 1) for line in each.split("\r\n") if ": " in line)
            for each in text.split("\r\n\r\n")
        ]
        return [
            (f"event: {each['event']}", json.loads(anonymous(each["data"])))
            for each in frames
            if each.get("data")
        ]
    return text


def anonymous(text: str) -> str:
    return re.sub(r"\b100\d{4}\b", "1000000", re.sub(r"\b[0-9a-f]{32}\b", "ID", text))


@contextlib.asynccontextmanager
async def doors(endpoint: str, token: str) -> AsyncIterator[Doors]:
    """Not a fixture: the application must be started and stopped in one task."""
    app = McpApp()
    await app.startup()
    try:
        yield Doors(app, endpoint, token)
    finally:
        await app.shutdown()
