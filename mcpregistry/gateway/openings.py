"""The opening answers that no configuration changes, kept for the very first start of ``runmcp``.

Each ``runmcp`` keeps its own answers for its next start (``doorman.py``); before a host's first start
there are none. So a web process asks the same server the same questions once, without a caller, and
keeps what every endpoint without instructions says.
"""

from __future__ import annotations

import asyncio
import json
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
from mcpregistry.gateway.doorman import Kept, common_path, save
from mcpregistry.gateway.identity import Caller
from mcpregistry.gateway.server import Gateway

log = structlog.get_logger(__name__)

_NOBODY = Caller("", "", "stdio")
_CLIENT = {"name": "slipsnisse", "version": "1"}


async def keep_common(engine: Engine, var: Path) -> None:
    """Never raises but for being cancelled: without kept answers a first start is slower, no more."""
    try:
        gateway = Gateway(engine, caller=_NOBODY)
        kept = {question: await _answer(gateway, *asked) for question, asked in _questions().items()}
        await asyncio.to_thread(save, common_path(var), kept)
    except Exception:
        log.exception("openings.not_kept")


def _questions() -> dict[str, tuple[str, dict[str, Any]]]:
    found = {}
    for version in HANDSHAKE_PROTOCOL_VERSIONS:
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": _CLIENT}
        found[f"initialize {version}"] = ("initialize", params)
    for version in MODERN_PROTOCOL_VERSIONS:
        meta = {PROTOCOL_VERSION_META_KEY: version, CLIENT_INFO_META_KEY: _CLIENT, CLIENT_CAPABILITIES_META_KEY: {}}
        found[f"server/discover {version}"] = ("server/discover", {"_meta": meta})
    return found


async def _answer(gateway: Gateway, method: str, params: dict[str, Any]) -> Kept:
    """What a host hears that asks this first."""
    to_server, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](1)
    outgoing, from_server = anyio.create_memory_object_stream[SessionMessage](1)
    request = t.JSONRPCRequest(jsonrpc="2.0", id=1, method=method, params=params)
    async with anyio.create_task_group() as tasks, to_server, from_server:
        options = gateway.server.create_initialization_options()
        serve = serve_dual_era_loop(gateway.server, incoming, outgoing, lifespan_state={}, init_options=options)
        tasks.start_soon(lambda: serve)
        await to_server.send(SessionMessage(request))
        answer = (await from_server.receive()).message
        tasks.cancel_scope.cancel()
    if not isinstance(answer, t.JSONRPCResponse):
        raise TypeError(f"the server refuses {method}")
    return Kept(json.dumps(answer.result, separators=(",", ":")))
