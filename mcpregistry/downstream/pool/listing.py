"""Read a server's whole list of tools, page by page, and what calls to them need besides a body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map
from mcp_types import METHOD_NOT_FOUND

from mcpregistry.domain.errors import ProtocolError, ToolRefused

MAX_PAGES = 200

Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


def described(instructions: object, server_info: object, capabilities: object) -> dict[str, Any]:
    """What a server says about itself, whatever it sent in place of it."""
    return {
        "instructions": instructions if isinstance(instructions, str) else "",
        "server_info": server_info if isinstance(server_info, dict) else {},
        "capabilities": capabilities if isinstance(capabilities, dict) else {},
    }


async def list_pages(ask: Ask, *, most: int) -> list[Any]:
    """All listed tools, raw; stops soon after ``most``. Raises DownstreamError."""
    listed: list[Any] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await _page(ask, cursor)
        tools = page.get("tools")
        if type(tools) is not list:
            raise ProtocolError("The server's tools/list answer holds no list of tools.")
        listed += tools
        cursor = page.get("nextCursor")
        if type(cursor) is not str or len(listed) > most:
            return listed
    raise ProtocolError(f"The server's tool list does not end after {MAX_PAGES} pages.")


async def _page(ask: Ask, cursor: str | None) -> dict[str, Any]:
    try:
        return await ask("tools/list", {"cursor": cursor} if cursor is not None else {})
    except ToolRefused as error:
        if error.rpc_code == METHOD_NOT_FOUND:
            return {"tools": []}
        raise ProtocolError(f"The server refused to list its tools: {error.message}") from error


def header_maps(tools: list[dict[str, Any]]) -> dict[str, dict[tuple[str, ...], str]]:
    """Which arguments a modern HTTP server wants mirrored as ``Mcp-Param-*`` headers, by tool."""
    maps = {}
    for tool in tools:
        schema = tool["inputSchema"]
        if not find_invalid_x_mcp_header(schema) and (found := x_mcp_header_map(schema)):
            maps[tool["name"]] = found
    return maps
