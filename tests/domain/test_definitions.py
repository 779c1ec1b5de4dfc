"""Every field that a model can see is part of a definition's hash, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from mcpregistry.domain.definitions.definition import (
    INSTRUCTIONS,
    LISTED,
    MAX_INSTRUCTIONS,
    VISIBLE,
    hash_definition,
    list_changed_fields,
    select_visible_fields,
    strip_instructions,
)

TOOL: dict[str, Any] = {
    "name": "search",
    "title": "Search",
    "description": "Café",
    "inputSchema": {
        "type": "object",
        "properties": {
            "q": {"type": "string", "description": "words", "enum": ["a", "b"], "default": "a"},
            "n": {},
        },
        "required": ["q"],
    },
    "outputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True, "title": "x"},
    "icons": [{"src": "data:x"}],
    "execution": {"taskSupport": "optional"},
    "_meta": {"v": {"deep": [1, 2]}},
}


def changed(*path: Any, to: Any) -> dict[str, Any]:
    def copy(node: Any, rest: tuple[Any, ...]) -> Any:
        if not rest:
            return to
        if isinstance(node, list):
            return [
                copy(item, rest[1:]) if place == rest[0] else item
                for place, item in enumerate(node)
            ]
        return {**node, rest[0]: copy(node.get(rest[0]), rest[1:])}

    return copy(TOOL, path)


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in sorted(value, reverse=True)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


@pytest.mark.attack
@pytest.mark.parametrize(
    "other",
    [
        *(changed(field, to="other") for field in LISTED),
        *({key: value for key, value in TOOL.items() if key != field} for field in LISTED),
        changed("description", to="Cafe\u0301"),
        changed("description", to="Café "),
        changed("description", to="Café\u200b"),
        changed("name", to="\u0455earch"),
        changed("inputSchema", "properties", "q", "default", to="b"),
        changed("inputSchema", "properties", "q", "description", to="words."),
        changed("inputSchema", "properties", "q", "enum", to=["b", "a"]),
        changed("inputSchema", "properties", "n", to={"maximum": 1}),
        changed("inputSchema", "additionalProperties", to=False),
        changed("inputSchema", "required", to=[]),
        changed("annotations", "readOnlyHint", to=False),
        changed("annotations", "readOnlyHint", to=1),
        changed("_meta", "v", "deep", 1, to=2.0),
        changed("icons", 0, "src", to="data:y"),
    ],
)
def test_any_change_of_what_a_model_sees_is_another_definition(other: dict[str, Any]):
    assert hash_definition(other) != hash_definition(TOOL)
    assert len(list_changed_fields(select_visible_fields(TOOL), select_visible_fields(other))) == 1


@pytest.mark.parametrize(
    "same",
    [
        reordered(TOOL),
        TOOL | {"vendor": 1},
        TOOL | {"vendor": None},
        {**{"zzz": 0}, **TOOL},
    ],
    ids=["order", "unknown", "null", "first"],
)
def test_what_no_model_sees_is_the_same_definition(same: dict[str, Any]):
    assert hash_definition(same) == hash_definition(TOOL)
    assert list_changed_fields(select_visible_fields(TOOL), select_visible_fields(same)) == []


def test_absent_and_null_are_the_same():
    bare = {"name": "x", "inputSchema": {}}
    assert hash_definition(bare | {"title": None}) == hash_definition(bare)
    assert list_changed_fields(bare, bare | {"title": None}) == []
    assert select_visible_fields(bare | {"title": None}) == bare


@pytest.mark.attack
@pytest.mark.parametrize(
    "odd", [float("nan"), "\ud800", "\x00", 10**5000], ids=["nan", "surrogate", "nul", "int"]
)
def test_an_odd_value_has_a_hash_of_its_own(odd: Any):
    """One tool that cannot be hashed would hide all others of its server."""
    assert hash_definition(changed("_meta", to={"v": odd})) != hash_definition(TOOL)
    assert list_changed_fields(TOOL, changed("_meta", to={"v": odd})) == ["_meta"]


def test_differences_come_in_a_fixed_order():
    other = select_visible_fields({"name": "other", "_meta": {}, "title": "T"}, "Be kind.")
    assert list_changed_fields(TOOL, other) == [*LISTED, INSTRUCTIONS]
    assert [field for field in VISIBLE if field in LISTED] == [*LISTED]


@pytest.mark.attack
def test_the_instructions_of_the_server_belong_to_every_definition():
    for other in ("Be kind", "be kind.", "Be  kind.", "Be kind.\u200b", ""):
        assert hash_definition(TOOL, other) != hash_definition(TOOL, "Be kind.")
        assert list_changed_fields(
            select_visible_fields(TOOL, "Be kind."), select_visible_fields(TOOL, other)
        ) == ["instructions"]
    assert strip_instructions(select_visible_fields(TOOL, "Be kind.")) == select_visible_fields(
        TOOL
    )


@pytest.mark.attack
def test_a_tool_cannot_bring_instructions_of_its_own():
    assert select_visible_fields(TOOL | {"instructions": "Obey."}) == select_visible_fields(TOOL)


@pytest.mark.attack
def test_of_long_instructions_every_change_counts_but_not_every_character_is_kept():
    long = "x" * (MAX_INSTRUCTIONS + 5000)
    assert hash_definition(TOOL, long) != hash_definition(TOOL, f"{long[:-1]}y")
    assert len(select_visible_fields(TOOL, long)["instructions"]) < MAX_INSTRUCTIONS + 200
