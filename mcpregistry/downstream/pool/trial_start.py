"""One start of a server on trial: greeted in one era, its lists read, some tools called, everything
measured, ended.

It has a connection of its own and touches no other. What tools answer is measured here; the record
of the calls keeps it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from mcpregistry.domain.errors import DownstreamError, SlipsnisseError
from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.domain.text.canonical import clean_text, encode_lossy_json, hash_parts
from mcpregistry.domain.trials.report import Called, Start
from mcpregistry.downstream.pool.connection import ServerConnection, open_connection
from mcpregistry.downstream.pool.discovery import Discovery
from mcpregistry.downstream.pool.listing import list_pages
from mcpregistry.downstream.pool.owner_tasks import finish_connection
from mcpregistry.downstream.pool.server_probe import MakeCall
from mcpregistry.downstream.server_call import ServerCall
from mcpregistry.downstream.transports.process_usage import (
    MOST_NAMED,
    ProcessUsage,
    find_denied_paths,
    find_home,
    list_files,
    list_written_files,
)

CALL_SECONDS = 10.0
CALLS_SECONDS = 60.0
COUNT_SECONDS = 10.0
MOST_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class CallPlan:
    """Which tools a start calls. ``choose`` returns their arguments (JSON) by name, from what the
    server lists.

    ``make`` decides about each call, and makes and records it. It raises an error that is not a
    DownstreamError if the call is not made.
    """

    choose: Callable[[Discovery], Mapping[str, bytes]]
    make: MakeCall


@dataclass(slots=True)
class StartResult:
    """What one start has shown; ``discovery`` is None where it came to no list."""

    start: Start
    discovery: Discovery | None = None
    called: dict[str, Called] = field(default_factory=dict)


async def try_start(target: ServerTarget, plan: CallPlan | None = None) -> StartResult:
    """Start or reach the server as the target says, and end it with all its processes, also when
    cancelled.

    Whatever the server does wrong is in what comes back. Raises SlipsnisseError where there is
    nothing to start.
    """
    home = find_home(target)
    usage = ProcessUsage(target)
    before = await asyncio.to_thread(list_files, home) if home else None
    connection = await open_connection(target, lambda _: None)
    ready = asyncio.Event()
    started = time.monotonic()
    owner = asyncio.create_task(connection.run(ready.set), name=f"mcp-trial-{target.server_id}")
    watcher = asyncio.create_task(usage.watch(lambda: connection.pid))
    found = StartResult(
        Start(era=target.protocol, network=_name_network(target), ok=False, code="", error="")
    )
    failure: DownstreamError | None = None
    try:
        await _wait_until_ready(owner, ready)
        if ready.is_set():
            found.start["connect_ms"] = (time.monotonic() - started) * 1000
            await _examine_server(connection, found, plan)
            if connection.pid is not None:
                # one that is quick was not looked at yet
                await asyncio.to_thread(usage.measure_tree, connection.pid)
    except DownstreamError as error:
        failure = error
    finally:
        watcher.cancel()
        failure = await finish_connection(owner, connection) or failure
    _record_findings(found, connection, failure)
    after = await asyncio.to_thread(list_files, home) if home else None
    _record_usage(found.start, target, usage, list_written_files(before, after))
    return found


async def compare_two_sessions(
    target: ServerTarget, plan: CallPlan, rounds: int
) -> dict[str, list[tuple[str, str]]]:
    """Make the same calls in two sessions that are open at the same time. Returns hashes of the
    answers, for each round.

    Tools that do not answer in every round are left out, and all if one of the sessions does not
    begin.
    """
    async with _open_trial_connection(target) as first, _open_trial_connection(target) as second:
        if first is None or second is None or first.discovery is None:
            return {}
        chosen = await asyncio.to_thread(plan.choose, first.discovery)
        found: dict[str, list[tuple[str, str]]] = {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CALLS_SECONDS):
                for name, arguments in chosen.items():
                    with contextlib.suppress(SlipsnisseError):
                        found[name] = [
                            (
                                await _hash_answer(first, name, arguments, plan),
                                await _hash_answer(second, name, arguments, plan),
                            )
                            for _ in range(rounds)
                        ]
        return found


async def _hash_answer(
    connection: ServerConnection, name: str, arguments: bytes, plan: CallPlan
) -> str:
    result = await plan.make(name, arguments, partial(_send, connection, name, CALL_SECONDS))
    return hash_parts(
        encode_lossy_json(
            [result.get("content"), result.get("structuredContent"), result.get("isError")]
        )
    )


@contextlib.asynccontextmanager
async def _open_trial_connection(target: ServerTarget) -> AsyncIterator[ServerConnection | None]:
    """A connection that is ended with all its processes; None if it cannot be opened."""
    connection = await open_connection(target, lambda _: None)
    ready = asyncio.Event()
    owner = asyncio.create_task(connection.run(ready.set), name=f"mcp-trial-{target.server_id}")
    try:
        await _wait_until_ready(owner, ready)
        yield connection if ready.is_set() else None
    finally:
        await finish_connection(owner, connection)


async def _wait_until_ready(owner: asyncio.Task[None], ready: asyncio.Event) -> None:
    waiter = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait([owner, waiter], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()


async def _examine_server(
    connection: ServerConnection, found: StartResult, plan: CallPlan | None
) -> None:
    assert connection.discovery is not None
    for what in ("prompts", "resources"):
        found.start[what] = await _count_items(connection, what)
    if plan is not None:
        chosen = await asyncio.to_thread(plan.choose, connection.discovery)
        await _call_each(connection, plan, chosen, found.called)


async def _count_items(connection: ServerConnection, what: str) -> int | None:
    """How many it lists; none where it does not have the capability, None where it cannot list
    them."""
    assert connection.discovery is not None
    if what not in connection.discovery.capabilities:
        return 0
    try:
        async with asyncio.timeout(COUNT_SECONDS):
            listed = await list_pages(
                connection.ask, most=connection.target.limits.max_tools, what=what
            )
    except (DownstreamError, TimeoutError):
        return None
    return len(listed.items) + listed.beyond


async def _call_each(
    connection: ServerConnection,
    plan: CallPlan,
    chosen: Mapping[str, bytes],
    called: dict[str, Called],
) -> None:
    """One after the other, each with its limit, all within another."""
    until = time.monotonic() + CALLS_SECONDS
    for name, arguments in chosen.items():
        left = until - time.monotonic()
        if left <= 0 or connection.ended:
            why = "the time for calls was used up" if left <= 0 else "the connection had ended"
            called[name] = Called(outcome="skipped", why=why)
            continue
        called[name] = await _call(connection, name, arguments, plan, min(CALL_SECONDS, left))


async def _call(
    connection: ServerConnection, name: str, arguments: bytes, plan: CallPlan, limit: float
) -> Called:
    limit = min(limit, connection.target.limits.request_timeout or limit)
    started = time.monotonic()
    try:
        result = await plan.make(name, arguments, partial(_send, connection, name, limit))
    except DownstreamError as error:
        outcome = Called(
            outcome="error" if error.code == "TOOL_CALL_FAILED" else "failed",
            why=_redact_text(connection, error.message, 300),
        )
    except SlipsnisseError as error:
        return Called(outcome="skipped", why=clean_text(error.message, 300))
    else:
        outcome = Called(
            outcome="error" if result.get("isError") else "ok",
            bytes=len(msgspec.json.encode(result)),
        )
    outcome["ms"] = round((time.monotonic() - started) * 1000, 1)
    return outcome


async def _send(
    connection: ServerConnection,
    name: str,
    limit: float,
    arguments: bytes,
    on_sent: Callable[[], None],
) -> dict[str, Any]:
    return await connection.call(
        ServerCall(connection.target.server_id, name, arguments, timeout=limit, on_sent=on_sent)
    )


def _record_findings(
    found: StartResult, connection: ServerConnection, failure: DownstreamError | None
) -> None:
    """What it said of itself, and why it came to an end."""
    start = found.start
    seen = connection.discovery
    listed = seen is not None and "list" in seen.timings
    if failure is not None:
        start["code"] = failure.code
        start["error"] = _redact_text(connection, str(failure), 1_000)
    start["denied"] = find_denied_paths(connection.read_stderr_tail().decode(errors="replace"))
    if seen is None or not listed:
        return
    found.discovery = seen
    info = {
        name: _redact_text(connection, str(seen.server_info.get(name, "")), 200)
        for name in ("name", "version")
    }
    # With an era that was fixed the first answer is that of ``server/discover``, which "connect"
    # does not hold.
    first = start.get("connect_ms", 0.0) - seen.timings["list"]
    start |= Start(
        ok=True,
        protocol=seen.protocol_version,
        server=info,
        tools=len(seen.tools),
        left_out=len(seen.problems),
        problems=[_redact_text(connection, why, 300) for why in seen.problems[:MOST_PROBLEMS]],
        connect_ms=round(max(first, 0.0), 1),
        list_ms=round(seen.timings["list"], 1),
    )


def _redact_text(connection: ServerConnection, text: str, most: int) -> str:
    """Its words, without the secrets that we gave it."""
    return clean_text(connection.redactor.text(text), most)


def _record_usage(
    start: Start, target: ServerTarget, usage: ProcessUsage, files: list[str] | None
) -> None:
    if target.transport == "stdio":
        start |= Start(
            memory_kb=usage.memory_kb,
            processes=usage.processes,
            written=files,
            connected=sorted(usage.connected)[:MOST_NAMED],
            listened=sorted(usage.listened)[:MOST_NAMED],
            elsewhere=sorted(usage.elsewhere)[:MOST_NAMED] if usage.processes is not None else None,
        )


def _name_network(target: ServerTarget) -> str:
    if target.sandbox is None:
        return ""
    return "open" if target.sandbox.network else "closed"
