"""The SDK's own HTTP server with one echo tool, one prompt and one resource: what we are compared
with, and an HTTP downstream.

python -m benchmarks.echo_server PORT
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from mcp import types as t
from mcp.server.lowlevel import Server

TOOL = t.Tool(
    name="echo",
    description="Echo",
    input_schema={"type": "object", "properties": {"text": {"type": "string"}}},
)


async def list_tools(ctx: Any, params: Any) -> t.ListToolsResult:
    return t.ListToolsResult(tools=[TOOL])


async def call_tool(ctx: Any, params: t.CallToolRequestParams) -> t.CallToolResult:
    text = str((params.arguments or {}).get("text"))
    return t.CallToolResult(content=[t.TextContent(type="text", text=text)])


async def list_prompts(ctx: Any, params: Any) -> t.ListPromptsResult:
    return t.ListPromptsResult(prompts=[t.Prompt(name="hello")])


async def get_prompt(ctx: Any, params: t.GetPromptRequestParams) -> t.GetPromptResult:
    content = t.TextContent(type="text", text="x" * 100)
    return t.GetPromptResult(messages=[t.PromptMessage(role="user", content=content)])


async def list_resources(ctx: Any, params: Any) -> t.ListResourcesResult:
    return t.ListResourcesResult(resources=[t.Resource(uri="bench://note", name="note")])


async def read_resource(ctx: Any, params: t.ReadResourceRequestParams) -> t.ReadResourceResult:
    return t.ReadResourceResult(contents=[t.TextResourceContents(uri=params.uri, text="x" * 100)])


if __name__ == "__main__":
    server = Server(
        "echo",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )
    app = server.streamable_http_app(streamable_http_path="/mcp")
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
