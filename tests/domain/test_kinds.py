"""How a prompt is told from a tool: by a spelling that no name can imitate, and by what its
arguments must fit."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpregistry.domain.definitions.definition import hash_definition
from mcpregistry.domain.definitions.naming import map_exposed_uris, split_exposed_uri
from mcpregistry.domain.errors import ArgumentsInvalid
from mcpregistry.domain.offer_kinds import (
    KINDS,
    build_arguments_schema,
    parse_offer_key,
    spell_offer_key,
)
from mcpregistry.domain.policy.decision import PolicyQuestion, RuleOutcome
from mcpregistry.domain.policy.rules import Rules, RuleSpec
from mcpregistry.domain.schema.validation import check_arguments
from mcpregistry.domain.snapshot_specs import AgentSpec, EndpointSpec, ServerSpec, ToolSpec

ODD = [
    "review",
    "prompt:review",
    "tool:review",
    "tool:prompt:review",
    ":",
    "",
    "prompt:",
    "other:x",
    "a:b:c",
    "prompt",
]


def test_every_name_of_every_kind_has_a_spelling_of_its_own():
    pairs = [*product(KINDS, ODD)]
    assert len({spell_offer_key(*pair) for pair in pairs}) == len(pairs)
    assert [parse_offer_key(spell_offer_key(*pair)) for pair in pairs] == pairs
    assert (spell_offer_key("tool", "review"), spell_offer_key("prompt", "review")) == (
        "review",
        "prompt:review",
    )


@given(st.sampled_from([*KINDS]), st.text())
def test_reading_undoes_spelling(kind: str, name: str):
    assert parse_offer_key(spell_offer_key(kind, name)) == (kind, name)


def test_a_prompt_and_a_tool_that_say_the_same_are_two_definitions():
    same = {"name": "review", "description": "d"}
    assert hash_definition(same) != hash_definition(same, kind="prompt")
    # What the server says of its tools is no part of a prompt.
    assert hash_definition(same, "Use it.") != hash_definition(same)
    assert hash_definition(same, "Use it.", "prompt") == hash_definition(same, kind="prompt")


PROMPT = {"name": "review", "arguments": [{"name": "path", "required": True}, {"name": "tone"}]}


@pytest.mark.parametrize("arguments", [{}, {"tone": "x"}, {"path": 1}, {"path": "a", "more": "x"}])
def test_arguments_of_prompts_are_texts_of_those_that_are_listed(arguments):
    schema = build_arguments_schema("prompt", PROMPT)
    check_arguments(schema, {"path": "a", "tone": "b"})
    with pytest.raises(ArgumentsInvalid):
        check_arguments(schema, arguments)


def test_rules_see_the_kind():
    tool = ToolSpec(1, 1, "review", "h", {}, False)
    prompt = ToolSpec(2, 1, "review", "h2", PROMPT, False, kind="prompt")
    rules = Rules(
        [RuleSpec(1, "no prompts", 1, RuleOutcome.DENY, condition='tool.kind == "prompt"')],
        RuleOutcome.ALLOW,
    )
    ann = AgentSpec(1, "ann", frozenset(), None, ())
    door = EndpointSpec("d", "", "", "double", "none", False, True, ())
    git = ServerSpec(1, "git", "", 1, "stdio", "lazy", 30.0, 1024, True)
    assert [rules(PolicyQuestion(ann, door, git, each, {})).outcome for each in (tool, prompt)] == [
        "allow",
        "deny",
    ]


@pytest.mark.parametrize(
    ("template", "makes", "not_these"),
    [
        (
            "repo://{owner}/issues/{n}",
            ["repo://me/issues/7"],
            ["repo://me/issues/7/x", "repo:///issues/7", "xrepo://me/issues/7"],
        ),
        ("file:///{+path}", ["file:///a/b", "file:///x"], ["file:///", "http:///a"]),
        ("files://{path*}", ["files://a/b"], ["files://"]),
        ("log://x.y{?since}", ["log://x.y", "log://x.y?since=1"], ["log://xzy"]),
        ("odd://a(b)[c]$^|\\{n}", ["odd://a(b)[c]$^|\\1"], ["odd://ab"]),
    ],
)
def test_a_template_serves_what_it_can_make(template: str, makes: list[str], not_these: list[str]):
    schema = build_arguments_schema("template", {"uriTemplate": template})
    for uri in makes:
        check_arguments(schema, {"uri": uri})
    for uri in not_these:
        with pytest.raises(ArgumentsInvalid):
            check_arguments(schema, {"uri": uri})


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../etc/passwd",
        "docs/../etc",
        "docs/./x",
        "docs/..",
        "docs/%2e%2e/etc",
        "docs%2F..%2Fetc",
        "docs\\..\\etc",
        "docs/%65tc",
        "docs/%252e%252e/x",
        "docs/?at=../x",
        "docs/x\n",
        "docs/x\0",
    ],
)
def test_a_template_serves_no_uri_that_hides_where_it_leads(path: str):
    for template in (
        "file:///{+path}",
        "file:///{path}",
        "file:///docs/{name}",
        "file:///docs/x{?at}",
        "{+uri}",
    ):
        with pytest.raises(ArgumentsInvalid):
            check_arguments(
                build_arguments_schema("template", {"uriTemplate": template}),
                {"uri": f"file:///{path}"},
            )


@pytest.mark.parametrize(
    "path", ["a..b", "...", ".git/config", "a%20b", "%C3%A9", "a/b.c?x=1..2", "100%25"]
)
def test_a_template_serves_uris_that_are_only_unusual(path: str):
    schema = build_arguments_schema("template", {"uriTemplate": "file:///{+path}"})
    check_arguments(schema, {"uri": f"file:///{path}"})


def test_uris_that_two_servers_have_are_shown_with_their_server_and_read_back():
    pairs = [("a", "x://1"), ("b", "x://1"), ("a", "x://2"), ("b", "slipsnisse://a/x://1")]
    shown = map_exposed_uris(pairs)
    assert shown["a", "x://2"] == "x://2"
    assert len({*shown.values()}) == len(pairs)
    assert split_exposed_uri(shown["b", "x://1"]) == ("b", "x://1")
    assert split_exposed_uri(shown["b", "slipsnisse://a/x://1"]) == ("b", "slipsnisse://a/x://1")


def test_what_belongs_to_the_content_is_no_part_of_a_resources_definition():
    listed = {
        "uri": "x://1",
        "name": "n",
        "size": 1,
        "annotations": {"audience": ["user"], "lastModified": "2026-01-01"},
    }
    later = listed | {
        "size": 2,
        "annotations": {"audience": ["user"], "lastModified": "2026-02-01"},
    }
    assert hash_definition(listed, kind="resource") == hash_definition(later, kind="resource")
    assert hash_definition(listed, kind="resource") != hash_definition(
        listed | {"mimeType": "text/html"}, kind="resource"
    )
