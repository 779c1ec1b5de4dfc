"""Definitions that no host could read, as hosts get them. Each case was met in a server in use."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import _v2025_11_25 as older
from mcp_types import _v2026_07_28 as newer

from mcpregistry.domain.definitions.definition import select_visible_fields, strip_instructions
from mcpregistry.domain.errors import ArgumentsInvalid, ConfigInvalid
from mcpregistry.domain.host_definitions import (
    MemberChange,
    check_call,
    check_tool_is_usable,
    compare_members,
    list_changes,
    repair_definition,
)
from mcpregistry.domain.schema.repair import repair_schema
from mcpregistry.domain.schema.validation import check_schema

OBJECT = {"type": "object"}
MODELS = {
    "tool": "Tool",
    "prompt": "Prompt",
    "resource": "Resource",
    "template": "ResourceTemplate",
}
LISTED: dict[str, dict[str, Any]] = {
    "tool": {"name": "a", "inputSchema": OBJECT},
    "prompt": {"name": "a"},
    "resource": {"uri": "x://a", "name": "a"},
    "template": {"uriTemplate": "x://{a}", "name": "a"},
}


def shown(kind: str, listed: dict[str, Any]) -> dict[str, Any]:
    """What hosts get of what is listed; the models of both versions of the protocol accept it."""
    found = repair_definition(
        kind, strip_instructions(select_visible_fields(listed, kind=kind))
    ).definition
    for version in (older, newer):
        output = found.get("outputSchema", OBJECT)
        whole = (
            found
            if version is newer or output.get("type") == "object"
            else {**found, "outputSchema": OBJECT}
        )
        getattr(version, MODELS[kind]).model_validate(whole)
    return dict(found)


def with_properties(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


SAME = [
    OBJECT,
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **with_properties(a={"items": [OBJECT], "additionalItems": False}),
    },
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **with_properties(a={"type": "string"}),
    },
    with_properties(
        a={"type": ["string", "null"]},
        b=True,
        c={},
        d={"enum": [None, 1]},
        e={"const": None, "default": None},
    ),
    {"$defs": {"Q": OBJECT}, **with_properties(q={"$ref": "#/$defs/Q"})},
    {
        "$defs": {"N": with_properties(kids={"type": "array", "items": {"$ref": "#/$defs/N"}})},
        **with_properties(r={"$ref": "#/$defs/N"}),
    },
    with_properties(status={"enum": ["a"]}, filter={"items": {"$ref": "#/properties/status"}}),
    {
        "type": "object",
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        **with_properties(a={}, b={}),
    },
    with_properties(
        p={"type": "string", "pattern": r"^(?=.*[A-Z])(?=.*\d).{8,}$"},
        q={"pattern": "(?i)^[a-z]+$"},
    ),
    {
        "$id": "https://tools.example/tool.json",
        "$schema": "http://json-schema.org/draft-07/schema#",
        **OBJECT,
    },
    with_properties(
        n={
            "type": "integer",
            "minimum": 0,
            "exclusiveMaximum": 10.5,
            "multipleOf": 2,
            "x-unit": "s",
        }
    ),
    {
        "type": "object",
        "additionalProperties": False,
        "required": ["名前"],
        "properties": {"名前": {"type": "string"}, "a b": {}},
    },
]


@pytest.mark.parametrize("schema", SAME, ids=range(len(SAME)))
def test_a_schema_that_can_be_used_is_the_same_object(schema: dict[str, Any]):
    assert repair_schema(schema).schema is schema
    listed = {"name": "a", "inputSchema": schema}
    assert repair_definition("tool", listed).definition is listed


ONE_MEANING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing required": ({**OBJECT, "required": None}, OBJECT),
    "no properties in Go": ({**OBJECT, "properties": None}, with_properties()),
    "no properties in PHP": ({**OBJECT, "properties": []}, with_properties()),
    "no choices": ({**OBJECT, "anyOf": None, "oneOf": [], "items": None}, OBJECT),
    "exclusive as in draft-04": (
        with_properties(
            n={"minimum": 0, "exclusiveMinimum": True, "maximum": 5, "exclusiveMaximum": False}
        ),
        with_properties(n={"exclusiveMinimum": 0, "maximum": 5}),
    ),
    "draft-04": ({"$schema": "http://json-schema.org/draft-04/schema#", **OBJECT}, OBJECT),
    "required in the property": (
        with_properties(a={"type": "string", "required": True}, b={"required": False}),
        {**with_properties(a={"type": "string"}, b={}), "required": ["a"]},
    ),
    "required as a text": ({**OBJECT, "required": "a"}, {**OBJECT, "required": ["a"]}),
    "required twice": ({**OBJECT, "required": ["a", "a", None]}, {**OBJECT, "required": ["a"]}),
    "a type of Python": (
        with_properties(a={"type": "str"}, b={"type": ["int", "None"]}),
        with_properties(a={"type": "string"}, b={"type": ["integer", "null"]}),
    ),
    "a type in capitals": (
        with_properties(a={"type": "STRING"}),
        with_properties(a={"type": "string"}),
    ),
    "references to this inner schema": (
        with_properties(node={"$id": "T0", **with_properties(kids={"items": {"$ref": "T0"}})}),
        with_properties(node=with_properties(kids={"items": {"$ref": "#/properties/node"}})),
    ),
    "a reference within it": (
        with_properties(
            node={"$id": "T0", "$defs": {"x": OBJECT}, **with_properties(a={"$ref": "#/$defs/x"})}
        ),
        with_properties(
            node={
                "$defs": {"x": OBJECT},
                **with_properties(a={"$ref": "#/properties/node/$defs/x"}),
            }
        ),
    ),
    "the address of the whole": (
        {
            "$id": "https://t.example/a",
            "$defs": {"x": OBJECT},
            **with_properties(a={"$ref": "https://t.example/a#/$defs/x"}),
        },
        {
            "$id": "https://t.example/a",
            "$defs": {"x": OBJECT},
            **with_properties(a={"$ref": "#/$defs/x"}),
        },
    ),
    "a list of items": (
        with_properties(a={"items": [OBJECT, {}], "additionalItems": False}),
        with_properties(a={"prefixItems": [OBJECT, {}], "items": False}),
    ),
    "the older word for definitions": (
        {"$defs": {"x": OBJECT}, **with_properties(a={"$ref": "#/definitions/x"})},
        {"$defs": {"x": OBJECT}, **with_properties(a={"$ref": "#/$defs/x"})},
    ),
}


@pytest.mark.parametrize("case", ONE_MEANING)
def test_what_can_mean_one_thing_only_is_written_so(case: str):
    said, read = ONE_MEANING[case]
    assert repair_schema(said).schema == read
    check_schema(read)


LESS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a reference that leads nowhere": (
        with_properties(s={"$ref": "#/$defs/No", "title": "S"}),
        with_properties(s={"title": "S"}),
    ),
    "a reference to elsewhere": (
        with_properties(s={"$ref": "https://s.example/s.json"}),
        with_properties(s={}),
    ),
    "what stood beside it": (
        with_properties(s={"$ref": "#/no", "additionalProperties": False}),
        with_properties(s={}),
    ),
    "not a valid type": (
        with_properties(a={"type": "any"}, b={"type": ["string", "file"]}),
        with_properties(a={}, b={}),
    ),
    "not a valid pattern": (
        with_properties(p={"type": "string", "pattern": "[a-"}),
        with_properties(p={"type": "string"}),
    ),
    "a property that is not a schema": (
        with_properties(a="string", b=[1]),
        with_properties(a={}, b={}),
    ),
    "one of several": ({**OBJECT, "oneOf": [{"$ref": "#/no"}, {"required": ["a"]}]}, OBJECT),
    "what must not be": ({**OBJECT, "not": {"properties": {"a": {"$ref": "#/no"}}}}, OBJECT),
    "a condition": (
        {**OBJECT, "if": {"$ref": "#/no"}, "then": {"required": ["a"]}},
        {**OBJECT, "then": {"required": ["a"]}},
    ),
    "the rest of all": (
        {**OBJECT, "allOf": [{"$ref": "#/no"}], "unevaluatedProperties": False},
        {**OBJECT, "allOf": [{}]},
    ),
    "numbers that are none": (
        with_properties(n={"minimum": "0", "maxLength": -1, "multipleOf": 0}),
        with_properties(n={}),
    ),
}


@pytest.mark.parametrize("case", LESS)
def test_what_cannot_be_checked_is_left_out_of_the_schema_and_said(case: str):
    said, read = LESS[case]
    found = repair_schema(said)
    assert found.schema == read
    assert found.remarks
    check_schema(found.schema)


ROOTS: list[Any] = [
    {"properties": {"a": {}}},
    {},
    {"oneOf": [OBJECT, {"required": ["b"]}]},
    {"type": ["object", "null"]},
    None,
    [],
    True,
    "x",
]


@pytest.mark.parametrize("schema", ROOTS, ids=str)
def test_arguments_are_always_an_object(schema: Any):
    assert not check_tool_is_usable({"name": "a", "inputSchema": schema})
    assert shown("tool", {"name": "a", "inputSchema": schema})["inputSchema"]["type"] == "object"


def test_a_tool_whose_arguments_are_no_object_is_left_out():
    assert "type array" in check_tool_is_usable({"name": "a", "inputSchema": {"type": "array"}})


MEMBERS: list[tuple[str, Any, Any]] = [
    ("title", 5, None),
    ("description", {"en": "x"}, None),
    ("_meta", [], None),
    ("icons", "x", None),
    ("icons", [{"sizes": "any"}], None),
    (
        "icons",
        {"src": "https://i.example/a.png", "sizes": "any", "theme": "blue"},
        [{"src": "https://i.example/a.png", "sizes": ["any"]}],
    ),
    ("annotations", "x", None),
    (
        "annotations",
        {"readOnlyHint": None, "title": None, "destructiveHint": "yes", "priority": 3, "x": 1},
        {"x": 1},
    ),
]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(("member", "said", "read"), MEMBERS, ids=range(len(MEMBERS)))
def test_a_member_of_the_wrong_type_costs_no_more_than_itself(
    kind: str, member: str, said: Any, read: Any
):
    listed = LISTED[kind] | {member: said}
    found = shown(kind, listed)
    if member in select_visible_fields(listed, kind=kind):
        assert found.get(member) == read
        assert any(
            member in change
            for change in list_changes(kind, select_visible_fields(listed, kind=kind))
        )


def test_how_a_tool_is_run_and_who_needs_which_argument_are_put_right():
    assert (
        shown("tool", LISTED["tool"] | {"execution": {"taskSupport": "maybe"}})["execution"] == {}
    )
    assert "execution" not in shown("tool", LISTED["tool"] | {"execution": "x"})
    arguments = [
        {"name": "a", "required": "true", "description": 5},
        {"name": "b", "required": None},
    ]
    assert shown("prompt", {"name": "p", "arguments": arguments})["arguments"] == [
        {"name": "a", "required": True},
        {"name": "b", "required": False},
    ]


@pytest.mark.parametrize("kind", ["resource", "template"])
def test_what_has_no_name_is_called_by_its_uri(kind: str):
    listed = {key: value for key, value in LISTED[kind].items() if key != "name"}
    assert shown(kind, listed)["name"] == next(iter(listed.values()))


OUTPUTS: dict[str, tuple[Any, Any]] = {
    "leads nowhere": (with_properties(s={"$ref": "#/$defs/No"}), with_properties(s={})),
    "an address of its own": ({"$id": "https://t.example/a", **OBJECT}, OBJECT),
    "not a schema": ([], None),
    "an unknown dialect": ({"$schema": "https://d.example/x", **OBJECT}, OBJECT),
    "an anchor twice": (with_properties(a={"$anchor": "x"}, b={"$anchor": "x"}), None),
    "two anchors": (
        with_properties(a={"$anchor": "x"}, b={"$anchor": "y"}),
        with_properties(a={"$anchor": "x"}, b={"$anchor": "y"}),
    ),
    "a pattern of Python": (with_properties(p={"pattern": "(?i)^a"}), None),
    "an escape that JavaScript refuses": (with_properties(p={"pattern": r"^\-\_$"}), None),
    "a plain pattern": (
        with_properties(p={"pattern": r"^(?:\d+|[a-z_-]{2,})\.$"}),
        with_properties(p={"pattern": r"^(?:\d+|[a-z_-]{2,})\.$"}),
    ),
    "a property called pattern": (
        with_properties(pattern={"type": "string"}),
        with_properties(pattern={"type": "string"}),
    ),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_a_schema_of_results_is_shown_as_far_as_every_host_compiles_it(case: str):
    said, read = OUTPUTS[case]
    assert shown("tool", LISTED["tool"] | {"outputSchema": said}).get("outputSchema") == read


def test_a_call_is_checked_where_the_schema_can_be_used_and_passed_on_where_it_cannot():
    usable = repair_definition(
        "tool", LISTED["tool"] | {"inputSchema": with_properties(n={"type": "int"})}
    ).definition
    assert check_call("tool", usable, {"n": 1})
    with pytest.raises(ArgumentsInvalid, match="/n"):
        check_call("tool", usable, {"n": "x"})
    node = {"$ref": "#/$defs/a"}
    tangled = {
        **OBJECT,
        "$defs": {"a": {"anyOf": [node, node]}},
        **with_properties(a=node),
    }  # refers to itself in a circle
    listed = LISTED["tool"] | {"inputSchema": tangled}
    assert not check_call("tool", repair_definition("tool", listed).definition, {"a": 1})
    assert "only the server checks its arguments" in list_changes("tool", listed)[-1]


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["object", "string", "#/$defs/a", "a", "", "[", "true"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "type"]), inner, max_size=3)
    ),
    max_leaves=6,
)
WORDS = (
    "type",
    "properties",
    "required",
    "items",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "$ref",
    "$id",
    "$defs",
    "enum",
    "const",
    "pattern",
    "patternProperties",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "additionalProperties",
    "unevaluatedProperties",
    "dependencies",
    "dependentRequired",
    "prefixItems",
    "contains",
    "nullable",
    "title",
    "$schema",
    "format",
    "uniqueItems",
)
SCHEMAS = st.recursive(
    ANYTHING,
    lambda inner: st.dictionaries(
        st.sampled_from(WORDS),
        inner
        | st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
        max_size=4,
    ),
    max_leaves=8,
)


def why_unusable(schema: dict[str, Any]) -> str:
    try:
        check_schema(schema)
    except ConfigInvalid as error:
        return error.message
    return ""


@given(SCHEMAS)
def test_every_schema_becomes_one_that_needs_no_more_repair(said: Any):
    found = repair_definition("tool", {"name": "a", "inputSchema": said}).definition["inputSchema"]
    assert repair_schema(found).schema == found
    said_why = why_unusable(found)  # what we refuse to check is known: too much work, or a circle
    assert not said_why or any(
        why in said_why
        for why in ("in a circle", "too many branches", "chain of references is too long")
    )


@given(
    st.sampled_from(sorted(MODELS)),
    st.dictionaries(
        st.sampled_from(
            (
                "title",
                "description",
                "icons",
                "annotations",
                "_meta",
                "execution",
                "mimeType",
                "size",
                "outputSchema",
                "inputSchema",
            )
        ),
        SCHEMAS,
        max_size=5,
    ),
)
def test_every_definition_becomes_one_that_every_host_accepts(kind: str, said: dict[str, Any]):
    listed = LISTED[kind] | said
    if kind != "tool" or not check_tool_is_usable(listed):
        shown(kind, listed)


def test_members_that_hosts_get_in_another_form_are_listed_with_both_forms() -> None:
    listed = {"name": "a", "inputSchema": {"properties": {"b": {"$ref": "#/nowhere"}}}, "icons": 5}
    schema, icons = compare_members("tool", listed)
    assert (schema.name, schema.listed) == ("inputSchema", listed["inputSchema"])
    assert schema.shown == {"properties": {"b": {}}, "type": "object"}
    assert all(reason.startswith("inputSchema") for reason in schema.reasons)
    assert icons == MemberChange("icons", 5, None, ("icons does not follow the MCP specification",))
    assert compare_members("tool", {"name": "a", "inputSchema": {"type": "object"}}) == []
    (named,) = compare_members("resource", {"uri": "file:///a"})[:1]
    assert (named.name, named.listed, named.shown) == ("name", None, "file:///a")


def test_change_that_is_about_no_member_is_listed_last() -> None:
    circle = {"type": "object", "$ref": "#"}
    assert compare_members("tool", {"name": "a", "inputSchema": circle})[-1].name == ""
