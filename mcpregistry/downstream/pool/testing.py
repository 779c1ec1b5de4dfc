"""One start of a server beside all others, for a person who wants to know whether it works. ``Pool.test`` calls it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from mcpregistry.domain.errors import DownstreamError
from mcpregistry.domain.servers.target import Target
from mcpregistry.downstream.limits import parse_arguments
from mcpregistry.downstream.pool.connection import Connection, open_connection
from mcpregistry.downstream.pool.ending import finish
from mcpregistry.downstream.pool.events import TestReport


@dataclass(slots=True)
class Progress:
    """How far a test is. The test sets its connection; its caller reads the rest while the test runs."""

    connection: Connection | None = None

    @property
    def steps(self) -> dict[str, float]:
        """The steps that are done, in milliseconds."""
        found = self.connection.discovery if self.connection else None
        return dict(found.timings) if found else {}

    @property
    def stderr(self) -> str:
        """The end of what the server has written to standard error so far."""
        return self.connection.stderr_tail().decode(errors="replace") if self.connection else ""


async def tested(target: Target, call: tuple[str, bytes] | None, progress: Progress) -> TestReport:
    """Connect afresh, list, perhaps call one tool with the given arguments, close. Never raises."""
    started = time.monotonic()
    ready = asyncio.Event()
    connection = progress.connection = await open_connection(target, lambda _: None)
    owner = asyncio.create_task(connection.run(ready.set), name=f"mcp-test-{target.server_id}")
    result: dict[str, Any] | None = None
    error: DownstreamError | None = None
    timings: dict[str, float] = {}
    waiter = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait([owner, waiter], return_when=asyncio.FIRST_COMPLETED)
        if ready.is_set() and call is not None:
            before = time.monotonic()
            limit = target.limits.request_timeout or None
            result = await connection.call(call[0], parse_arguments(call[1]), timeout=limit)
            timings["call"] = (time.monotonic() - before) * 1000
    except DownstreamError as failure:
        error = failure
    finally:
        waiter.cancel()
        error = await finish(owner, connection) or error
    found = connection.discovery
    timings |= found.timings if found else {}
    timings["total"] = (time.monotonic() - started) * 1000
    tail = connection.stderr_tail().decode(errors="replace")
    return TestReport(error is None, error, found, result, tail, timings)
