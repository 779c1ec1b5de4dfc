"""The HTTP door: ``/mcp/<endpoint>``, streamable HTTP of both eras.

In this order: origin (``cors.py``), token, endpoint, then a lane. A lane takes what it fully understands (``fast_list.py``: bytes
made once; ``fast_call.py``: plain calls); everything else goes to the SDK. No decision lives in a lane. The Host header
is checked by the shell around the whole site.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import structlog
from django.conf import settings
from django.db import connection
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import INTERNAL_ERROR, INVALID_REQUEST

from mcpregistry.calls.engine import Engine, set_current_engine
from mcpregistry.domain.errors import ResourceLimit
from mcpregistry.domain.text.canonical import plain
from mcpregistry.gateway.conversations import named_in
from mcpregistry.gateway.http import cors
from mcpregistry.gateway.http.body import read_whole, replayed, single_headers, trimmed
from mcpregistry.gateway.http.fast_call import FastLane
from mcpregistry.gateway.http.fast_list import ListLane
from mcpregistry.gateway.identity import LEFT_KEY, SCOPE_KEY, Caller, bearer
from mcpregistry.gateway.jsonrpc import error_to, objection, unserved
from mcpregistry.gateway.server import Gateway, current_caller
from mcpregistry.gateway.stdio.handshake_cache import keep_openings
from mcpregistry.services.access.tokens import token_hash

log = structlog.get_logger(__name__)

Scope = dict[str, Any]
# Answers and returns None, or returns a ``receive`` that gives the SDK the same body again.
Lane = Callable[[Caller, Mapping[str, str], Scope, Any, Any], Awaitable[Any]]
PREFIX = "/mcp/"
MAX_BODY: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE  # the same as over REST
SESSION_IDLE_SECONDS = 1800
_FOREIGN = "Requests from this web page are not allowed. Add its origin to SLIPSNISSE_ORIGINS."


class McpApp:
    """The ASGI application behind ``/mcp``; one per web process, started and stopped in the same task."""

    def __init__(self) -> None:
        self.engine = Engine("web")
        self.lanes: dict[str, Lane] = {}
        self._stack = AsyncExitStack()
        self._stopping = False

    async def startup(self) -> None:
        """Start the engine, the lanes and the SDK's session manager. Raises when the database cannot be read."""
        await self.engine.start()
        set_current_engine(self.engine)
        self.gateway = Gateway(self.engine)
        self.gateway.changes.start()
        self.lanes = {"tools/list": ListLane(self.gateway), "tools/call": FastLane(self.gateway, self._sdk)}
        self._manager = StreamableHTTPSessionManager(
            self.gateway.server, max_request_body_size=MAX_BODY, session_idle_timeout=SESSION_IDLE_SECONDS
        )
        await self._stack.enter_async_context(self._manager.run())
        # Only of an embedded database can a starting `runmcp` know at once whether a list still holds.
        lists = connection.vendor == "sqlite"
        self._keeping = asyncio.ensure_future(keep_openings(self.engine, Path(settings.VAR_DIR), lists=lists))

    async def shutdown(self) -> None:
        """End streams, then the engine, then the SDK's sessions."""
        self.begin_stop()
        self._keeping.cancel()
        set_current_engine(None)
        await self.engine.stop()
        await self._stack.aclose()

    def begin_stop(self) -> None:
        """No new calls; end every stream that would stay open for ever. Calls in flight go on for a while."""
        if self._stopping:
            return
        self._stopping = True
        self.engine.begin_stop(settings.GRACE_SECONDS)
        self.gateway.changes.close()
        # Older hosts hold a GET stream for as long as their session lives; the SDK has no public way to them.
        self._ending = [asyncio.ensure_future(s.terminate()) for s in list(self._manager._server_instances.values())]

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """One HTTP request."""
        scope = scope | {"headers": trimmed(scope["headers"])}
        try:
            origin = cors.origin_of(scope["headers"], settings.MCP_ALLOWED_ORIGINS)
        except cors.Foreign:
            await _answer(send, 403, "ORIGIN_REFUSED", _FOREIGN)
            return
        if origin is not None:
            if cors.is_preflight(scope):
                await cors.answer_preflight(origin, scope, send)
                return
            send = cors.opened(origin, send)
        caller, refusal = self._caller(scope)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        assert caller is not None
        if self._stopping:  # here and not in the SDK, whose sessions end meanwhile: it would answer 404 or 500
            await _answer(send, 503, "BUSY", "The site is shutting down. Nothing was done; call again in a moment.")
            return
        headers = single_headers(scope["headers"]) if scope["method"] == "POST" else None
        lane = self.lanes.get(headers.get("mcp-method", "")) if headers else None
        # A lane that does not take the request gives its body back unread, with nothing recorded, so the SDK may go on.
        if lane is not None and headers is not None:
            receive = await lane(caller, headers, scope, receive, send)
            if receive is None:
                return
        await self._sdk(caller, scope, receive, send)

    async def _sdk(self, caller: Caller, scope: Scope, receive: Any, send: Any) -> None:
        current_caller.set(caller)
        left = asyncio.Event()
        if scope["method"] == "POST":
            receive = await _checked(scope, receive, send)
            if receive is None:
                return
        elif scope["method"] == "GET":
            # Nothing is kept for a host to read on from; the SDK answers nothing at all to one that asks.
            scope = scope | {"headers": [pair for pair in scope["headers"] if pair[0] != b"last-event-id"]}
        scope = scope | {SCOPE_KEY: caller, LEFT_KEY: left, "user": caller.user}
        await self._manager.handle_request(scope, _noticing(left, receive), send)

    def _caller(self, scope: Scope) -> tuple[Caller | None, tuple[int, str, str] | None]:
        """Who calls which endpoint, or why not. The token comes first: strangers learn no endpoint's name."""
        token = bearer(scope["headers"])
        agent = self.engine.agent_of(token_hash(token)) if token else None
        if agent is None:
            problem = "The bearer token is unknown, expired or revoked." if token else "A bearer token is needed."
            return None, (401, "UNAUTHENTICATED", f"{problem} Issue one in the admin: Agents, Issue token.")
        slug = scope["path"].removeprefix(PREFIX).strip("/")
        if slug not in self.engine.live.current.endpoints:
            return None, (404, "NOT_FOUND", f"There is no endpoint '{plain(slug, 63)}', or it is switched off.")
        conversation = named_in(scope["headers"])
        if conversation is None:
            return None, (400, "ARGUMENTS_INVALID", "The header Slipsnisse-Conversation is there twice. Send it once.")
        return Caller(agent.slug, slug, "http", conversation), None


async def _checked(scope: Scope, receive: Any, send: Any) -> Any:
    """Answer what is no message and return None, or return a ``receive`` that gives the body again."""
    headers = dict(scope["headers"])
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        await _refuse(send, 400, INVALID_REQUEST, "The Content-Type must be application/json.")
        return None
    try:
        body, whole = await read_whole(receive, MAX_BODY)
    except ResourceLimit as error:
        await _refuse(send, 413, INVALID_REQUEST, error.message)
        return None
    if whole and (refusal := objection(body) or unserved(headers.get(b"mcp-protocol-version"), body)):
        await _reply(send, 400, refusal)
        return None
    return replayed(body, whole, receive)


async def _refuse(send: Any, status: int, code: int, message: str) -> None:
    await _reply(send, status, error_to(None, code, message))


async def _reply(send: Any, status: int, answer: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": msgspec.json.encode(answer)})


def _noticing(left: asyncio.Event, receive: Any) -> Any:
    """The SDK lets calls of the older era go on when their connection is lost; held ones must hear of it."""

    async def noticed() -> Any:
        message = await receive()
        if message["type"] == "http.disconnect":
            left.set()
        return message

    return noticed


async def _answer(send: Any, status: int, code: str, message: str) -> None:
    kind = INTERNAL_ERROR if status >= 500 else INVALID_REQUEST
    body = msgspec.json.encode(
        {"jsonrpc": "2.0", "id": None, "error": {"code": kind, "message": message, "data": {"code": code}}}
    )
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    if status == 403:
        headers.append(cors.VARY)
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="slipsnisse", error="invalid_token"'))
    if status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
