"""A change of a definition is shown word by word, with nothing lost and nothing hidden."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpregistry.domain.definitions.diff import MAX_WORDS, compare_words, list_rewordings


def test_only_the_words_that_changed_are_marked():
    old = {"name": "t", "description": "Reads one file."}
    new = {"name": "t", "description": "Reads every file."}
    (change,) = list_rewordings(old, new)
    assert (change.field, change.segments) == (
        "description",
        ((" ", "Reads "), ("-", "one"), ("+", "every"), (" ", " file.")),
    )
    assert not change.added


def test_a_field_that_appears_is_all_new():
    (change,) = list_rewordings({"name": "t"}, {"name": "t", "annotations": {"readOnlyHint": True}})
    assert change.added
    assert "readOnlyHint" in change.segments[0][1]


def test_a_value_deep_in_a_schema_is_one_word():
    old, new = (
        {"inputSchema": {"properties": {"q": {"type": "string", "maxLength": most}}}}
        for most in (10, 20)
    )
    (change,) = list_rewordings(old, new)
    assert [segment for segment in change.segments if segment[0] != " "] == [
        ("-", "10"),
        ("+", "20"),
    ]


@pytest.mark.attack
@pytest.mark.parametrize("unseen", ["\u200b", "\u202e", "\U000e0041", "\x1b", "\u00ad"])
def test_an_invisible_character_is_a_change_like_any_other(unseen: str):
    assert [*compare_words("Reads a file.", f"Reads a fi{unseen}le.")] == [
        (" ", "Reads a "),
        ("-", "file"),
        ("+", f"fi{unseen}le"),
        (" ", "."),
    ]
    assert [*compare_words("Reads.", f"Reads.{unseen}")] == [(" ", "Reads."), ("+", unseen)]


def test_long_unchanged_stretches_are_cut_and_say_so():
    text = " ".join(f"word{n}" for n in range(400))
    (change,) = list_rewordings(
        {"description": f"{text} end"}, {"description": f"{text} END {text}"}
    )
    assert "unchanged" in change.segments[0][1]
    assert len(change.segments[0][1]) < 300
    assert ("+", "END") in [(sign, part[:3]) for sign, part in change.segments]


@given(st.text(st.characters(), max_size=200), st.text(st.characters(), max_size=200))
def test_both_texts_can_be_put_together_again(old: str, new: str):
    found = [*compare_words(old, new)]
    assert "".join(text for sign, text in found if sign != "+") == old
    assert "".join(text for sign, text in found if sign != "-") == new


def test_very_long_texts_are_shown_without_comparing_them():
    old, new = (" ".join(f"{mark}{n}" for n in range(MAX_WORDS)) for mark in "ab")
    assert [sign for sign, _ in compare_words(old, new)] == ["-", "+"]
