"""Which tests run on both databases, which on SQLite only, and which of those measure what they have run.

``make test`` runs the suite twice. The second time, on PostgreSQL, it leaves out what would only be the
same again: tests that touch no database at all, and those marked ``one_database``: whole processes, hosts and
pages of which the database is a bystander. What reads, writes, locks, listens or dies in the middle of a
transaction runs on both. Where a file of pages is marked, its lists, searches and odd values are marked
``both_databases``: these are what databases answer differently.

On SQLite the suite has two parts, in processes of their own. One holds the rooms whose tests run the code that decides,
sends and records in their own process: it traces them, for the coverage that has a floor. Nothing else pays for that.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
MEASURED, OTHERS = "measured", "others"
_ROOMS = tuple(HERE / room for room in (
    "domain", "models", "services", "calls", "downstream", "subagents/runs", "admin/test_invitations.py",
    "admin/test_overview.py", "admin/test_set_up.py", "admin/test_connect.py",
))  # fmt: skip
# Of these rooms, but of few lines run many thousand times: traced it takes two or three times as long, and others run
# the lines as well.
_UNTRACED = tuple(HERE / file for file in (
    "domain/test_scanner_orders.py", "domain/test_canonical.py", "domain/formats/test_round_trips.py",
    "services/test_call_hours.py", "calls/test_approvals_model.py",
))  # fmt: skip
_UNTRACED_TOO = (HERE / "domain" / "test_schema.py",)  # it bounds processor time, more strictly where nothing traces


# The files that take longest, longest first: `make test` and `make test-all` print them.
_LONGEST = (
    "web/test_every_page.py",
    "controlplane/test_up.py",
    "controlplane/test_backups.py",
    "e2e/hosts/test_real_hosts.py",
    "fault/test_matrix_http.py",
    "fault/test_matrix_stdio.py",
    "subagents/test_runmcp_config.py",
    "web/test_admin.py",
)


def position(path: Path) -> int:
    """Return the place of a file in the order of the run: the longest files come first, so that no worker ends with one."""
    name = str(path.relative_to(HERE)) if path.is_relative_to(HERE) else ""
    return _LONGEST.index(name) if name in _LONGEST else len(_LONGEST)


def of_another_part(path: Path, part: str) -> bool:
    """Whether a file or folder is not to be collected by this part. ``tests/conftest.py`` asks of each."""
    measured = any(path.is_relative_to(room) for room in _ROOMS) and path not in _UNTRACED
    if part == MEASURED:
        return not (measured or any(room.is_relative_to(path) for room in _ROOMS))
    return measured and not any(file.is_relative_to(path) for file in (*_UNTRACED, *_UNTRACED_TOO))


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


# Packages in which the database decides what happens. Other packages use it the same way on both, so the gate runs them on
# SQLite only.
_POSTGRES_IN_GATE = tuple(HERE / name for name in (
    "models", "services", "calls", "fault", "tasks", "management", "controlplane/test_databases.py",
    "controlplane/test_empty_lists.py", "admin/test_query_budgets.py", "admin/test_records.py", "web/test_queue.py",
    "web/test_history.py", "web/test_usage.py", "api/test_calls.py", "api/test_approvals.py", "api/test_records.py",
    "api/test_once.py", "subagents/runs/test_engine.py", "subagents/runs/test_takeover.py",
    "subagents/maintenance/test_manager.py", "gateway/tasks/test_held.py", "gateway/test_changes.py",
))  # fmt: skip


def of_test_all_alone(items: list[pytest.Item], *, postgres: bool) -> list[pytest.Item]:
    """The tests that `make test` leaves to `make test-all`."""
    return [item for item in items if _is_exhaustive(item, postgres) or (postgres and not _is_for_postgres(item))]


def _is_for_postgres(item: pytest.Item) -> bool:
    if item.get_closest_marker("postgres_only"):
        return True
    return any(item.path.is_relative_to(path) for path in _POSTGRES_IN_GATE)


def _is_exhaustive(item: pytest.Item, postgres: bool) -> bool:
    return any(_leaves_out(mark, item, postgres) for mark in item.iter_markers("exhaustive"))


def _leaves_out(mark: pytest.Mark, item: pytest.Item, postgres: bool) -> bool:
    """``exhaustive(but=IDS)`` leaves the cases with these ids in the gate; ``exhaustive(on="postgresql")`` SQLite's leg."""
    if mark.kwargs.get("on") == "postgresql" and not postgres:
        return False
    case = getattr(item, "callspec", None)
    return case is None or case.id not in mark.kwargs.get("but", ())


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
