"""The SDK's own HTTP server with one echo tool: what we are compared with, and an HTTP downstream.

python -m benchmarks.echo_server PORT
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from mcp import types as t
from mcp.server.lowlevel import Server

TOOL = t.Tool(
    name="echo", description="Echo", input_schema={"type": "object", "properties": {"text": {"type": "string"}}}
)


async def list_tools(ctx: Any, params: Any) -> t.ListToolsResult:
    return t.ListToolsResult(tools=[TOOL])


async def call_tool(ctx: Any, params: t.CallToolRequestParams) -> t.CallToolResult:
    text = str((params.arguments or {}).get("text"))
    return t.CallToolResult(content=[t.TextContent(type="text", text=text)])


if __name__ == "__main__":
    server = Server("echo", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    app = server.streamable_http_app(streamable_http_path="/mcp")
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
