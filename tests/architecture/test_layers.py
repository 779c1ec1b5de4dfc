"""Who may import what, as far as the contracts of import-linter in pyproject.toml cannot say it:
checked on the source and on running processes."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.externals import ROOT
from tests.waiting import HANG_LIMIT

HOUSES = ("controlplane", "mcpregistry", "subagents")


def sources() -> list[Path]:
    found = [path for house in HOUSES for path in (ROOT / house).rglob("*.py")]
    return [ROOT / "manage.py", *sorted(path for path in found if "migrations" not in path.parts)]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def imports(path: Path) -> frozenset[tuple[str, bool]]:
    """(name, at run time) of everything imported anywhere in a file; ``from a import b`` gives a
    and a.b."""
    return frozenset(_walk(ast.parse(path.read_text()), True))


def _walk(node: ast.AST, runtime: bool) -> Iterator[tuple[str, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for part in child.body:
                yield from _walk(ast.Module([part], []), False)
            continue
        if isinstance(child, ast.Import):
            yield from ((alias.name, runtime) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            yield child.module or "", runtime
            yield from ((f"{child.module}.{alias.name}", runtime) for alias in child.names)
        yield from _walk(child, runtime)


def inside(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def users(*packages: str, runtime_only: bool = True) -> set[str]:
    """Modules that import one of the packages."""
    found = set()
    for path in sources():
        for name, runtime in imports(path):
            if inside(name, *packages) and (runtime or not runtime_only):
                found.add(module_of(path))
    return found


def outside(found: set[str], *allowed: str) -> list[str]:
    return sorted(name for name in found if not inside(name, *allowed))


def test_domain_imports_neither_io_nor_a_clock():
    pure = {"mcpregistry", "msgspec", "jsonschema_rs", "yaml", "__future__"}
    clocks = {"time", "random", "os", "socket", "asyncio", "threading", "subprocess"}
    for path in sorted((ROOT / "mcpregistry" / "domain").rglob("*.py")):
        for name, _ in imports(path):
            top = name.split(".")[0]
            assert top in sys.stdlib_module_names - clocks or top in pure, (
                f"{module_of(path)} imports {name}"
            )
            assert top != "mcpregistry" or inside(name, "mcpregistry.domain"), (
                f"{module_of(path)} imports {name}"
            )


FILES = {"os", "io", "pathlib", "shutil", "tempfile", "subprocess"}  # by which files are written


def test_the_sub_agent_knows_neither_energy_pools_nor_conversations():
    """It counts what it uses, and talks to nobody: its owner charges, pauses and speaks."""
    closed = (
        "mcpregistry.services.energy",
        "mcpregistry.models.energy",
        "mcpregistry.services.conversations",
        "mcpregistry.models.conversation",
        "subagents.effort",
    )
    mine = [path for path in sources() if inside(module_of(path), "subagents.maintenance")]
    imported = [(module_of(path), name) for path in mine for name, _ in imports(path)]
    models = ("Conversation", "Message", "EnergyPool", "EnergyEntry")
    found = {
        f"{module} imports {name}"
        for module, name in imported
        if inside(name, *closed) or name.rpartition(".")[2] in models
    }
    assert found == set()


def test_the_sub_agent_writes_no_files():
    """What it changes are rows: a configuration file is written by people's exports alone."""
    mine = [path for path in sources() if inside(module_of(path), "subagents.maintenance")]
    assert mine
    ways: set[str] = set()
    opened: set[str] = set()
    for path in mine:
        ways |= {name for name, _ in imports(path) if name.partition(".")[0] in FILES}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("open", "os.open"):
                opened.add(module_of(path))
    assert (ways, opened) == (set(), set())


def test_no_modules_import_each_other_in_a_circle():
    """Lazy imports and those for types alone count as well: a circle that they hide is still one to
    whoever reads. One module is excepted: ``mcpregistry.extensions`` names types of all layers for
    the type checker."""
    modules = {module_of(path): path for path in sources()}
    graph = {
        module: {
            name
            for name, at_run_time in imports(path)
            if name in modules
            and not inside(module, name)
            and (at_run_time or module != "mcpregistry.extensions")
        }
        for module, path in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        raise AssertionError(" <- ".join(circle.args[1])) from None


def test_each_outside_library_has_one_door():
    assert outside(users("mcp.client", runtime_only=False), "mcpregistry.downstream") == []
    assert outside(users("mcp.server", runtime_only=False), "mcpregistry.gateway") == []
    assert outside(users("litellm", runtime_only=False)) == ["subagents.llm.client"]
    assert outside(users("jsonschema_rs"), "mcpregistry.domain") == []
    assert (
        outside(
            users("cryptography"),
            "mcpregistry.models.sealing",
            "mcpregistry.downstream.peers.sockets",
            "controlplane",
        )
        == []
    )
    assert (
        outside(
            users("httpx2", "httpx", "requests", "urllib.request", "aiohttp"),
            "mcpregistry.downstream",
        )
        == []
    )
    assert outside(users("jsonschema")) == []


def test_the_registry_knows_neither_the_sub_agents_nor_the_project():
    assert [
        name
        for name in users("subagents", "controlplane", runtime_only=False)
        if inside(name, "mcpregistry")
    ] == []


_LOADED = """
import sys, threading
import django; django.setup()
import mcpregistry.calls.engine, psutil
print(threading.active_count(), psutil.Process().children())
import controlplane.asgi, mcpregistry.management.commands.runmcp, mcpregistry.services.exchange.trusted_files
import mcpregistry.gateway.stdio.own_worker, subagents.services.exchange.experts
print({"litellm", "openai", "torch"} & set(sys.modules) or "none")
"""


@pytest.mark.exhaustive
def test_importing_the_engine_starts_nothing_and_no_process_that_serves_hosts_loads_the_model_library():
    done = subprocess.run(
        [sys.executable, "-c", _LOADED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_LIMIT,
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, ["1 []", "none"]), done.stderr
