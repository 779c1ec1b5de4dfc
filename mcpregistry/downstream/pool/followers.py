"""How a connection learns from its server which of the wanted resources have changed.

It tells the server of its protocol version what is wanted: by ``resources/subscribe``, or by one
``subscriptions/listen`` stream with all URIs.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol

from mcp.client.client import Client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated

from mcpregistry.domain.errors import ConnectionFailed, ProtocolError, SlipsnisseError, ToolRefused
from mcpregistry.downstream.pool.resource_subscriptions import (
    RETRY_FIRST,
    RETRY_MOST,
    Follower,
    Watched,
)


class LiveConnection(Protocol):
    """A connection, as far as it is needed here."""

    async def ask(
        self, method: str, params: dict[str, Any], timeout: float | None = None
    ) -> dict[str, Any]:
        """One request. Raises DownstreamError."""


async def follow_on(
    connection: LiveConnection,
    client: Client,
    watched: Watched,
    modern: bool,
    *,
    is_main: bool = True,
) -> None:
    """Tell the server what is wanted on this connection. To be cancelled when it ends."""
    follower = Follower(watched, is_main=is_main)
    watched.join(follower)
    try:
        await (_listen(follower, client) if modern else _subscribe(follower, connection))
    finally:
        watched.leave(follower)


async def _subscribe(follower: Follower, connection: LiveConnection) -> None:
    told: set[str] = set()
    while True:
        follower.changed.clear()
        for uri in told - set(follower.wanted):
            told.discard(uri)
            with contextlib.suppress(SlipsnisseError):
                await connection.ask("resources/unsubscribe", {"uri": uri})
        for uri in follower.wanted:
            if uri in told and uri in follower.answers:
                continue
            told.add(uri)
            try:
                await connection.ask("resources/subscribe", {"uri": uri})
                follower.answer(uri, None)
            except SlipsnisseError as error:
                follower.answer(uri, error)
        await follower.changed.wait()


async def _listen(follower: Follower, client: Client) -> None:
    """The next stream is open before the last one is closed, so that nothing is missed between
    them."""
    before: asyncio.Task[None] | None = None
    now: asyncio.Task[None] | None = None
    listened: list[str] = []
    try:
        while True:
            follower.changed.clear()
            uris = follower.wanted
            opened = asyncio.Event()
            if uris == listened and all(uri in follower.answers for uri in uris):
                await follower.changed.wait()
                continue
            listened = uris
            now = (
                asyncio.ensure_future(_stream_and_open(follower, client, uris, opened))
                if uris
                else None
            )
            if now is not None:
                await opened.wait()
            await _cancel_tasks(before)
            before = now
            await follower.changed.wait()
    finally:  # the newer one may not have been taken yet
        await _cancel_tasks(before, now)


async def _stream_and_open(
    follower: Follower, client: Client, uris: list[str], opened: asyncio.Event
) -> None:
    try:
        await _stream_changes(follower, client, uris, opened)
    finally:
        opened.set()


async def _stream_changes(
    follower: Follower, client: Client, uris: list[str], opened: asyncio.Event
) -> None:
    delay = RETRY_FIRST
    lost = False
    while True:
        try:
            async with client.listen(resource_subscriptions=uris) as events:
                honored = set(events.honored.resource_subscriptions or ())
                for uri in uris:
                    follower.answer(uri, None if uri in honored else _make_not_notified_error())
                    if lost:
                        follower.watched.note(uri)
                opened.set()
                delay = RETRY_FIRST
                async for event in events:
                    if isinstance(event, ResourceUpdated):
                        follower.watched.note(event.uri)
        except (SubscriptionLost, MCPError, TimeoutError) as error:
            for uri in uris:
                if uri not in follower.answers:
                    follower.answer(uri, _make_refused_error(error))
        opened.set()
        lost = True
        await asyncio.sleep(delay)
        delay = min(delay * 2, RETRY_MOST)


def _make_not_notified_error() -> ProtocolError:
    return ProtocolError(
        "The server does not send change notifications for this resource.",
        remedy="Read the resource again when you need it.",
        sent=True,
    )


def _make_refused_error(error: Exception) -> SlipsnisseError:
    if isinstance(error, MCPError):
        return ToolRefused(error.message, rpc_code=error.code)
    return ConnectionFailed(
        "The server's stream of change notifications was lost.", remedy="Subscribe again."
    )


async def _cancel_tasks(*tasks: asyncio.Task[None] | None) -> None:
    ending = [task for task in tasks if task is not None]
    for task in ending:
        task.cancel()
    if ending:
        await asyncio.wait(ending)
