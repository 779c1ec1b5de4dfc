"""Answers to hosts' first questions, kept on disk by a web process for ``runmcp`` processes to
come.

Each ``runmcp`` keeps its own answers for its next start (``preload.py``). Before a host's first
start there are none, and after a change of the configuration its kept list no longer counts. So a
web process asks the same server the same questions: once without a caller (what every endpoint
without instructions answers to an opening), and after each change for the endpoints and agents that
were used last (their openings, which say what their servers have, and their list of tools).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice, product
from pathlib import Path
from typing import Any

import anyio
import structlog
from mcp import types as t
from mcp.server.runner import serve_dual_era_loop
from mcp.shared.message import SessionMessage
from mcp.types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from mcpregistry.calls.engine import Engine
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.gateway.caller_identity import Caller
from mcpregistry.gateway.server import Gateway
from mcpregistry.gateway.stdio.kept_answers import (
    StoredAnswer,
    get_common_path,
    get_lists_path,
    get_wanted_path,
    save,
)

log = structlog.get_logger(__name__)

_NOBODY = Caller("", "", "stdio")
_CLIENT = {"name": "slipsnisse", "version": "1"}
_SETTLED = 1.0  # seconds between two rounds; changes come in rows
# lists kept at every change, and tools in them: the event loop makes them
_MOST = 20
_MOST_TOOLS = 2_000
_LEAST = 5  # of them, however many tools there are

Question = tuple[str, dict[str, Any]]


async def keep_openings(engine: Engine, var: Path, *, lists: bool) -> None:
    """Keep the answers up to date until it is cancelled; the HTTP door runs it as a task.

    Raises nothing else: without kept answers a start is slower, no more. ``lists``: keep lists of
    tools, too, which only an embedded database allows.
    """
    await _run_safely(_keep_common(engine, var))
    if lists:
        await _follow(engine, var)


async def _follow(engine: Engine, var: Path) -> None:
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    changed.set()

    def schedule_round(_: Snapshot) -> None:
        loop.call_soon_threadsafe(changed.set)

    engine.live.listeners.append(schedule_round)
    while True:
        # The first change after a quiet second is followed at once: a host may start right after
        # it.
        await asyncio.sleep(_SETTLED)
        await changed.wait()
        changed.clear()
        await _run_safely(_keep_lists(engine, var))


async def _run_safely(keeping: Any) -> None:
    try:
        await keeping
    except Exception:
        log.exception("openings.not_kept")


async def _keep_common(engine: Engine, var: Path) -> None:
    gateway = Gateway(engine, caller=_NOBODY)
    kept = {
        f"{asked[0]} {version}": StoredAnswer(await _ask_gateway(gateway, asked))
        for version, asked in _list_handshakes()
    }
    await asyncio.to_thread(save, get_common_path(var), kept)


async def _keep_lists(engine: Engine, var: Path) -> None:
    snapshot = engine.live.current
    affordable = max(_LEAST, min(_MOST, _MOST_TOOLS // max(1, len(snapshot.tools))))
    for endpoint, agent in islice(
        _rank_pairs(snapshot, await asyncio.to_thread(_read_wanted_times, var), var), affordable
    ):
        gateway = Gateway(engine, caller=Caller(agent, endpoint, "stdio"))
        said = {
            question: await _ask_gateway(gateway, *asked) for question, asked in _list_questions()
        }
        # which of the two a list shows is not known; the next round comes
        if engine.live.current is not snapshot:
            return
        until = engine.get_catalogue(endpoint, agent).valid_until
        kept = {
            question: StoredAnswer(text, snapshot.revision, until)
            for question, text in said.items()
        }
        await asyncio.to_thread(save, get_lists_path(var, endpoint, agent), kept)


def _read_wanted_times(var: Path) -> dict[str, float]:
    """When ``runmcp`` was last started for an endpoint and agent, by the name of their file."""
    with suppress(OSError), os.scandir(var / "openings" / "wanted") as found:
        return {entry.name: entry.stat().st_mtime for entry in found}
    return {}


def _rank_pairs(
    snapshot: Snapshot, wanted: Mapping[str, float], var: Path
) -> list[tuple[str, str]]:
    """Endpoints and agents; first those that ``runmcp`` was started for last, then those that it is
    likely started for."""
    likely = dict.fromkeys(
        [("default", "local"), *((each.endpoint, each.agent) for each in snapshot.workspaces)]
    )
    known = [
        pair for pair in likely if pair[0] in snapshot.endpoints and pair[1] in snapshot.agents
    ]
    pairs = dict.fromkeys([*known, *product(sorted(snapshot.endpoints), sorted(snapshot.agents))])
    return sorted(pairs, key=lambda pair: -wanted.get(get_wanted_path(var, *pair).name, 0.0))


def _list_handshakes() -> Iterable[tuple[str, Question]]:
    """By version of the protocol, what a host of it asks first."""
    for version in HANDSHAKE_PROTOCOL_VERSIONS:
        yield (
            version,
            ("initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": _CLIENT}),
        )
    for version in MODERN_PROTOCOL_VERSIONS:
        meta = {
            PROTOCOL_VERSION_META_KEY: version,
            CLIENT_INFO_META_KEY: _CLIENT,
            CLIENT_CAPABILITIES_META_KEY: {},
        }
        yield version, ("server/discover", {"_meta": meta})


def _list_questions() -> Iterable[tuple[str, list[Question]]]:
    """By the preload's name for it, what leads to an opening's answer or a list of tools."""
    for version, opening in _list_handshakes():
        yield f"{opening[0]} {version}", [opening]
        if version in MODERN_PROTOCOL_VERSIONS:
            yield f"tools/list {version}", [("tools/list", opening[1])]
        elif version == HANDSHAKE_PROTOCOL_VERSIONS[-1]:  # all of them have the same list
            yield "tools/list ", [opening, ("notifications/initialized", {}), ("tools/list", {})]


async def _ask_gateway(gateway: Gateway, *asked: Question) -> str:
    """What a host hears that asks these in this order, to the last."""
    to_server, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](1)
    outgoing, from_server = anyio.create_memory_object_stream[SessionMessage](1)
    async with anyio.create_task_group() as tasks, to_server, from_server:
        options = gateway.server.create_initialization_options()
        serve = serve_dual_era_loop(
            gateway.server, incoming, outgoing, lifespan_state={}, init_options=options
        )
        tasks.start_soon(lambda: serve)
        for number, (method, params) in enumerate(asked):
            if method.startswith("notifications/"):
                await to_server.send(
                    SessionMessage(
                        t.JSONRPCNotification(jsonrpc="2.0", method=method, params=params)
                    )
                )
                continue
            await to_server.send(
                SessionMessage(
                    t.JSONRPCRequest(jsonrpc="2.0", id=number, method=method, params=params)
                )
            )
            answer = (await from_server.receive()).message
        tasks.cancel_scope.cancel()
    if not isinstance(answer, t.JSONRPCResponse):
        raise TypeError(f"the server refuses {asked[-1][0]}")
    return json.dumps(answer.result, separators=(",", ":"))
