"""Names explain themselves: functions are verbs, and a class has a name of its own."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

from tests.architecture.test_layers import module_of, sources

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

# Verbs that end like a participle.
VERBS = {"bed", "embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "succeed"}
PARTICIPLE = re.compile(
    r"told|said|held|sent|made|taken|kept|given|shown|seen|known|written|begun|lent|found|left"
    r"|heard|gone|chosen|met|spent|lost|caught|bound|built|brought|meant|led|paid|done|forgotten"
    r"|hidden|broken|driven|[a-z]{2,}ed"
)
ALLOWED = {
    "mcpregistry.templatetags.slipsnisse.counted": "a template filter reads as an adjective",
}
# Nested classes that frameworks look for, and schemas whose names are in the OpenAPI document.
SHARED_CLASSES = {"Command", "Config", "Media", "Meta", "TestOrder", "ToolChange"}


def is_value(node: FunctionNode) -> bool:
    """Whether it reads as a value: a property, or a column of the admin."""
    return any(
        word in ast.unparse(each)
        for each in node.decorator_list
        for word in ("property", "display")
    )


def is_participle(name: str) -> bool:
    first = name.lstrip("_").split("_")[0]
    return first not in VERBS and PARTICIPLE.fullmatch(first) is not None


def test_function_names_begin_with_a_verb():
    found = set()
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, FunctionNode) and not is_value(node) and is_participle(node.name):
                found.add(f"{module_of(path)}.{node.name}")
    assert found - ALLOWED.keys() == set(), "name what the function does: verb and object"


def is_choices(node: ast.ClassDef) -> bool:
    """Whether it lists the choices of a column; code names it with its model (``Tool.Kind``)."""
    return any(ast.unparse(base).endswith("Choices") for base in node.bases)


def test_class_names_are_unique():
    places = defaultdict(list)
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.ClassDef)
                and node.name not in SHARED_CLASSES
                and not is_choices(node)
            ):
                places[node.name].append(module_of(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_checks_find_what_they_look_for():
    assert is_participle("_told") is True
    assert is_participle("released_by") is True
    assert is_participle("embed_part") is False
    assert is_participle("send_note") is False
