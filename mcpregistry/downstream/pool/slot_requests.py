"""What requests through a slot have in common: a place, the checks before, and what others may see
of the answer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from mcpregistry.domain.errors import (
    ConnectionFailed,
    DefinitionChanged,
    DownstreamError,
    StaleRevision,
    TimedOut,
    ToolRefused,
)
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.downstream.pool.connection import ServerConnection
from mcpregistry.downstream.pool.redact import (
    clean_failure,
    clean_refusal,
    remove_secrets,
)
from mcpregistry.downstream.pool.slot import ServerSlot
from mcpregistry.downstream.server_call import ServerCall


async def enter_slot(
    slot: ServerSlot, call: ServerCall, deadline: float | None
) -> ServerConnection:
    """Return the connection for the call, with a place on it. A failure is also shown to
    operators."""
    try:
        with register_opener(slot, call):
            return await slot.enter(deadline)
    except DownstreamError as error:
        slot.report_failure(error)
        raise


@contextlib.contextmanager
def register_opener(slot: ServerSlot, call: ServerCall) -> Iterator[None]:
    """Around whatever may open the slot's connection for this call. While the server starts, it may
    ask the host of the call."""
    slot.openers[call.caller] = call.host
    try:
        yield
    finally:
        slot.openers.pop(call.caller, None)


async def open_slot(slot: ServerSlot, call: ServerCall) -> None:
    """Open the slot's connection for a subscription, without a place on it. Raises
    DownstreamError."""
    with register_opener(slot, call) if slot.session else contextlib.nullcontext():
        await slot.ensure_connected()


async def send_slot_request(
    slot: ServerSlot,
    what: str,
    seconds: float,
    request: Callable[[ServerConnection, float], Awaitable[dict[str, Any]]],
) -> dict[str, Any]:
    """One small request, which takes a place as a call does. Raises Busy or DownstreamError."""
    deadline = time.monotonic() + seconds
    connection = slot.enter_now() or await slot.enter(deadline)
    try:
        return await redact_result(await request(connection, deadline), slot, connection, what)
    except ToolRefused as error:
        refusal, found = clean_refusal(error, connection.redactor)
        slot.report_secrets(what, found)
        raise refusal from None
    except DownstreamError as error:
        clean_failure(error, connection.redactor)
        raise
    finally:
        slot.leave()


async def redact_result(
    result: dict[str, Any], slot: ServerSlot, connection: ServerConnection, what: str
) -> dict[str, Any]:
    """The result as others may see it; that it held secrets is told to people."""
    without, found = await remove_secrets(result, connection.redactor)
    slot.report_secrets(what, found)
    return without


async def check_definition(connection: ServerConnection, call: ServerCall) -> None:
    """Compare the server and its offer with what was decided on: a server that was just started may
    describe something else than was approved. Raises StaleRevision or DefinitionChanged."""
    if call.revision is not None and connection.target.revision != call.revision:
        raise StaleRevision(
            "The server's settings were changed after the decision on this call.",
            remedy="Make the call again.",
        )
    kind, name = call.approved_offer
    definition = call.definition
    if definition is None or connection.offers.hash_offer(name, kind) == definition:
        return
    await connection.offers.reread()
    if connection.offers.hash_offer(name, kind) != definition:
        raise DefinitionChanged(
            f"The server has changed this {kind} since it was approved.",
            remedy=f"Ask an approver to review the new definition. Until it is approved, the {kind} cannot be used.",
        )


def can_resend(error: DownstreamError, target: ServerTarget, *, idempotent: bool) -> bool:
    """Whether a failed call may be sent a second time: see the last invariant of ``pool.py``."""
    if target.resend == "never" or isinstance(error, TimedOut):
        return False
    broke = isinstance(error, ConnectionFailed)
    return broke and (not error.sent or (idempotent and target.resend == "always"))
