"""Programs that the tests use when the machine has them: a Chromium, Node with npm packages,
PgBouncer, bubblewrap, hosts.

``make test`` leaves their tests out where they are missing and says so in pytest's header. CI sets
``SLIPSNISSE_REQUIRE_BROWSER=1``, ``…_NODE=1``, ``…_PGBOUNCER=1`` and ``…_BUBBLEWRAP=1``: then it is
an error. ``SLIPSNISSE_NODE`` names a folder with ``node_modules``; without it, the one that
``.ci/programs`` makes in ``~/.cache/slipsnisse-tests/node`` is used.

Each host has a folder of its own below ``SLIPSNISSE_HOST_PROGRAMS``; without it, below
``~/.cache/slipsnisse-tests/hosts``. With ``SLIPSNISSE_REQUIRE_HOSTS=codex,gemini`` it is an error
if one of these is missing. The official Python SDK 1.x has a virtual environment of its own in
``~/.cache/slipsnisse-tests/python-sdk-1``; ``SLIPSNISSE_REQUIRE_OLDER_SDK=1`` demands it. So has
the chat client llm, in ``~/.cache/slipsnisse-tests/llm``; ``SLIPSNISSE_REQUIRE_CHAT_CLIENT=1``
demands it. Playwright's MCP server is in ``~/.cache/slipsnisse-tests/playwright-mcp``;
``SLIPSNISSE_REQUIRE_PLAYWRIGHT=1`` demands it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import HANG_LIMIT

ROOT = Path(__file__).resolve().parent.parent
_BROWSER_LIMIT = 1000 * HANG_LIMIT  # milliseconds, the unit of Playwright
INSTALLED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "slipsnisse-tests")
NODE_FOLDER = Path(os.environ.get("SLIPSNISSE_NODE") or INSTALLED / "node")
HOST_FOLDER = Path(os.environ.get("SLIPSNISSE_HOST_PROGRAMS") or INSTALLED / "hosts")
# Each host that can be run without a window, as `connect` names it, and the program of its npm
# package.
HOST_PROGRAMS = {
    "claude-code": "claude",
    "codex": "codex",
    "gemini": "gemini",
    "opencode": "opencode",
    "copilot": "copilot",
    "qwen": "qwen",
}
_PACKAGES = (
    "@modelcontextprotocol/client",
    "@modelcontextprotocol/conformance",
    "@modelcontextprotocol/inspector",
    "@modelcontextprotocol/sdk",
    "@modelcontextprotocol/server-everything",
    "@modelcontextprotocol/server-filesystem",
    "axe-core",
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
        state = (
            self.found
            or f"NOT FOUND, tests marked '{self.marker}' are left out (they need {self.what})"
        )
        return f"{self.marker}: {state}"

    def missed_by(self, item: pytest.Item) -> bool:
        """Whether this test cannot run here for want of it."""
        return item.get_closest_marker(self.marker) is not None and not self.found


class Hosts(External):
    """The programs of hosts. A test says in its marker which of them it needs:
    ``host("codex")``."""

    @cached_property
    def programs(self) -> dict[str, Path]:
        """Where each is that is here. Raises pytest.UsageError if one is not that has to be."""
        node = _node_program() is not None
        at = {
            slug: HOST_FOLDER / slug / "node_modules" / ".bin" / name
            for slug, name in HOST_PROGRAMS.items()
        }
        found = {slug: path for slug, path in at.items() if node and path.exists()}
        wanted = {slug for slug in os.environ.get(self.required_by, "").split(",") if slug}
        if lost := sorted(wanted - set(found)):
            raise pytest.UsageError(
                f"{self.required_by} names {', '.join(lost)}, but there is no such host in {HOST_FOLDER}."
            )
        return found

    def header(self) -> str:
        found = ", ".join(self.programs)
        missing = ", ".join(sorted(set(HOST_PROGRAMS) - set(self.programs)))
        said = [
            found,
            f"NOT FOUND, their tests are left out (they need {self.what}): {missing}"
            if missing
            else "",
        ]
        return f"{self.marker}: {'; '.join(filter(None, said))}"

    def missed_by(self, item: pytest.Item) -> bool:
        marker = item.get_closest_marker(self.marker)
        return marker is not None and marker.args[0] not in self.programs


BROWSER = External("web", "Chromium on the PATH", "SLIPSNISSE_REQUIRE_BROWSER")
NODE = External("node", f"Node >= 22 and npm packages in {NODE_FOLDER}", "SLIPSNISSE_REQUIRE_NODE")
PGBOUNCER = External("pgbouncer", "PgBouncer", "SLIPSNISSE_REQUIRE_PGBOUNCER")
BUBBLEWRAP = External(
    "bubblewrap", "bubblewrap and user namespaces", "SLIPSNISSE_REQUIRE_BUBBLEWRAP"
)
OLDER_SDK = External(
    "older_sdk",
    f"Python with mcp 1.x in {INSTALLED / 'python-sdk-1'}",
    "SLIPSNISSE_REQUIRE_OLDER_SDK",
)
CHAT_CLIENT = External(
    "chat_client", f"the chat client llm in {INSTALLED / 'llm'}", "SLIPSNISSE_REQUIRE_CHAT_CLIENT"
)
PLAYWRIGHT = External(
    "playwright",
    f"@playwright/mcp in {INSTALLED / 'playwright-mcp'}",
    "SLIPSNISSE_REQUIRE_PLAYWRIGHT",
)
HOSTS = Hosts(
    "host", f"Node >= 22 and npm packages below {HOST_FOLDER}", "SLIPSNISSE_REQUIRE_HOSTS"
)
ALL = (BROWSER, NODE, PGBOUNCER, BUBBLEWRAP, OLDER_SDK, CHAT_CLIENT, PLAYWRIGHT, HOSTS)


def node_program() -> str:
    assert NODE.found is not None
    return str(NODE.found)


def node_of_hosts() -> Path:
    """Node for those hosts that are written for it; they find it on the PATH."""
    found = _node_program()
    assert found is not None
    return found


def npm_module(path: str) -> str:
    """A file of an installed npm package, to be run with ``node_program()``."""
    return str(NODE_FOLDER / "node_modules" / path)


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser. Waits in its pages have the same limit as all other waits of the tests."""
    from playwright.sync_api import expect, sync_playwright

    assert BROWSER.found is not None
    expect.set_options(timeout=_BROWSER_LIMIT)
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(BROWSER.found), args=sandbox, timeout=_BROWSER_LIMIT
        )
        for name in ("new_context", "new_page"):
            setattr(browser, name, _patient(getattr(browser, name)))
        yield browser
        browser.close()


def _patient(new: Callable[..., Any]) -> Callable[..., Any]:
    """Each context or page waits as long as other tests, instead of Playwright's 30 seconds."""

    def made(**options: Any) -> Any:
        opened = new(**options)
        opened.set_default_timeout(_BROWSER_LIMIT)
        return opened

    return made


def _browser() -> Path | None:
    # The first is the same browser without its own windows: a page costs a quarter.
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    return next((Path(path) for path in map(shutil.which, names) if path), None)


def _pgbouncer() -> Path | None:
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return Path(found) if found else None


def _bubblewrap() -> Path | None:
    from mcpregistry.downstream.transports import bubblewrap

    found = bubblewrap.find_bubblewrap()
    return Path(found) if found and not bubblewrap.explain_missing() else None


def _node() -> Path | None:
    all_there = all((NODE_FOLDER / "node_modules" / name).is_dir() for name in _PACKAGES)
    return _node_program() if all_there else None


def _older_sdk() -> Path | None:
    python = INSTALLED / "python-sdk-1" / "bin" / "python"
    return python if python.exists() else None


def _chat_client() -> Path | None:
    program = INSTALLED / "llm" / "bin" / "llm"
    return program if program.exists() else None


def _playwright() -> Path | None:
    program = INSTALLED / "playwright-mcp" / "node_modules" / "@playwright" / "mcp" / "cli.js"
    return program if program.exists() else None


@cache
def _node_program() -> Path | None:
    own = NODE_FOLDER / "node_modules" / ".bin" / "node"
    path = str(own) if own.exists() else shutil.which("node")
    if path is None:
        return None
    version = subprocess.run(
        [path, "--version"], capture_output=True, text=True, check=False
    ).stdout
    return Path(path) if int(version.lstrip("v").split(".")[0] or 0) >= 22 else None


_FIND = {
    "web": _browser,
    "node": _node,
    "pgbouncer": _pgbouncer,
    "bubblewrap": _bubblewrap,
    "older_sdk": _older_sdk,
    "chat_client": _chat_client,
    "playwright": _playwright,
}
