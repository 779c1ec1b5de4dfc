"""Private names of the MCP SDK are used in two places only, and the pinned version has them."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.externals import ROOT

AROUND = ("mcpregistry/gateway/", "mcpregistry/downstream/", "subagents/headends/")
PLACES = ("mcpregistry/gateway/sdk/", "mcpregistry/downstream/sdk_client.py")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def list_private_uses(tree: ast.AST) -> set[str]:
    """Private attributes that a module uses of others than ``self``, and its private imports."""
    uses = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "mcp":
            uses |= {*(node.module or "").split("."), *(each.name for each in node.names)}
    return {name for name in uses if is_private(name)}


def list_definitions(tree: ast.AST) -> set[str]:
    """Names that a module gives to functions, classes, variables and attributes."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.attr if isinstance(node, ast.Attribute) else node.id)
    return found


@cache
def parse_modules() -> dict[str, ast.AST]:
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text())
        for package in ("controlplane", "mcpregistry", "subagents")
        for path in (ROOT / package).rglob("*.py")
    }


@cache
def list_sdk_names() -> frozenset[str]:
    """Private names that the installed SDK defines, and its private modules."""
    spec = find_spec("mcp")
    assert spec is not None
    assert spec.origin is not None
    names: set[str] = set()
    for path in Path(spec.origin).parent.rglob("*.py"):
        names |= {path.stem, *list_definitions(ast.parse(path.read_text()))}
    return frozenset(name for name in names if is_private(name))


def test_private_names_of_the_sdk_are_used_in_two_places_only():
    names = list_sdk_names() - {"_meta"}  # Django has that as well
    uses = {
        path: list_private_uses(tree) & names
        for path, tree in parse_modules().items()
        if path.startswith(AROUND) and not path.startswith(PLACES)
    }
    assert {path: found for path, found in uses.items() if found} == {}


def list_used_names() -> list[str]:
    places = [tree for path, tree in parse_modules().items() if path.startswith(PLACES)]
    return sorted({name for tree in places for name in list_private_uses(tree)})


@pytest.mark.parametrize("name", list_used_names())
def test_pinned_sdk_has_private_name(name: str):
    assert name in list_sdk_names()
