"""What of MCP is carried, found out with real clients and servers: feature by era of either side
and door.

``docs/protocol.md`` shows it. ``python -m tests.conformance.table`` writes it there again. Each
cell is tried: a change is made and heard of, a line is logged and read. With two web processes,
each request of a host over HTTP opens a connection, so either process may get it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp import types as t
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp.shared.subscriptions import ResourceUpdated
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcpregistry.domain.offer_kinds import COMPLETIONS, LOGGING, SUBSCRIPTIONS
from mcpregistry.models import Server
from mcpregistry.services.servers import lifecycle
from tests import launcher
from tests.conformance.table import PAGE, between, replaced, written
from tests.fakes import sdk
from tests.fakes.servers import conformance_server
from tests.fakes.servers.conformance_prompts import PROMPTS
from tests.fakes.servers.conformance_resources import RESOURCES, TEMPLATES
from tests.fakes.stage import ACTOR, Stage, Web, folder, listed, outside, web
from tests.fakes.targets import LOOPBACK
from tests.gateway.conftest import launched, site, stage
from tests.waiting import HANG_LIMIT, until

__all__ = ["launched", "site", "stage"]
pytestmark = [pytest.mark.e2e, pytest.mark.one_database]

DOORS = ["stdio", "HTTP", "SSE", "WebSocket"]
ERAS = ["modern", "older"]
MODES = {"modern": "auto", "older": "legacy"}
ASK = {"name": "test_elicitation", "inputSchema": {"type": "object"}}
TOUCH = {"name": "test_touch", "inputSchema": {"type": "object"}}
WATCHED = "test://watched-resource"
LEVEL = "io.modelcontextprotocol/logLevel"
TRIES = 3  # of a change, as a host may not listen yet
OFFERED = {"prompt": PROMPTS, "resource": RESOURCES, "template": TEMPLATES}


def make_server() -> Any:
    """The fixture of the conformance suite, with a tool that asks in the older way, and one that
    changes a resource."""
    server = conformance_server.make_server()
    bus = InMemorySubscriptionBus()
    subscribers = set[Any]()
    inner = server.get_request_handler("tools/call").handler

    async def list_tools(ctx: Any, params: Any) -> Any:
        return {
            "tools": [*conformance_server.TOOLS, ASK, TOUCH],
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
        }

    async def subscribe(ctx: Any, params: t.SubscribeRequestParams) -> t.EmptyResult:
        subscribers.add(ctx.session)
        return t.EmptyResult()

    async def touch() -> dict[str, Any]:
        await bus.publish(ResourceUpdated(WATCHED))
        for session in subscribers:
            with contextlib.suppress(Exception):  # it has ended
                await session.send_resource_updated(WATCHED)
        return {"content": [{"type": "text", "text": "touched"}]}

    async def call_tool(ctx: Any, params: t.CallToolRequestParams) -> Any:
        if params.name == TOUCH["name"]:
            return await touch()
        if params.name != ASK["name"]:
            return await inner(ctx, params)
        name = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        # On the stream of the call, as the server library's own context does: beside it, it could
        # be of any host's call.
        found = await ctx.session.elicit_form(
            "What is your name?", name, related_request_id=ctx.request_id
        )
        return {
            "content": [{"type": "text", "text": f"Hello, {(found.content or {}).get('name')}!"}]
        }

    server.add_request_handler("tools/list", t.PaginatedRequestParams, list_tools)
    server.add_request_handler("tools/call", t.CallToolRequestParams, call_tool)
    server.add_request_handler("resources/subscribe", t.SubscribeRequestParams, subscribe)
    server.add_request_handler(
        "subscriptions/listen", t.SubscriptionsListenRequestParams, ListenHandler(bus)
    )
    return server


class Heard:
    """What a host is told beside the answers to its requests."""

    def __init__(self) -> None:
        self.messages: list[type[Any]] = []
        self.lines: list[Any] = []

    async def message(self, message: object) -> None:
        self.messages.append(type(message))

    async def line(self, params: t.LoggingMessageNotificationParams) -> None:
        self.lines.append(params.data)


class Seen:
    """A client at one door of one host, towards one server, and whatever it can find out there."""

    def __init__(self, client: Client, host: str, server: str, heard: Heard) -> None:
        self.client = client
        self.host = host
        self.server = server
        self.heard = heard

    async def tools(self) -> bool:
        names = {tool.name for tool in (await self.client.list_tools()).tools}
        result = await self.client.call_tool("test_simple_text", {})
        return "test_image_content" in names and "simple text" in result.content[0].text

    async def progress(self) -> bool:
        heard: list[float] = []

        async def note(progress: float, *_: object) -> None:
            heard.append(progress)

        await self.client.call_tool("test_tool_with_progress", {}, progress_callback=note)
        with contextlib.suppress(AssertionError):
            await until(lambda: heard)  # it may be told after the answer
        return bool(heard)

    async def prompts(self) -> bool:
        names = {prompt.name for prompt in (await self.client.list_prompts()).prompts}
        found = await self.client.get_prompt("test_simple_prompt")
        return "test_simple_prompt" in names and bool(found.messages)

    async def resources(self) -> bool:
        uris = {str(each.uri) for each in (await self.client.list_resources()).resources}
        found = await self.client.read_resource("test://static-text")
        return "test://static-text" in uris and bool(found.contents)

    async def templates(self) -> bool:
        listed = (await self.client.list_resource_templates()).resource_templates
        found = await self.client.read_resource("test://template/7/data")
        return bool(listed) and "7" in found.contents[0].text

    async def list_changes(self) -> bool:
        async def change() -> None:
            await outside(toggle, f"{self.server}-extra")

        listening = self.client.listen(tools_list_changed=True) if self.host == "modern" else None
        return await self._told(change, t.ToolListChangedNotification, listening)

    async def questions(self) -> bool:
        tool = ASK["name"] if self.server == "older" else "test_input_required_result_elicitation"
        result = await self.client.call_tool(tool, {})
        return "Hello, Ann!" in result.content[0].text

    async def subscriptions(self) -> bool:
        async def change() -> None:
            await self.client.call_tool(TOUCH["name"], {})

        if self.host == "modern":
            return await self._told(
                change,
                t.ResourceUpdatedNotification,
                self.client.listen(resource_subscriptions=[WATCHED]),
            )
        with warnings.catch_warnings(action="ignore", category=MCPDeprecationWarning):
            await self.client.subscribe_resource(WATCHED)
        return await self._told(change, t.ResourceUpdatedNotification, None)

    async def completion(self) -> bool:
        prompt = t.PromptReference(name="test_prompt_with_arguments")
        found = await self.client.complete(prompt, {"name": "arg1", "value": "a"})
        return "a-one" in found.completion.values

    async def log_lines(self) -> bool:
        more: dict[str, Any] = {"meta": {LEVEL: "info"}} if self.host == "modern" else {}
        if self.host == "older":
            with warnings.catch_warnings(action="ignore", category=MCPDeprecationWarning):
                await self.client.session.set_logging_level("info")
        await self.client.call_tool("test_tool_with_logging", {}, **more)
        with contextlib.suppress(AssertionError):
            await until(lambda: "Tool execution completed" in self.heard.lines)
        return "Tool execution started" in self.heard.lines

    async def _told(
        self, change: Callable[[], Awaitable[None]], kind: type[Any], listening: Any
    ) -> bool:
        """Whether the host hears of a change: on its connection, or on a stream that it opens for
        that."""
        news = asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            if listening is not None:
                stream = await stack.enter_async_context(listening)
                stack.callback(asyncio.ensure_future(_hear(stream, news)).cancel)
            for _ in range(TRIES):
                self.heard.messages.clear()
                await change()
                with contextlib.suppress(AssertionError):
                    await until(
                        lambda: news.is_set() or kind in self.heard.messages, HANG_LIMIT / TRIES
                    )
                    return True
        return False


async def _hear(stream: Any, news: asyncio.Event) -> None:
    async for _ in stream:
        news.set()


def toggle(slug: str) -> None:
    """Take a server away from its endpoint, or put it back."""
    server = Server.objects.get(slug=slug)
    (lifecycle.disable_server if server.enabled else lifecycle.enable_server)(
        server=server, actor=ACTOR
    )


FEATURES: dict[str, Callable[[Seen], Awaitable[bool]]] = {
    "tools: list, call": Seen.tools,
    "progress of calls": Seen.progress,
    "prompts: list, get": Seen.prompts,
    "resources: list, read": Seen.resources,
    "resources: read by template": Seen.templates,
    "notifications of changed lists": Seen.list_changes,
    "questions of a server to the user": Seen.questions,
    "subscriptions to resources": Seen.subscriptions,
    "completion of arguments": Seen.completion,
    "log lines": Seen.log_lines,
}


@pytest.fixture(scope="module")
def tokens(stage: Stage, site: Web) -> Iterator[dict[str, str]]:
    """By the server's era: an endpoint of that name, an agent of that name, and the agent's
    token."""
    with sdk.serving(make_server().streamable_http_app()) as address:
        found = {}
        for era in ERAS:
            stage.endpoint(era, naming_style="plain")
            server = stage.server(
                era,
                [*conformance_server.TOOLS, ASK, TOUCH],
                OFFERED,
                transport="http",
                url=f"{address}/mcp",
                allowed_networks=list(LOOPBACK),
                protocol_mode="legacy" if era == "older" else "modern",
            )
            Server.objects.filter(slug=era).update(features=[COMPLETIONS, LOGGING, SUBSCRIPTIONS])
            found[era] = stage.agent(
                era, server, stage.fake("echo", listed("extra"), slug=f"{era}-extra")
            )
            site.wait_known(found[era])
        yield found


async def _person(context: Any, params: t.ElicitRequestParams) -> t.ElicitResult:
    return t.ElicitResult(action="accept", content={"name": "Ann"})


@contextlib.asynccontextmanager
async def at(
    door: str,
    host: str,
    server: str,
    site: Web,
    launched: launcher.Launcher,
    token: str,
    *,
    kept: bool = True,
) -> AsyncIterator[Seen]:
    heard = Heard()
    options: dict[str, Any] = {"elicitation_callback": _person, "logging_callback": heard.line}
    if host == "older":
        options["message_handler"] = heard.message
    if door == "stdio":
        parameters = launched.parameters(
            "manage.py", "runmcp", "--endpoint", server, "--agent", server, "--cwd", str(folder())
        )
        opened = Client(parameters, mode=MODES[host], cache=None, **options)
    else:
        known = {"HTTP": "http", "SSE": "sse", "WebSocket": "ws"}[door]
        opened = site.client(token, MODES[host], server, door=known, kept=kept, **options)
    async with opened as client:
        assert (client.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS) == (host == "older")
        yield Seen(client, host, server, heard)


async def carried(
    feature: Callable[[Seen], Awaitable[bool]], seen: Seen, refused: list[str]
) -> bool:
    """Whether it works there; a refusal is a plain no, and noted."""
    try:
        async with asyncio.timeout(2 * HANG_LIMIT):
            return await feature(seen)
    except MCPError as error:
        refused.append(f"{feature.__name__}, {seen.server} server: {error}")
        return False


Found = dict[tuple[str, str, str], list[str]]


async def tried(
    doors: list[str], site: Web, launched: launcher.Launcher, tokens: dict[str, str], **options: Any
) -> tuple[Found, list[str]]:
    """The doors where each feature works, by feature and eras of host and server; and the
    refusals."""
    found: Found = {}
    refused: list[str] = []
    for door in doors:
        for host in ERAS:
            for server in ERAS:
                async with at(
                    door, host, server, site, launched, tokens[server], **options
                ) as seen:
                    for name, feature in FEATURES.items():
                        there = found.setdefault((name, host, server), [])
                        there += [door] if await carried(feature, seen, refused) else []
    return found, refused


@pytest.mark.exhaustive
async def test_the_table_of_the_documentation_is_what_clients_find(site, launched, tokens):
    found, refused = await tried(DOORS, site, launched, tokens)
    table = written(list(FEATURES), ERAS, DOORS, found)
    if os.environ.get("WRITE_PROTOCOL_TABLE") == "1":
        PAGE.write_text(replaced(PAGE.read_text(), table))
    assert between(PAGE.read_text()) == table, "\n".join(
        ["run: python -m tests.conformance.table", *refused]
    )


@pytest.mark.exhaustive
async def test_it_is_the_same_with_two_web_processes(stage, site, launched, tokens):
    doors = [door for door in DOORS if door != "stdio"]
    with web(stage.env, processes=2) as several:
        found, refused = await tried(doors, several, launched, tokens, kept=False)
    missing = {
        cell: sorted({*doors} - {*there}) for cell, there in found.items() if {*there} != {*doors}
    }
    assert missing == {}, "\n".join(refused)
