"""What an agent sees on an endpoint: exact names, stable order, pages, bytes, and an end in
time."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from mcpregistry.calls.catalog import PAGE, Catalogue, Catalogues, DownstreamTools
from mcpregistry.domain.errors import Conflict
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.domain.snapshot_specs import (
    AgentSpec,
    EndpointSpec,
    GrantSpec,
    ServerSpec,
    ToolSpec,
)

SERVER = ServerSpec(1, "git", "Git", 1, "stdio", "lazy", 30.0, 1024, True)
AGENT = AgentSpec(1, "ann", frozenset({"mcp_integration"}), None, (GrantSpec(1, None, {}, None),))
ENDPOINT = EndpointSpec("default", "Default", "", "double", "none", False, True, ())


def tools(*names: str, **data: Any) -> dict[int, ToolSpec]:
    return {
        number: ToolSpec(
            number,
            1,
            name,
            f"hash of {name}",
            {"name": name, "description": f"Does {name}."} | data,
            False,
        )
        for number, name in enumerate(names, 1)
    }


def snapshot(of: dict[int, ToolSpec], server: ServerSpec = SERVER) -> Snapshot:
    return Snapshot(1, servers={1: server}, tools=of)


def catalogue(
    of: dict[int, ToolSpec],
    *,
    endpoint: EndpointSpec = ENDPOINT,
    agent: AgentSpec = AGENT,
    server: ServerSpec = SERVER,
) -> Catalogue:
    return Catalogues([DownstreamTools()]).get(snapshot(of, server), endpoint, agent, 0.0)


def test_names_are_found_whole_in_either_form_and_listed_in_order():
    found = catalogue(tools("push", "diff", "a__b"))
    assert list(found.entries) == ["git__a__b", "git__diff", "git__push"]
    assert found.find("git__push") is found.find("git::push") is not None
    assert [found.find(name) for name in ("git__pus", "git", "", "git__a", "git::a")] == [None] * 5


def test_what_hosts_see_is_the_approved_definition_under_its_exposed_name():
    listing = (
        catalogue(tools("push", inputSchema={"type": "object", "x": 1}))
        .entries["git__push"]
        .listing
    )
    assert listing == {
        "name": "git__push",
        "description": "Does push.",
        "inputSchema": {"type": "object", "x": 1},
    }


@pytest.mark.parametrize(
    ("style", "description"),
    [
        ("none", "Does push."),
        ("bracket", "[git] Does push."),
        ("mcp_bracket", "[MCP:git] Does push."),
    ],
)
def test_a_list_says_whose_a_tool_is_where_the_endpoint_asks(style: str, description: str):
    found = catalogue(tools("push"), endpoint=replace(ENDPOINT, description_style=style))
    (listed,) = json.loads(found.encode_page(None, legacy=False, extra={}))["tools"]
    assert (listed["name"], listed["description"]) == ("git__push", description)


def test_an_unavailable_server_is_hidden_only_where_asked():
    down = replace(SERVER, available=False)
    assert not catalogue(tools("push"), server=down).entries
    assert catalogue(
        tools("push"), server=down, endpoint=replace(ENDPOINT, hide_unavailable=False)
    ).entries


@pytest.mark.parametrize("count", [0, 1, PAGE, PAGE + 1, 2 * PAGE, 2 * PAGE + 7])
@pytest.mark.parametrize("legacy", [False, True])
def test_pages_hold_every_tool_once(count: int, legacy: bool):
    found = catalogue(tools(*(f"t{n:05}" for n in range(count))))
    listed = []
    cursor = None
    pages = 0
    while pages == 0 or cursor:
        page, after = found.list_page(cursor, legacy=legacy)
        raw = json.loads(found.encode_page(cursor, legacy=legacy, extra={"ttlMs": 0}))
        assert (raw["tools"], raw.get("nextCursor"), raw["ttlMs"]) == (page, after, 0)
        listed += [tool["name"] for tool in page]
        cursor = after
        pages = pages + 1
    assert listed == sorted(found.entries)
    assert len(listed) == count


@pytest.mark.attack
@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "0",
        ".",
        "{v}.",
        "{v}.-1",
        "{v}.٣",
        "{v}.1e3",
        "other.500",
        "{v}.500x",
        "{v}.5.5",
        "{v}.500",
        "{v}.0",
        "{v}." + "9" * 5000,
    ],
)
def test_a_cursor_of_another_list_is_refused(cursor: str):
    found = catalogue(tools("push"))
    with pytest.raises(ValueError, match="changed"):
        found.list_page(cursor.format(v=found.version), legacy=False)


@pytest.mark.attack
def test_only_our_own_cursors_make_pages_so_nobody_fills_the_memory_with_them():
    found = catalogue(tools(*(f"t{n:05}" for n in range(2 * PAGE + 7))))
    for start in range(3 * PAGE):
        with suppress(ValueError):
            found.encode_page(f"{found.version}.{start}", legacy=False, extra={})
    assert sorted(start for _, start in found._pages) == [PAGE, 2 * PAGE]


def test_a_tool_is_found_by_each_of_its_spellings_and_by_nothing_in_between():
    found = catalogue(
        tools("push", "mcp_approval_status"), endpoint=replace(ENDPOINT, naming_style="single")
    )
    (entry,) = [each for each in found.entries.values() if each.offer.tool.name == "push"]
    assert entry.name == "git_push"
    for name in ("git_push", "git__push", "git::push", "push"):
        assert found.find(name) is entry
    for name in (
        "git:push",
        "git/push",
        "git___push",
        "us",
        "",
        "GIT__push",
        "mcp_approval_status",
    ):
        assert found.find(name) is None


def test_the_version_changes_with_what_hosts_see_and_with_nothing_else():
    plain = catalogue(tools("a", "b"))
    assert plain.version == catalogue(tools("b", "a")).version
    assert (
        plain.version
        == catalogue(tools("a", "b"), server=replace(SERVER, revision=9, title="New")).version
    )
    bracket = replace(ENDPOINT, naming_style="plain", description_style="bracket")
    others = [
        catalogue(tools("a")),
        catalogue({**tools("a", "b"), 2: replace(tools("a", "b")[2], definition_hash="changed")}),
        catalogue(tools("a", "b"), endpoint=replace(ENDPOINT, naming_style="single")),
        catalogue(tools("a", "b"), endpoint=replace(ENDPOINT, description_style="bracket")),
        catalogue(tools("a", "b"), endpoint=bracket),
        catalogue(tools("a", "b"), endpoint=bracket, server=replace(SERVER, slug="other")),
    ]
    assert len({plain.version, *(other.version for other in others)}) == len(others) + 1


@pytest.mark.attack
@pytest.mark.parametrize("value", ["\ud800", "a\x00b", 10**400, float("nan")], ids=range(4))
def test_one_odd_definition_does_not_empty_the_list(value: Any):
    found = catalogue(tools("push", "pull", inputSchema={"default": value}))
    raw = found.encode_page(None, legacy=False, extra={})
    raw.decode()
    assert [tool["name"] for tool in json.loads(raw)["tools"]] == ["git__pull", "git__push"]


def test_legacy_hosts_never_see_an_output_schema_that_is_no_object():
    found = catalogue(tools("push", outputSchema={"anyOf": []}))
    assert "outputSchema" in found.list_page(None, legacy=False)[0][0]
    assert "outputSchema" not in found.list_page(None, legacy=True)[0][0]


def test_a_list_is_built_once_and_anew_when_a_grant_ends_or_the_configuration_changes():
    built = Catalogues([DownstreamTools()])
    first = snapshot(tools("push"))
    timed = replace(AGENT, grants=(GrantSpec(1, None, {}, 100.0),))
    before = built.get(first, ENDPOINT, timed, 0.0)
    assert built.get(first, ENDPOINT, timed, 99.9) is before
    assert before.valid_until == 100.0
    after = built.get(first, ENDPOINT, timed, 100.0)
    assert (list(before.entries), list(after.entries)) == (["git__push"], [])
    assert built.get(snapshot(tools("push")), ENDPOINT, timed, 0.0) is not after


@pytest.mark.attack
def test_two_agents_never_share_a_list():
    built = Catalogues([DownstreamTools()])
    one = snapshot(tools("push"))
    other = replace(AGENT, slug="bob", grants=())
    assert built.get(one, ENDPOINT, AGENT, 0.0).entries
    assert not built.get(one, ENDPOINT, other, 0.0).entries


def offering(**of: list[tuple[str, str]]) -> Catalogue:
    """What of these servers, each with its resources and templates, an agent sees who may use all
    of it."""
    servers = {}
    others = {}
    for number, (slug, found) in enumerate(of.items(), 1):
        servers[number] = replace(SERVER, id=number, slug=slug)
        for kind, name in found:
            key = len(others) + 1
            data = {"uri" if kind == "resource" else "uriTemplate": name, "name": "n"}
            others[key] = ToolSpec(
                key, number, name, f"{slug} {kind} {name}", data, False, kind=kind
            )
    agent = replace(
        AGENT, grants=tuple(GrantSpec(number, None, {}, None, "") for number in servers)
    )
    whole = Snapshot(1, servers=servers, tools={}, others=others)
    return Catalogues([DownstreamTools()]).get(whole, ENDPOINT, agent, 0.0)


def served(found: Catalogue, uri: str) -> tuple[str, str, str] | None:
    """Whose it is, by what, and the URI that the server is asked for."""
    place, name, own = found.find_reader(uri)
    entry = place.find(name)
    return (entry.offer.server.slug, entry.offer.tool.key, own) if entry else None


def test_a_fixed_resource_is_never_read_by_a_template_under_another_name():
    found = offering(
        a=[("resource", "x://1"), ("resource", "x://2"), ("template", "x://{n}")],
        b=[("resource", "x://2")],
    )
    fixed = ("a", "resource:x://1", "x://1")
    assert served(found, "x://1") == served(found, "slipsnisse://a/x://1") == fixed
    assert served(found, "slipsnisse://a/x://2") == ("a", "resource:x://2", "x://2")
    assert served(found, "x://2") is None  # whose?
    assert (
        served(found, "x://3")
        == served(found, "slipsnisse://a/x://3")
        == ("a", "template:x://{n}", "x://3")
    )
    assert served(found, "slipsnisse://b/x://3") is None


def test_no_server_can_name_a_resource_like_anothers():
    found = offering(
        a=[("resource", "x://1"), ("template", "y://{n}")], b=[("resource", "slipsnisse://a/x://1")]
    )
    assert served(found, "slipsnisse://a/x://1") == ("a", "resource:x://1", "x://1")
    evil = offering(b=[("resource", "slipsnisse://a/x://1")])
    assert served(evil, "slipsnisse://a/x://1") is None
    named = "slipsnisse://b/slipsnisse://a/x://1"
    assert served(evil, named) == ("b", "resource:slipsnisse://a/x://1", "slipsnisse://a/x://1")


def test_what_templates_of_two_servers_can_make_is_read_from_the_one_that_is_named():
    found = offering(
        a=[("template", "x://{name}/{n}")],
        b=[("template", "x://{a}/{b}"), ("template", "x://b/{n}")],
    )
    with pytest.raises(Conflict, match=r"slipsnisse://a/.*slipsnisse://b/"):
        found.find_reader("x://me/7")
    for slug, template in (("a", "x://{name}/{n}"), ("b", "x://{a}/{b}")):
        assert served(found, f"slipsnisse://{slug}/x://me/7") == (
            slug,
            f"template:{template}",
            "x://me/7",
        )


def test_what_is_switched_off_is_lent_by_no_link_and_no_tool_either():
    def lent(*off: str) -> list[bool]:
        data = {"name": "show", "_meta": {"ui": {"resourceUri": "ui://page"}}}
        tool = ToolSpec(1, SERVER.id, "show", "hash", data, False, never=frozenset(off))
        agent = replace(AGENT, grants=(GrantSpec(SERVER.id, None, {}, None, ""),))
        whole = Snapshot(1, servers={SERVER.id: SERVER}, tools={1: tool})
        found = Catalogues([DownstreamTools()]).get(whole, ENDPOINT, agent, 0.0)
        (entry,) = found.entries.values()
        return [
            served(found, "ui://page") is not None,
            found.expose_resource(entry, "made://7") is not None,
        ]

    assert lent() == [True, True]
    assert lent("ui://page", "made://7") == [False, False]
