"""Who may speak with the outside: rules that import-linter cannot express (parts of an external
package)."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.externals import ROOT

_FLOORS = ("controlplane", "mcpregistry", "subagents")
_VAGUE = {"utils", "util", "helpers", "helper", "misc", "common"}


def _sources() -> list[Path]:
    return [path for floor in _FLOORS for path in sorted((ROOT / floor).rglob("*.py"))]


@cache
def _imports(path: Path) -> tuple[str, ...]:
    """Every module named in an import statement, wherever it stands."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(
    ("module", "room"),
    [
        ("mcp.client", "mcpregistry/downstream"),
        ("mcp.server", "mcpregistry/gateway"),
        ("litellm", "subagents/llm"),
    ],
)
def test_only_one_room_imports(module, room):
    users = {
        str(path.relative_to(ROOT))
        for path in _sources()
        if any(name == module or name.startswith(f"{module}.") for name in _imports(path))
    }
    assert [path for path in sorted(users) if not path.startswith(f"{room}/")] == []


def test_site_imports_no_package_that_only_tests_install():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    for_tests = {
        re.split(r"[\[>=<]", name)[0].replace("-", "_")
        for group in groups.values()
        for name in group
    }
    imported = {
        (str(path.relative_to(ROOT)), name) for path in _sources() for name in _imports(path)
    }
    found = {(path, name) for path, name in imported if name.split(".")[0] in for_tests}
    assert found == set()


def test_every_module_is_named_for_what_it_is():
    assert [str(path) for path in _sources() if path.stem in _VAGUE] == []


def test_no_file_names_a_host_from_which_packages_come():
    named = [
        lock.name
        for lock in (
            ROOT / "requirements.lock",
            ROOT / "requirements-dev.lock",
            ROOT / "Makefile",
            ROOT / "pyproject.toml",
        )
        if "://" in lock.read_text()
    ]
    assert named == []
