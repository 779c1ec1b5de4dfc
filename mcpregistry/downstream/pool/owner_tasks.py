"""Ending the owner task of a connection, in bounded time."""

from __future__ import annotations

import asyncio

import structlog

from mcpregistry.domain.errors import DownstreamError
from mcpregistry.downstream.pool.connection import ServerConnection

# more than a transport takes: stdio kills after 6 seconds, HTTP gives up after 5
CLOSE_SECONDS = 10.0
CANCEL_SECONDS = 5.0

log = structlog.get_logger(__name__)


async def end_owner(owner: asyncio.Task[None]) -> None:
    """Wait for an owner that was asked to leave; one that takes too long is cancelled. Bounded,
    never raises.

    Cancelled or not, the processes of a stdio server die: ending them is shielded and has its own
    limits.
    """
    for patience in (CLOSE_SECONDS, CANCEL_SECONDS):
        _, late = await asyncio.wait([owner], timeout=patience)
        if not late:
            return
        owner.cancel()
    log.error("connection_does_not_end", owner=owner.get_name())


async def finish_connection(
    owner: asyncio.Task[None], connection: ServerConnection
) -> DownstreamError | None:
    """End a connection that was made for a test or trial alone. Returns the error it had, if
    any."""
    connection.stop()
    await end_owner(owner)
    error = owner.exception() if owner.done() and not owner.cancelled() else None
    if error is not None and not isinstance(error, DownstreamError):
        raise error
    return error
