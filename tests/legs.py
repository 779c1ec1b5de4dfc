"""Which tests run on both databases, which on SQLite only, and which of those measure what they
have run.

``make test`` runs the suite twice. The second time, on PostgreSQL, it leaves out what would only be
the same again: tests that touch no database at all, and those marked ``one_database``: whole
processes, hosts and pages of which the database is a bystander. What reads, writes, locks, listens
or dies in the middle of a transaction runs on both. Where a file of pages is marked, its lists,
searches and odd values are marked ``both_databases``: these are what databases answer differently.
`make test` leaves out more on PostgreSQL: a file that is marked ``exhaustive(on="postgresql")``
runs there only its tests of locks, notifications, triggers, sums and search, which are marked
``both_databases``; `make test-all` runs the whole file on both.

On SQLite the suite has two parts, in processes of their own. One holds the rooms whose tests run
the code that decides, sends and records in their own process: it traces them, for the coverage that
has a floor. Nothing else pays for that.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
MEASURED = "measured"
OTHERS = "others"
_ROOMS = tuple(
    HERE / room
    for room in (
        "domain",
        "models",
        "services",
        "calls",
        "downstream",
        "subagents/runs",
        "admin/test_invitations.py",
        "admin/test_overview.py",
        "admin/test_set_up.py",
        "admin/test_connect.py",
    )
)
# Of these rooms, but of few lines run many thousand times: traced it takes two or three times as
# long, and others run the lines as well.
_UNTRACED = tuple(
    HERE / file
    for file in (
        "domain/test_scanner_orders.py",
        "domain/test_canonical.py",
        "domain/formats/test_round_trips.py",
        "services/test_call_hours.py",
        "calls/test_approvals_model.py",
    )
)
# it bounds processor time, more strictly where nothing traces
_UNTRACED_TOO = (HERE / "domain" / "test_schema.py",)


# The files that take longest, longest first: `make test` and `make test-all` start with them. A
# file that takes more than SLOW_SECONDS in the gate states the reason here; else its tests are made
# cheaper, or marked exhaustive.
SLOW_SECONDS = 20
SLOW = {
    "web/test_every_page.py": "in the gate, a browser looks at one page of each kind",
    "controlplane/test_up.py": "the first run of a site: all its processes start twice, and once they load litellm",
    "controlplane/test_backups.py": "each backup and each restored site is a database of its own",
    "e2e/hosts/test_real_hosts.py": "in the gate, one real host is connected and runs a whole turn",
    "fault/test_matrix_http.py": "what may happen to a held call, each in one of the ways to hold one",
    "fault/test_matrix_stdio.py": "the same, for the ways over stdio; only `make test-all` runs it",
    "subagents/test_runmcp_config.py": "each test starts a process that loads a file and serves it",
    "conformance/test_requirements.py": "the protocol's own suite, on Node",
    "gateway/test_handshake_cache.py": "each test starts a process for a host",
    "subagents/headends/test_interfaces.py": "each interface, with its official client",
    "gateway/test_stdio.py": "each test starts a process for a host",
    "admin/test_roles.py": "each role, and each button and list of the admin",
    "admin/test_servers.py": "the pages of a server, each mistake on its form",
    "api/test_calls.py": "each test has a server of its own, and the site's engine",
    "subagents/headends/test_endings.py": "each way that a request may end, with an engine of its own",
    "subagents/maintenance/test_manager.py": "several processes work, and are interrupted",
    "calls/test_pipeline.py": "each way that a call may end",
    "calls/test_bound.py": "each column of a call and a vote is changed, and the log is verified after each",
    "controlplane/test_logging.py": "each form of the log is written by a process of its own",
    "services/test_signed_books.py": "each way to change a book is tried, and the log is verified after each",
}


def position(path: Path) -> int:
    """Return the place of a file in the order of the run: the longest files come first, so that no
    worker ends with one."""
    name = str(path.relative_to(HERE)) if path.is_relative_to(HERE) else ""
    return [*SLOW].index(name) if name in SLOW else len(SLOW)


def of_another_part(path: Path, part: str) -> bool:
    """Whether a file or folder is not to be collected by this part. ``tests/conftest.py`` asks of
    each."""
    measured = any(path.is_relative_to(room) for room in _ROOMS) and path not in _UNTRACED
    if part == MEASURED:
        return not (measured or any(room.is_relative_to(path) for room in _ROOMS))
    return measured and not any(file.is_relative_to(path) for file in (*_UNTRACED, *_UNTRACED_TOO))


def of_sqlite_alone(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests that the leg on PostgreSQL leaves out. ``tests/conftest.py`` asks once, after
    collection."""
    return [item for item in items if not _needs_database(item) or _one_is_enough(item)]


def of_postgres_alone(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests that the leg on SQLite leaves out: those that stop PostgreSQL, or put something
    before it."""
    return [item for item in items if item.get_closest_marker("postgres_only")]


def _one_is_enough(item: pytest.Item) -> bool:
    return bool(
        item.get_closest_marker("one_database") and not item.get_closest_marker("both_databases")
    )


def _needs_database(item: pytest.Item) -> bool:
    """Every fixture that gives a database needs ``django_db_setup``, directly or through others."""
    fixtures = item.fixturenames  # type: ignore[attr-defined]
    return "django_db_setup" in fixtures or item.get_closest_marker("django_db") is not None


# Files whose tests depend on the database: its locks, notifications, triggers, sums and search.
# Other files use it the same way on both, so the gate runs them on SQLite only.
_POSTGRES_IN_GATE = tuple(
    HERE / f"{folder}{name}"
    for folder, names in {
        "": ("models", "fault", "tasks"),
        "api/test_": ("once.py", "records.py"),
        "calls/test_": (
            "approvals.py",
            "bound.py",
            "changes.py",
            "claims.py",
            "energy.py",
            "live_configuration.py",
            "rates.py",
            "recorder.py",
            "unheard.py",
        ),
        "controlplane/test_": ("databases.py",),
        "management/test_": ("commands.py",),
        "services/test_": (
            "access.py",
            "approvals.py",
            "archiving.py",
            "audit.py",
            "budgets.py",
            "call_hours.py",
            "call_search.py",
            "chains.py",
            "database_clock.py",
            "definitions.py",
            "energy.py",
            "exchange.py",
            "health.py",
            "invariants.py",
            "notifications_delivery.py",
            "reaping.py",
            "resealing.py",
            "retention.py",
            "server_figures.py",
            "sinks.py",
            "signed_books.py",
            "snapshots.py",
            "tasks.py",
            "two_at_once.py",
            "verification.py",
        ),
        "subagents/": ("maintenance/test_manager.py",),
        "web/test_": ("queue.py",),
    }.items()
    for name in names
)


def of_sqlite_in_gate(path: Path) -> bool:
    """Whether `make test` runs this file on SQLite only. Folders are looked through if one of their
    files is for PostgreSQL."""
    return not any(
        path.is_relative_to(each) or each.is_relative_to(path) for each in _POSTGRES_IN_GATE
    )


def of_test_all_alone(items: list[pytest.Item], *, postgres: bool) -> list[pytest.Item]:
    """The tests that `make test` leaves to `make test-all`."""
    cases: Counter[str] = Counter()
    left_out = []
    for item in items:
        test = item.nodeid.partition("[")[0]
        if any(
            _leaves_out(mark, item, cases[test], postgres)
            for mark in item.iter_markers("exhaustive")
        ):
            left_out.append(item)
        cases[test] += 1
    return left_out


def _leaves_out(mark: pytest.Mark, item: pytest.Item, number: int, postgres: bool) -> bool:
    """Whether this mark leaves out the item, which is case ``number`` (from 0) of its test.

    ``exhaustive(but=IDS)`` leaves the cases with these ids in the gate, ``exhaustive(one_in=N)``
    each N-th case, and ``exhaustive(on="postgresql")`` the leg on SQLite. If a whole file is marked
    so, its tests that are marked ``both_databases`` stay in both legs.
    """
    if mark.kwargs.get("on") == "postgresql" and not postgres:
        return False
    if mark.kwargs == {"on": "postgresql"} and item.get_closest_marker("both_databases"):
        return False
    if "one_in" in mark.kwargs:
        return number % int(mark.kwargs["one_in"]) != 0
    case = getattr(item, "callspec", None)
    return case is None or case.id not in mark.kwargs.get("but", ())


class Deselected:
    """Says at the end how many tests were left out; pytest-xdist keeps what its workers deselect to
    itself."""

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
