"""Who may see and call what: every layer must say yes, and nothing said means no."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from mcpregistry.domain.policy.access import (
    find_implied_arguments,
    find_next_expiry,
    has_capability,
    is_covered_by_grant,
    list_unambiguous_readings,
    match_pins,
    may_call,
    may_see,
)
from mcpregistry.domain.snapshot_specs import (
    AgentSpec,
    EndpointSpec,
    GrantSpec,
    ServerSpec,
    ToolSpec,
)

NOW = 1_000.0
SERVER = ServerSpec(1, "git", "Git", 1, "stdio", "lazy", 30.0, 1024, True)
TOOL = ToolSpec(10, 1, "push", "h", {}, False)
OTHER_TOOL = replace(TOOL, id=11, name="pull")
OTHER_SERVER = replace(SERVER, id=2, slug="time")
ALL = frozenset({"mcp_integration"})
ON_SERVER = GrantSpec(1, None, {}, None)
ON_TOOL = GrantSpec(None, 10, {}, None)
ELSEWHERE = GrantSpec(2, None, {}, None)


def agent(*grants: GrantSpec, capabilities: frozenset[str] = ALL) -> AgentSpec:
    return AgentSpec(1, "ann", capabilities, None, grants)


def endpoint(*grants: GrantSpec, lists_only: bool = False) -> EndpointSpec:
    return EndpointSpec("default", "Default", "", "double", "none", lists_only, True, grants)


@pytest.mark.parametrize(
    ("capabilities", "allowed"),
    [
        ({"mcp_integration"}, True),
        ({"mcp_git"}, True),
        ({"mcp_git_push"}, True),
        ({"mcp_time", "mcp_git_push"}, True),
        (set(), False),
        ({"mcp_time"}, False),
        ({"mcp_git_pull"}, False),
        ({"git"}, False),
        ({"mcp_"}, False),
        ({"MCP_INTEGRATION"}, False),
        ({"mcp_gi"}, False),
        ({"mcp_git_"}, False),
        ({"mcp_git::push"}, True),
        ({"mcp_git::*"}, True),
        ({"mcp_git::pull"}, False),
        ({"mcp_time::*"}, False),
        ({"*"}, False),
    ],
)
def test_any_layer_of_capability_is_enough_and_none_is_not(capabilities: set[str], allowed: bool):
    meant = {
        reading
        for name in capabilities
        for reading in list_unambiguous_readings(name, ["git", "time"], ())
    }
    assert has_capability(agent(capabilities=frozenset(meant)), SERVER, TOOL) is allowed


@pytest.mark.parametrize(
    ("capability", "slugs", "approved", "meant"),
    [
        ("mcp_git_push", ["git"], [], ["mcp_git::push"]),
        ("mcp_git_push", ["git_push"], [], ["mcp_git_push::*"]),
        ("mcp_git_push", ["git", "git_push"], [], ["mcp_git_push::*"]),
        (
            "mcp_git_push",
            ["git", "git_push"],
            [("git", "push")],
            ["mcp_git::push", "mcp_git_push::*"],
        ),
        ("mcp_a_b_c", ["a", "a_b"], [("a_b", "c")], ["mcp_a_b::c"]),
        ("mcp_a_b_c", ["a", "a_b"], [("a_b", "c"), ("a", "b_c")], ["mcp_a::b_c", "mcp_a_b::c"]),
        ("mcp_a_b_c", ["a", "a_b"], [], []),
        ("mcp_git", ["git", "git_push"], [("git", "push")], ["mcp_git::*"]),
        ("mcp_git::push", ["git", "git_push"], [], ["mcp_git::push"]),
        ("mcp_integration", ["git"], [], ["mcp_integration"]),
        ("mcp_nothing", ["git"], [], []),
    ],
)
def test_a_capability_is_read_in_every_way_that_it_can_be(capability, slugs, approved, meant):
    assert list(list_unambiguous_readings(capability, slugs, frozenset(approved))) == meant


GRANTS = [(), (ON_SERVER,), (ON_TOOL,), (ELSEWHERE,), (ELSEWHERE, ON_TOOL)]


@pytest.mark.parametrize(
    ("own", "shown", "lists_only", "able"), [*product(GRANTS, GRANTS, [False, True], [False, True])]
)
def test_a_tool_is_seen_if_every_layer_says_so(
    own: tuple[GrantSpec, ...], shown: tuple[GrantSpec, ...], lists_only: bool, able: bool
):
    who = agent(*own, capabilities=ALL if able else frozenset())
    where = endpoint(*shown, lists_only=lists_only)

    def held(grants: tuple[GrantSpec, ...]) -> bool:
        return ON_SERVER in grants or ON_TOOL in grants

    granted = held(own) and (not lists_only or held(shown))
    assert may_see(who, where, SERVER, TOOL, NOW) is (able and granted)
    assert may_call(who, where, TOOL, {}, NOW) is granted


def test_a_grant_of_one_tool_covers_no_other_and_one_of_a_server_no_other_server():
    assert is_covered_by_grant(ON_TOOL, TOOL)
    assert not is_covered_by_grant(ON_TOOL, OTHER_TOOL)
    assert is_covered_by_grant(ON_SERVER, OTHER_TOOL)
    assert not is_covered_by_grant(ON_SERVER, replace(TOOL, server_id=2))


@pytest.mark.parametrize(
    ("expires_at", "allowed"), [(None, True), (NOW + 0.001, True), (NOW, False), (NOW - 1, False)]
)
def test_a_grant_ends_exactly_when_it_says(expires_at: float | None, allowed: bool):
    timed = replace(ON_SERVER, expires_at=expires_at)
    assert may_see(agent(timed), endpoint(), SERVER, TOOL, NOW) is allowed
    assert may_call(agent(timed), endpoint(), TOOL, {}, NOW) is allowed
    assert may_call(agent(ON_SERVER), endpoint(timed, lists_only=True), TOOL, {}, NOW) is allowed


def test_the_next_end_of_a_grant_is_the_nearest_that_is_still_to_come():
    ends = [replace(ON_SERVER, expires_at=at) for at in (NOW - 1, NOW, NOW + 5, NOW + 2, None)]
    assert find_next_expiry(ends, NOW) == NOW + 2
    assert find_next_expiry([ON_SERVER], NOW) is None


@pytest.mark.parametrize(
    ("pins", "arguments", "met"),
    [
        ({}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {}, False),
        ({"a": 1}, {"b": 1}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": False}, {"a": 0}, False),
        ({"a": 0}, {"a": ""}, False),
        ({"a": None}, {}, False),
        ({"a": None}, {"a": None}, True),
        ({"a": [1, {"b": True}]}, {"a": [1, {"b": True}]}, True),
        ({"a": [1, {"b": True}]}, {"a": [1, {"b": 1}]}, False),
        ({"a": [1]}, {"a": [True]}, False),
        ({"a": {"x": 1}}, {"a": {"x": 1, "y": 2}}, False),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": "docs"}, {"a": "docs "}, False),
        ({"a": "docs"}, {"a": "Docs"}, False),
        ({"a": "docs"}, {"a": ["docs"]}, False),
        ({"a": 1}, {"a": float("nan")}, False),
    ],
)
def test_pinned_arguments_must_be_there_with_exactly_their_value(
    pins: dict[str, Any], arguments: dict[str, Any], met: bool
):
    assert match_pins(pins, arguments) is met
    assert may_call(agent(replace(ON_TOOL, pins=pins)), endpoint(), TOOL, arguments, NOW) is met
    assert (
        may_call(
            agent(ON_TOOL),
            endpoint(replace(ON_TOOL, pins=pins), lists_only=True),
            TOOL,
            arguments,
            NOW,
        )
        is met
    )


def test_one_open_grant_is_enough_beside_a_pinned_one_but_pins_of_two_grants_do_not_mix():
    first = replace(ON_TOOL, pins={"a": 1})
    second = replace(ON_TOOL, pins={"b": 2})
    assert may_call(agent(first, ON_SERVER), endpoint(), TOOL, {"a": 9}, NOW)
    assert not may_call(
        agent(replace(first, pins={"a": 1, "b": 1}), second),
        endpoint(),
        TOOL,
        {"a": 1, "b": 3},
        NOW,
    )


def test_a_pinned_tool_is_listed_because_pins_show_only_in_a_call():
    assert may_see(agent(replace(ON_TOOL, pins={"a": 1})), endpoint(), SERVER, TOOL, NOW)


def test_a_grant_of_a_server_is_of_one_kind_or_of_everything():
    prompt = replace(TOOL, id=12, kind="prompt")  # with the very name of the tool
    granted = {kind: replace(ON_SERVER, kind=kind) for kind in ("tool", "prompt", "")}
    assert [is_covered_by_grant(granted[kind], TOOL) for kind in granted] == [True, False, True]
    assert [is_covered_by_grant(granted[kind], prompt) for kind in granted] == [False, True, True]
    assert is_covered_by_grant(replace(ON_TOOL, tool_id=12), prompt)
    assert not is_covered_by_grant(ON_TOOL, prompt)
    ann = agent(ON_SERVER, granted["prompt"], capabilities=frozenset({"mcp_git::push"}))
    assert may_see(ann, endpoint(), SERVER, TOOL, NOW)
    assert not may_see(ann, endpoint(), SERVER, prompt, NOW)
    assert may_see(
        replace(ann, capabilities=frozenset({"mcp_git::prompt:push"})),
        endpoint(),
        SERVER,
        prompt,
        NOW,
    )


@pytest.mark.parametrize(
    ("pattern", "fits", "not_these"),
    [
        ("http://[::1]/*", ["http://[::1]/", "http://[::1]/a/b"], ["http://1/a", "http://:/a"]),
        (
            "https://api/item?id=*",
            ["https://api/item?id=7"],
            ["https://api/item/id=7", "https://api/itemXid=7"],
        ),
        (
            "file:///docs/*",
            ["file:///docs/a/b"],
            ["file:///DOCS/a", "file:///docs", "xfile:///docs/a"],
        ),
        ("file:///docs", ["file:///docs"], ["file:///docs/", "file:///docs/a"]),
    ],
)
def test_only_the_star_of_a_granted_uri_stands_for_anything(
    pattern: str, fits: list[str], not_these: list[str]
):
    template = ToolSpec(12, 1, "{+uri}", "t", {"uriTemplate": "{+uri}"}, False, kind="template")
    holder = agent(GrantSpec(1, None, {}, None, "", pattern))
    for uri in (*fits, *not_these):
        fixed = ToolSpec(13, 1, uri, "f", {"uri": uri}, False, kind="resource")
        assert may_call(holder, endpoint(), template, {"uri": uri}, NOW) is (uri in fits)
        assert may_see(holder, endpoint(), SERVER, fixed, NOW) is (uri in fits)


@pytest.mark.parametrize(
    ("own", "shown", "known", "expected"),
    [
        ([{"repo": "x"}], None, {}, {"repo": "x"}),
        ([{"repo": "x"}], None, {"repo": "x"}, {}),
        ([{"repo": "x"}], None, {"repo": "y"}, None),
        ([{"repo": "x"}, {}], None, {}, {}),
        ([{"repo": "x"}, {"repo": "y"}], None, {}, None),
        ([{"repo": "x"}, {"repo": "y"}], None, {"repo": "y"}, {}),
        ([{"repo": "x", "typed": 1}, {"repo": "x", "typed": 2}], None, {}, {"repo": "x"}),
        ([{"repo": "x"}], [{"branch": "main"}], {}, {"repo": "x", "branch": "main"}),
        ([{"repo": "x"}], [{"repo": "y"}], {}, None),
        ([], None, {}, None),
    ],
)
def test_what_grants_pin_of_arguments_that_nobody_has_given_yet(own, shown, known, expected):
    who = agent(*(replace(ON_TOOL, pins=pins) for pins in own))
    where = endpoint(
        *(replace(ON_TOOL, pins=pins) for pins in shown or ()), lists_only=shown is not None
    )
    assert find_implied_arguments(who, where, TOOL, known, typed="typed", now=NOW) == expected
