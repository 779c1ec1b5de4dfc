"""Arguments made from schemas: they fit, they are small, and they point at nothing of value; else
it says why there are none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpregistry.domain.schema import validation
from mcpregistry.domain.trials.arguments import Impossible, make_arguments


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "object"}, {}),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, {}),
        (of(a={"type": "string"}), {"a": "a"}),
        (of(a={"type": "string", "minLength": 3}), {"a": "aaa"}),
        (of(a={"enum": ["second", "first"]}), {"a": "second"}),
        (of(a={"const": 7}), {"a": 7}),
        (of(a={"type": "integer", "default": 5}), {"a": 5}),
        (of(a={"type": "string", "examples": ["/etc/passwd", "rust"]}), {"a": "rust"}),
        (of(a={"type": "string", "format": "date"}), {"a": "2026-01-01"}),
        (of(a={"type": "string", "format": "uri"}), {"a": "https://example.invalid/"}),
        (of(a={"type": "string", "pattern": "^[A-Z]{3}$"}), {"a": "AAA"}),
        (of(path={"type": "string"}), {"path": "."}),
        (of(filePath={"type": "string", "default": "/etc/hosts"}), {"filePath": "."}),
        (of(url={"type": "string"}), {"url": "https://example.invalid/"}),
        (of(a={"type": "integer", "minimum": 3}), {"a": 3}),
        (of(a={"type": "number", "exclusiveMinimum": 0, "maximum": 1}), {"a": 1}),
        (of(a={"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}), {"a": 0.5}),
        (of(a={"type": "integer", "minimum": 4, "multipleOf": 5}), {"a": 5}),
        (of(a={"type": "integer", "maximum": -2}), {"a": -2}),
        (of(a={"type": ["null", "string"]}), {"a": "a"}),
        (of(a={"type": "boolean"}, b={"type": "null"}), {"a": False, "b": None}),
        (of(a={"type": "array", "items": {"type": "integer"}}), {"a": []}),
        (of(a={"type": "array", "minItems": 2, "items": {"type": "integer"}}), {"a": [0, 0]}),
        (of(a=of(b={"type": "string"})), {"a": {"b": "a"}}),
        (of(a={"anyOf": [{"type": "string", "pattern": "(?!)x"}, {"type": "integer"}]}), {"a": 0}),
        (of(a={"allOf": [{"type": "string"}, {"minLength": 2}]}), {"a": "aa"}),
        (
            {"$defs": {"n": {"type": "integer", "minimum": 2}}, **of(a={"$ref": "#/$defs/n"})},
            {"a": 2},
        ),
    ],
)
def test_the_smallest_arguments_that_fit(schema: dict[str, Any], expected: Any) -> None:
    assert make_arguments(schema) == expected


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (of(api_key={"type": "string"}), "'api_key' requires a secret"),
        (of(a=of(password={"type": "string"})), "secret"),
        (
            of(a={"enum": ["/etc/passwd", "../x", "~/.ssh", "C:\\Windows", "file:///etc"]}),
            "outside the server's folder",
        ),
        (of(a={"type": "string", "pattern": "^[aeiou]{7}x{9}$"}), "no matching text"),
        (of(a={"type": "string", "minLength": 100_000}), "characters"),
        (of(a={"type": "array", "minItems": 100_000}), "items"),
        (of(a=False), "allows no value"),
        (of(a={"type": "integer", "minimum": 3, "maximum": 2}), "no matching number"),
        (of(a={"$ref": "https://example.org/other.json"}), "another document"),
        ({"type": "array"}, "object"),
        (
            {"$defs": {"n": of(a={"$ref": "#/$defs/n"})}, **of(a={"$ref": "#/$defs/n"})},
            "too complex",
        ),
        (
            {"$defs": {"n": {"allOf": [{"$ref": "#/$defs/n"}] * 4}}, **of(a={"$ref": "#/$defs/n"})},
            "too complex",
        ),
        ({**of(a={"type": "string"}), "minProperties": 3}, "no matching arguments"),
    ],
)
def test_where_there_are_none_it_says_why(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(Impossible, match=why):
        make_arguments(schema)


_LEAVES = st.sampled_from(
    [
        {"type": "string", "maxLength": 5},
        {"type": "integer", "minimum": -3, "maximum": 9},
        {"type": "boolean"},
        {"enum": [1, "x", None]},
        {"type": "number", "exclusiveMinimum": 2},
        {"type": "string", "format": "uuid"},
        True,
        {},
    ]
)
_SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["a", "path", "uri", "n"]), inner, max_size=3).map(
            lambda parts: of(**parts)
        ),
        st.builds(
            lambda item, least: {"type": "array", "items": item, "minItems": least},
            inner,
            st.integers(0, 3),
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts}),
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), _SCHEMAS, max_size=3))
def test_what_is_made_fits_and_names_nothing_outside(parts: dict[str, Any]) -> None:
    schema = of(**parts)
    try:
        made = make_arguments(schema)
    except Impossible:
        return
    assert validation.list_problems(schema, made) == []
    assert not any(word in repr(made) for word in ("/etc", "..", "~"))
