from __future__ import annotations

from mcpregistry.domain.comparison import MAX_LINES, compare


def test_only_fields_that_differ_are_compared_line_by_line() -> None:
    old = {"name": "t", "description": "one\ntwo", "inputSchema": {"type": "object"}}
    new = {"name": "t", "description": "one\nthree", "inputSchema": {"type": "object"}}
    (change,) = compare(old, new)
    assert change.name == "description"
    assert change.lines == ((" ", "one"), ("-", "two"), ("+", "three"))


def test_a_field_that_appears_is_all_new() -> None:
    (change,) = compare({"name": "t"}, {"name": "t", "annotations": {"readOnlyHint": True}})
    assert {sign for sign, _ in change.lines} == {"+"}
    assert '  "readOnlyHint": true' in [line for _, line in change.lines]


def test_a_key_changed_deep_in_a_schema_is_one_line() -> None:
    def schema(most: int) -> dict[str, object]:
        return {"inputSchema": {"properties": {"q": {"type": "string", "maxLength": most}}}}

    (change,) = compare(schema(10), schema(20))
    assert [line.strip() for sign, line in change.lines if sign != " "] == ['"maxLength": 10,', '"maxLength": 20,']


def test_very_long_texts_are_shown_without_comparing_them() -> None:
    old, new = ("\n".join(f"{mark}{n}" for n in range(MAX_LINES + 1)) for mark in "ab")
    (change,) = compare({"description": old}, {"description": new})
    assert len(change.lines) == 2 * (MAX_LINES + 1)
