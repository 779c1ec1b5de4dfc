"""The one way from async code to the database.

Django's own bridge would push every caller outside an HTTP request onto one thread, and nobody
would close that thread's connections. ``db_call`` uses a small pool of threads of its own and
closes stale connections around each call, so write services synchronously and wrap them once.
"""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ParamSpec, TypeVar

from django.db import DEFAULT_DB_ALIAS, Error, close_old_connections, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet
from django.db.utils import load_backend

from mcpregistry.database_errors import is_read_only
from mcpregistry.failpoints import database_point

P = ParamSpec("P")
R = TypeVar("R")

_threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="db")


async def db_call(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run ``function`` in a database thread. Never hold a transaction across two calls."""
    return await asyncio.get_running_loop().run_in_executor(
        _threads, _fresh, function, args, kwargs
    )


async def long_db_call(function: Callable[[], R]) -> R:
    """Run work of seconds or minutes in a thread of its own: the few of ``db_call`` serve calls.

    The end of the process does not wait for it, so its rows must tell what became of it.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[R] = loop.create_future()

    def settle(set_it: Callable[[], None]) -> None:
        if not done.done():
            set_it()

    def run() -> None:
        try:
            result = function()
            told = partial(done.set_result, result)
        except BaseException as error:  # noqa: BLE001 (raised again where it is awaited)
            told = partial(done.set_exception, error)
        try:
            connections.close_all()  # this thread's own
        finally:
            with suppress(RuntimeError):  # the loop has ended, and with it whoever waited
                loop.call_soon_threadsafe(settle, told)

    threading.Thread(target=run, name="long-db", daemon=True).start()
    return await done


def _fresh(function: Callable[..., R], args: tuple[object, ...], kwargs: dict[str, object]) -> R:
    close_old_connections()
    try:
        database_point(function)
        return function(*args, **kwargs)
    finally:
        _keep()
        close_old_connections()


def _keep() -> None:
    """These few threads will be asked again, and opening a SQLite file costs ten times what a query
    does.

    PostgreSQL's connections go back to their pool.
    """
    connection = connections[DEFAULT_DB_ALIAS]
    if connection.vendor == "sqlite":
        connection.close_at = None  # until it breaks


def stream_rows(rows: QuerySet[Any, R], chunk_size: int = 2_000) -> Iterator[R]:
    """The rows of a query that may find very many, a chunk at a time; for reading alone.

    In a transaction on PostgreSQL: a pooler of transactions would give each chunk another session,
    which knows nothing of the cursor. On SQLite every transaction is a writer's, and nobody waits
    for a reader's rows.
    """
    connection = connections[rows.db]
    if connection.vendor != "postgresql" or connection.in_atomic_block:
        yield from rows.iterator(chunk_size=chunk_size)
        return
    with transaction.atomic(rows.db):
        yield from rows.iterator(chunk_size=chunk_size)


@contextmanager
def share_transaction() -> Iterator[None]:
    """Many ``stream_rows`` queries after each other: on PostgreSQL in one transaction, instead of
    one for each."""
    with (
        transaction.atomic()
        if connections[DEFAULT_DB_ALIAS].vendor == "postgresql"
        else nullcontext()
    ):
        yield


@contextmanager
def open_snapshot() -> Iterator[None]:
    """Queries that see one moment, and change nothing. On SQLite not Django's own transaction,
    which would take the write lock. Within a transaction it is that one's."""
    connection = connections[DEFAULT_DB_ALIAS]
    if connection.in_atomic_block:
        yield
    elif connection.vendor == "postgresql":
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield
    else:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN DEFERRED")
            try:
                yield
            finally:
                cursor.execute("ROLLBACK")  # nothing was written


def create_unpooled_connection() -> BaseDatabaseWrapper:
    """Return a connection to the default database that belongs to the caller alone. It opens when
    it is first used, and the caller closes it.
    """
    known = connections[DEFAULT_DB_ALIAS]
    settings: dict[str, Any] = copy.deepcopy(known.settings_dict)
    settings["OPTIONS"].pop("pool", None)
    wrapper: BaseDatabaseWrapper = load_backend(settings["ENGINE"]).DatabaseWrapper(
        settings, DEFAULT_DB_ALIAS
    )
    return wrapper


def distrust_pool() -> None:
    """Connections to the database were lost: replace those that lie idle in this process's pool, if
    it has one.

    Each is tried when it is taken, but finding several dead ones one by one takes longer than a
    caller waits.
    """
    pool = getattr(connections.create_connection(DEFAULT_DB_ALIAS), "pool", None)
    if pool is not None and not pool.closed:
        pool.drain()


_LEAVE_EVERY = 1.0  # seconds; a pool connects anew each time
_left_at = 0.0


def leave_read_only_sessions(error: BaseException) -> None:
    """Replace the pool's sessions where ``error`` says that one may only read.

    A session may keep that from its beginning to its end. Without this it would refuse writes long
    after the database accepts them again.
    """
    global _left_at  # noqa: PLW0603 - one pool in a process
    if is_read_only(error) and time.monotonic() - _left_at >= _LEAVE_EVERY:
        _left_at = time.monotonic()
        distrust_pool()


def watch_sessions(connection: BaseDatabaseWrapper, **_: object) -> None:
    """When a thread has connected: look at what fails there."""
    if _look_at_failures not in connection.execute_wrappers:
        connection.execute_wrappers.append(_look_at_failures)


def _look_at_failures(execute: Callable[..., R], *args: object) -> R:
    try:
        return execute(*args)
    except Error as error:
        leave_read_only_sessions(error)
        raise


# The one clock by which leases are compared

_CLOCK_HOLDS = 10.0  # seconds for which a reading is reckoned on by this machine's steady clock
# what the database's clock said, and the steady clock then
_reading: tuple[datetime, float] | None = None


def read_database_now() -> datetime:
    """The time by the database's clock: the one that all machines share, so write and compare
    leases by it.

    Two machines whose own clocks differ by half a minute would otherwise take each other's live
    work for dead. It costs a query every ten seconds at most (none while the change feed runs,
    which reads the clock anyway). SQLite serves one machine, so there it is simply that machine's
    time. Call it where the ORM may be used.
    """
    connection = connections[DEFAULT_DB_ALIAS]
    if connection.vendor == "sqlite":
        return datetime.now(UTC)
    if _reading is None or time.monotonic() - _reading[1] > _CLOCK_HOLDS:
        before = time.monotonic()
        with connection.cursor() as cursor:
            # not now(), which stands still during a transaction
            cursor.execute("SELECT clock_timestamp()")
            note_clock(cursor.fetchone()[0], before)
    return estimate_database_now()


def estimate_database_now() -> datetime:
    """The same without asking, for the event loop: from the last reading, which the change feed
    renews each second."""
    if _reading is None:
        return datetime.now(UTC)
    said, at = _reading
    return said + timedelta(seconds=time.monotonic() - at)


def note_clock(said: datetime, before: float) -> None:
    """Somebody has read the database's clock with a query that began at ``before`` (of the steady
    clock)."""
    global _reading  # noqa: PLW0603  one database, one clock; a tuple is swapped whole, so threads need no lock
    _reading = said, (before + time.monotonic()) / 2
