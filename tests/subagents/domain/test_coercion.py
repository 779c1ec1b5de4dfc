"""Arguments that are right but for their type, and all others, which stay as they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpregistry.domain.schema.validation import list_problems
from subagents.domain.coercion import coerce_arguments


def of(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}}


@pytest.mark.parametrize(
    ("schema", "written", "meant"),
    [
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, "-12", -12),
        ({"type": "number"}, "5", 5),
        ({"type": "number"}, "0.25", 0.25),
        ({"type": ["integer", "null"]}, "5", 5),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": "boolean"}, "true", True),
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        ({"type": "array", "items": {"type": "integer"}}, ["1", 2], [1, 2]),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": "object", "properties": {"n": {"type": "integer"}}}, {"n": "3"}, {"n": 3}),
    ],
)
def test_what_has_one_reading_is_read_so_and_said(schema: Any, written: Any, meant: Any) -> None:
    value, notes = coerce_arguments(of(schema), {"x": written})
    assert value == {"x": meant}
    assert type(value["x"]) is type(meant)
    assert len(notes) == 1
    assert notes[0].startswith("/x")


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"type": "string"}, "5"),
        ({"type": ["string", "integer"]}, "5"),
        ({}, "5"),
        (True, "5"),
        ({"type": "integer"}, "5.0"),
        ({"type": "integer"}, "05"),
        ({"type": "integer"}, " 5"),
        ({"type": "integer"}, "1\u0665"),
        ({"type": "integer"}, "five"),
        ({"type": "integer"}, ""),
        ({"type": "integer"}, "1e3"),
        ({"type": "integer"}, "-0"),
        ({"type": "integer"}, "9" * 30),
        ({"type": "number"}, "0.1000000000000000055"),
        ({"type": "number"}, "nan"),
        ({"type": "number"}, "0.10"),
        ({"type": "boolean"}, "yes"),
        ({"type": "boolean"}, "True"),
        ({"type": "boolean"}, "1"),
        ({"type": "integer", "enum": [5]}, "5"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5"),
        ({"$ref": "#/$defs/n"}, "5"),
        ({"type": "object"}, '{"a": 1, "a": 2}'),
        ({"type": "array"}, "[NaN]"),
        ({"type": "array"}, "1, 2"),
        ({"type": "integer"}, 5.0),
        ({"type": "string"}, 5),
        ({"type": "integer"}, None),
        ({"type": "integer"}, True),
    ],
)
def test_everything_else_stays_as_it_was_written(schema: Any, written: Any) -> None:
    value, notes = coerce_arguments(of(schema), {"x": written})
    assert (value, notes) == ({"x": written}, [])


_KINDS = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])
_SCHEMAS = st.recursive(
    st.builds(
        lambda kinds: {"type": kinds},
        st.one_of(_KINDS, st.lists(_KINDS, min_size=1, max_size=3, unique=True)),
    ),
    lambda inner: st.one_of(
        st.builds(lambda s: {"type": "array", "items": s}, inner),
        st.builds(lambda s: {"type": "object", "properties": {"a": s, "b/c": s}}, inner),
    ),
    max_leaves=4,
)
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**6), 10**6),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b/c", "d"]), inner, max_size=3),
    ),
    max_leaves=6,
)
_WRITTEN = st.one_of(_JSON, _JSON.map(json.dumps))


def fits(schema: dict[str, Any], value: Any) -> bool:
    return not list_problems(schema, value)


@given(schema=_SCHEMAS, written=_WRITTEN)
def test_what_was_valid_stays_the_same(schema: dict[str, Any], written: Any) -> None:
    if fits(of(schema), {"x": written}):
        assert coerce_arguments(of(schema), {"x": written}) == ({"x": written}, [])


@given(schema=_SCHEMAS, written=_WRITTEN)
def test_it_is_done_once_and_what_is_not_said_is_not_changed(
    schema: dict[str, Any], written: Any
) -> None:
    before = json.dumps(written)
    value, notes = coerce_arguments(of(schema), {"x": written})
    assert json.dumps(written) == before, "the caller's own is never touched"
    assert bool(notes) == (json.dumps(value) != json.dumps({"x": written}))
    assert coerce_arguments(of(schema), {"x": written}) == (value, notes)


@given(
    value=st.one_of(
        st.integers(-(10**15), 10**15),
        st.booleans(),
        st.floats(-1e6, 1e6).map(lambda f: round(f, 3)),
    )
)
def test_no_digit_is_lost(value: Any) -> None:
    if isinstance(value, bool):
        kind = "boolean"
    elif isinstance(value, int):
        kind = "integer"
    else:
        kind = "number"
    found, notes = coerce_arguments(of({"type": kind}), {"x": json.dumps(value)})
    if notes:
        assert found["x"] == value
