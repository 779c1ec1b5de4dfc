"""Arguments laid out for people: complete, comparable, and losslessly editable."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpregistry.domain.calls.arguments import (
    format_for_editor,
    hash_stored_text,
    list_arguments,
    parse_edited_arguments,
    parse_stored_arguments,
)
from mcpregistry.domain.errors import ArgumentsInvalid
from mcpregistry.domain.text.canonical import encode_canonical_json
from mcpregistry.domain.text.display import show_invisible_characters

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=5))
def test_an_editor_loses_nothing_and_hides_nothing(arguments):
    text = format_for_editor(encode_canonical_json(arguments))
    assert parse_edited_arguments(text) == encode_canonical_json(arguments)
    assert show_invisible_characters(text.replace("\n", ""), len(text)).count("⟦") == text.count(
        "⟦"
    ) + show_invisible_characters(text).count(" more marks⟧")


@given(st.dictionaries(TEXTS, VALUES, max_size=5), st.dictionaries(TEXTS, VALUES, max_size=5))
def test_every_argument_of_both_calls_is_laid_out_once(now, then):
    found = list_arguments(encode_canonical_json(now), encode_canonical_json(then))
    assert found is not None
    assert sorted(each.name for each in found) == sorted(now.keys() | then.keys())
    for each in found:
        same = (
            each.name in now
            and each.name in then
            and encode_canonical_json(now[each.name]) == encode_canonical_json(then[each.name])
        )
        assert (each.change == "same") == same
        assert (each.change == "new") == (each.name not in then)
        assert (each.change == "gone") == (each.name not in now)


def test_a_change_is_shown_line_by_line():
    found = list_arguments('{"a":"x\\ny"}', '{"a":"x\\nz"}')
    assert found is not None
    assert (found[0].change, found[0].lines) == ("changed", ((" ", "x"), ("-", "z"), ("+", "y")))


def test_true_is_not_one_and_one_is_not_one_point_zero():
    for now, then in (("true", "1"), ("1", "1.0"), ("null", "false")):
        found = list_arguments(f'{{"a":{now}}}', f'{{"a":{then}}}')
        assert found is not None
        assert found[0].change == "changed"


@pytest.mark.parametrize(
    "text", ["", "[1]", "7", '{"a":', "[" * 100_000, '{"a":' + "9" * 5_000 + "}"]
)
def test_what_has_no_parts_is_left_whole(text):
    assert list_arguments(text) is None
    assert parse_stored_arguments(text) is None
    assert format_for_editor(text) == text


def test_deep_nesting_is_shown_without_its_indent():
    deep = encode_canonical_json({"a": json.loads("[" * 400 + "]" * 400)})
    found = list_arguments(deep)
    assert found is not None
    assert found[0].text.replace(" ", "").replace("\n", "") == "[" * 400 + "]" * 400


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1, column 2"),
        ('{"a":NaN}', "JSON cannot represent"),
        ("[]", "object"),
        ("", "line 1"),
        ('"x"', "object"),
    ],
)
def test_what_is_no_object_is_refused_with_the_place(text, said):
    with pytest.raises(ArgumentsInvalid, match=said):
        parse_edited_arguments(text)


def test_the_hash_is_that_of_sha256sum():
    assert hash_stored_text('{"a":"å"}') == hashlib.sha256('{"a":"å"}'.encode()).hexdigest()
