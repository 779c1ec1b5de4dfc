"""Read a server's whole list of tools, page by page, and what calls to them need besides a body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Listed:
    """What a server lists: raw definitions, and how many more there were than are taken."""

    items: list[Any]
    beyond: int = 0


async def list_pages(ask: Ask, *, most: int, what: str = "tools") -> Listed:
    """All listed tools (or prompts, resources), raw. Of more than ``most`` the first by name, whatever order the server tells them in, so
    that the same ones are taken every time; never more than that and one page are held. Raises DownstreamError."""
    listed: list[Any] = []
    beyond = 0
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await _page(ask, what, cursor)
        items = page.get(what)
        if type(items) is not list:
            raise ProtocolError(f"The server's {what}/list answer holds no list of {what}.")
        listed += items
        if len(listed) > most:
            beyond += len(listed) - most
            listed = sorted(listed, key=_name)[:most]
        cursor = page.get("nextCursor")
        if type(cursor) is not str:
            return Listed(listed, beyond)
    raise ProtocolError(f"The server's list of {what} does not end after {MAX_PAGES} pages.")


def _name(item: object) -> str:
    name = item.get("name") if isinstance(item, dict) else None
    return name if isinstance(name, str) else ""


async def _page(ask: Ask, what: str, cursor: str | None) -> dict[str, Any]:
    try:
        return await ask(f"{what}/list", {"cursor": cursor} if cursor is not None else {})
    except ToolRefused as error:
        if error.rpc_code == METHOD_NOT_FOUND:
            return {what: []}
        raise ProtocolError(f"The server refused to list its {what}: {error.message}") from error


def header_maps(tools: list[dict[str, Any]]) -> dict[str, dict[tuple[str, ...], str]]:
    """Which arguments a modern HTTP server wants mirrored as ``Mcp-Param-*`` headers, by tool."""
    return {tool["name"]: found for tool in tools if (found := x_mcp_header_map(tool["inputSchema"]))}


def task_only(tool: Mapping[str, Any]) -> str:
    """Why a tool cannot be run here, if its server runs it as a task of MCP 2025-11-25 only; else empty."""
    execution = tool.get("execution")
    if not isinstance(execution, dict) or execution.get("taskSupport") != "required":
        return ""
    return f"Tool {tool['name']} runs only as a task of MCP 2025-11-25, which is not spoken here."


def bad_header(tool: Mapping[str, Any]) -> str:
    """Why a tool must not be used over HTTP (MCP 2026-07-28, transports, "Custom Headers"); else empty."""
    reason = find_invalid_x_mcp_header(tool["inputSchema"])
    return f"Tool {tool['name']} has an invalid x-mcp-header: {reason[:300]}." if reason else ""
