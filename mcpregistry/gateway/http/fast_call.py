"""The lane for plain ``tools/call`` of the modern era: the same pipeline, without the SDK's layers around it.

The SDK spends a task group, two streams and some models on each request, three times what the whole pipeline costs.
Here the request's own task runs the call. As with the SDK, the answer is one JSON body unless the server reports
progress or lets the host wait: then it becomes an event stream that is kept alive, and a host that leaves cancels its
call (MCP 2026-07-28, streamable HTTP).

The lane decides nothing. What it does not fully understand, and what the pipeline would hold for a person, goes to the
SDK before anything of it is recorded. How a call ended that brought no plain result (a refusal, a task, a server's
question) is said by the SDK's way as well, which gets the outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
from mcp.server.connection import Connection
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import x_mcp_header_map
from mcp.types import SERVER_INFO_META_KEY
from mcp_types.version import LATEST_MODERN_VERSION

from mcpregistry.calls.call import CallOutcome, CallRequest, Host, Judged
from mcpregistry.calls.catalog import Entry
from mcpregistry.domain.errors import NotFound, SlipsnisseError
from mcpregistry.domain.policy.decision import Outcome
from mcpregistry.gateway.answers import tool_result
from mcpregistry.gateway.http.body import Plain, plain_request, read_small, replayed
from mcpregistry.gateway.http.eventstream import PING, PING_SECONDS, STREAM, as_event
from mcpregistry.gateway.identity import Caller
from mcpregistry.gateway.jsonrpc import encoded
from mcpregistry.gateway.progress import Progress
from mcpregistry.gateway.questions import declared_host, own_words
from mcpregistry.gateway.server import OUTCOME_KEY, Gateway, forwarding, request_id_of

Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_WATCH_AFTER = 0.1  # seconds; most calls are over by then and cost no watcher
_KNOWN = frozenset({"name", "arguments", "_meta"})
_JSON = [(b"content-type", b"application/json")]
_MOST_SCHEMAS, _MOST_HOSTS, _LONG_HOST = 10_000, 1_000, 4_096  # the last in bytes


class FastLane:
    """One of the door's lanes; ``sdk`` is the ASGI application that serves everything else."""

    def __init__(self, gateway: Gateway, sdk: Callable[[Caller, Scope, Any, Any], Awaitable[None]]) -> None:
        self._gateway, self._sdk = gateway, sdk
        self._stamp = {SERVER_INFO_META_KEY: gateway.server.server_info_stamp}
        self._mirrored: dict[str, bool] = {}
        self._hosts: dict[bytes, Host] = {}

    async def __call__(self, caller: Caller, headers: Mapping[str, str], scope: Scope, receive: Any, send: Send) -> Any:
        """Answer and return None, or return a ``receive`` that gives the SDK the same body again."""
        body, whole = await read_small(receive)
        plain = plain_request("tools/call", _KNOWN, headers, body) if whole else None
        response = _Response(plain, receive, send) if plain else None
        judged = await self._judged(caller, plain, response) if plain and response else None
        if judged is None or response is None:
            return replayed(body, whole, receive)
        response.begin()
        try:
            outcome = await self._gateway.engine.proceed(judged)
            if result := self._result(judged, outcome):
                await response.finish(result)
            else:
                again = replayed(body, whole, receive)
                await self._sdk(caller, scope | {OUTCOME_KEY: outcome}, again, response.passing_on())
        except asyncio.CancelledError:
            if not response.left:
                raise
        finally:
            response.close()
        return None

    def _result(self, judged: Judged, outcome: CallOutcome) -> dict[str, Any] | None:
        """The result object, if the server gave a plain one."""
        if outcome.result is None or outcome.result.get("resultType", "complete") != "complete":
            return None
        try:
            result = tool_result(outcome, legacy=False)
        except MCPError:
            return None
        result["_meta"] = (result.get("_meta") or {}) | self._stamp
        return result

    async def _judged(self, caller: Caller, plain: Plain, response: _Response) -> Judged | None:
        """The call as the pipeline judges it; None if it is not this lane's."""
        params, meta = plain.params, plain.params["_meta"]
        name, arguments = params.get("name"), params.get("arguments", {})
        if type(name) is not str or type(arguments) is not dict:
            return None
        try:
            catalogue, conversation = await self._gateway.seen_in(caller, meta)
            entry = catalogue.find(name)
            if entry is None or (arguments and self._mirrors(entry)):
                return None
            host = self._host(plain, caller)
            request = CallRequest(
                catalogue=catalogue,
                name=name,
                arguments=arguments,
                origin=caller.origin,
                host_name=host.title,
                request_id=request_id_of(meta, plain.id),
                meta=forwarding(meta),
                on_progress=response.report if host.progress else None,
                host=host,
                conversation=conversation,
            )
            judged = self._gateway.engine.judge(request)
        except SlipsnisseError:
            return None
        if judged.refusal is None:
            return judged if judged.call.decision.outcome is Outcome.ALLOW else None
        return None if isinstance(judged.refusal, NotFound) else judged

    def _mirrors(self, entry: Entry) -> bool:
        """Whether the tool wants arguments repeated in headers, which the SDK compares."""
        tool = entry.offer.tool
        found = self._mirrored.get(tool.definition_hash)
        if found is None:
            found = bool(x_mcp_header_map(tool.data.get("inputSchema")))
            _remember(self._mirrored, tool.definition_hash, found, _MOST_SCHEMAS)
        return found

    def _host(self, plain: Plain, caller: Caller) -> Host:
        """Each host says the same with every request: read it once."""
        meta = plain.params["_meta"]
        reports = "progressToken" in meta
        key = msgspec.json.encode((plain.client_info, plain.capabilities, reports))
        host = self._hosts.get(key)
        if host is None:
            sent = Connection.from_envelope(LATEST_MODERN_VERSION, plain.client_info, plain.capabilities)
            info = sent.client_params.client_info if sent.client_params else None
            found = declared_host(LATEST_MODERN_VERSION, info, sent.client_capabilities, caller.origin)
            host = replace(found, progress=reports)
            if len(key) <= _LONG_HOST:
                _remember(self._hosts, key, host, _MOST_HOSTS)
        said = own_words(meta)
        return replace(host, said=said) if said else host


def _remember(known: dict[Any, Any], key: Any, value: Any, most: int) -> None:
    if len(known) >= most:
        known.clear()
    known[key] = value


class _Response:
    """The answer to one request: JSON when the result comes first, else a stream. Watches the host meanwhile."""

    def __init__(self, plain: Plain, receive: Any, send: Send) -> None:
        self._plain, self._receive, self._send = plain, receive, send
        self._token = plain.params["_meta"].get("progressToken")
        self.reporting = self._token is not None
        self.left = False  # the host is gone
        self._progress: Progress | None = None
        self._streaming = False
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        self._serving = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER, self._attend)

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        """The server's progress: from the first on, the answer is a stream."""
        self._attend()
        if self._progress is not None:
            self._progress(progress, total, message)

    def _attend(self) -> None:
        """This call takes a while: watch the host, and do not let it wait in silence."""
        if self._tasks:
            return
        self._progress = Progress(self._send_progress) if self.reporting else None
        pulse = self._progress.run() if self._progress else self._ping()
        self._tasks = [asyncio.ensure_future(self._watch()), asyncio.ensure_future(pulse)]

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left = True
        if self._serving:
            self._serving.cancel()

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            await self._write(PING)

    async def _send_progress(self, progress: float, total: float | None, message: str | None) -> None:
        params: dict[str, Any] = {"progressToken": self._token, "progress": progress}
        params |= {} if total is None else {"total": total}
        params |= {} if message is None else {"message": message}
        notice = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
        await self._write(as_event(encoded(notice)))

    async def _write(self, data: bytes) -> None:
        if not self._streaming:
            self._streaming = True
            await self._send({"type": "http.response.start", "status": 200, "headers": STREAM})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, result: dict[str, Any]) -> None:
        """Send the last, or only, message. The call is over: a host that leaves now changes nothing."""
        self._unwatch()
        await self._flushed()
        message = encoded({"jsonrpc": "2.0", "id": self._plain.id, "result": result})
        if self._streaming:
            await self._send({"type": "http.response.body", "body": as_event(message), "more_body": False})
        else:
            headers = [*_JSON, (b"content-length", b"%d" % len(message))]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._send({"type": "http.response.body", "body": message})

    def passing_on(self) -> Send:
        """A ``send`` for whoever gives the answer instead: its one message ends our stream, if there is one."""
        self._unwatch()
        body: list[bytes] = []

        async def send(event: dict[str, Any]) -> None:
            await self._flushed()
            if not self._streaming:
                await self._send(event)
            elif event["type"] == "http.response.body":
                body.append(event.get("body", b""))
                if not event.get("more_body"):
                    data = as_event(b"".join(body))
                    await self._send({"type": "http.response.body", "body": data, "more_body": False})

        return send

    async def _flushed(self) -> None:
        if self._progress is not None:
            await self._progress.flush()

    def close(self) -> None:
        self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _unwatch(self) -> None:
        self._timer.cancel()
        for task in self._tasks[:1]:
            task.cancel()
