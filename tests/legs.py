"""Which tests run on both databases, and which on SQLite only.

``make test`` runs the suite twice. The second time, on PostgreSQL, it leaves out what would only be the
same again: tests that touch no database at all, and those marked ``one_database``: whole processes, hosts and
pages of which the database is a bystander. What reads, writes, locks, listens or dies in the middle of a
transaction runs on both. Where a file of pages is marked, its lists, searches and odd values are marked
``both_databases``: these are what databases answer differently.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest


def of_sqlite_alone(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests that the leg on PostgreSQL leaves out. ``tests/conftest.py`` asks once, after collection."""
    return [item for item in items if not _needs_database(item) or _one_is_enough(item)]


def of_postgres_alone(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests that the leg on SQLite leaves out: those that stop PostgreSQL, or put something before it."""
    return [item for item in items if item.get_closest_marker("postgres_only")]


def _one_is_enough(item: pytest.Item) -> bool:
    return bool(item.get_closest_marker("one_database") and not item.get_closest_marker("both_databases"))


def _needs_database(item: pytest.Item) -> bool:
    """Every fixture that gives a database needs ``django_db_setup``, directly or through others."""
    return "django_db_setup" in item.fixturenames or item.get_closest_marker("django_db") is not None  # type: ignore[attr-defined]


class Deselected:
    """Says at the end how many tests were left out; pytest-xdist keeps what its workers deselect to itself."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._count = 0
        self._by_worker: Counter[str] = Counter()

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._count += len(items)

    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["deselected"] = self._count

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._by_worker[node.gateway.id] = getattr(node, "workeroutput", {}).get("deselected", 0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        count = max([self._count, *self._by_worker.values()])
        if count:
            terminalreporter.write_line(f"left out of this leg: {count} tests (see the header)")
