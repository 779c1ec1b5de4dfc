"""Resources of servers, fixed and by template, through both doors and to and from both eras."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp import types as t
from mcp.client.stdio import stdio_client

from mcpregistry.models import Agent, Grant, PolicyRule, Server, Tool
from mcpregistry.services.access import grants
from mcpregistry.services.policy import rules
from tests.fakes.stage import ACTOR, Stage, Web, fresh, outside
from tests.fakes.targets import SERVERS
from tests.gateway.talking import ERAS, MODES
from tests.gateway.test_prompts import approve
from tests.launcher import Launcher
from tests.waiting import HANG_LIMIT, until

pytestmark = pytest.mark.e2e
BLOB = "iVBORw0KGgo="


class Scene:
    """An agent and a server whose resources, but for the picture, are approved."""

    def __init__(self, stage: Stage, era: str = "both", *, granted: bool = True) -> None:
        self.stage = stage
        self.slug = fresh("r")
        self.endpoint = stage.endpoint(self.slug)
        stage.agent(self.slug)
        self.agent = Agent.objects.get(slug=self.slug)
        self.server = self.served(self.slug, era)
        if granted:
            self.grant(kind="")

    def served(self, slug: str, era: str = "both") -> Server:
        program = [sys.executable, "-S", str(SERVERS / "resources.py")]
        names = ("docs://guide", "repo://{owner}/issues/{number}", "change")
        return self.stage.real(
            slug,
            *names,
            command=program,
            env={"FAKE_ERA": era, "FAKE_WHO": slug},
            connect_timeout=HANG_LIMIT,
        )

    def grant(self, **fields: Any) -> None:
        fields = {"server": self.server} | fields
        grants.save_grant(grant=Grant(agent=self.agent, **fields), actor=ACTOR)


@contextlib.asynccontextmanager
async def connected(
    door: str, mode: str, scene: Scene, site: Web, launched: Launcher, **options: Any
) -> AsyncIterator[Client]:
    async with contextlib.AsyncExitStack() as stack:
        if door == "http":
            # it has seen all before that
            await outside(lambda: site.wait_known(scene.stage.agent(fresh("marker"))))
            token = scene.stage.tokens[scene.slug]
            yield await stack.enter_async_context(site.client(token, mode, scene.slug, **options))
            return
        log = stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115
        parameters = launched.parameters(
            "manage.py", "runmcp", "--endpoint", scene.slug, "--agent", scene.slug
        )
        transport = stdio_client(parameters, errlog=log)
        yield await stack.enter_async_context(Client(transport, mode=mode, cache=None, **options))


async def text_of(host: Client, uri: str) -> tuple[str, str]:
    (content,) = (await host.read_resource(uri)).contents
    assert isinstance(content, t.TextResourceContents)
    return str(content.uri), content.text


async def once_it_ran(host: Client, uri: str) -> str:
    """The text; nothing while the approved read has not begun, or is still out."""
    try:
        return (await text_of(host, uri))[1]
    except MCPError as error:
        if "this call is running" not in error.message and "has not run yet" not in error.message:
            raise
        return ""


@pytest.mark.exhaustive(but=("http-auto-modern",))
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("door", ["http", "stdio"])
async def test_approved_resources_are_listed_read_and_recorded(
    stage, site, launched, door, mode, era
):
    scene = await outside(Scene, stage, era)
    async with connected(door, mode, scene, site, launched) as host:
        (guide,) = (await host.list_resources()).resources  # the picture waits for a decision
        assert (str(guide.uri), guide.name, guide.mime_type) == (
            "docs://guide",
            "guide",
            "text/plain",
        )
        (issue,) = (await host.list_resource_templates()).resource_templates
        assert issue.uri_template == "repo://{owner}/issues/{number}"
        assert await text_of(host, "docs://guide") == (
            "docs://guide",
            f"docs://guide of {scene.slug}",
        )
        assert (await text_of(host, "repo://me/issues/7"))[0] == "repo://me/issues/7"
        for uri in (
            "docs://pixel",
            "repo://me/issues",
            "repo://me/issues/7/x",
            "file:///etc/passwd",
        ):
            with pytest.raises(MCPError, match="Resource not found") as missing:
                await host.read_resource(uri)
            assert (missing.value.code, missing.value.error.data) == (
                -32002 if mode == "legacy" else t.INVALID_PARAMS,
                {"uri": uri},
            )
        with pytest.raises(MCPError, match="There is no such issue"):
            await host.read_resource("repo://me/issues/404")
    calls = await outside(lambda: stage.calls(server_slug=scene.slug))
    assert [(call.tool_name, call.state, call.arguments) for call in calls] == [
        ("resource:docs://guide", "succeeded", '{"uri":"docs://guide"}'),
        ("template:repo://{owner}/issues/{number}", "succeeded", '{"uri":"repo://me/issues/7"}'),
        ("template:repo://{owner}/issues/{number}", "tool_error", '{"uri":"repo://me/issues/404"}'),
    ]


async def test_grants_and_rules_are_about_uris(stage, site, launched):
    scene = await outside(lambda: Scene(stage, granted=False))
    await outside(lambda: scene.grant(kind="template", uri="repo://me/*"))
    async with connected("http", "auto", scene, site, launched) as host:
        assert (await host.list_resources()).resources == []
        assert len((await host.list_resource_templates()).resource_templates) == 1
        assert await text_of(host, "repo://me/issues/7")
        with pytest.raises(MCPError, match="has no grant"):
            await host.read_resource("repo://you/issues/7")
        await outside(lambda: scene.grant(kind="resource", uri="docs://g*"))
        rule = PolicyRule(
            name=fresh("rule"),
            outcome="deny",
            server=scene.server,
            condition='args.uri.endsWith("/13")',
        )
        await outside(lambda: rules.save_rule(rule=rule, actor=ACTOR))
        await outside(lambda: site.wait_known(stage.agent(fresh("marker"))))
        assert await text_of(host, "docs://guide")
        assert await text_of(host, "repo://me/issues/12")
        with pytest.raises(MCPError, match="A rule denies"):
            await host.read_resource("repo://me/issues/13")


@pytest.mark.exhaustive
async def test_what_two_servers_have_is_told_apart_by_their_names(stage, site, launched):
    scene = await outside(Scene, stage)
    other = await outside(lambda: scene.served(f"{scene.slug}-2"))
    await outside(lambda: scene.grant(server=other, kind=""))
    async with connected("http", "auto", scene, site, launched) as host:
        uris = {str(each.uri) for each in (await host.list_resources()).resources}
        assert uris == {f"slipsnisse://{slug}/docs://guide" for slug in (scene.slug, other.slug)}
        for slug in (scene.slug, other.slug):
            uri = f"slipsnisse://{slug}/docs://guide"
            assert await text_of(host, uri) == (uri, f"docs://guide of {slug}")
            uri = f"slipsnisse://{slug}/repo://me/issues/7"
            assert await text_of(host, uri) == (uri, f"repo://me/issues/7 of {slug}")
        with pytest.raises(MCPError, match="not found"):
            await host.read_resource("docs://guide")


@pytest.mark.exhaustive(but=("auto",))
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_resource_that_its_server_describes_anew_is_withdrawn_and_hosts_are_told(
    stage, site, launched, mode
):
    scene = await outside(Scene, stage)
    told: list[str] = []

    async def on_message(message: Any) -> None:
        told.append(type(message).__name__)

    options = {"message_handler": on_message} if mode == "legacy" else {}
    streams = site.streams
    async with (
        connected("http", mode, scene, site, launched, **options) as host,
        contextlib.AsyncExitStack() as stack,
    ):
        if mode == "legacy":
            await until(lambda: site.streams > streams)
        else:
            changes = await stack.enter_async_context(
                host.listen(tools_list_changed=True, resources_list_changed=True)
            )

            async def hear() -> None:
                async for event in changes:
                    told.append(type(event).__name__)

            stack.callback(asyncio.create_task(hear()).cancel)
        assert len((await host.list_resources()).resources) == 1
        await host.call_tool(f"{scene.slug}__change", {})
        await until(lambda: told)
        assert (await host.list_resources()).resources == []
        assert set(told) <= {"ResourceListChangedNotification", "ResourcesListChanged"}
    guide = await outside(
        Tool.offers.select_related("latest").get, server=scene.server, name="docs://guide"
    )
    assert guide.status == "changed"


async def test_a_read_that_people_are_asked_about_is_held_and_its_contents_are_fetched(
    stage, site, launched
):
    scene = await outside(Scene, stage)
    rule = PolicyRule(
        name=fresh("rule"),
        outcome="ask",
        server=scene.server,
        condition='args.uri == "docs://guide"',
    )
    await outside(lambda: rules.save_rule(rule=rule, actor=ACTOR, unanswered=True))
    await outside(Agent.objects.filter(pk=scene.agent.pk).update, hold_seconds=1)
    async with connected("http", "auto", scene, site, launched) as host:
        for uri in ("docs://guide", f"slipsnisse://{scene.slug}/docs://guide"):
            with pytest.raises(MCPError, match="same resource again") as pending:
                await host.read_resource(uri)
        held = pending.value.error.data["approval"]
        await outside(approve, held)
        await outside(Agent.objects.filter(pk=scene.agent.pk).update, hold_seconds=60)
        assert (
            await until(lambda: once_it_ran(host, "docs://guide"))
            == f"docs://guide of {scene.slug}"
        )
        said = await host.call_tool("mcp_approval_status", {"id": held})
        (_, part) = said.content
        assert isinstance(part, t.EmbeddedResource)
        assert part.resource.text == f"docs://guide of {scene.slug}"
        for uri in (
            f"slipsnisse://{scene.slug}/docs://pixel",
            "repo://me/issues/..",
            "repo://me%2F../issues/7",
        ):
            with pytest.raises(MCPError, match="Resource not found"):
                await host.read_resource(uri)
