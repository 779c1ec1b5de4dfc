"""``controlplane.web`` whose every MCP request goes through the SDK: what the lanes are compared
with."""

from __future__ import annotations

import controlplane.asgi  # noqa: F401 - Django must be ready before the gateway is imported
from controlplane import web
from mcpregistry.gateway.http.mcp_app import McpApp

_startup = McpApp.startup


async def startup(app: McpApp) -> None:
    await _startup(app)
    app.lanes = {}


if __name__ == "__main__":
    McpApp.startup = startup  # type: ignore[method-assign]
    web.main()
