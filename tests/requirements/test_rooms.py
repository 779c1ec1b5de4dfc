"""Which parts of the code may not know of which others."""

from __future__ import annotations

from pathlib import Path

from tests.architecture.test_imports import _imports
from tests.externals import ROOT


def imported(room: Path) -> set[str]:
    """Top-level packages that any file below ``room`` imports."""
    return {name.split(".")[0] for path in sorted(room.rglob("*.py")) for name in _imports(path)}


def test_the_registry_works_without_the_sub_agents():
    assert not imported(ROOT / "mcpregistry") & {"subagents", "controlplane"}


def test_reading_and_writing_file_formats_touches_neither_disk_nor_database_nor_network():
    used = imported(ROOT / "mcpregistry" / "domain" / "formats")
    assert not used & {"django", "os", "io", "pathlib", "socket", "subprocess", "asyncio", "httpx2", "mcp", "time"}
