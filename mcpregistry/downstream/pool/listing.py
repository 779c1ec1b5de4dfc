"""Read a server's whole lists of tools and prompts, page by page, and what calls to them need
besides a body."""

from __future__ import annotations

import asyncio
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

from mcpregistry.domain.errors import DownstreamError, ProtocolError, ToolRefused
from mcpregistry.domain.host_definitions import WITH_CHANGES, list_changes
from mcpregistry.domain.offer_kinds import KINDS, OTHERS, TOOL
from mcpregistry.domain.servers.target import ServerLimits
from mcpregistry.downstream.limits import check_others, check_tools, limit_bytes
from mcpregistry.downstream.pool.discovery import Discovery

CHANGES = (
    ToolListChangedNotification,
    PromptListChangedNotification,
    ResourceListChangedNotification,
)
MAX_PAGES = 200
# The share of its time to connect in which a server must have listed its prompts and resources. If
# it has not, its tools are used without them.
OTHERS_SHARE = 0.25

Unusable = Callable[[Mapping[str, Any]], str]
Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


def build_description(
    instructions: object, server_info: object, capabilities: object
) -> dict[str, Any]:
    """What a server says about itself, whatever it sent in place of it."""
    return {
        "instructions": instructions if isinstance(instructions, str) else "",
        "server_info": server_info if isinstance(server_info, dict) else {},
        "capabilities": capabilities if isinstance(capabilities, dict) else {},
    }


@dataclass(frozen=True, slots=True)
class ListedItems:
    """What a server lists: raw definitions, how many more there were than are taken, and why the
    list may not be whole."""

    items: list[Any]
    beyond: int = 0
    cut: str = ""


async def read_offers(
    ask: Ask, before: Discovery, limits: ServerLimits, unusable: Unusable
) -> Discovery:
    """What a server lists of every kind that it says it has, beside what else is known of it.
    Raises DownstreamError."""
    started = time.monotonic()
    listed = await _list_kind(ask, before, TOOL, limits)
    tools, problems = check_tools(listed.items, listed.beyond, limits, unusable)
    problems += filter(None, [listed.cut])
    timings = {**before.timings, "list": (time.monotonic() - started) * 1000}
    others: dict[str, list[dict[str, Any]]] = {}
    answers = await asyncio.gather(
        *(_list_other_kind(ask, before, kind, limits) for kind in OTHERS)
    )
    for kind, answer in zip(OTHERS, answers, strict=True):
        if isinstance(answer, str):  # its tools work all the same
            problems.append(answer)
            continue
        others[kind], more = check_others(kind, answer.items, answer.beyond, limits)
        problems += [*more, *filter(None, [answer.cut])]
    kept, more = limit_bytes({TOOL: tools, **others}, before.instructions, limits)
    changes = await asyncio.to_thread(_describe_changes, dict(kept))  # it looks at every definition
    return replace(
        before,
        tools=kept.pop(TOOL),
        problems=(*problems, *more),
        changes=changes,
        timings=timings,
        others=kept,
        read_at=time.time(),
    )


def _describe_changes(kept: Mapping[str, Iterable[dict[str, Any]]]) -> tuple[str, ...]:
    """Return a sentence for each definition that hosts are shown with changes."""
    sentences = []
    for kind, items in kept.items():
        for item in items:
            if changes := list_changes(kind, item):
                name = item[KINDS[kind].identity]
                sentences.append(
                    f"{kind.capitalize()} {name} is {WITH_CHANGES}: {'; '.join(changes)}."
                )
    return tuple(sentences)


async def _list_other_kind(
    ask: Ask, before: Discovery, kind: str, limits: ServerLimits
) -> ListedItems | str:
    """What it lists of this kind; else why it does not, in words."""
    seconds = limits.connect_timeout * OTHERS_SHARE
    try:
        async with asyncio.timeout(seconds):
            return await _list_kind(ask, before, kind, limits)
    except TimeoutError:
        return f"The server did not list its {KINDS[kind].listed} within {seconds:g} seconds."
    except DownstreamError as error:
        return error.message


async def _list_kind(ask: Ask, before: Discovery, kind: str, limits: ServerLimits) -> ListedItems:
    """What it lists of this kind, as far as it is taken."""
    what = KINDS[kind]
    if what.capability not in before.capabilities:
        return ListedItems([])
    return await list_pages(
        ask, most=limits.max_tools, what=what.listed, method=what.list_method, key=what.identity
    )


async def list_pages(
    ask: Ask, *, most: int, what: str = "tools", method: str = "", key: str = "name"
) -> ListedItems:
    """All listed tools (or prompts, resources), raw. Raises DownstreamError.

    Of more than ``most`` the first by name, whatever order the server tells them in, so that the
    same ones are taken every time; never more than that and one page are held. A cursor that comes
    again, or a page that is the one before, ends the list.
    """
    listed: list[Any] = []
    page: list[Any] = []
    beyond = 0
    cursors = set[str]()
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        answer = await _read_page(ask, what, method or f"{what}/list", cursor)
        found = answer.get(what)
        if type(found) is not list:
            raise ProtocolError(f"The server's answer to {what}/list contains no list of {what}.")
        if cursor is not None and found == page:
            return ListedItems(listed, beyond)
        page = found
        listed += page
        if len(listed) > most:
            beyond += len(listed) - most
            listed = sorted(listed, key=partial(_read_name, key))[:most]
        cursor = answer.get("nextCursor")
        if type(cursor) is not str or cursor in cursors:
            return ListedItems(listed, beyond)
        cursors.add(cursor)
    return ListedItems(
        listed,
        beyond,
        f"The server's list of {what} has more than {MAX_PAGES} pages. Only the first {MAX_PAGES} are used.",
    )


def _read_name(key: str, item: object) -> str:
    name = item.get(key) if isinstance(item, dict) else None
    return name if isinstance(name, str) else ""


async def _read_page(ask: Ask, what: str, method: str, cursor: str | None) -> dict[str, Any]:
    try:
        return await ask(method, {"cursor": cursor} if cursor is not None else {})
    except ToolRefused as error:
        if error.rpc_code == METHOD_NOT_FOUND:
            return {what: []}
        raise ProtocolError(f"The server refused to list its {what}: {error.message}") from error


def build_header_maps(tools: Iterable[dict[str, Any]]) -> dict[str, dict[tuple[str, ...], str]]:
    """Which arguments a modern HTTP server wants mirrored as ``Mcp-Param-*`` headers, by tool."""
    return {
        tool["name"]: found for tool in tools if (found := x_mcp_header_map(tool["inputSchema"]))
    }


def explain_task_only(tool: Mapping[str, Any]) -> str:
    """Why a tool cannot be run here, if its server runs it as a task of MCP 2025-11-25 only; else
    empty."""
    execution = tool.get("execution")
    if not isinstance(execution, dict) or execution.get("taskSupport") != "required":
        return ""
    return f"Tool {tool['name']} runs only as a task of MCP 2025-11-25, which is not supported."


def explain_bad_header(tool: Mapping[str, Any]) -> str:
    """Why a tool must not be used over HTTP (MCP 2026-07-28, transports, "Custom Headers"); else
    empty."""
    reason = find_invalid_x_mcp_header(tool["inputSchema"])
    return f"Tool {tool['name']} has an invalid x-mcp-header: {reason[:300]}." if reason else ""
