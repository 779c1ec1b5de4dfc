"""The HTTP door: ``/mcp/<endpoint>``, streamable HTTP of both eras.

In this order: origin, token, endpoint, then a lane. A lane takes what it fully understands (``fast_list.py``: bytes
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
from mcp.types import INTERNAL_ERROR, INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION

from mcpregistry.calls.engine import Engine, set_current_engine
from mcpregistry.domain.errors import Busy, ResourceLimit
from mcpregistry.domain.servers.sessions import mcp_session
from mcpregistry.domain.text.canonical import plain
from mcpregistry.gateway.conversations import named_in
from mcpregistry.gateway.http.body import read_whole, replayed, single_headers, trimmed
from mcpregistry.gateway.http.fast_call import FastLane
from mcpregistry.gateway.http.fast_list import ListLane
from mcpregistry.gateway.http.manager import SessionManager
from mcpregistry.gateway.http.older import OlderLane
from mcpregistry.gateway.http.resuming import Resumption
from mcpregistry.gateway.http.sessions import Sessions
from mcpregistry.gateway.identity import LEFT_KEY, SCOPE_KEY, SESSION_HEADER, Caller, bearer
from mcpregistry.gateway.jsonrpc import error_to, objection, replied, unserved
from mcpregistry.gateway.server import Gateway, current_caller
from mcpregistry.gateway.stdio.handshake_cache import keep_openings
from mcpregistry.services.access.tokens import token_hash
from mcpregistry.services.host_sessions import IDLE

log = structlog.get_logger(__name__)

Scope = dict[str, Any]
# Answers and returns None, or returns a ``receive`` that gives the SDK the same body again.
Lane = Callable[[Caller, Mapping[str, str], Scope, Any, Any], Awaitable[Any]]
PREFIX = "/mcp/"
MAX_BODY: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE  # the same as over REST
OLDER = "a session of the older era"  # a lane's name, which is no method's
LAST = LATEST_HANDSHAKE_VERSION  # of hosts that do not say it with every request


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
        self.sessions, self._resumption = Sessions(self.engine.feed), Resumption(self.engine.feed)
        self._manager = SessionManager(
            self.gateway,
            self.sessions,
            self._resumption,
            max_request_body_size=MAX_BODY,
            session_idle_timeout=IDLE.total_seconds(),
        )
        listing, calling = ListLane(self.gateway), FastLane(self.gateway, self._sdk)
        older = OlderLane(self.sessions, self._manager, calling, listing)
        self.lanes = {"tools/list": listing, "tools/call": calling, OLDER: older}
        await self._stack.enter_async_context(self._manager.run())
        self.sessions.ended.append(lambda ended: self.engine.pool.end_session(mcp_session(ended)))
        self.sessions.start()
        # Only of an embedded database can a starting `runmcp` know at once whether a list still holds.
        lists = connection.vendor == "sqlite"
        self._keeping = asyncio.ensure_future(keep_openings(self.engine, Path(settings.VAR_DIR), lists=lists))

    async def shutdown(self) -> None:
        """End streams, then the engine, then the SDK's sessions."""
        self.begin_stop()
        self._keeping.cancel()
        set_current_engine(None)
        await self.sessions.close()
        await self.engine.stop()
        await self._stack.aclose()

    def begin_stop(self) -> None:
        """No new calls; end every stream that would stay open for ever. Calls in flight go on for a while."""
        if self._stopping:
            return
        self._stopping = True
        self.engine.begin_stop(settings.GRACE_SECONDS)
        self.gateway.changes.close()
        self._resumption.stop()
        # Older hosts hold a GET stream for as long as their session lives; the SDK has no public way to them.
        self._ending = [asyncio.ensure_future(s.terminate()) for s in list(self._manager._server_instances.values())]

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """One HTTP request."""
        scope = scope | {"headers": trimmed(scope["headers"])}
        refusal = self._refusal_of_origin(scope)
        if refusal is None:
            caller, refusal = self._caller(scope)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        assert caller is not None
        if self._stopping:  # here and not in the SDK, whose sessions end meanwhile: it would answer 404 or 500
            await _answer(send, 503, "BUSY", "The site is shutting down. Nothing was done; call again in a moment.")
            return
        headers = single_headers(scope["headers"]) if scope["method"] == "POST" else None
        lane = self.lanes.get(_lane_of(headers)) if headers else None
        try:
            # A lane that does not take the request gives its body back, with nothing recorded, so the SDK may go on.
            if lane is not None and headers is not None:
                receive = await lane(caller, headers, scope, receive, send)
                if receive is None:
                    return
            await self._sdk(caller, scope, receive, send)
        except Busy as error:  # the session of an older host could not be looked up
            await _answer(send, 503, error.code, str(error))

    async def _sdk(self, caller: Caller, scope: Scope, receive: Any, send: Any) -> None:
        current_caller.set(caller)
        left = asyncio.Event()
        scope = scope | {SCOPE_KEY: caller, LEFT_KEY: left, "user": caller.user}
        if scope["method"] != "POST":
            await self._manager.handle_request(scope, _noticing(left, receive), send)
            return
        receive = await _checked(scope, receive, send)
        if receive is not None:
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
        conversation = named_in(scope["headers"])
        if conversation is None:
            return None, (400, "ARGUMENTS_INVALID", "The header Slipsnisse-Conversation is there twice. Send it once.")
        session = next((value for name, value in scope["headers"] if name == SESSION_HEADER), b"").decode("latin-1")
        return Caller(agent.slug, slug, "http", conversation, session), None


def _lane_of(headers: Mapping[str, str]) -> str:
    if "mcp-session-id" in headers and headers.get("mcp-protocol-version", LAST) in HANDSHAKE_PROTOCOL_VERSIONS:
        return OLDER
    return headers.get("mcp-method", "")


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
        await replied(send, 400, refusal)
        return None
    return replayed(body, whole, receive)


async def _refuse(send: Any, status: int, code: int, message: str) -> None:
    await replied(send, status, error_to(None, code, message))


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
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="slipsnisse", error="invalid_token"'))
    if status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
