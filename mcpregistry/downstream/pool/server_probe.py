"""One start of a server beside all others, for a person who wants to know whether it works."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.downstream.limits import check_arguments
from mcpregistry.downstream.pool.connection import ServerConnection, open_connection
from mcpregistry.downstream.pool.events import TestReport
from mcpregistry.downstream.pool.owner_tasks import finish_connection
from mcpregistry.downstream.server_call import ServerCall

# Sends a call's arguments (JSON) to the tool, and calls the function once the first byte may have
# left.
Send = Callable[[bytes, Callable[[], None]], Awaitable[dict[str, Any]]]
# Makes the call of a tool (name, arguments as JSON) by ``Send``: whoever decides about the call and
# records it.
MakeCall = Callable[[str, bytes, Send], Awaitable[dict[str, Any]]]


async def send_only(name: str, arguments: bytes, send: Send) -> dict[str, Any]:
    """Send the call without a decision and without a record: the default, which only tests of the
    pool use."""
    return await send(arguments, lambda: None)


@dataclass(slots=True)
class ProbeProgress:
    """How far a test is. The test sets its connection; its caller reads the rest while the test
    runs."""

    connection: ServerConnection | None = None

    @property
    def steps(self) -> dict[str, float]:
        """The steps that are done, in milliseconds."""
        found = self.connection.discovery if self.connection else None
        return dict(found.timings) if found else {}

    @property
    def stderr(self) -> str:
        """The end of what the server has written to standard error so far."""
        return (
            self.connection.read_stderr_tail().decode(errors="replace") if self.connection else ""
        )


async def probe_once(
    target: ServerTarget, call: tuple[str, bytes] | None, progress: ProbeProgress, make: MakeCall
) -> TestReport:
    """Connect afresh, list, perhaps ``make`` one call of a tool with the given arguments, close.
    Whatever the server does wrong, and a refusal of the call, is in the report."""
    started = time.monotonic()
    ready = asyncio.Event()
    connection = await open_connection(target, lambda _: None)
    progress.connection = connection
    owner = asyncio.create_task(connection.run(ready.set), name=f"mcp-test-{target.server_id}")
    result: dict[str, Any] | None = None
    error: SlipsnisseError | None = None
    timings: dict[str, float] = {}
    waiter = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait([owner, waiter], return_when=asyncio.FIRST_COMPLETED)
        if ready.is_set() and call is not None:
            before = time.monotonic()
            result = await make(*call, partial(_send, connection, call[0]))
            timings["call"] = (time.monotonic() - before) * 1000
    except SlipsnisseError as failure:
        error = failure
    finally:
        waiter.cancel()
        error = await finish_connection(owner, connection) or error
    found = connection.discovery
    timings |= found.timings if found else {}
    timings["total"] = (time.monotonic() - started) * 1000
    tail = connection.read_stderr_tail().decode(errors="replace")
    return TestReport(error is None, error, found, result, tail, timings)


async def _send(
    connection: ServerConnection, name: str, arguments: bytes, on_sent: Callable[[], None]
) -> dict[str, Any]:
    limit = connection.target.limits.request_timeout or None
    return await connection.call(
        ServerCall(
            connection.target.server_id,
            name,
            check_arguments(arguments),
            timeout=limit,
            on_sent=on_sent,
        )
    )
