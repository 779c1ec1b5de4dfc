from __future__ import annotations

from mcpregistry.domain.definitions.comparison import MAX_LINES, compare_lines, format_readable


def test_texts_are_compared_line_by_line() -> None:
    assert [*compare_lines("one\ntwo", "one\nthree")] == [
        (" ", "one"),
        ("-", "two"),
        ("+", "three"),
    ]


def test_what_appears_is_all_new() -> None:
    assert {
        sign
        for sign, _ in compare_lines(format_readable(None), format_readable({"readOnlyHint": True}))
    } == {"+"}


def test_a_key_changed_deep_in_a_value_is_one_line() -> None:
    old, new = ({"properties": {"q": {"type": "string", "maxLength": most}}} for most in (10, 20))
    changed = [
        line.strip()
        for sign, line in compare_lines(format_readable(old), format_readable(new))
        if sign != " "
    ]
    assert changed == ['"maxLength": 10,', '"maxLength": 20,']


def test_very_long_texts_are_shown_without_comparing_them() -> None:
    old, new = ("\n".join(f"{mark}{n}" for n in range(MAX_LINES + 1)) for mark in "ab")
    assert len([*compare_lines(old, new)]) == 2 * (MAX_LINES + 1)
