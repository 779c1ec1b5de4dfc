"""What a form asks for so that a call has a tool's arguments."""

from __future__ import annotations

import pytest

from mcpregistry.domain.schema.fields import MOST_FIELDS, Field, list_fields, parse_field_text


def test_a_field_for_each_argument_with_the_required_ones_first() -> None:
    found = list_fields(
        {
            "properties": {
                "mode": {"enum": ["fast", 2, None]},
                "depth": {
                    "anyOf": [{"type": "integer"}, {"type": "null"}],
                    "default": 3,
                    "description": "How deep.",
                },
                "dry": {"type": ["boolean", "null"]},
                "nested": {"type": "object"},
                "path": {"type": "string", "format": "uri"},
            },
            "required": ["path", "gone"],
        }
    )
    assert [(field.name, field.kind, field.required) for field in found] == [
        ("path", "text", True),
        ("mode", "choice", False),
        ("depth", "number", False),
        ("dry", "boolean", False),
        ("nested", "json", False),
    ]
    assert (found[2].default, found[2].about, found[0].expects) == ("3", "How deep.", "uri")
    assert found[1].choices == ('"fast"', "2", "null")


@pytest.mark.parametrize(
    "schema", [{}, {"properties": []}, {"properties": {"a": 3}, "required": 5}]
)
def test_odd_schemas_make_a_form_all_the_same(schema: dict[str, object]) -> None:
    assert [field.kind for field in list_fields(schema)] in ([], ["json"])


def test_a_form_has_an_end() -> None:
    assert len(list_fields({"properties": {str(n): {} for n in range(1_000)}})) == MOST_FIELDS


def test_what_is_typed_becomes_the_value_of_its_kind() -> None:
    assert parse_field_text(Field("a", "text", True), "12") == "12"
    assert (
        parse_field_text(Field("a", "number", True), "12345678901234567890") == 12345678901234567890
    )
    assert parse_field_text(Field("a", "boolean", True), "true") is True
    assert parse_field_text(Field("a", "json", True), '{"b": [1]}') == {"b": [1]}
    for wrong in ("true", "NaN", "a"):
        with pytest.raises(ValueError, match="number"):
            parse_field_text(Field("a", "number", True), wrong)
