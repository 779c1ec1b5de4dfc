"""The SDK's sessions over Streamable HTTP, with hooks where ours differ."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
from mcp.server.connection import Connection
from mcp.server.runner import serve_connection
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager, _send_and_report_status
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp.types import ErrorData, RequestId, jsonrpc_message_adapter


class NumberedDispatcher(JSONRPCDispatcher[Any]):
    """The dispatcher of one session. ``make_id`` gives the id of the question with a number,
    counted from ``first``; ``explain_error`` changes an error before it is sent."""

    def __init__(
        self,
        *streams: Any,
        make_id: Callable[[int], int],
        first: int,
        explain_error: Callable[[ErrorData], ErrorData],
    ) -> None:
        super().__init__(*streams, inline_methods=frozenset({"initialize"}))
        self._next_id = first
        self._make_id = make_id
        self._explain_error = explain_error

    def _allocate_id(self) -> int:
        return self._make_id(super()._allocate_id())

    async def _write_error(self, request_id: RequestId, error: ErrorData) -> None:
        await super()._write_error(request_id, self._explain_error(error))

    def is_awaiting_answer(self, question_id: int | str) -> bool:
        """Whether the host is asked this question."""
        return coerce_request_id(question_id) in self._pending

    def is_serving_request(self, request_id: int | str) -> bool:
        """Whether the host waits for the answer to this request."""
        return coerce_request_id(request_id) in self._in_flight


class SdkSessions(StreamableHTTPSessionManager, ABC):
    """One per web process. A subclass serves the requests, and starts the task of each session."""

    @abstractmethod
    async def serve_session_request(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request of a session, or one that may open a session."""

    @abstractmethod
    async def serve_opening_request(
        self, transport: StreamableHTTPServerTransport, scope: Any, receive: Any, send: Any
    ) -> None:
        """Serve the request that opens the session of ``transport``."""

    async def _handle_stateful_request(self, scope: Any, receive: Any, send: Any) -> None:
        await self.serve_session_request(scope, receive, send)

    async def _serve_opening_request(
        self, http_transport: StreamableHTTPServerTransport, scope: Any, receive: Any, send: Any
    ) -> None:
        await self.serve_opening_request(http_transport, scope, receive, send)

    async def serve_by_sdk(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request of a session as the SDK does."""
        await super()._handle_stateful_request(scope, receive, send)

    async def answer_opening(
        self, transport: StreamableHTTPServerTransport, scope: Any, receive: Any, send: Any
    ) -> int | None:
        """Let the transport answer. Returns the HTTP status; None if nothing was answered."""
        return await _send_and_report_status(transport.handle_request, scope, receive, send)

    def get_transport(self, session_id: str) -> StreamableHTTPServerTransport | None:
        """The transport of a session that this process serves."""
        return self._server_instances.get(session_id)

    async def end_all(self) -> None:
        """Terminate the transports of all sessions, whose streams would stay open."""
        transports = list(self._server_instances.values())
        await asyncio.gather(*(each.terminate() for each in transports))

    async def adopt_session(
        self,
        session_id: str,
        owner: AuthorizationContext,
        serve: Callable[..., Awaitable[None]],
        *arguments: Any,
    ) -> None:
        """Serve a session that another process has opened, unless this process does so already."""
        async with self._session_creation_lock:
            if session_id in self._server_instances:
                return
            transport = StreamableHTTPServerTransport(
                mcp_session_id=session_id,
                event_store=self.event_store,
                idle_timeout=self.session_idle_timeout,
            )
            self._session_owners[session_id] = owner
            self._server_instances[session_id] = transport
            await self.start_task(serve, transport, *arguments)

    async def start_task(self, serve: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Start the task of a session, and wait until it has started."""
        tasks: Any = self._task_group  # while requests come, the manager runs
        await tasks.start(serve, *arguments)

    async def serve_messages(self, dispatcher: NumberedDispatcher, connection: Connection) -> None:
        """Serve a session's messages until it ends."""
        await serve_connection(
            self.app, dispatcher, connection=connection, lifespan_state=self._lifespan_state
        )

    async def discard(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
        """Forget a session in this process."""
        await self._discard_session(session_id, transport)

    async def inject_message(self, session_id: str, message: dict[str, Any]) -> bool:
        """Hand in a message of the host that another process has received. False if this process
        does not serve the session."""
        transport = self._server_instances.get(session_id)
        if transport is None or transport._read_stream_writer is None:
            return False
        told = jsonrpc_message_adapter.validate_python(message, by_name=False)
        await transport._read_stream_writer.send(SessionMessage(told))
        return True
