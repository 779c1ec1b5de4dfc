"""What an older server says outside of a call reaches the one host that is meant, and a page that
it wants opened its host."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp import types as t
from mcp.client.client import Client
from mcp.client.extension import advertise
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

from mcpregistry.domain.calls.forwarding import APPS
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Invocation
from tests.fakes.hosts import FORM, Host, http_host, stdio_host
from tests.fakes.stage import MODERN, Stage, Web, fresh, outside, web
from tests.fakes.targets import SERVERS
from tests.fakes.websockets import websocket_client
from tests.gateway.talking import MODES
from tests.launcher import Launcher
from tests.waiting import HANG_LIMIT, until

pytestmark = [pytest.mark.e2e, pytest.mark.one_database]
TOOLS = ("sign_in", "later", "roots", "declared", "asks")
PAGES = {"mimeTypes": ["text/html;profile=mcp-app"]}
DOORS = ["http", "stdio", "sse", "ws"]


class Heard:
    """What one host is told: ids of pages that are done with, and log lines."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.lines: list[tuple[str | None, Any]] = []

    async def message(self, message: object) -> None:
        if isinstance(message, t.ElicitCompleteNotification):
            self.done.append(message.params.elicitation_id)

    async def line(self, params: t.LoggingMessageNotificationParams) -> None:
        self.lines.append((params.logger, params.data))

    async def person(self, _: Any, params: t.ElicitRequestParams) -> t.ElicitResult:
        return t.ElicitResult(action="accept")

    def options(self) -> dict[str, Any]:
        return {
            "message_handler": self.message,
            "logging_callback": self.line,
            "elicitation_callback": self.person,
        }


class Folders:
    """The folders of a host."""

    def __init__(self, *uris: str) -> None:
        self.uris = uris
        self.asked = 0

    async def __call__(self, _: Any) -> t.ListRootsResult:
        self.asked += 1
        return t.ListRootsResult(roots=[t.Root(uri=uri) for uri in self.uris])  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def connected(
    door: str, mode: str, slug: str, stage: Stage, site: Web, launched: Launcher, **options: Any
) -> AsyncIterator[Client]:
    async with contextlib.AsyncExitStack() as stack:
        if door == "stdio":
            log = stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115
            parameters = launched.parameters(
                "manage.py", "runmcp", "--endpoint", slug, "--agent", slug
            )
            transport: Any = stdio_client(parameters, errlog=log)
            yield await stack.enter_async_context(
                Client(transport, mode=mode, cache=None, **options)
            )
            return
        # it has seen all before that
        await outside(lambda: site.wait_known(stage.agent(fresh("marker"))))
        token = stage.tokens[slug]
        url = site.url(slug)
        if door == "http":
            yield await stack.enter_async_context(site.client(token, mode, slug, **options))
            return
        transport = (
            websocket_client(f"{url}/ws", token)
            if door == "ws"
            else sse_client(f"{url}/sse", headers={"Authorization": f"Bearer {token}"})
        )
        yield await stack.enter_async_context(Client(transport, mode=mode, cache=None, **options))


def scene(stage: Stage, **fields: Any) -> str:
    """An endpoint, an agent and a server of the same name, which the agent may use."""
    slug = fresh("b")
    stage.endpoint(slug)
    command = [sys.executable, "-S", str(SERVERS / "beside.py")]
    fields = {"env": {"FAKE_ERA": "legacy"}, "protocol_mode": "legacy"} | fields
    server = stage.real(
        slug,
        *TOOLS,
        command=command,
        connect_timeout=HANG_LIMIT,
        request_timeout=HANG_LIMIT,
        **fields,
    )
    stage.agent(slug, server)
    return slug


def page(identifier: str, url: str = "https://example.com/in", **more: Any) -> dict[str, Any]:
    return {"mode": "url", "elicitationId": identifier, "url": url, "message": "Sign in"} | more


def last_call(slug: str) -> Invocation:
    return Invocation.objects.filter(server_slug=slug).latest("received_at")


@pytest.mark.exhaustive(but=("http-legacy",))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("door", DOORS)
async def test_a_page_that_is_needed_first_reaches_the_host_as_data(
    stage, site, launched, door, mode
):
    slug = await outside(scene, stage)
    heard = Heard()
    async with connected(door, mode, slug, stage, site, launched, **heard.options()) as host:
        pages = [
            page("e1"),
            page("e2", "file:///etc/passwd"),
            page("e3", "javascript:alert(1)"),
            {"url": 7},
        ]
        with pytest.raises(MCPError) as caught:
            await host.call_tool(f"{slug}__sign_in", {"pages": pages})
    assert (caught.value.code, caught.value.message) == (-32042, "This needs a sign-in")
    assert caught.value.data == {
        "elicitations": [page("e1", message=f"The server {slug} asks: Sign in")]
    }
    record = await outside(last_call, slug)
    assert (record.state, record.error_code) == (InvocationState.TOOL_ERROR, "INPUT_NEEDED")
    assert "https://example.com/in" in record.reason


@pytest.mark.exhaustive
async def test_a_host_that_opens_no_pages_gets_the_address_as_text(stage, site, launched):
    slug = await outside(scene, stage)
    async with connected("http", "legacy", slug, stage, site, launched) as host:
        result = await host.call_tool(f"{slug}__sign_in", {"pages": [page("e1")]})
        assert result.is_error
        assert "https://example.com/in" in result.content[0].text
        bad = await host.call_tool(
            f"{slug}__sign_in", {"pages": [page("e1", "file:///etc/passwd")]}
        )
        assert "This needs a sign-in" in bad.content[0].text
        assert "passwd" not in str(bad)


@pytest.mark.exhaustive
async def test_a_server_that_may_not_ask_people_sends_them_to_no_page(stage, site, launched):
    slug = await outside(scene, stage, asks_elicitation=False)
    heard = Heard()
    async with connected("http", "legacy", slug, stage, site, launched, **heard.options()) as host:
        result = await host.call_tool(f"{slug}__sign_in", {"pages": [page("e1")]})
    assert "This needs a sign-in" in result.content[0].text
    assert "example.com" not in str(result)


@pytest.mark.exhaustive(but=("http",))
@pytest.mark.parametrize("door", DOORS)
async def test_the_host_that_got_a_page_hears_that_it_is_done_with_and_no_other(
    stage, site, launched, door
):
    slug = await outside(scene, stage)
    first = Heard()
    second = Heard()
    async with (
        connected(door, "legacy", slug, stage, site, launched, **first.options()) as one,
        connected("http", "legacy", slug, stage, site, launched, **second.options()) as two,
    ):
        with pytest.raises(MCPError):
            await one.call_tool(f"{slug}__sign_in", {"pages": [page("e1")]})
        with pytest.raises(MCPError):
            await two.call_tool(f"{slug}__sign_in", {"pages": [page("e2")]})
        await one.call_tool(f"{slug}__later", {"done": ["e1", "unknown", "e1"]})
        await two.call_tool(f"{slug}__later", {"done": ["unknown", "e2"]})
        await until(lambda: first.done and second.done)
    assert (first.done, second.done) == (["e1"], ["e2"])


@pytest.mark.exhaustive(but=("stdio",))
@pytest.mark.parametrize("door", DOORS)
async def test_a_line_on_a_timer_reaches_the_host_that_is_alone(stage, site, launched, door):
    slug = await outside(scene, stage)
    heard = Heard()
    async with connected(door, "legacy", slug, stage, site, launched, **heard.options()) as host:
        await host.call_tool(f"{slug}__later", {"line": "tick"})
        await until(lambda: heard.lines)
    assert heard.lines == [(f"{slug}.timer", "tick")]


async def test_a_line_on_a_timer_reaches_nobody_where_two_hosts_share_a_server(
    stage, site, launched
):
    slug = await outside(scene, stage)
    first = Heard()
    second = Heard()
    async with (
        connected("http", "legacy", slug, stage, site, launched, **first.options()) as one,
        connected("http", "legacy", slug, stage, site, launched, **second.options()) as two,
    ):
        await one.call_tool(f"{slug}__declared", {})
        with pytest.raises(MCPError):
            await two.call_tool(f"{slug}__sign_in", {"pages": [page("e1")]})
        await two.call_tool(f"{slug}__later", {"line": "tick", "done": ["e1"]})
        await until(lambda: second.done)
    assert first.lines == second.lines == []


@pytest.mark.exhaustive(but=("stdio-legacy-everybody",))
@pytest.mark.parametrize(
    ("door", "mode", "shared_by"),
    [
        (door, mode, by)
        for door, mode in (("stdio", "legacy"), ("stdio", "auto"))
        for by in ("everybody", "session")
    ]
    + [("http", "legacy", "session")],
)
async def test_a_server_that_asks_for_folders_at_its_start_gets_those_of_its_host(
    stage, site, launched, door, mode, shared_by
):
    slug = await outside(scene, stage, shared_by=shared_by, asks_roots=True)
    folders = Folders("file:///home/ann")
    async with connected(
        door, mode, slug, stage, site, launched, list_roots_callback=folders
    ) as host:
        result = await host.call_tool(f"{slug}__roots", {})
        assert json.loads(result.content[0].text) == {"roots": [{"uri": "file:///home/ann"}]}
        declared = json.loads((await host.call_tool(f"{slug}__declared", {})).content[0].text)
        assert declared["roots"] == {"listChanged": True}


@pytest.mark.exhaustive
@pytest.mark.parametrize("shared_by", ["everybody", "session"])
@pytest.mark.parametrize("era", ["legacy", "both"])
async def test_a_server_whose_version_is_found_out_gets_the_folders_of_its_host_too(
    stage, site, launched, era, shared_by
):
    fields = {
        "env": {"FAKE_ERA": era},
        "protocol_mode": "auto",
        "asks_roots": True,
        "shared_by": shared_by,
    }
    slug = await outside(scene, stage, **fields)
    folders = Folders("file:///home/ann")
    async with connected(
        "stdio", "legacy", slug, stage, site, launched, list_roots_callback=folders
    ) as host:
        result = await host.call_tool(f"{slug}__roots", {})
    assert json.loads(result.content[0].text) == {"roots": [{"uri": "file:///home/ann"}]}


@pytest.mark.exhaustive
@pytest.mark.parametrize("door", ["stdio", "http"])
async def test_changed_folders_are_told_to_the_server_which_asks_again(stage, site, launched, door):
    slug = await outside(scene, stage, shared_by="session", asks_roots=True)
    folders = Folders("file:///home/ann")
    async with connected(
        door, "legacy", slug, stage, site, launched, list_roots_callback=folders
    ) as host:
        await host.call_tool(f"{slug}__roots", {})
        folders.uris = ("file:///home/ann", "file:///srv")
        with pytest.warns(MCPDeprecationWarning):
            await host.send_roots_list_changed()
        await until(lambda: folders.asked == 2)
        result = await host.call_tool(f"{slug}__roots", {})
    assert [each["uri"] for each in json.loads(result.content[0].text)["roots"]] == list(
        folders.uris
    )


@pytest.mark.exhaustive
async def test_where_hosts_share_a_server_no_word_of_changed_folders_is_promised(
    stage, site, launched
):
    slug = await outside(scene, stage, asks_roots=True)
    async with connected(
        "http", "legacy", slug, stage, site, launched, list_roots_callback=Folders("file:///a")
    ) as host:
        declared = json.loads((await host.call_tool(f"{slug}__declared", {})).content[0].text)
    assert declared["roots"] == {}


async def agree(params: dict[str, Any]) -> dict[str, Any]:
    return {"action": "accept", "content": {"ok": True}}


@pytest.mark.exhaustive(but=(f"http-{MODERN}",))
@pytest.mark.parametrize("era", ["2025-11-25", MODERN])
@pytest.mark.parametrize("door", ["http", "stdio"])
async def test_what_a_server_tells_after_its_question_reaches_the_host(stage, site, door, era):
    slug = await outside(scene, stage)
    options: dict[str, Any] = {"era": era, "abilities": FORM, "person": agree}
    async with contextlib.AsyncExitStack() as stack:
        if door == "http":
            await outside(lambda: site.wait_known(stage.agent(fresh("marker"))))
            host: Host = await stack.enter_async_context(
                http_host(site, stage.tokens[slug], slug, **options)
            )
        else:
            opened = stdio_host(stage, "--agent", slug, "--endpoint", slug, **options)
            host = await stack.enter_async_context(opened)
        result = await host.call(
            f"{slug}__asks", {}, **{"io.modelcontextprotocol/logLevel": "info"}
        )
        assert "accept" in result["content"][0]["text"]
        assert [each["message"] for each in host.asked] == [f"The server {slug} asks: Sure?"]

        def lines() -> list[Any]:
            return [
                each["params"]["data"]
                for each in host.heard
                if each["method"] == "notifications/message"
            ]

        await until(lambda: len(lines()) == 2 and len(host.progress()) == 2)
    assert lines() == ["before", "after"]
    assert [each["message"] for each in host.progress()] == ["before", "after"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", MODES)
async def test_a_server_of_a_sessions_own_is_told_of_the_pages_that_its_host_can_show(
    stage, site, launched, mode
):
    slug = await outside(scene, stage, shared_by="session")
    options = {"extensions": [advertise(APPS, PAGES)]}
    async with connected("http", mode, slug, stage, site, launched, **options) as host:
        declared = json.loads((await host.call_tool(f"{slug}__declared", {})).content[0].text)
    assert declared["extensions"] == {APPS: PAGES}


@pytest.mark.exhaustive
async def test_a_host_hears_that_a_page_is_done_with_on_a_stream_of_another_process(stage, site):
    slug = await outside(scene, stage)
    options: dict[str, Any] = {"era": "2025-11-25", "abilities": {"elicitation": {"url": {}}}}
    with web(stage.env) as other:
        token = stage.tokens[slug]
        await outside(other.wait_known, token)
        await outside(site.wait_known, token)
        async with http_host(site, token, slug, **options) as host, other.raw(token) as http:
            headers = {**host._session, "accept": "text/event-stream"}
            async with http.stream("GET", other.url(slug), headers=headers) as stream:
                assert stream.status_code == 200
                refused = await host.call(f"{slug}__sign_in", {"pages": [page("e1")]})
                assert refused["error"]["code"] == -32042
                await host.call(f"{slug}__later", {"done": ["e1"]})
                async with asyncio.timeout(HANG_LIMIT):
                    told = [
                        json.loads(line[5:])
                        async for line in until_told(stream, "elicitation/complete")
                    ]
    assert told[-1]["params"] == {"elicitationId": "e1"}


@pytest.mark.exhaustive
async def test_server_gets_changed_folders_by_a_host_whose_stream_is_in_another_process(
    stage, site
):
    """Its requests come to one process. The other one has its stream, and then hears of a change of
    its folders."""
    slug = await outside(scene, stage, shared_by="session", asks_roots=True)
    folders = [{"uri": "file:///home/ann"}]

    async def person(_: dict[str, Any]) -> dict[str, Any]:
        return {"roots": folders}

    options: dict[str, Any] = {
        "era": "2025-11-25",
        "abilities": {"roots": {"listChanged": True}},
        "person": person,
    }
    with web(stage.env) as other:
        token = stage.tokens[slug]
        await outside(other.wait_known, token)
        await outside(site.wait_known, token)
        async with http_host(site, token, slug, **options) as host, other.raw(token) as http:
            headers = {**host._session, "accept": "text/event-stream"}
            async with http.stream("GET", other.url(slug), headers=headers) as stream:
                assert stream.status_code == 200
                lines = stream.aiter_lines()
                await host.call(f"{slug}__roots", {})
                folders.append({"uri": "file:///srv"})
                await host.notify("notifications/roots/list_changed", {})
                await host._answer(await next_question(lines))
                assert await list_folders(host, slug) == folders
                folders.pop(0)
                message = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
                assert (
                    await http.post(other.url(slug), json=message, headers=host._headers({}))
                ).status_code == 202
                await host._answer(await next_question(lines))
                assert await list_folders(host, slug) == folders


async def next_question(lines: AsyncIterator[str]) -> dict[str, Any]:
    """The next message on an event stream that asks for folders."""
    async with asyncio.timeout(HANG_LIMIT):
        while "roots/list" not in (line := await anext(lines)):
            pass
    return dict(json.loads(line.removeprefix("data: ")))


async def list_folders(host: Host, slug: str) -> list[dict[str, str]]:
    result = await host.call(f"{slug}__roots", {})
    return list(json.loads(result["content"][0]["text"])["roots"])


async def until_told(stream: Any, words: str) -> AsyncIterator[str]:
    """The data lines of an event stream, until one has these words."""
    async for line in stream.aiter_lines():
        if line.startswith("data: {"):
            yield line
            if words in line:
                return
