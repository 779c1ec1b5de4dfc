"""Read a server's whole lists of tools and prompts, page by page, and what calls to them need besides a body."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map
from mcp_types import (
    METHOD_NOT_FOUND,
    PromptListChangedNotification,
    ResourceListChangedNotification,
    ToolListChangedNotification,
)

from mcpregistry.domain.errors import ProtocolError, ToolRefused
from mcpregistry.domain.kinds import KINDS, OTHERS, TOOL
from mcpregistry.domain.servers.target import Limits
from mcpregistry.downstream.limits import check_others, check_tools, limit_bytes
from mcpregistry.downstream.pool.discovery import Discovery

CHANGES = (ToolListChangedNotification, PromptListChangedNotification, ResourceListChangedNotification)
MAX_PAGES = 200

Unusable = Callable[[Mapping[str, Any]], str]
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


async def read_offers(ask: Ask, before: Discovery, limits: Limits, unusable: Unusable) -> Discovery:
    """What a server lists of every kind that it says it has, beside what else is known of it. Raises DownstreamError."""
    started = time.monotonic()
    tools, problems = check_tools(*await _all(ask, before, TOOL, limits), limits, unusable)
    timings = {**before.timings, "list": (time.monotonic() - started) * 1000}
    others: dict[str, list[dict[str, Any]]] = {}
    for kind in OTHERS:
        try:
            found, more = check_others(kind, *await _all(ask, before, kind, limits), limits)
        except ProtocolError as error:  # its tools work all the same
            problems.append(error.message)
            continue
        others[kind] = found
        problems += more
    kept, more = limit_bytes({TOOL: tools, **others}, before.instructions, limits)
    return replace(
        before, tools=kept.pop(TOOL), problems=(*problems, *more), timings=timings, others=kept, read_at=time.time()
    )


async def _all(ask: Ask, before: Discovery, kind: str, limits: Limits) -> tuple[list[Any], int]:
    """What it lists of this kind, as far as it is taken, and how many there were beyond that."""
    what = KINDS[kind]
    if what.capability not in before.capabilities:
        return [], 0
    found = await list_pages(ask, most=limits.max_tools, what=what.listed, method=what.list_method, key=what.identity)
    return found.items, found.beyond


async def list_pages(ask: Ask, *, most: int, what: str = "tools", method: str = "", key: str = "name") -> Listed:
    """All listed tools (or prompts, resources), raw. Of more than ``most`` the first by name, whatever order the server tells them in, so
    that the same ones are taken every time; never more than that and one page are held. Raises DownstreamError."""
    listed: list[Any] = []
    beyond = 0
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await _page(ask, what, method or f"{what}/list", cursor)
        items = page.get(what)
        if type(items) is not list:
            raise ProtocolError(f"The server's {what}/list answer holds no list of {what}.")
        listed += items
        if len(listed) > most:
            beyond += len(listed) - most
            listed = sorted(listed, key=partial(_name, key))[:most]
        cursor = page.get("nextCursor")
        if type(cursor) is not str:
            return Listed(listed, beyond)
    raise ProtocolError(f"The server's list of {what} does not end after {MAX_PAGES} pages.")


def _name(key: str, item: object) -> str:
    name = item.get(key) if isinstance(item, dict) else None
    return name if isinstance(name, str) else ""


async def _page(ask: Ask, what: str, method: str, cursor: str | None) -> dict[str, Any]:
    try:
        return await ask(method, {"cursor": cursor} if cursor is not None else {})
    except ToolRefused as error:
        if error.rpc_code == METHOD_NOT_FOUND:
            return {what: []}
        raise ProtocolError(f"The server refused to list its {what}: {error.message}") from error


def header_maps(tools: Iterable[dict[str, Any]]) -> dict[str, dict[tuple[str, ...], str]]:
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
