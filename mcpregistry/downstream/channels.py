"""Which transport reaches a server; each is loaded when it is first needed."""

from __future__ import annotations

import asyncio
import importlib

from mcpregistry.domain.targets import Target
from mcpregistry.downstream.wire import Channel

CHANNELS = {
    "stdio": ("mcpregistry.downstream.stdio", "StdioChannel"),
    "http": ("mcpregistry.downstream.http", "HttpChannel"),
    "sse": ("mcpregistry.downstream.sse", "SseChannel"),
    "websocket": ("mcpregistry.downstream.websocket", "WebSocketChannel"),
}


async def channel_for(target: Target) -> Channel:
    """Importing an HTTP client must not hold the loop: in a thread.

    Always through the import system, whose lock waits for a module that another connection is just loading.
    """
    module, name = CHANNELS[target.transport]
    loaded = await asyncio.to_thread(importlib.import_module, module)
    channel: Channel = getattr(loaded, name)(target)
    return channel
