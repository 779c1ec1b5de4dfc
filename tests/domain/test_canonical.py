"""Canonical JSON: one text for one value, exact, safe in every database."""

from __future__ import annotations

import contextlib
import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpregistry.domain.text.canonical import (
    clean_text,
    encode_canonical_json,
    encode_lossy_json,
    hash_parts,
    measure_json,
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)
SURROGATES = st.text(alphabet=st.characters(categories=["Cs"]), min_size=1)


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(list(value))}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@given(VALUES)
def test_the_order_of_keys_means_nothing(value: Any):
    assert encode_canonical_json(shuffled(value)) == encode_canonical_json(value)


@given(VALUES)
def test_the_text_is_the_value_again_and_canonical_of_that_is_the_same_text(value: Any):
    text = encode_canonical_json(value)
    again = json.loads(text)
    assert again == value
    assert encode_canonical_json(again) == text


@given(VALUES, VALUES)
def test_different_values_have_different_texts(left: Any, right: Any):
    if encode_canonical_json(left) == encode_canonical_json(right):
        assert left == right


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, True),
        (0, False),
        (1, 1.0),
        ("1", 1),
        (None, ""),
        ([], {}),
        (10**30, float(10**30)),
        ("é", "e\u0301"),
    ],
)
def test_what_python_or_the_eye_takes_for_equal_is_told_apart(left: Any, right: Any):
    assert encode_canonical_json({"v": left}) != encode_canonical_json({"v": right})


@pytest.mark.parametrize(
    "number", [2**53 + 1, 2**64, -(2**64) - 1, 10**400, 0.1, 1e-7, 1e16, -0.0, 5e-324]
)
def test_numbers_are_exact(number: float):
    again = json.loads(encode_canonical_json(number))
    assert again == number
    assert repr(again) == repr(number)


def test_keys_are_sorted_by_their_utf8_bytes_and_there_is_no_white_space():
    keys = ["\U0001f600", "\uffff", "z", "a", "é", "B"]
    assert (
        encode_canonical_json(dict.fromkeys(keys, 1))
        == '{"B":1,"a":1,"z":1,"é":1,"\uffff":1,"\U0001f600":1}'
    )


@given(VALUES | SURROGATES | st.dictionaries(SURROGATES, VALUES))
def test_the_text_is_fit_for_every_database(value: Any):
    text = encode_canonical_json(value)
    text.encode()
    assert "\x00" not in text
    assert not any(unicodedata.category(sign) == "Cc" and sign < " " for sign in text)


NUMBERS_JSON_LACKS = [float("nan"), float("inf"), float("-inf")]


@pytest.mark.parametrize("number", NUMBERS_JSON_LACKS)
@pytest.mark.parametrize(
    "wrap", [lambda v: v, lambda v: [v], lambda v: {"k": [{"x": v}]}, lambda v: ({"t": (v,)},)]
)
def test_numbers_that_json_lacks_are_refused_and_stored_by_name(number: float, wrap: Any):
    with pytest.raises(ValueError, match="float"):
        encode_canonical_json(wrap(number))
    assert f'"{number!r}"' in encode_lossy_json(wrap(number))


@pytest.mark.parametrize(
    "value",
    [b"raw", {1, 2}, object(), 1 + 2j, {1: 2, "1": 3}, 10**5000],
    ids=lambda v: type(v).__name__,
)
def test_what_is_no_json_is_refused_and_still_stored(value: Any):
    with pytest.raises(ValueError, match=r"JSON|digits"):
        encode_canonical_json({"v": value})
    json.loads(encode_lossy_json({"v": value}))


def nested(depth: int, leaf: Any = 1) -> Any:
    for _ in range(depth):
        leaf = [leaf]
    return leaf


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.parametrize("leaf", [1, "\ud800", float("nan")], ids=["plain", "surrogate", "nan"])
@pytest.mark.parametrize("depth", [150, 5_000, 200_000])
def test_depth_is_a_plain_refusal_never_a_crash(depth: int, leaf: Any):
    value = nested(depth, leaf)
    with contextlib.suppress(ValueError):
        encode_canonical_json(value)
    json.loads(encode_lossy_json(value))


def test_the_deepest_value_is_the_same_on_every_python():
    assert encode_canonical_json(nested(499)) == "[" * 499 + "1" + "]" * 499
    with pytest.raises(ValueError, match="deeply"):
        encode_canonical_json(nested(500))


@given(
    st.recursive(
        SCALARS | st.floats() | SURROGATES,
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_stored_never_fails(value: Any):
    text = encode_lossy_json(value)
    text.encode()
    json.loads(text)


@given(
    st.recursive(
        SCALARS | SURROGATES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_the_size_is_that_of_the_stored_text(value: Any):
    assert measure_json(value) == len(encode_lossy_json(value).encode())


def test_digests_tell_lists_of_parts_apart():
    lists = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), ("a", "b", "c"), ()]
    assert len({hash_parts(*parts) for parts in lists}) == len(lists)
    assert hash_parts("\ud800") != hash_parts("?")


@given(st.text() | SURROGATES, st.integers(min_value=1, max_value=50))
def test_plain_text_fits_its_column(text: str, limit: int):
    fit = clean_text(text, limit)
    fit.encode()
    assert "\x00" not in fit
    assert len(fit) <= limit
    assert clean_text(fit, limit) == fit


def test_plain_text_says_where_it_was_cut():
    assert clean_text("abcdef", 4) == "abc…"
    assert clean_text("a\x00b") == "a␀b"
    assert clean_text("grüß") == "grüß"
