"""The HTTP doors: ``/mcp/<endpoint>``, streamable HTTP of both eras; ``…/sse`` (``sse.py``) and
``…/ws`` (``websocket.py``).

In this order: origin (``cors.py``), token, endpoint, then a lane. A lane takes what it fully
understands (``fast_list.py``: bytes made once; ``fast_call.py``: plain calls); everything else goes
to the SDK. No decision lives in a lane. The Host header is checked by the shell around the whole
site.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog
from django.conf import settings
from django.db import connection
from mcp.types import INTERNAL_ERROR, INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION

from mcpregistry.calls.engine import Engine, set_current_engine
from mcpregistry.calls.rates import RateLimited
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import Busy, ResourceLimit
from mcpregistry.domain.servers.sessions import mcp_session, session_id_of
from mcpregistry.domain.text.canonical import plain
from mcpregistry.gateway.conversations import named_in
from mcpregistry.gateway.http import cors, sse, websocket
from mcpregistry.gateway.http.access import ENDED, Access, Answer, Arrival
from mcpregistry.gateway.http.body import read_whole, replayed, single_headers, trimmed
from mcpregistry.gateway.http.elsewhere import Elsewhere, may_belong_elsewhere, serving
from mcpregistry.gateway.http.fast_call import CALL_PARAMS, FastLane
from mcpregistry.gateway.http.fast_list import ListLane
from mcpregistry.gateway.http.lasting import STOPPING, Connections
from mcpregistry.gateway.http.manager import SessionManager
from mcpregistry.gateway.http.older import OlderLane
from mcpregistry.gateway.http.resuming import Resumption
from mcpregistry.gateway.http.sessions import Sessions
from mcpregistry.gateway.http.unanswered import Unanswered, request_in
from mcpregistry.gateway.identity import (
    ELSEWHERE_KEY,
    LEFT_KEY,
    SCOPE_KEY,
    SESSION_HEADER,
    Caller,
    bearer,
)
from mcpregistry.gateway.jsonrpc import (
    error_to,
    in_thread_if_large,
    objection,
    replied,
    too_deep,
    unserved,
    with_valid_text,
)
from mcpregistry.gateway.server import OUTCOME_KEY, Gateway, current_caller
from mcpregistry.gateway.stdio.handshake_cache import keep_openings
from mcpregistry.services.access.tokens import token_hash
from mcpregistry.services.host_sessions import IDLE
from mcpregistry.services.servers.connections import process_name

log = structlog.get_logger(__name__)

Scope = dict[str, Any]
# Answers and returns None, or returns a ``receive`` that gives the SDK the same body again.
Lane = Callable[[Caller, Mapping[str, str], Scope, Any, Any], Awaitable[Any]]
PREFIX = "/mcp/"
MAX_BODY: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE  # the same as over REST
OLDER = "a session of the older era"  # a lane's name, which is no method's
LAST = LATEST_HANDSHAKE_VERSION  # of hosts that do not say it with every request
SSE = "sse"
WS = "ws"
_UPGRADE = (
    "This address accepts only WebSocket connections. "
    "If your host uses WebSocket, a proxy has removed the Upgrade header. Let the proxy pass it on."
)
_NO_STREAM = "This stream does not exist or has ended. Open a new one with GET."
_REVOKED = "The access of this agent has ended. A call in progress may have taken effect: check it under Calls."
_SESSION_ENDED = (
    "The session has ended. Open a new one with initialize. "
    "A call in progress may have taken effect: check it under Calls."
)
_ANONYMOUS = "A bearer token is required. Issue one in the admin: Agents, Issue token."
_STRANGER = (
    "The bearer token is unknown, expired or revoked. Issue one in the admin: Agents, Issue token."
)
_FOREIGN = "Requests from this web page are not allowed. Add its origin to SLIPSNISSE_ORIGINS."


class McpApp:
    """The ASGI application behind ``/mcp``; one per web process, started and stopped in the same
    task."""

    def __init__(self) -> None:
        self.engine = Engine("web")
        self.lanes: dict[str, Lane] = {}
        self._unanswered = Unanswered()
        self._stack = AsyncExitStack()
        self._stopping = False

    async def startup(self) -> None:
        """Start the engine, the lanes and the SDK's session manager. Raises when the database
        cannot be read."""
        await self.engine.start()
        set_current_engine(self.engine)
        self.gateway = Gateway(self.engine)
        self.gateway.changes.start()
        self._access = Access(self.engine)
        self._access.start()
        self._connections = Connections(self._access, self.gateway.server)
        self.sessions = Sessions(self.engine.feed, process_name("web"))
        self._resumption = Resumption(self.engine.feed)
        self._manager = SessionManager(
            self.gateway,
            self.sessions,
            self._resumption,
            max_request_body_size=MAX_BODY,
            session_idle_timeout=IDLE.total_seconds(),
        )
        listing = ListLane(self.gateway)
        calling = FastLane(self.gateway, self._sdk)
        older = OlderLane(
            self.sessions, self._manager, (calling, listing), self._unanswered, self._count
        )
        self.lanes = {"tools/list": listing, OLDER: older, **dict.fromkeys(CALL_PARAMS, calling)}
        await self._stack.enter_async_context(self._manager.run())
        self.sessions.deliver = self._delivered
        self.sessions.ended.append(self._access.end_session)
        self.sessions.ended.append(
            lambda ended: self.engine.placement.end_session(mcp_session(ended))
        )
        self.sessions.own = self._own_connections
        self.sessions.start()
        self.engine.placement.serve_requests(serving(self))
        # Only of an embedded database can a starting `runmcp` know at once whether a list still
        # holds.
        lists = connection.vendor == "sqlite"
        self._keeping = asyncio.ensure_future(
            keep_openings(self.engine, Path(settings.VAR_DIR), lists=lists)
        )

    async def shutdown(self) -> None:
        """End streams, then the engine, then the SDK's sessions."""
        self.begin_stop()
        self._keeping.cancel()
        set_current_engine(None)
        await self.sessions.close()
        await self.engine.stop()
        await self._stack.aclose()
        self._access.close()

    def begin_stop(self) -> None:
        """No new calls; end every stream that would stay open for ever. Calls in flight go on for a
        while."""
        if self._stopping:
            return
        self._stopping = True
        self.engine.begin_stop(settings.GRACE_SECONDS)
        self.gateway.changes.close()
        self._connections.begin_stop()
        self._resumption.stop()
        # Older hosts hold a GET stream for as long as their session lives; the SDK has no public
        # way to them.
        self._ending = [
            asyncio.ensure_future(s.terminate())
            for s in list(self._manager._server_instances.values())
        ]

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """One HTTP request, or one WebSocket."""
        scope = scope | {"headers": trimmed(scope["headers"])}
        if scope["type"] == "websocket":
            await receive()  # that it wants to connect
        answer = websocket.denying(scope, send) if scope["type"] == "websocket" else send
        try:
            origin = cors.origin_of(scope["headers"], settings.MCP_ALLOWED_ORIGINS)
        except cors.Foreign:
            await _answer(answer, 403, "ORIGIN_REFUSED", _FOREIGN)
            return
        if origin is not None and scope["type"] == "http":
            if cors.is_preflight(scope):
                await cors.answer_preflight(origin, scope, send)
                return
            send = cors.opened(origin, send)
            answer = send
        slug, way = _parts(scope["path"])
        digest = _token_hash(scope)
        caller, refusal = self._caller(scope, slug, digest)
        if refusal is None and (way or scope["type"] == "websocket"):
            refusal = self._refusal_of(scope, way)
        if refusal is None and self._stopping:
            # Here and not in the SDK, whose sessions end meanwhile: it would answer 404 or 500.
            refusal = (503, "BUSY", STOPPING)
        if refusal is not None:
            await _answer(answer, *refusal)
            return
        assert caller is not None
        serve = {"": self._streamable, SSE: self._sse, WS: self._websocket}[way]
        try:
            if way == WS:
                await serve(caller, scope, receive, send)
                return
            guest = Answer(
                self._access, Arrival(caller, digest, scope, receive, send), _refuse_ended
            )
            answer = guest
            self._access.add(guest)
            try:
                await serve(caller, scope, receive, guest)
            finally:
                self._access.remove(guest)
        # No room, or the session of an older host could not be looked up.
        except (Busy, RateLimited) as error:
            await _answer(answer, 503 if isinstance(error, Busy) else 429, error.code, str(error))

    async def _streamable(self, caller: Caller, scope: Scope, receive: Any, send: Any) -> None:
        headers = single_headers(scope["headers"]) if scope["method"] == "POST" else None
        lane = self.lanes.get(_lane_of(headers)) if headers else None
        # A lane that does not take the request gives its body back, with nothing recorded, so the
        # SDK may go on.
        if lane is not None and headers is not None:
            receive = await lane(caller, headers, scope, receive, send)
            if receive is None:
                return
        await self._sdk(caller, scope, receive, send)

    def _refusal_of(self, scope: Scope, way: str) -> tuple[int, str, str] | None:
        """Why this request is not one for the door that it has come to."""
        if (scope["type"] == "websocket") != (way == WS):
            return (
                (426, "WRONG_DOOR", _UPGRADE)
                if way == WS
                else (404, "NOT_FOUND", "This address does not accept WebSocket connections.")
            )
        if way == WS and not websocket.speaks_mcp(scope):
            return (
                400,
                "ARGUMENTS_INVALID",
                "The subprotocol must be mcp, or no subprotocol at all.",
            )
        if way == SSE and scope["method"] not in {"GET", "POST"}:
            return (
                405,
                "WRONG_METHOD",
                "Use GET to open the stream, and POST to send a message to it.",
            )
        return None

    async def _sse(self, caller: Caller, scope: Scope, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            with self._connections.room(caller.agent):
                await sse.opened(
                    self._connections, self.sessions, _arrival(caller, scope, receive, send)
                )
        elif body := await _body(scope, receive, send):
            if not body[1] or await sse.taken(
                self._connections,
                self.sessions,
                _arrival(caller, scope, receive, send),
                body[0],
                self._count,
            ):
                await send(
                    {
                        "type": "http.response.start",
                        "status": 202,
                        "headers": [(b"content-length", b"0")],
                    }
                )
                await send({"type": "http.response.body", "body": b""})
            else:
                await _answer(send, 404, "NOT_FOUND", _NO_STREAM)

    async def _websocket(self, caller: Caller, scope: Scope, receive: Any, send: Any) -> None:
        with self._connections.room(caller.agent):
            await websocket.opened(
                self._connections, self.sessions, _arrival(caller, scope, receive, send), MAX_BODY
            )

    def _own_connections(self) -> set[tuple[str, int]]:
        found = (
            (session_id_of(name), server_id) for name, server_id in self.engine.pool.sessions.own()
        )
        return {(session_id, server_id) for session_id, server_id in found if session_id}

    async def _delivered(self, session_id: str, message: dict[str, Any]) -> bool:
        """What another process was sent for a session of this one. True if it was taken."""
        taken = await self._connections.delivered(session_id, message)
        return taken or await self._manager.delivered(session_id, message)

    async def _count(self, slug: str) -> None:
        """Count what is passed on for an agent among its calls. Raises RateLimited and
        NotCounted."""
        if (agent := self.engine.live.current.agents.get(slug)) is not None:
            await self.engine.pipeline.rates.take(agent)

    async def _sdk(self, caller: Caller, scope: Scope, receive: Any, send: Any) -> None:
        current_caller.set(caller)
        left = asyncio.Event()
        scope = scope | {SCOPE_KEY: caller, LEFT_KEY: left, "user": caller.user}
        if scope["method"] != "POST":
            await self._manager.handle_request(scope, _noticing(left, receive), send)
        elif body := await _body(scope, receive, send):
            if may_belong_elsewhere(scope, body[0]):
                elsewhere = Elsewhere(send)
                scope |= {ELSEWHERE_KEY: elsewhere.addresses}
                await self._posted(scope, body, left, receive, elsewhere.send)
                await elsewhere.finish(scope, body[0], receive)
            else:
                await self._posted(scope, body, left, receive, send)

    async def _posted(
        self, scope: Scope, body: tuple[bytes, bool], left: asyncio.Event, receive: Any, send: Any
    ) -> None:
        receive = _noticing(left, replayed(*body, receive))
        content, is_whole = body
        has_id = OUTCOME_KEY in scope  # a lane has made the call, and has taken the id for it
        named = request_in(scope["headers"], content) if is_whole and not has_id else ("", None)
        with self._unanswered.answering(*named, send) as (refusal, answer):
            if refusal:
                await replied(send, 400, refusal)
            else:
                await self._manager.handle_request(scope, receive, answer)

    def _caller(
        self, scope: Scope, slug: str, digest: str
    ) -> tuple[Caller | None, tuple[int, str, str] | None]:
        """Who calls which endpoint, or why not. The token comes first: strangers learn no
        endpoint's name."""
        agent = self.engine.agent_of(digest)
        if agent is None:
            return None, (
                401,
                "UNAUTHENTICATED",
                _STRANGER if bearer(scope["headers"]) else _ANONYMOUS,
            )
        self.engine.token_uses.add(digest)
        if slug not in self.engine.live.current.endpoints:
            return None, (
                404,
                "NOT_FOUND",
                error_texts.not_found("enabled endpoint", plain(slug, 63)),
            )
        conversation = named_in(scope["headers"])
        if conversation is None:
            return None, (
                400,
                "ARGUMENTS_INVALID",
                "The header Slipsnisse-Conversation was sent twice. Send it once.",
            )
        session = named_in(scope["headers"], SESSION_HEADER)
        if session is None:
            return None, (
                400,
                "ARGUMENTS_INVALID",
                "The header Slipsnisse-Session was sent twice. Send it once.",
            )
        return Caller(agent.slug, slug, "http", conversation, session), None


def _parts(path: str) -> tuple[str, str]:
    """The endpoint's slug, and which of its further doors, if one that is open."""
    slug, _, way = (whole := path.removeprefix(PREFIX).strip("/")).partition("/")
    return (slug, way) if way in settings.MCP_DOORS else (whole, "")


def _arrival(caller: Caller, scope: Scope, receive: Any, send: Any) -> Arrival:
    return Arrival(caller, _token_hash(scope), scope, receive, send)


def _token_hash(scope: Scope) -> str:
    return token_hash(bearer(scope["headers"]) or "")


def _lane_of(headers: Mapping[str, str]) -> str:
    if (
        "mcp-session-id" in headers
        and headers.get("mcp-protocol-version", LAST) in HANDSHAKE_PROTOCOL_VERSIONS
    ):
        return OLDER
    return headers.get("mcp-method", "")


async def _body(scope: Scope, receive: Any, send: Any) -> tuple[bytes, bool] | None:
    """The body and whether it is whole; or answer what is no message, and return None."""
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
    body = with_valid_text(body) if whole else body
    version = headers.get(b"mcp-protocol-version", b"").decode("latin-1")
    if whole and (refusal := await in_thread_if_large(body, partial(_refusal, version))):
        await replied(send, 400, refusal)
        return None
    return body, whole


def _refusal(version: str, body: bytes) -> dict[str, Any] | None:
    """What to say of a body that is none of a message; ``version`` as the header names it, empty
    where it does not."""
    older = not version or version in HANDSHAKE_PROTOCOL_VERSIONS
    return objection(body) or unserved(version, body) or (too_deep(body) if older else None)


async def _refuse_ended(send: Any, why: str) -> None:
    """Answer a request whose access, or session, has ended while its host waited."""
    if why == ENDED:
        await _answer(send, 404, "NOT_FOUND", _SESSION_ENDED)
    else:
        await _answer(send, 401, "UNAUTHENTICATED", _REVOKED)


async def _refuse(send: Any, status: int, code: int, message: str) -> None:
    await replied(send, status, error_to(None, code, message))


def _noticing(left: asyncio.Event, receive: Any) -> Any:
    """The SDK lets calls of the older era go on when their connection is lost; held ones must hear
    of it."""

    async def noticed() -> Any:
        message = await receive()
        if message["type"] == "http.disconnect":
            left.set()
        return message

    return noticed


async def _answer(send: Any, status: int, code: str, message: str) -> None:
    kind = INTERNAL_ERROR if status >= 500 else INVALID_REQUEST
    body = msgspec.json.encode(
        {
            "jsonrpc": "2.0",
            "id": None,
            "error": {"code": kind, "message": message, "data": {"code": code}},
        }
    )
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    if status == 403:
        headers.append(cors.VARY)
    if status == 401:
        # RFC 6750, section 3.1
        error = b"" if message == _ANONYMOUS else b', error="invalid_token"'
        headers.append((b"www-authenticate", b'Bearer realm="slipsnisse"' + error))
    if status == 426:
        headers += [(b"upgrade", b"websocket"), (b"connection", b"upgrade")]
    if status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
