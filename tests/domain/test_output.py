"""What is remarked of a result that is not what its tool's approved definition promises."""

from __future__ import annotations

from typing import Any

import pytest

from mcpregistry.domain.schema.output import check_output

FITS = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "word": {"pattern": "^a+$"}},
    "required": ["n"],
}


def warned(content: Any, schema: Any = FITS) -> str:
    return check_output({"outputSchema": schema}, {"structuredContent": content})


def test_what_fits_and_what_nothing_was_promised_of_is_not_remarked() -> None:
    assert warned({"n": 1, "word": "aa"}) == ""
    assert check_output({}, {"structuredContent": {"n": "x"}}) == ""
    assert check_output({"outputSchema": FITS}, None) == ""


def test_the_place_of_the_schema_is_named_and_nothing_of_the_result() -> None:
    said = warned({"n": "hunter2", "word": "hunter2"})
    assert "/properties/n/type" in said
    assert "/properties/word/pattern" in said
    assert "hunter2" not in said


def test_that_what_was_promised_is_missing_is_remarked() -> None:
    assert "lacks the structured content" in check_output({"outputSchema": FITS}, {"content": []})


@pytest.mark.attack
@pytest.mark.parametrize(
    "schema",
    [{"$ref": "https://elsewhere.example/schema.json"}, {"type": "nonsense"}, {"pattern": "("}],
)
def test_a_schema_that_cannot_be_used_is_said_and_fetches_nothing(schema: Any) -> None:
    assert "could not be checked" in warned({"n": 1}, schema)


@pytest.mark.attack
def test_a_large_result_costs_no_long_check() -> None:
    assert "too large" in warned({"n": list(range(50_000))})
    deep: Any = 1
    for _ in range(50_000):
        deep = [deep]
    assert "too large" in warned({"n": deep})
