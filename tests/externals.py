"""Programs that the tests use when the machine has them: a Chromium, Node with npm packages, PgBouncer, and bubblewrap.

``make test`` leaves their tests out where they are missing and says so in pytest's header.
CI sets ``SLIPSNISSE_REQUIRE_BROWSER=1``, ``…_NODE=1``, ``…_PGBOUNCER=1`` and ``…_BUBBLEWRAP=1``: then it is an error.
``SLIPSNISSE_NODE`` names a folder with ``node_modules`` (``.ci/run`` makes ``.cache/node``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
NODE_FOLDER = Path(os.environ.get("SLIPSNISSE_NODE", ROOT / ".cache" / "node"))
_PACKAGES = (
    "@modelcontextprotocol/conformance",
    "@modelcontextprotocol/inspector",
    "@modelcontextprotocol/server-everything",
    "@modelcontextprotocol/server-filesystem",
)


@dataclass
class External:
    marker: str
    what: str
    required_by: str

    @cached_property
    def found(self) -> Path | None:
        path = _FIND[self.marker]()
        if path is None and os.environ.get(self.required_by) == "1":
            raise pytest.UsageError(f"{self.required_by}=1, but there is no {self.what}.")
        return path

    def header(self) -> str:
        state = self.found or f"NOT FOUND, tests marked '{self.marker}' are left out (they need {self.what})"
        return f"{self.marker}: {state}"


BROWSER = External("web", "Chromium on the PATH", "SLIPSNISSE_REQUIRE_BROWSER")
NODE = External("node", f"Node >= 22 and npm packages in {NODE_FOLDER}", "SLIPSNISSE_REQUIRE_NODE")
PGBOUNCER = External("pgbouncer", "PgBouncer", "SLIPSNISSE_REQUIRE_PGBOUNCER")
BUBBLEWRAP = External("bubblewrap", "bubblewrap and user namespaces", "SLIPSNISSE_REQUIRE_BUBBLEWRAP")
ALL = (BROWSER, NODE, PGBOUNCER, BUBBLEWRAP)


def node_program() -> str:
    assert NODE.found is not None
    return str(NODE.found)


def npm_module(path: str) -> str:
    """A file of an installed npm package, to be run with ``node_program()``."""
    return str(NODE_FOLDER / "node_modules" / path)


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import expect, sync_playwright

    assert BROWSER.found is not None
    expect.set_options(timeout=20_000)
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(BROWSER.found), args=sandbox)
        yield browser
        browser.close()


def _browser() -> Path | None:
    # The first is the same browser without its own windows: a page costs a quarter.
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    return next((Path(path) for path in map(shutil.which, names) if path), None)


def _pgbouncer() -> Path | None:
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return Path(found) if found else None


def _bubblewrap() -> Path | None:
    from mcpregistry.downstream.transports import bubblewrap

    found = bubblewrap.program()
    return Path(found) if found and not bubblewrap.missing() else None


def _node() -> Path | None:
    own = NODE_FOLDER / "node_modules" / ".bin" / "node"
    path = str(own) if own.exists() else shutil.which("node")
    if path is None or not all((NODE_FOLDER / "node_modules" / name).is_dir() for name in _PACKAGES):
        return None
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return Path(path) if int(version.lstrip("v").split(".")[0] or 0) >= 22 else None


_FIND = {"web": _browser, "node": _node, "pgbouncer": _pgbouncer, "bubblewrap": _bubblewrap}
