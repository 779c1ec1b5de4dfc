"""A session's own stream, in the process that holds it: what its host has subscribed to, wherever
it said so, is told here."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import structlog
from django.db import Error
from mcp.server.connection import Connection

from mcpregistry.db import db_call
from mcpregistry.domain.calls.forwarding import HostChannel
from mcpregistry.domain.servers.sessions import name_mcp_session
from mcpregistry.gateway.caller_identity import Caller
from mcpregistry.gateway.http.session_cache import HostSessionState
from mcpregistry.gateway.subscriptions import Subscriber, Subscriptions
from mcpregistry.services import host_sessions

log = structlog.get_logger(__name__)

_AFTER_FAULT = 1.0
# seconds, where a server did not take a subscription, or it cannot be read at this time
LOOK_AGAIN = 30.0


class SessionStream:
    """Follows the session's rows from its making to ``close``; set ``news`` when they have
    changed."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        session: HostSessionState,
        connection: Connection,
        channel: HostChannel,
    ) -> None:
        self._subscriptions = subscriptions
        self._connection = connection
        self._id = session.id
        caller = Caller(session.agent, session.endpoint, "http")
        self._who = Subscriber(
            caller, name_mcp_session(session.id), replace(session.host.forwarding, channel=channel)
        )
        self.news = asyncio.Event()
        subscriptions.begin_stream(connection)
        self._task = asyncio.ensure_future(self._follow())

    def close(self) -> None:
        """The stream has ended."""
        self._task.cancel()
        self._subscriptions.end_stream(self._connection)

    async def _follow(self) -> None:
        while True:
            self.news.clear()
            try:
                wanted = await db_call(host_sessions.list_subscriptions, self._id)
            except Error:
                log.warning("subscriptions.not_read", exc_info=True)
                await asyncio.sleep(_AFTER_FAULT)
                continue
            whole = await self._subscriptions.follow_resources(self._who, self._connection, wanted)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.news.wait(), None if whole else LOOK_AGAIN)
