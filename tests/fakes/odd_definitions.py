"""Definitions that servers in use list, and that hosts on the official clients refuse or cannot use
as they are.

The name of each describes the case, so that a failing test names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

Item = dict[str, Any]
OBJECT = {"type": "object"}
DRAFT_04 = "http://json-schema.org/draft-04/schema#"
DRAFT_07 = "http://json-schema.org/draft-07/schema#"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


def _properties(**properties: Any) -> Item:
    return {"type": "object", "properties": properties}


# Each schema, and arguments that are right for it.
SCHEMAS: Mapping[str, tuple[Item, Item]] = {
    "definitions": (
        {
            "$defs": {
                "Query": _properties(
                    ids={"type": "array", "default": None}, limit={"type": "integer"}
                )
            },
            **_properties(query={"$ref": "#/$defs/Query"}),
            "required": ["query"],
        },
        {"query": {"limit": 5}},
    ),
    "recursion": (
        {
            "$defs": {
                "Node": _properties(kids={"type": "array", "items": {"$ref": "#/$defs/Node"}})
            },
            **_properties(root={"$ref": "#/$defs/Node"}),
        },
        {"root": {"kids": [{"kids": []}]}},
    ),
    "reference_to_a_property": (
        _properties(
            status={"enum": ["a", "b"]},
            wanted={"type": "array", "items": {"$ref": "#/properties/status"}},
        ),
        {"wanted": ["a"]},
    ),
    "dangling_reference": (_properties(a={"$ref": "#/$defs/Nowhere"}), {"a": "x"}),
    "reference_at_the_root": (
        {
            "$ref": "#/components/schemas/C",
            "components": {"schemas": {"C": _properties(m={"type": "string"})}},
        },
        {"m": "x"},
    ),
    "external_reference": (_properties(a={"$ref": "https://example.invalid/s.json"}), {"a": 1}),
    "nested_id": (
        _properties(
            node={"$id": "T0", **_properties(kids={"type": "array", "items": {"$ref": "T0"}})}
        ),
        {"node": {"kids": [{"kids": []}]}},
    ),
    "id_at_the_root": (
        {
            "$id": "https://example.invalid/tool.json",
            "$schema": DRAFT_07,
            **_properties(a={"type": "string"}),
        },
        {"a": "x"},
    ),
    "draft_04_bound": (
        _properties(ttl={"type": "integer", "minimum": 0, "exclusiveMinimum": True}),
        {"ttl": 5},
    ),
    "draft_04_bound_declared": (
        {
            "$schema": DRAFT_04,
            **_properties(ttl={"type": "integer", "minimum": 0, "exclusiveMinimum": True}),
        },
        {"ttl": 5},
    ),
    "draft_04_bound_in_2020": (
        {
            "$schema": DRAFT_2020,
            **_properties(ttl={"type": "integer", "minimum": 0, "exclusiveMinimum": True}),
        },
        {"ttl": 5},
    ),
    "required_property": (_properties(a={"type": "string", "required": True}), {"a": "x"}),
    "type_any": (_properties(a={"type": "any"}), {"a": [1]}),
    "nullable": (_properties(a={"type": "string", "nullable": True}), {"a": "x"}),
    "list_of_types": (_properties(a={"type": ["string", "null"]}), {"a": None}),
    "boolean_schema": (_properties(a=True, b={}), {"a": 1, "b": None}),
    "no_type": ({"properties": {"a": {"type": "string"}}}, {"a": "x"}),
    "empty": ({}, {"a": 1}),
    "only_type": (OBJECT, {"a": 1}),
    "required_null": ({**_properties(a={}), "required": None}, {"a": 1}),
    "properties_null": ({"type": "object", "properties": None}, {"a": 1}),
    "properties_list": ({"type": "object", "properties": []}, {"a": 1}),
    "any_of_at_the_root": (
        {**_properties(a={}, b={}), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"b": 1},
    ),
    "one_of_without_type": (
        {
            "oneOf": [
                {**_properties(a={"type": "string"}), "required": ["a"]},
                {**_properties(b={"type": "integer"}), "required": ["b"]},
            ]
        },
        {"a": "x"},
    ),
    "all_of_reference": (
        {
            **OBJECT,
            "allOf": [{"$ref": "#/$defs/B"}, _properties(title={"type": "string"})],
            "$defs": {"B": {**_properties(id={"type": "string"}), "required": ["id"]}},
        },
        {"id": "x", "title": "t"},
    ),
    "look_ahead": (
        _properties(p={"type": "string", "pattern": r"^(?=.*[A-Z])(?=.*\d).{8,}$"}),
        {"p": "Abcdefg1"},
    ),
    "inline_flag": (_properties(p={"type": "string", "pattern": "(?i)^[a-z]+$"}), {"p": "Abc"}),
    "bad_pattern": (_properties(p={"type": "string", "pattern": "[a-"}), {"p": "x"}),
    "names_in_any_script": (
        {**_properties(名前={"type": "string"}, **{"$top": {}}), "required": ["名前"]},
        {"名前": "x"},
    ),
    "list_of_types_at_the_root": (
        {"type": ["object", "null"], "properties": {"a": {"type": "string"}}},
        {"a": "x"},
    ),
}
# Schemas of results that ajv cannot compile, or that do not describe an object.
RESULT_SCHEMAS: Mapping[str, Any] = {
    **{f"result_{name}": schema for name, (schema, _) in SCHEMAS.items()},
    "result_named_group": _properties(p={"type": "string", "pattern": "(?P<x>a)"}),
    "result_atomic_group": _properties(p={"type": "string", "pattern": "(?>a)"}),
    "result_pattern_property": {"type": "object", "patternProperties": {"(?i)a": {}}},
    "result_reference_to_no_schema": _properties(a={"$ref": "#/properties"}),
    "result_unknown_dialect": {"$schema": "https://example.invalid/dialect", **OBJECT},
    "result_draft_06": {"$schema": "http://json-schema.org/draft-06/schema#", **OBJECT},
    "result_draft_2019": {"$schema": "https://json-schema.org/draft/2019-09/schema", **OBJECT},
    "result_unknown_format": _properties(a={"type": "string", "format": "made-up"}),
    "result_unknown_keyword": {**OBJECT, "example": 1, "x-order": [1]},
    "result_anchor_twice": _properties(a={"$anchor": "x"}, b={"$anchor": "x"}),
    "result_id_twice": _properties(a={"$id": "x"}, b={"$id": "x"}),
    "result_root_id_again": {
        "$id": "https://example.invalid/tool.json",
        **_properties(b={"type": "integer"}),
    },
    "result_array": {"type": "array", "items": {}},
    "result_text": {"type": "string"},
    "result_null": None,
    "result_boolean": True,
    "result_list": [],
}
ICON = {"src": "https://example.com/i.png"}
MEMBERS: Mapping[str, Item] = {
    "title_number": {"title": 5},
    "title_null": {"title": None},
    "description_number": {"description": 5},
    "description_null": {"description": None},
    "icons_object": {"icons": ICON},
    "icons_null": {"icons": None},
    "icons_text": {"icons": "https://example.com/i.png"},
    "icons_without_source": {"icons": [{"mimeType": "image/png"}, None, 5]},
    "icons_sizes_text": {"icons": [ICON | {"sizes": "48x48"}]},
    "icons_sizes_number": {"icons": [ICON | {"sizes": [48]}]},
    "icons_theme": {"icons": [ICON | {"theme": "blue"}]},
    "annotations_text": {"annotations": "read-only"},
    "annotations_list": {"annotations": []},
    "annotations_null": {"annotations": None},
    "annotations_nulls": {
        "annotations": {"title": None, "readOnlyHint": None, "destructiveHint": None}
    },
    "annotations_texts": {"annotations": {"title": 5, "readOnlyHint": "true", "openWorldHint": 1}},
    "annotations_audience": {
        "annotations": {"audience": "user", "priority": "high", "lastModified": 5}
    },
    "meta_list": {"_meta": []},
    "meta_null": {"_meta": None},
    "meta_text": {"_meta": "x"},
    "execution_text": {"execution": "sync"},
    "execution_null": {"execution": None},
    "execution_unknown": {"execution": {"taskSupport": "sometimes"}},
    "execution_inner_null": {"execution": {"taskSupport": None}},
}
_ODD_TOOLS: tuple[Item, ...] = (
    *({"name": name, "inputSchema": schema} for name, (schema, _) in SCHEMAS.items()),
    *(
        {"name": name, "inputSchema": OBJECT, "outputSchema": schema}
        for name, schema in RESULT_SCHEMAS.items()
    ),
    *({"name": name, "inputSchema": OBJECT} | member for name, member in MEMBERS.items()),
    {"name": "schema_null", "inputSchema": None},
    {"name": "schema_true", "inputSchema": True},
    {"name": "schema_list", "inputSchema": []},
    {"name": "schema_absent"},
    {"name": "required_text", "inputSchema": {**OBJECT, "required": "a"}},
    {"name": "required_true", "inputSchema": {**OBJECT, "required": True}},
    {"name": "property_null", "inputSchema": _properties(a=None)},
    {"name": "property_text", "inputSchema": _properties(a="string")},
    {"name": "dialect_number", "inputSchema": {**OBJECT, "$schema": 5}},
)
_ODD_PROMPTS: tuple[Item, ...] = (
    *({"name": name} | member for name, member in MEMBERS.items()),
    {"name": "arguments_null", "arguments": None},
    {
        "name": "argument_nulls",
        "arguments": [{"name": "a", "description": None, "required": None, "title": None}],
    },
    {
        "name": "argument_types",
        "arguments": [{"name": "a", "description": 5, "required": "true", "title": []}],
    },
)
_ODD_RESOURCES: tuple[Item, ...] = (
    *({"uri": f"odd://{name}", "name": name} | member for name, member in MEMBERS.items()),
    {"uri": "odd://no_name"},
    {"uri": "odd://name_null", "name": None},
    {"uri": "odd://name_number", "name": 5},
    {"uri": "odd://size_text", "name": "a", "size": "12 KB"},
    {"uri": "odd://size_fraction", "name": "a", "size": 1.5},
    {"uri": "odd://size_negative", "name": "a", "size": -1},
    {"uri": "odd://size_null", "name": "a", "size": None},
    {"uri": "odd://type_number", "name": "a", "mimeType": 5},
)
ODD: Mapping[str, tuple[Item, ...]] = {
    "tool": _ODD_TOOLS,
    "prompt": _ODD_PROMPTS,
    "resource": _ODD_RESOURCES,
    "template": (
        *(
            {"uriTemplate": f"odd:///{name}/{{a}}", "name": name} | member
            for name, member in MEMBERS.items()
        ),
        {"uriTemplate": "odd:///no_name/{a}"},
        {"uriTemplate": "odd:///name_null/{a}", "name": None},
    ),
}

# Members and values that schemas and definitions have, so that what is drawn comes close to what
# servers list.
_WORDS = st.sampled_from(
    [
        "type",
        "properties",
        "required",
        "items",
        "$ref",
        "$defs",
        "$id",
        "$schema",
        "$anchor",
        "enum",
        "const",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "if",
        "pattern",
        "patternProperties",
        "additionalProperties",
        "minimum",
        "exclusiveMinimum",
        "format",
        "default",
        "title",
        "description",
        "nullable",
        "dependentRequired",
        "a",
    ]
)
_VALUES = st.sampled_from(
    [
        "object",
        "string",
        "any",
        "#",
        "#/$defs/a",
        "#/properties/a",
        "#x",
        "T0",
        "https://example.invalid/s.json",
        "[a-",
        "x",
    ]
)
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _VALUES
)
_JSON = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=12,
)
_SCHEMA = _JSON | st.builds(
    lambda more: {"type": "object"} | more, st.dictionaries(_WORDS, _JSON, max_size=4)
)
_COMMON = dict.fromkeys(
    ("title", "description", "icons", "annotations", "_meta", "execution", "mimeType", "size"),
    _JSON,
)
_NAMES = st.sampled_from([f"odd_{letter}" for letter in "abcd"])
_URIS = st.sampled_from([f"odd://{letter}" for letter in "abcd"])
_TEMPLATES = st.sampled_from(
    [f"odd:///{letter}/{{x}}" for letter in "abcd"] + ["odd:///{", "odd:///{?}"]
)


def _items(own: dict[str, Any], **more: Any) -> st.SearchStrategy[list[Any]]:
    item = st.fixed_dictionaries(own, optional=_COMMON | more)
    return st.lists(item | _JSON, max_size=4)


_ARGUMENT = st.fixed_dictionaries(
    {"name": st.just("a") | _JSON}, optional={"required": _JSON, "description": _JSON}
)
# What a server may list of every kind.
LISTS = st.fixed_dictionaries(
    {
        "tool": _items({"name": _NAMES}, inputSchema=_SCHEMA, outputSchema=_SCHEMA),
        "prompt": _items({"name": _NAMES}, arguments=_JSON | st.lists(_ARGUMENT, max_size=2)),
        "resource": _items({"uri": _URIS}, name=_JSON),
        "template": _items({"uriTemplate": _TEMPLATES}, name=_JSON),
    }
)
