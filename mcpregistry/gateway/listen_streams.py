"""Serves ``subscriptions/listen`` (MCP 2026-07-28): a stream of changed lists and changed
resources.

Unlike the SDK's handler, it keeps each change only once while a host does not read. So what waits
is bounded by what the host has asked for, and no stream has to be ended because too much waits.
"""

from __future__ import annotations

import asyncio
from typing import Any

from mcp import types as t
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import SubscriptionBus
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import (
    SUBSCRIPTION_ID_META_KEY,
    ServerEvent,
    event_matches,
    event_to_notification,
)

MOST_STREAMS = 1024  # of one bus


class _PendingChanges:
    """The changes that a stream is still to send, the oldest first."""

    def __init__(self) -> None:
        self._events: dict[ServerEvent, None] = {}
        self._news = asyncio.Event()
        self._is_closed = False

    def add(self, event: ServerEvent) -> None:
        self._events[event] = None
        self._news.set()

    def close(self) -> None:
        self._is_closed = True
        self._news.set()

    async def take(self) -> ServerEvent | None:
        """Return the next event when there is one, or None when all were taken and the stream is to
        end."""
        while not self._events:
            if self._is_closed:
                return None
            self._news.clear()
            await self._news.wait()
        event = next(iter(self._events))
        del self._events[event]
        return event


class ListenStreams:
    """All streams of one bus."""

    def __init__(self, bus: SubscriptionBus) -> None:
        self._bus = bus
        self._streams: set[_PendingChanges] = set()

    async def serve(
        self, ctx: ServerRequestContext[Any, Any], params: t.SubscriptionsListenRequestParams
    ) -> t.SubscriptionsListenResult:
        """Serve one stream until its host leaves (which cancels this) or ``close``. Raises
        MCPError."""
        if ctx.request_id is None:
            raise MCPError(t.INVALID_REQUEST, "subscriptions/listen requires a request id.")
        if len(self._streams) >= MOST_STREAMS:
            raise MCPError(t.INTERNAL_ERROR, "Too many streams are open. Close a stream first.")
        wanted = _drop_empty_members(params.notifications)
        uris = frozenset(wanted.resource_subscriptions or ())
        meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
        pending = _PendingChanges()

        def add_if_wanted(event: ServerEvent) -> None:
            if event_matches(wanted, uris, event):
                pending.add(event)

        async def send(notification: Any) -> None:
            await ctx.session.send_notification(notification, related_request_id=ctx.request_id)

        unsubscribe = self._bus.subscribe(add_if_wanted)
        self._streams.add(pending)
        try:
            acknowledged = t.SubscriptionsAcknowledgedNotificationParams(
                notifications=wanted, _meta=meta
            )
            await send(t.SubscriptionsAcknowledgedNotification(params=acknowledged))
            while (event := await pending.take()) is not None:
                await send(event_to_notification(event, meta))
        finally:
            unsubscribe()
            self._streams.discard(pending)
        return t.SubscriptionsListenResult(_meta=meta)

    def close(self) -> None:
        """End every stream when it has sent what it still has. Does not wait for it."""
        for pending in list(self._streams):
            pending.close()


def _drop_empty_members(asked: t.SubscriptionFilter) -> t.SubscriptionFilter:
    """Return the filter for the acknowledgement: the filter of the host without its false and empty
    members."""
    return t.SubscriptionFilter(
        tools_list_changed=asked.tools_list_changed or None,
        prompts_list_changed=asked.prompts_list_changed or None,
        resources_list_changed=asked.resources_list_changed or None,
        resource_subscriptions=list(asked.resource_subscriptions)
        if asked.resource_subscriptions
        else None,
    )
