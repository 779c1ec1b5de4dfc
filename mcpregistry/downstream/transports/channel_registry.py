"""Which transport reaches a server; each is loaded when it is first needed."""

from __future__ import annotations

import asyncio
import importlib

from mcpregistry.domain.servers.target import ServerTarget
from mcpregistry.downstream.transports.wire import ServerChannel

CHANNELS = {
    "stdio": ("mcpregistry.downstream.transports.stdio", "StdioChannel"),
    "http": ("mcpregistry.downstream.transports.http", "HttpChannel"),
    "sse": ("mcpregistry.downstream.transports.sse", "SseChannel"),
    "websocket": ("mcpregistry.downstream.transports.websocket", "WebSocketChannel"),
}


async def make_channel(target: ServerTarget) -> ServerChannel:
    """The channel for a target's transport.

    Its module is imported in a thread, since an HTTP client must not hold the loop. Always through
    the import system, whose lock waits for a module that another connection is just loading.
    """
    module, name = CHANNELS[target.transport]
    loaded = await asyncio.to_thread(importlib.import_module, module)
    channel: ServerChannel = getattr(loaded, name)(target)
    return channel
