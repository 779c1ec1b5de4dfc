"""Lists of servers whose cursors are odd, or that do not list one of the kinds that they say they
have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mcpregistry.domain.errors import ConnectionFailed, DownstreamError, ProtocolError, TimedOut
from mcpregistry.domain.servers.target import ServerLimits
from mcpregistry.downstream.pool.discovery import Discovery
from mcpregistry.downstream.pool.listing import MAX_PAGES, list_pages, read_offers


class Asked:
    """A server that answers each question for a page with what ``page`` makes of its number and its
    cursor."""

    def __init__(self, page: Callable[[int, str | None], dict[str, Any]]) -> None:
        self.cursors: list[str | None] = []
        self._page = page

    async def __call__(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.cursors.append(params.get("cursor"))
        return self._page(len(self.cursors), params.get("cursor"))


def tools(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "inputSchema": {"type": "object"}} for name in names]


PAGES: dict[str, tuple[Callable[[int, str | None], dict[str, Any]], list[str], int]] = {
    "an empty cursor on the last page": (
        lambda n, c: {"tools": tools("a"), "nextCursor": ""},
        ["a"],
        2,
    ),
    "an empty cursor that is one": (
        lambda n, c: (
            {"tools": tools("a"), "nextCursor": ""} if c is None else {"tools": tools("b")}
        ),
        ["a", "b"],
        2,
    ),
    "the same cursor and page again": (
        lambda n, c: {"tools": tools("a"), "nextCursor": "p2"},
        ["a"],
        2,
    ),
    "the same cursor with other pages": (
        lambda n, c: {"tools": tools(f"t{n}"), "nextCursor": "p"},
        ["t1", "t2"],
        2,
    ),
    "no cursor but null": (lambda n, c: {"tools": tools("a"), "nextCursor": None}, ["a"], 1),
    "a cursor that is a number": (lambda n, c: {"tools": tools("a"), "nextCursor": 5}, ["a"], 1),
}


@pytest.mark.parametrize("case", PAGES)
async def test_a_list_ends_where_its_cursors_say_nothing_new(case: str):
    page, names, asked = PAGES[case]
    server = Asked(page)
    found = await list_pages(server, most=100)
    assert [each["name"] for each in found.items] == names
    assert (len(server.cursors), found.cut) == (asked, "")


@pytest.mark.attack
async def test_a_list_without_an_end_is_cut_and_said():
    server = Asked(lambda n, c: {"tools": tools(f"t{n}"), "nextCursor": f"c{n}"})
    found = await list_pages(server, most=1_000)
    assert (len(found.items), len(server.cursors)) == (MAX_PAGES, MAX_PAGES)
    assert f"more than {MAX_PAGES} pages" in found.cut


ALL = Discovery(
    tools=(),
    problems=(),
    era="legacy",
    protocol_version="2025-11-25",
    timings={},
    instructions="",
    server_info={},
    capabilities={"tools": {}, "prompts": {}, "resources": {}},
)


@pytest.mark.fault
@pytest.mark.parametrize(
    "error",
    [
        None,
        ProtocolError("boom"),
        TimedOut("late"),
        ConnectionFailed("The server answered HTTP 500."),
    ],
    ids=["it hangs", "refused", "timeout", "HTTP 500"],
)
async def test_a_list_of_prompts_that_fails_or_hangs_costs_the_prompts_alone(
    error: DownstreamError | None,
):
    async def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "prompts/list":
            if error is not None:
                raise error
            await asyncio.Event().wait()
        lists = {
            "tools/list": "tools",
            "resources/list": "resources",
            "resources/templates/list": "resourceTemplates",
        }
        what = lists[method]
        return {what: tools("a") if what == "tools" else []}

    found = await read_offers(ask, ALL, ServerLimits(connect_timeout=0.4), lambda tool: "")
    assert [tool["name"] for tool in found.tools] == ["a"]
    assert "prompt" not in found.others
    (said,) = found.problems
    assert said == (
        error.message if error else "The server did not list its prompts within 0.1 seconds."
    )
