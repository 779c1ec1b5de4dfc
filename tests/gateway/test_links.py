"""What no list has: links in results, pages of MCP Apps; and what servers tell models, as hosts are
told it."""

from __future__ import annotations

import pytest
from django.utils import timezone
from mcp import MCPError
from mcp import types as t

from mcpregistry.models import Endpoint, PolicyRule, Server, Tool
from mcpregistry.services.policy import rules
from tests.fakes.stage import ACTOR, fresh, outside
from tests.gateway.talking import ERAS, MODES, Scene
from tests.gateway.test_resources import connected, text_of

pytestmark = pytest.mark.e2e
LINK = "made://report/7"
UI = "ui://widget/main.html"
MADE = "made://report/8"
PAGE = "ui://show/main.html"


@pytest.mark.exhaustive(but=("stdio-legacy-legacy",))
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("door", ["http", "stdio"])
async def test_links_are_read_by_whom_got_them_and_pages_with_their_tools(
    stage, site, launched, door, mode, era
):
    scene = await outside(Scene, stage, era)
    allow = PolicyRule(name=fresh("rule"), outcome="allow", server=scene.server, condition="true")
    await outside(lambda: rules.save_rule(rule=allow, actor=ACTOR))
    async with connected(door, mode, scene, site, launched) as host:
        with pytest.raises(MCPError, match="Resource not found"):
            await host.read_resource(LINK)
        (_, link) = (await host.call_tool(f"{scene.slug}__link", {})).content
        assert isinstance(link, t.ResourceLink)
        assert await text_of(host, str(link.uri)) == (LINK, f"{LINK} of {scene.slug}")
        listed = {tool.name: tool for tool in (await host.list_tools()).tools}
        assert listed[f"{scene.slug}__widget"].meta == {"ui": {"resourceUri": UI}, "kept": 1}
        assert await text_of(host, UI) == (UI, f"<p>{scene.slug}</p>")
    calls = await outside(
        lambda: stage.calls(server_slug=scene.slug, tool_name__startswith="resource:")
    )
    assert [(call.tool_name, call.state) for call in calls] == [
        (f"resource:{LINK}", "succeeded"),
        (f"resource:{UI}", "succeeded"),
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", ["page", "call"])
@pytest.mark.parametrize("door", ["http", "stdio"])
async def test_tools_with_required_arguments_and_their_pages_in_any_order(
    stage, site, launched, door, first
):
    scene = await outside(Scene, stage)
    allow = PolicyRule(name=fresh("rule"), outcome="allow", server=scene.server, condition="true")
    await outside(lambda: rules.save_rule(rule=allow, actor=ACTOR))
    async with connected(door, "auto", scene, site, launched) as host:
        if first == "page":
            assert await text_of(host, PAGE) == (PAGE, f"<p>{scene.slug}</p>")
        assert not (await host.call_tool(f"{scene.slug}__show", {"rows": 3})).is_error
        assert await text_of(host, PAGE) == (PAGE, f"<p>{scene.slug}</p>")
        refused = await host.call_tool(f"{scene.slug}__show", {"uri": PAGE})
        assert refused.is_error
        assert '"rows" is a required property' in refused.content[0].text
        for _ in range(2):
            (_, link) = (await host.call_tool(f"{scene.slug}__make", {"rows": 1})).content
            assert await text_of(host, str(link.uri)) == (MADE, f"{MADE} of {scene.slug}")


async def test_what_is_linked_to_is_nobody_elses_and_keeps_to_the_rules(stage, site, launched):
    scene = await outside(Scene, stage)
    other = await outside(Scene, stage)
    await outside(lambda: other.grant(server=scene.server, kind=""))
    condition = 'tool.kind == "resource" && args.uri.startsWith("made:")'
    ask = PolicyRule(name=fresh("rule"), outcome="ask", server=scene.server, condition=condition)
    await outside(lambda: rules.save_rule(rule=ask, actor=ACTOR, unanswered=True))
    async with connected("http", "auto", scene, site, launched) as host:
        await host.call_tool(f"{scene.slug}__link", {})
        with pytest.raises(MCPError, match="add a rule that allows it"):
            await host.read_resource(LINK)
        assert await text_of(host, UI)  # part of what was approved
        deny = PolicyRule(
            name=fresh("rule"),
            outcome="deny",
            server=scene.server,
            condition='args.uri.startsWith("ui:")',
        )
        await outside(lambda: rules.save_rule(rule=deny, actor=ACTOR))
        await outside(lambda: site.wait_known(stage.agent(fresh("marker"))))
        with pytest.raises(MCPError, match="A rule denies"):
            await host.read_resource(UI)
    async with connected("http", "auto", other, site, launched) as host:
        with pytest.raises(MCPError, match="Resource not found"):
            await host.read_resource(LINK)


@pytest.mark.exhaustive
async def test_a_resource_keeps_the_rules_of_its_own_row_by_links_and_templates(
    stage, site, launched
):
    """Whether the row serves or not: here nobody has decided on it yet."""
    scene = await outside(Scene, stage)
    allow = PolicyRule(name=fresh("rule"), outcome="allow", server=scene.server, condition="true")
    await outside(lambda: rules.save_rule(rule=allow, actor=ACTOR))
    for uri in (LINK, "repo://me/issues/13"):
        now = timezone.now()
        said = {
            "server": scene.server,
            "kind": "resource",
            "name": uri,
            "first_seen_at": now,
            "last_seen_at": now,
        }
        row = await outside(lambda said=said: Tool.offers.create(**said))
        deny = PolicyRule(name=fresh("rule"), outcome="deny", server=scene.server, tool=row)
        await outside(lambda deny=deny: rules.save_rule(rule=deny, actor=ACTOR))
    async with connected("http", "auto", scene, site, launched) as host:
        await host.call_tool(f"{scene.slug}__link", {})
        assert await text_of(host, "repo://me/issues/12")
        for uri in (LINK, "repo://me/issues/13"):
            with pytest.raises(MCPError, match="A rule denies"):
                await host.read_resource(uri)


@pytest.mark.exhaustive
async def test_apps_of_a_server_can_be_switched_off(stage, site, launched):
    scene = await outside(Scene, stage)
    await outside(Server.objects.filter(pk=scene.server.pk).update, mcp_apps=False)
    async with connected("http", "auto", scene, site, launched) as host:
        listed = {tool.name: tool for tool in (await host.list_tools()).tools}
        assert listed[f"{scene.slug}__widget"].meta == {"kept": 1}
        with pytest.raises(MCPError, match="Resource not found"):
            await host.read_resource(UI)


@pytest.mark.exhaustive(but=("http-auto",))
@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("door", ["http", "stdio"])
async def test_hosts_are_told_the_approved_instructions_of_the_servers_that_they_see(
    stage, site, launched, door, mode
):
    scene = await outside(Scene, stage)
    await outside(lambda: scene.grant(server=scene.served(f"{scene.slug}-2"), kind="prompt"))
    await outside(Endpoint.objects.filter(slug=scene.slug).update, instructions="Ask first.")
    async with connected(door, mode, scene, site, launched) as host:
        assert (
            host.instructions == f"Ask first.\n\n# Server {scene.slug}\ninstructions of talkative"
        )
