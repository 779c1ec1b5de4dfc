"""The lane for ``tools/list`` says what the SDK would say, to everything that anyone may ask."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from mcp import MCPError

from mcpregistry.models import Server
from mcpregistry.services.servers import lifecycle
from tests.fakes.stage import ACTOR, ANYTHING, MODERN, PLAIN, Stage, fresh, listed, outside
from tests.gateway.doors import Corpus, doors
from tests.waiting import HANG_LIMIT, eventually

pytestmark = pytest.mark.one_database

LIST = Corpus("tools/list")
CURSORS = {
    f"cursor {v!r}": LIST.params(cursor=v) for v in (None, "", 1, "old.500", "x", ".", "\ud800")
}


def rows(stage: Stage) -> str:
    slug = fresh("lane")
    stage.endpoint(slug)
    text = {
        "description": "Zeigt Grüße, 漢字 \u2028 </script>",
        "annotations": {"readOnlyHint": True},
    }
    stage.agent(slug, stage.fake("echo", listed("echo", "pid", **text), slug=slug))
    return slug


async def test_every_odd_body_gets_the_same_answer_with_and_without_the_lane(stage):
    slug = await outside(rows, stage)
    async with doors(slug, stage.tokens[slug]) as both:
        answers = {
            name: await both.same(name, "POST", content, list(LIST.usual.items()))
            for name, content in (LIST.bodies() | CURSORS).items()
        }
    assert both.differences == {}
    assert answers["plain"][0] == 200
    assert len(answers["plain"][2]["result"]["tools"]) == 2
    assert answers["plain"][2]["result"]["cacheScope"] == "private"
    assert answers["plain"][2]["result"]["ttlMs"] == 1000
    assert answers["no version"][0] == 400


async def test_every_odd_header_and_method_gets_the_same_answer_with_and_without_the_lane(stage):
    slug = await outside(rows, stage)
    async with doors(slug, stage.tokens[slug]) as both:
        for name, given in LIST.headers().items():
            await both.same(name, "POST", LIST.request(), given)
        for method in ("GET", "DELETE", "PUT", "OPTIONS"):
            assert (await both.same(method, method, LIST.request(), list(LIST.usual.items())))[
                0
            ] == 405
    assert both.differences == {}


@pytest.mark.exhaustive(but=("2026-07-28",))
@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_a_long_list_comes_in_pages_and_an_old_cursor_is_refused(stage, site, mode):
    def rows() -> tuple[str, Server]:
        slug = fresh("pages")
        stage.endpoint(slug)
        server = stage.fake("many", [], slug=slug)
        stage.bulk(server, listed(*(f"tool_{number:04}" for number in range(1201))))
        more = stage.fake("echo", listed("late"), slug=f"{slug}-more")
        lifecycle.disable_server(server=more, actor=ACTOR)
        return stage.agent(slug, server, more), more

    token, more = await outside(rows)
    await outside(site.wait_known, token)
    slug = more.slug.removesuffix("-more")
    async with site.client(token, mode, slug) as client:
        names = []
        cursor = None
        pages = 0
        while pages == 0 or cursor:
            page = await client.list_tools(cursor=cursor)
            names += [tool.name for tool in page.tools]
            stale = cursor
            cursor = page.next_cursor
            pages = pages + 1
        assert names == [f"{slug}__tool_{number:04}" for number in range(1201)]
        assert pages == 3
        await outside(lifecycle.enable_server, server=more, actor=ACTOR)
        await outside(_listed, site, token, slug, 1202)
        with pytest.raises(MCPError) as refusal:
            await client.list_tools(cursor=stale)
    assert refusal.value.code == -32602


def _listed(site: Any, token: str, slug: str, count: int) -> None:
    """Until the list holds that many tools."""

    def read() -> bool:
        found = 0
        cursor = None
        while found == 0 or cursor:
            content = LIST.params(cursor=cursor) if cursor else LIST.request()
            answer = httpx2.post(
                site.url(slug),
                headers=LIST.usual | {"authorization": f"Bearer {token}"},
                content=content,
                timeout=HANG_LIMIT,
                **PLAIN,
            ).json()
            if "error" in answer:  # it changed while we read
                return False
            found = found + len(answer["result"]["tools"])
            cursor = answer["result"].get("nextCursor")
        return found == count

    eventually(read)


ODD_TOOLS: list[dict[str, Any]] = [
    {"name": "no_type", "inputSchema": {"properties": {"a": {"type": "string"}}}},
    {"name": "any_of", "inputSchema": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}},
    {"name": "nulls", "inputSchema": {"type": "object", "properties": None, "required": None}},
    {
        "name": "title",
        "inputSchema": ANYTHING,
        "title": 5,
        "icons": "x",
        "annotations": "x",
        "_meta": [],
        "execution": "x",
    },
    {
        "name": "output",
        "inputSchema": ANYTHING,
        "outputSchema": {"properties": {"s": {"$ref": "#/$defs/No"}}},
    },
    {
        "name": "draft4",
        "inputSchema": {
            "type": "object",
            "properties": {"n": {"minimum": 0, "exclusiveMinimum": True}},
        },
    },
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_definitions_that_no_host_could_read_cost_no_other_server_a_tool(stage, site, mode):
    def rows() -> tuple[str, str]:
        slug = fresh("odd")
        stage.endpoint(slug)
        healthy = stage.fake("echo", listed("echo"), slug=f"{slug}-ok")
        others = {
            "resource": [
                {"uri": "x://unnamed"},
                {"uri": "x://icons", "name": "i", "icons": [{"sizes": 1}]},
            ],
            "template": [{"uriTemplate": "x://{unnamed}"}],
            "prompt": [
                {"name": "p", "arguments": [{"name": "a", "required": "true"}], "title": {}}
            ],
        }
        odd = stage.server(slug, ODD_TOOLS, others, command=["true"])
        return slug, stage.agent(slug, healthy, odd)

    slug, token = await outside(rows)
    await outside(site.wait_known, token)
    async with site.client(token, mode, slug) as client:
        tools = {tool.name.rpartition("__")[2]: tool for tool in (await client.list_tools()).tools}
        assert set(tools) >= {"echo", *(tool["name"] for tool in ODD_TOOLS)}
        assert tools["no_type"].input_schema == {
            "type": "object",
            "properties": {"a": {"type": "string"}},
        }
        assert tools["draft4"].input_schema["properties"] == {"n": {"exclusiveMinimum": 0}}
        assert {each.name for each in (await client.list_resources()).resources} == {
            "x://unnamed",
            "i",
        }
        assert [
            each.name for each in (await client.list_resource_templates()).resource_templates
        ] == ["x://{unnamed}"]
        (prompt,) = (await client.list_prompts()).prompts
        assert prompt.arguments is not None
        assert prompt.arguments[0].required is True
