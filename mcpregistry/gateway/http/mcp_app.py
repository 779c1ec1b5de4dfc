"""The HTTP doors: ``/mcp/<endpoint>``, streamable HTTP of both eras; ``…/sse`` (``sse.py``) and
``…/ws`` (``websocket.py``).

In this order: origin (``cors.py``), token, endpoint, then a fast path (``fastpath/``). That takes
what it fully understands; everything else goes to the SDK. No decision is made in a fast path. The
Host header is checked by the shell around the whole site.
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
from mcpregistry.calls.rates import RateLimitedError
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import QueueFullError, ResourceLimit
from mcpregistry.domain.servers.sessions import name_mcp_session, parse_session_id
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.gateway.caller_identity import (
    ELSEWHERE_KEY,
    LEFT_KEY,
    SCOPE_KEY,
    SESSION_HEADER,
    Caller,
    read_bearer_token,
)
from mcpregistry.gateway.conversations import read_single_header
from mcpregistry.gateway.http import cors, sse, websocket
from mcpregistry.gateway.http.access import ENDED, Access, Arrival, GuardedAnswer
from mcpregistry.gateway.http.answer_resumption import Resumption
from mcpregistry.gateway.http.body import (
    decode_unique_headers,
    read_whole,
    replay_body,
    trim_headers,
)
from mcpregistry.gateway.http.duplex_connections import STOPPING, DuplexConnections
from mcpregistry.gateway.http.fastpath.calls import CALL_PARAMS, CallFastPath
from mcpregistry.gateway.http.fastpath.older_sessions import SessionFastPath
from mcpregistry.gateway.http.fastpath.tool_list import ListFastPath
from mcpregistry.gateway.http.open_request_ids import OpenRequestIds, read_request_id
from mcpregistry.gateway.http.request_relay import (
    RelayedAnswer,
    can_belong_elsewhere,
    make_request_handler,
)
from mcpregistry.gateway.http.session_cache import HostSessionCache
from mcpregistry.gateway.http.session_manager import SessionManager
from mcpregistry.gateway.jsonrpc import (
    check_parser_depth,
    check_version_header,
    find_message_error,
    make_error_reply,
    replace_invalid_text,
    run_in_thread_if_large,
    send_reply,
)
from mcpregistry.gateway.server import OUTCOME_KEY, Gateway, current_caller
from mcpregistry.gateway.stdio.handshake_cache import keep_openings
from mcpregistry.services.access.tokens import hash_token
from mcpregistry.services.host_sessions import IDLE
from mcpregistry.services.servers.connections import make_process_name

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
    "If your host uses WebSocket, a proxy has removed the Upgrade header. Let the proxy pass this header on."
)
_NO_STREAM = "This stream does not exist or has ended. Open a new stream with GET."
_REVOKED = "The access of this agent has ended. A call in progress may have taken effect: check the call under “Calls” in the admin."
_SESSION_ENDED = (
    "The session has ended. Open a new session with initialize. "
    "A call in progress may have taken effect: check the call under “Calls” in the admin."
)
_ANONYMOUS = "A bearer token is required. To create a token, press “Issue token” on the page of the agent in the admin."
_STRANGER = "The bearer token is unknown, expired or revoked. To create a token, press “Issue token” on the page of the agent in the admin."
_FOREIGN = "Requests from this web page are not allowed. Add its origin to SLIPSNISSE_ORIGINS."


class McpApp:
    """The ASGI application behind ``/mcp``; one per web process, started and stopped in the same
    task."""

    def __init__(self) -> None:
        self.engine = Engine("web")
        self.lanes: dict[str, Lane] = {}
        self._unanswered = OpenRequestIds()
        self._stack = AsyncExitStack()
        self._stopping = False
        self._pages = cors.AllowedPages(self._serve_request)

    async def startup(self) -> None:
        """Start the engine, the lanes and the SDK's session manager. Raises when the database
        cannot be read."""
        await self.engine.start()
        set_current_engine(self.engine)
        self.gateway = Gateway(self.engine)
        self.gateway.changes.start()
        self._access = Access(self.engine)
        self._access.start()
        self._connections = DuplexConnections(self._access, self.gateway.server)
        self.sessions = HostSessionCache(self.engine.feed, make_process_name("web"))
        self._resumption = Resumption(self.engine.feed)
        self._manager = SessionManager(
            self.gateway,
            self.sessions,
            self._resumption,
            max_request_body_size=MAX_BODY,
            session_idle_timeout=IDLE.total_seconds(),
        )
        listing = ListFastPath(self.gateway)
        calling = CallFastPath(self.gateway, self._serve_by_sdk)
        older = SessionFastPath(
            self.sessions, self._manager, (calling, listing), self._unanswered, self._count_call
        )
        self.lanes = {"tools/list": listing, OLDER: older, **dict.fromkeys(CALL_PARAMS, calling)}
        await self._stack.enter_async_context(self._manager.run())
        self.sessions.deliver = self._deliver_message
        self.sessions.ended.append(self._access.end_session)
        self.sessions.ended.append(
            lambda ended: self.engine.placement.end_session(name_mcp_session(ended))
        )
        self.sessions.own = self._list_own_connections
        self.sessions.start()
        self.engine.placement.serve_requests(make_request_handler(self))
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
        # Older hosts hold a GET stream for as long as their session lives.
        self._ending = asyncio.ensure_future(self._manager.end_all())

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """One HTTP request, or one WebSocket."""
        scope = scope | {"headers": trim_headers(scope["headers"])}
        if scope["type"] == "websocket":
            await receive()  # that it wants to connect
        try:
            origin = cors.read_origin(scope["headers"], settings.MCP_ALLOWED_ORIGINS)
        except cors.ForeignOriginError:
            await _answer(_choose_send(scope, send), 403, "ORIGIN_REFUSED", _FOREIGN)
            return
        await (self._serve_request if origin is None else self._pages)(scope, receive, send)

    async def _serve_request(self, scope: Any, receive: Any, send: Any) -> None:
        """A request of a program, or of a page that may ask."""
        answer = _choose_send(scope, send)
        slug, way = _split_path(scope["path"])
        digest = _hash_token(scope)
        caller, refusal = self._identify_caller(scope, slug, digest)
        if refusal is None and (way or scope["type"] == "websocket"):
            refusal = self._find_refusal(scope, way)
        if refusal is None and self._stopping:
            # Here and not in the SDK, whose sessions end meanwhile: it would answer 404 or 500.
            refusal = (503, "BUSY", STOPPING)
        if refusal is not None:
            await _answer(answer, *refusal)
            return
        assert caller is not None
        serve = {"": self._serve_streamable, SSE: self._serve_sse, WS: self._serve_websocket}[way]
        try:
            if way == WS:
                await serve(caller, scope, receive, send)
                return
            guest = GuardedAnswer(
                self._access, Arrival(caller, digest, scope, receive, send), _refuse_ended
            )
            answer = guest
            self._access.add(guest)
            try:
                await serve(caller, scope, receive, guest)
            finally:
                self._access.remove(guest)
        # No room, or the session of an older host could not be looked up.
        except (QueueFullError, RateLimitedError) as error:
            await _answer(
                answer, 503 if isinstance(error, QueueFullError) else 429, error.code, str(error)
            )

    async def _serve_streamable(
        self, caller: Caller, scope: Scope, receive: Any, send: Any
    ) -> None:
        headers = decode_unique_headers(scope["headers"]) if scope["method"] == "POST" else None
        lane = self.lanes.get(_choose_lane(headers)) if headers else None
        # A lane that does not take the request gives its body back, with nothing recorded, so the
        # SDK may go on.
        if lane is not None and headers is not None:
            receive = await lane(caller, headers, scope, receive, send)
            if receive is None:
                return
        await self._serve_by_sdk(caller, scope, receive, send)

    def _find_refusal(self, scope: Scope, way: str) -> tuple[int, str, str] | None:
        """Why this request is not one for the door that it has come to."""
        if (scope["type"] == "websocket") != (way == WS):
            return (
                (426, "WRONG_DOOR", _UPGRADE)
                if way == WS
                else (404, "NOT_FOUND", "This address does not accept WebSocket connections.")
            )
        if way == WS and not websocket.is_mcp_offered(scope):
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

    async def _serve_sse(self, caller: Caller, scope: Scope, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            with self._connections.reserve_place(caller.agent):
                await sse.serve_stream(
                    self._connections, self.sessions, _make_arrival(caller, scope, receive, send)
                )
        elif body := await _read_body(scope, receive, send):
            if not body[1] or await sse.post_message(
                self._connections,
                self.sessions,
                _make_arrival(caller, scope, receive, send),
                body[0],
                self._count_call,
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

    async def _serve_websocket(self, caller: Caller, scope: Scope, receive: Any, send: Any) -> None:
        with self._connections.reserve_place(caller.agent):
            await websocket.serve_socket(
                self._connections,
                self.sessions,
                _make_arrival(caller, scope, receive, send),
                MAX_BODY,
            )

    def _list_own_connections(self) -> set[tuple[str, int]]:
        found = (
            (parse_session_id(name), server_id)
            for name, server_id in self.engine.pool.sessions.list_open()
        )
        return {(session_id, server_id) for session_id, server_id in found if session_id}

    async def _deliver_message(self, session_id: str, message: dict[str, Any]) -> bool:
        """What another process was sent for a session of this one. True if it was taken."""
        taken = await self._connections.deliver_message(session_id, message)
        return taken or await self._manager.deliver_message(session_id, message)

    async def _count_call(self, slug: str) -> None:
        """Count what is passed on for an agent among its calls. Raises RateLimited and
        NotCounted."""
        if (agent := self.engine.live.current.agents.get(slug)) is not None:
            await self.engine.pipeline.rates.take(agent)

    async def _serve_by_sdk(self, caller: Caller, scope: Scope, receive: Any, send: Any) -> None:
        current_caller.set(caller)
        left = asyncio.Event()
        scope = scope | {SCOPE_KEY: caller, LEFT_KEY: left, "user": caller.user}
        if scope["method"] != "POST":
            await self._manager.handle_request(scope, _notice_disconnect(left, receive), send)
        elif body := await _read_body(scope, receive, send):
            if can_belong_elsewhere(scope, body[0]):
                elsewhere = RelayedAnswer(send)
                scope |= {ELSEWHERE_KEY: elsewhere.addresses}
                await self._serve_post(scope, body, left, receive, elsewhere.send)
                await elsewhere.finish(scope, body[0], receive)
            else:
                await self._serve_post(scope, body, left, receive, send)

    async def _serve_post(
        self, scope: Scope, body: tuple[bytes, bool], left: asyncio.Event, receive: Any, send: Any
    ) -> None:
        receive = _notice_disconnect(left, replay_body(*body, receive))
        content, is_whole = body
        has_id = OUTCOME_KEY in scope  # a lane has made the call, and has taken the id for it
        named = (
            read_request_id(scope["headers"], content) if is_whole and not has_id else ("", None)
        )
        with self._unanswered.reserve_id(*named, send) as (refusal, answer):
            if refusal:
                await send_reply(send, 400, refusal)
            else:
                await self._manager.handle_request(scope, receive, answer)

    def _identify_caller(
        self, scope: Scope, slug: str, digest: str
    ) -> tuple[Caller | None, tuple[int, str, str] | None]:
        """Who calls which endpoint, or why not. The token comes first: strangers learn no
        endpoint's name."""
        agent = self.engine.find_agent(digest)
        if agent is None:
            return None, (
                401,
                "UNAUTHENTICATED",
                _STRANGER if read_bearer_token(scope["headers"]) else _ANONYMOUS,
            )
        self.engine.token_uses.add(digest)
        if slug not in self.engine.live.current.endpoints:
            return None, (
                404,
                "NOT_FOUND",
                error_texts.say_not_found("enabled endpoint", clean_text(slug, 63)),
            )
        conversation = read_single_header(scope["headers"])
        if conversation is None:
            return None, (
                400,
                "ARGUMENTS_INVALID",
                "The header Slipsnisse-Conversation was sent twice. Send it once.",
            )
        session = read_single_header(scope["headers"], SESSION_HEADER)
        if session is None:
            return None, (
                400,
                "ARGUMENTS_INVALID",
                "The header Slipsnisse-Session was sent twice. Send it once.",
            )
        return Caller(agent.slug, slug, "http", conversation, session), None


def _split_path(path: str) -> tuple[str, str]:
    """The endpoint's slug, and which of its further doors, if one that is open."""
    slug, _, way = (whole := path.removeprefix(PREFIX).strip("/")).partition("/")
    return (slug, way) if way in settings.MCP_DOORS else (whole, "")


def _make_arrival(caller: Caller, scope: Scope, receive: Any, send: Any) -> Arrival:
    return Arrival(caller, _hash_token(scope), scope, receive, send)


def _hash_token(scope: Scope) -> str:
    return hash_token(read_bearer_token(scope["headers"]) or "")


def _choose_lane(headers: Mapping[str, str]) -> str:
    if (
        "mcp-session-id" in headers
        and headers.get("mcp-protocol-version", LAST) in HANDSHAKE_PROTOCOL_VERSIONS
    ):
        return OLDER
    return headers.get("mcp-method", "")


async def _read_body(scope: Scope, receive: Any, send: Any) -> tuple[bytes, bool] | None:
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
    body = replace_invalid_text(body) if whole else body
    version = headers.get(b"mcp-protocol-version", b"").decode("latin-1")
    if whole and (refusal := await run_in_thread_if_large(body, partial(_check_message, version))):
        await send_reply(send, 400, refusal)
        return None
    return body, whole


def _check_message(version: str, body: bytes) -> dict[str, Any] | None:
    """What to say of a body that is none of a message; ``version`` as the header names it, empty
    where it does not."""
    older = not version or version in HANDSHAKE_PROTOCOL_VERSIONS
    return (
        find_message_error(body)
        or check_version_header(version, body)
        or (check_parser_depth(body) if older else None)
    )


async def _refuse_ended(send: Any, why: str) -> None:
    """Answer a request whose access, or session, has ended while its host waited."""
    if why == ENDED:
        await _answer(send, 404, "NOT_FOUND", _SESSION_ENDED)
    else:
        await _answer(send, 401, "UNAUTHENTICATED", _REVOKED)


async def _refuse(send: Any, status: int, code: int, message: str) -> None:
    await send_reply(send, status, make_error_reply(None, code, message))


def _notice_disconnect(left: asyncio.Event, receive: Any) -> Any:
    """The SDK lets calls of the older era go on when their connection is lost; held ones must hear
    of it."""

    async def receive_and_notice() -> Any:
        message = await receive()
        if message["type"] == "http.disconnect":
            left.set()
        return message

    return receive_and_notice


def _choose_send(scope: Scope, send: Any) -> Any:
    """How to answer before a WebSocket is accepted, or over HTTP."""
    return websocket.make_denying_send(scope, send) if scope["type"] == "websocket" else send


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
    if code == "ORIGIN_REFUSED":
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
