"""Exposed names: legal, short, unique, stable, and looked up whole."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcpregistry.domain.definitions.naming import (
    MAX_NAME,
    list_long_names,
    map_exposed_names,
    prefix_description,
)

STYLES = ["double", "single", "mcp_single", "mcp_double", "plain"]
LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
# Few letters, so that collisions are common.
SLUG = st.text(alphabet="ab_-.", min_size=1, max_size=6) | st.text(
    alphabet="a", min_size=55, max_size=63
)
TOOL = st.text(alphabet="abc_ -./é\U0001f600\x00", max_size=8) | st.text(min_size=50, max_size=80)
PAIRS = st.sets(st.tuples(SLUG, TOOL), max_size=12)


def suffix(server: str, tool: str, digits: int = 8) -> str:
    return hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()[:digits]


@given(PAIRS, st.sampled_from(STYLES))
@example({("a__b", "c"), ("a", "b__c")}, "double")
@example({("a", "x y"), ("a", "x_y"), ("a", f"x_y_{suffix('a', 'x y')}")}, "double")
@example({("a", "x"), ("b", "x"), ("c", f"x_{suffix('a', 'x')}")}, "plain")
def test_every_tool_has_a_legal_name_of_its_own(pairs: set[tuple[str, str]], style: str):
    names = map_exposed_names(pairs, style)
    assert set(names) == pairs
    assert len(set(names.values())) == len(pairs)
    assert all(LEGAL.match(name) for name in names.values())


@given(PAIRS, st.sampled_from(STYLES))
def test_names_do_not_depend_on_the_order(pairs: set[tuple[str, str]], style: str):
    assert map_exposed_names(sorted(pairs), style) == map_exposed_names(
        sorted(pairs, reverse=True), style
    )


@given(PAIRS, PAIRS, st.sampled_from(STYLES))
def test_a_tool_keeps_its_name_unless_another_wants_the_same(
    pairs: set[tuple[str, str]], more: set[tuple[str, str]], style: str
):
    before = map_exposed_names(pairs, style)
    after = map_exposed_names(pairs | more, style)
    for pair, name in before.items():
        assert after[pair] == name or after[pair].endswith((suffix(*pair), suffix(*pair, 32)))


@pytest.mark.parametrize(
    ("style", "name"),
    [
        ("double", "git__status"),
        ("single", "git_status"),
        ("mcp_single", "mcp_git_status"),
        ("mcp_double", "mcp__git__status"),
        ("plain", "status"),
    ],
)
def test_every_style(style: str, name: str):
    assert map_exposed_names([("git", "status")], style) == {("git", "status"): name}


@pytest.mark.attack
@pytest.mark.parametrize("pairs", [[("a__b", "c"), ("a", "b__c")], [("a", "b__c"), ("a__b", "c")]])
def test_colliding_names_both_get_a_suffix_in_either_order(pairs: list[tuple[str, str]]):
    assert map_exposed_names(pairs, "double") == {
        pair: f"a__b__c_{suffix(*pair)}" for pair in pairs
    }


@pytest.mark.attack
def test_a_server_cannot_take_the_name_that_another_ones_tool_was_given():
    long = "x" * 80
    given_name = map_exposed_names([("good", long)], "plain")["good", long]
    names = map_exposed_names([("good", long), ("evil", given_name)], "plain")
    assert names["good", long] == given_name
    assert names["evil", given_name] != given_name


@pytest.mark.attack
def test_a_suffix_that_was_made_to_collide_becomes_longer(monkeypatch: pytest.MonkeyPatch):
    class Colliding:
        def __init__(self, raw: bytes) -> None:
            self.hex = "0" * 8 + hashlib.md5(raw).hexdigest()

        def hexdigest(self) -> str:
            return self.hex

    monkeypatch.setattr("mcpregistry.domain.definitions.naming.hashlib.sha256", Colliding)
    names = map_exposed_names([("a", "x y"), ("a", "x_y")], "double")
    assert len(set(names.values())) == 2
    assert all(LEGAL.match(name) for name in names.values())


@pytest.mark.parametrize("tool", ["ünïcode", "日本語", "a.b", "a/b", "a b", "\u202e", "'; DROP"])
def test_illegal_characters_become_underscores(tool: str):
    name = map_exposed_names([("s", tool)], "double")["s", tool]
    assert LEGAL.match(name)
    assert name.startswith("s__")


def test_a_name_of_64_characters_is_kept_and_one_of_65_is_shortened():
    fits = "t" * (MAX_NAME - 3)
    long = "t" * (MAX_NAME - 2)
    names = map_exposed_names([("s", fits), ("s", long)], "double")
    assert names["s", fits] == f"s__{fits}"
    assert len(names["s", long]) == MAX_NAME
    assert names["s", long].endswith(suffix("s", long))


def test_descriptions_say_whose_the_tool_is_where_asked():
    assert prefix_description("Do.", server="git", style="none") == "Do."
    assert prefix_description("Do.", server="git", style="bracket") == "[git] Do."
    assert prefix_description("Do.", server="git", style="mcp_bracket") == "[MCP:git] Do."


def test_the_records_offer_exactly_these_styles():
    from mcpregistry.models.access import NamingStyle

    assert [style.value for style in NamingStyle] == STYLES


def test_names_that_some_host_would_change_are_told():
    assert list_long_names(["a" * 55, "b" * 56, "c" * 64]) == ["b" * 56, "c" * 64]
