"""The HTTP door: ``/mcp/<endpoint>``, streamable HTTP of both eras.

In this order: origin, token, endpoint, then a lane. A lane takes what it fully understands
(``lists.py``: bytes made once; ``fast.py``: plain calls); everything else goes to the SDK. No
decision lives in a lane.
The Host header is checked by the shell around the whole site.
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

from mcpregistry.calls.engine import Engine, set_current_engine
from mcpregistry.domain.canonical import plain
from mcpregistry.gateway.body import single_headers
from mcpregistry.gateway.fast import FastLane
from mcpregistry.gateway.identity import LEFT_KEY, SCOPE_KEY, Caller, bearer
from mcpregistry.gateway.lists import ListLane
from mcpregistry.gateway.openings import keep_openings
from mcpregistry.gateway.server import Gateway, current_caller
from mcpregistry.services.access import token_hash

log = structlog.get_logger(__name__)

Scope = dict[str, Any]
# Answers and returns None, or returns a ``receive`` that gives the SDK the same body again.
Lane = Callable[[Caller, Mapping[str, str], Scope, Any, Any], Awaitable[Any]]
PREFIX = "/mcp/"
MAX_BODY = 4 * 1024 * 1024
SESSION_IDLE_SECONDS = 1800


class McpApp:
    """One per web process; start and stop it in the same task."""

    def __init__(self) -> None:
        self.engine = Engine("web")
        self.lanes: dict[str, Lane] = {}
        self._stack = AsyncExitStack()
        self._stopping = False

    async def startup(self) -> None:
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
        self.begin_stop()
        self._keeping.cancel()
        set_current_engine(None)
        await self.engine.stop()
        await self._stack.aclose()

    def begin_stop(self) -> None:
        """End every stream that would stay open for ever; calls in flight go on."""
        if self._stopping:
            return
        self._stopping = True
        self.gateway.changes.close()
        # Older hosts hold a GET stream for as long as their session lives; the SDK has no public way to them.
        self._ending = [asyncio.ensure_future(s.terminate()) for s in list(self._manager._server_instances.values())]

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        refusal = self._refusal_of_origin(scope)
        if refusal is None:
            caller, refusal = self._caller(scope)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        assert caller is not None
        headers = single_headers(scope["headers"]) if scope["method"] == "POST" else None
        lane = self.lanes.get(headers.get("mcp-method", "")) if headers else None
        if lane is not None and headers is not None:
            receive = await lane(caller, headers, scope, receive, send)
            if receive is None:
                return
        await self._sdk(caller, scope, receive, send)

    async def _sdk(self, caller: Caller, scope: Scope, receive: Any, send: Any) -> None:
        current_caller.set(caller)
        left = asyncio.Event()
        scope = scope | {SCOPE_KEY: caller, LEFT_KEY: left, "user": caller.user}
        await self._manager.handle_request(scope, _noticing(left, receive), send)

    def _refusal_of_origin(self, scope: Scope) -> tuple[int, str, str] | None:
        origins = [value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"]
        if not origins or (len(origins) == 1 and origins[0] in settings.MCP_ALLOWED_ORIGINS):
            return None
        return (
            403,
            "ORIGIN_REFUSED",
            "Requests from this web page are not allowed. Add its origin to SLIPSNISSE_ORIGINS.",
        )

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
        return Caller(agent.slug, slug, "http"), None


def _noticing(left: asyncio.Event, receive: Any) -> Any:
    """The SDK lets calls of the older era go on when their connection is lost; held ones must hear of it."""

    async def noticed() -> Any:
        message = await receive()
        if message["type"] == "http.disconnect":
            left.set()
        return message

    return noticed


async def _answer(send: Any, status: int, code: str, message: str) -> None:
    body = msgspec.json.encode(
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": message, "data": {"code": code}}}
    )
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="slipsnisse", error="invalid_token"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
