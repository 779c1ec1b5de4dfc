"""The SDK's manager of sessions, with sessions that outlive their process: any web process takes up
any of them.

What the SDK keeps for a session (streams, a task) is made anew from the row where a request of its
host comes. A host's answer to a question, or its word that a request is cancelled, goes to the
process that asked or serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio
import msgspec
import structlog
from anyio.abc import TaskStatus
from django.db import Error
from mcp.server.auth.middleware.bearer_auth import authorization_context
from mcp.server.connection import Connection
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.types import InitializeRequestParams

from mcpregistry.domain.errors import QueueFullError
from mcpregistry.downstream.peers.messages import RelayedNotice, RelayedQuestion
from mcpregistry.gateway.caller_identity import LASTING_KEY, SCOPE_KEY, Caller
from mcpregistry.gateway.host_channels import ASK_SECONDS, MESSAGE, ask_connection
from mcpregistry.gateway.http import question_ids
from mcpregistry.gateway.http.answer_resumption import KeptSend, ResumableAnswer, Resumption
from mcpregistry.gateway.http.body import read_whole, replay_body
from mcpregistry.gateway.http.session_cache import HostSessionCache, HostSessionState
from mcpregistry.gateway.http.session_stream import SessionStream
from mcpregistry.gateway.http.stream_notices import StreamNotices
from mcpregistry.gateway.jsonrpc import explain_cut
from mcpregistry.gateway.sdk.requests import get_connection
from mcpregistry.gateway.sdk.sessions import NumberedDispatcher, SdkSessions
from mcpregistry.gateway.server import CALL_ID_KEY, OUTCOME_KEY, Context, Gateway
from mcpregistry.services.host_sessions import CHANGED

log = structlog.get_logger(__name__)

SESSION_HEADER = b"mcp-session-id"
# between processes: a notification for the process that has the session's own stream
RELAYED = "slipsnisse/relayed"


class SessionManager(SdkSessions):
    """One per web process."""

    def __init__(
        self, gateway: Gateway, sessions: HostSessionCache, resumption: Resumption, **options: Any
    ) -> None:
        super().__init__(gateway.server, **options)
        self._gateway = gateway
        self._sessions = sessions
        self._resumption = resumption
        self._dispatchers: dict[str, NumberedDispatcher] = {}
        self._ending: set[asyncio.Task[None]] = set()
        sessions.ended.append(self._discard_ended)
        sessions.deliver = self.deliver_message
        gateway.began = self._record_session
        self._connections: dict[str, Connection] = {}
        self._standing: dict[str, SessionStream] = {}
        self._opening: dict[
            str, bool
        ] = {}  # sessions whose first handshake is being answered: whether it has succeeded
        gateway.channels.relay = self._relay
        gateway.channels.ask_elsewhere = self._ask_elsewhere
        placement = gateway.engine.placement
        self._notices = StreamNotices(
            gateway.engine.watches.list_neighbours, self._send_notice, placement.connections
        )
        placement.serve_streams(self._send_notice, self._ask_host)
        sessions.ended.append(self._notices.forget)
        gateway.levels.keep = sessions.set_log_level
        gateway.subscriptions.keep = sessions.subscribe

    async def serve_session_request(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request of a session, or one that may open a session."""
        session_id = _read_session_id(scope)
        if session_id is None:
            await self.serve_by_sdk(scope, receive, send)
            return
        session = await self._sessions.find(session_id, scope[SCOPE_KEY])
        if session is not None and scope["method"] == "DELETE":
            # Not by the SDK's way: the feed may have told us of the end before it looks, and it
            # would answer 404.
            await self._sessions.end(session_id)
            await answer_accepted(200, session_id, send)
            return
        # another request may be taking it up
        if session is not None and session_id not in self._connections:
            await self._resume_session(session, scope)
        if session is None:
            scope, receive = await self._drop_stale_session(scope, receive)
            await self.serve_by_sdk(scope, receive, send)
            return
        with self._sessions.keep_alive(session_id):
            if scope["method"] == "POST":
                await self._serve_post(session, scope, receive, send)
            else:
                await self._serve_get(session, scope, receive, send)

    async def _drop_stale_session(self, scope: Any, receive: Any) -> tuple[Any, Any]:
        """A host that shakes hands again and still names its last session gets a new one, not 404
        for ever."""
        if scope["method"] != "POST":
            return scope, receive
        body, whole = await read_whole(receive, self.max_request_body_size)
        if whole and _is_opening(body):
            scope = scope | {
                "headers": [pair for pair in scope["headers"] if pair[0] != b"mcp-session-id"]
            }
        return scope, replay_body(body, whole, receive)

    async def _serve_get(
        self, session: HostSessionState, scope: Any, receive: Any, send: Any
    ) -> None:
        """Read a request's answer on, or open the session's own stream, of which nothing is
        kept."""
        named = next(
            (
                value.decode("latin-1")
                for name, value in scope["headers"]
                if name == b"last-event-id"
            ),
            None,
        )
        stream = await self._resumption.find_stream(session, named) if named is not None else None
        if stream is not None:
            await self._resumption.serve(session, stream, receive, send)
            return
        # The SDK would answer nothing at all to one that asks for what it does not have.
        scope = scope | {
            "headers": [pair for pair in scope["headers"] if pair[0] != b"last-event-id"]
        }
        with self._hold_stream(session):
            await self.serve_by_sdk(scope, receive, send)

    @contextmanager
    def _hold_stream(self, session: HostSessionState) -> Iterator[None]:
        """Around a session's own stream: this process tells of the resources that its host has
        subscribed to."""
        connection = self._connections.get(session.id)
        # that the handshake has ended may have been said to another process
        if connection is not None:
            connection.initialized.set()
            self._gateway.changes.remember(
                Caller(session.agent, session.endpoint, "http"), connection
            )
        # a second stream is refused by the SDK
        if connection is None or session.id in self._standing:
            yield
            return
        channel = self._gateway.channels.get_channel(connection)
        standing = SessionStream(self._gateway.subscriptions, session, connection, channel)
        self._standing[session.id] = standing
        try:
            yield
        finally:
            del self._standing[session.id]
            standing.close()

    async def _serve_post(
        self, session: HostSessionState, scope: Any, receive: Any, send: Any
    ) -> None:
        body, whole = await read_whole(receive, self.max_request_body_size)
        kept = _make_resumable_answer(session, body) if whole else None
        receive = replay_body(body, whole, receive)
        if kept is None or OUTCOME_KEY in scope:  # then a lane keeps the answer
            await self.serve_by_sdk(scope, receive, send)
            return
        keeping = KeptSend(kept, send)
        try:
            scope = scope | {CALL_ID_KEY: kept.set_call_id}
            await self.serve_by_sdk(scope, _hide_disconnect(receive), keeping)
        finally:
            keeping.close()

    async def _record_session(self, ctx: Context, caller: Caller, result: Any) -> None:
        session_id = get_connection(ctx).session_id
        client = InitializeRequestParams.model_validate(ctx.params or {}, by_name=False)
        # a connection that lasts (``duplex_connections.py``) is its own session, and ends with it
        if session_id is None:
            if named := ctx.request.scope.get(LASTING_KEY) if ctx.request else None:
                await self._sessions.introduce(named, client)
            return
        await self._sessions.begin(session_id, caller, result["protocolVersion"], client)
        if session_id in self._opening:  # else a host shakes hands again
            self._opening[session_id] = True

    async def _resume_session(self, session: HostSessionState, scope: Any) -> None:
        owner = authorization_context(scope["user"])
        assert owner is not None
        await self.adopt_session(session.id, owner, self._serve, session)

    async def serve_opening_request(
        self, transport: StreamableHTTPServerTransport, scope: Any, receive: Any, send: Any
    ) -> None:
        """As the SDK's, but with our way to serve. What no handshake has opened is forgotten again,
        also if its error came with status 200."""
        session_id = transport.mcp_session_id or ""
        established = False
        self._opening[session_id] = False
        try:
            await self.start_task(self._serve, transport, None)
            status = await self.answer_opening(transport, scope, receive, send)
            established = status is not None and status < 400 and self._opening[session_id]
        finally:
            del self._opening[session_id]
            if not established:
                await self.discard(session_id, transport)

    async def _serve(
        self,
        transport: StreamableHTTPServerTransport,
        session: HostSessionState | None,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve a session's messages until it ends, or idles here."""
        session_id = transport.mcp_session_id or ""
        async with transport.connect() as (incoming, outgoing):
            dispatcher = NumberedDispatcher(
                incoming,
                outgoing,
                make_id=partial(question_ids.make_question_id, session_id),
                first=question_ids.choose_first_number(),
                explain_error=explain_cut,
            )
            self._dispatchers[session_id] = dispatcher
            connection = Connection.for_loop(dispatcher, session_id=session_id)
            self._connections[session_id] = connection
            if session is not None:
                self._restore_state(connection, session)
            task_status.started()
            try:
                with transport.idle_scope or anyio.CancelScope():
                    await self.serve_messages(dispatcher, connection)
            except Exception:
                log.exception("session.crashed")
            finally:
                self._dispatchers.pop(session_id, None)
                self._connections.pop(session_id, None)
                await self.discard(session_id, transport)

    def _restore_state(self, connection: Connection, session: HostSessionState) -> None:
        connection.client_params = session.client
        connection.protocol_version = session.version
        connection.initialized.set()
        self._gateway.levels.remember(connection, session.log_level)
        self._gateway.changes.remember(Caller(session.agent, session.endpoint, "http"), connection)

    def is_for_this_process(self, session: HostSessionState, message: dict[str, Any]) -> bool:
        """Whether this answer to a question, or word about a request, is about one of this
        process."""
        return self._is_awaited(session.id, message) or (
            "method" in message and find_cancelled_request(message) in session.calls
        )

    def _is_awaited(self, session_id: str, message: dict[str, Any]) -> bool:
        """Whether the SDK has the question that this answers, or the request that this cancels."""
        dispatcher = self._dispatchers.get(session_id)
        named = find_cancelled_request(message) if "method" in message else message.get("id")
        if dispatcher is None or not isinstance(named, int | str):
            return False
        if "method" in message:
            return dispatcher.is_serving_request(named)
        return dispatcher.is_awaiting_answer(named)

    async def deliver_message(self, session_id: str, message: dict[str, Any]) -> bool:
        """Another process was sent this. True if it was for this process alone, and has been
        taken."""
        if message.get("method") == CHANGED:
            await self._apply_change(session_id)
            return False
        if message.get("method") == RELAYED:
            if session_id not in self._standing:
                return False
            await self._connections[session_id].notify(**message["params"])
            return True
        session = self._sessions.get_known(session_id)
        if (
            session is not None
            and "method" in message
            and (give_up := session.calls.get(find_cancelled_request(message)))
        ):
            give_up()
            return True
        return self._is_awaited(session_id, message) and await self.inject_message(
            session_id, message
        )

    async def _relay(self, session_id: str, method: str, params: dict[str, Any]) -> None:
        """Send a notification on the session's own stream, which may be in another process."""
        if await self._notices.send(RelayedNotice(session_id, method, params)) or method == MESSAGE:
            return  # a log line that no process of this machine can send is dropped
        try:
            await self._sessions.send_on(
                session_id, {"method": RELAYED, "params": {"method": method, "params": params}}
            )
        except (Error, QueueFullError):  # hosts do not rely on such notifications
            log.warning("session.notification_not_relayed", exc_info=True)

    async def _send_notice(self, notice: RelayedNotice) -> bool:
        """Send a notification on the session's own stream. False if this process does not have
        it."""
        if notice.session not in self._standing:
            return False
        try:
            async with asyncio.timeout(1.0):  # a host that does not read must not delay the others
                await self._connections[notice.session].notify(notice.method, notice.params)
        except TimeoutError:
            log.info("host.does_not_read", method=notice.method)
        return True

    async def _ask_elsewhere(
        self, session_id: str, method: str, params: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Ask the host on its session's stream if another process has that. None if none has.
        Raises Unanswered."""
        if session_id in self._standing:
            return None
        return await self._notices.ask(RelayedQuestion(session_id, method, params), 2 * ASK_SECONDS)

    async def _ask_host(self, question: RelayedQuestion) -> dict[str, Any] | None:
        """Ask the host for another process. None if this one does not have the session's stream.
        Raises Unanswered."""
        if question.session not in self._standing:
            return None
        return await ask_connection(
            self._connections[question.session], question.method, question.params
        )

    async def _apply_change(self, session_id: str) -> None:
        """The session's rows say something else, by whichever process."""
        if standing := self._standing.get(session_id):
            standing.news.set()
        session = self._sessions.get_known(session_id)
        if session is None:
            return  # it will be read as it is then
        await self._sessions.read_log_level(session)
        if connection := self._connections.get(session_id):
            self._gateway.levels.remember(connection, session.log_level)

    def _discard_ended(self, session_id: str) -> None:
        """In whichever process: nothing of it stays here."""
        if transport := self.get_transport(session_id):
            task = asyncio.ensure_future(self.discard(session_id, transport))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


def _make_resumable_answer(session: HostSessionState, body: bytes) -> ResumableAnswer | None:
    message = msgspec.json.decode(body)  # the door has looked at it
    if type(message.get("id")) not in (int, str) or "method" not in message:
        return None
    uri = (message.get("params") or {}).get("uri")
    return ResumableAnswer(
        session, message["id"], message["method"], uri if isinstance(uri, str) else ""
    )


def _hide_disconnect(receive: Any) -> Any:
    """The SDK forgets where an answer belongs as soon as a host's connection breaks; so it does not
    hear of that."""

    async def receive_until_answered() -> Any:
        message = await receive()
        if message["type"] == "http.disconnect":
            # until the answer is there: then whoever listens is cancelled
            await asyncio.Event().wait()
        return message

    return receive_until_answered


async def answer_accepted(status: int, session_id: str, send: Any) -> None:
    """Answer without a body, as the SDK does."""
    head = [(b"content-type", b"application/json"), (SESSION_HEADER, session_id.encode())]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": b""})


def _read_session_id(scope: Any) -> str | None:
    found = next((value for name, value in scope["headers"] if name == SESSION_HEADER), None)
    return None if found is None else str(found.decode("latin-1"))


def _is_opening(body: bytes) -> bool:
    try:
        message = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(message, dict) and message.get("method") == "initialize"


def find_cancelled_request(message: dict[str, Any]) -> Any:
    """Which request a notification gives up."""
    params = message.get("params")
    request = params.get("requestId") if isinstance(params, dict) else None
    return request if type(request) in (int, str) else None
