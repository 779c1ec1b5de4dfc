"""Databases that answer and yet refuse to write, as real ones do: read-only, full, locked, too
slow, without privileges.

Each is a context manager: within it the database of the test refuses. Whatever undoes the cause
leaves the sessions of the product alone, because that is how a fault ends.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import update_wrapper
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, connections

from mcpregistry import db
from mcpregistry.calls.recording import ledger
from mcpregistry.services.approvals import held_calls

ROLE = "plain"  # may not ignore privileges, as the superuser of the tests does
_WRITTEN = ("mcpregistry_invocation", "mcpregistry_auditentry", "mcpregistry_approvalrequest")
Refusing = Callable[[], AbstractContextManager[None]]


# PostgreSQL


@contextmanager
def operator() -> Iterator[psycopg.Connection[Any]]:
    """A session of somebody who may do anything; what befalls the others does not befall it."""
    facts = connections["default"].settings_dict
    with psycopg.connect(
        host=facts["HOST"],
        port=facts["PORT"],
        user=facts["USER"],
        dbname=facts["NAME"],
        autocommit=True,
    ) as raw:
        raw.execute("SET ROLE NONE")  # also where the others' sessions begin as ``ROLE``
        yield raw


def let_go() -> None:
    """Close this process's own connections, which may be older than a fault."""
    connections.close_all()
    if connection.vendor == "postgresql":
        connections["default"].close_pool()  # type: ignore[attr-defined]


def end_sessions(raw: psycopg.Connection[Any]) -> None:
    """What a failover does to all that are open."""
    raw.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND datname = current_database() AND backend_type = 'client backend'"
    )


@contextmanager
def _default(setting: str, value: str) -> Iterator[psycopg.Connection[Any]]:
    """Every session that begins within has this setting, and keeps it until it ends."""
    with operator() as raw:
        name = raw.info.dbname
        raw.execute(f'ALTER DATABASE "{name}" SET {setting} = {value}')
        end_sessions(raw)
        try:
            yield raw
        finally:
            raw.execute(f'ALTER DATABASE "{name}" RESET {setting}')


@contextmanager
def read_only() -> Iterator[None]:
    """After a failover the new sessions may only read. Later ones may write."""
    with _default("default_transaction_read_only", "on"):
        yield


@contextmanager
def slow() -> Iterator[None]:
    """Statements wait for a lock until the server's time limit for statements ends them."""
    with _default("statement_timeout", "'300ms'") as raw, raw.transaction():
        raw.execute(f"LOCK TABLE {', '.join(_WRITTEN)} IN EXCLUSIVE MODE")
        yield


@contextmanager
def _raising(sqlstate: str) -> Iterator[None]:
    """The server itself answers every write with this SQLSTATE."""
    with operator() as raw:
        raw.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{sqlstate}'; END $$"
        )
        for table in _WRITTEN:
            raw.execute(
                f"CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON {table} EXECUTE FUNCTION refuse()"
            )
        try:
            yield
        finally:
            raw.execute("DROP FUNCTION refuse CASCADE")


def full() -> AbstractContextManager[None]:
    """The disk of the server has no room."""
    return _raising("53100")


def idle() -> AbstractContextManager[None]:
    """The server ends transactions that have been idle for too long."""
    return _raising("25P03")


@contextmanager
def revoked() -> Iterator[None]:
    """Somebody takes the privilege to write away, by mistake. The product must run as ``ROLE``."""
    tables = ", ".join(_WRITTEN)
    with operator() as raw:
        raw.execute(f"REVOKE INSERT, UPDATE ON {tables} FROM {ROLE}")
        try:
            yield
        finally:
            raw.execute(f"GRANT INSERT, UPDATE ON {tables} TO {ROLE}")


@contextmanager
def as_plain_role() -> Iterator[None]:
    """The product's sessions have no more privileges than it needs."""
    with operator() as raw:
        name = raw.info.dbname
        raw.execute(f"CREATE ROLE {ROLE}")
        raw.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {ROLE}")
        raw.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {ROLE}")
        raw.execute(f'ALTER DATABASE "{name}" SET role = {ROLE}')
        end_sessions(raw)
        try:
            yield
        finally:
            raw.execute(f'ALTER DATABASE "{name}" RESET role')
            raw.execute(f"DROP OWNED BY {ROLE}")
            raw.execute(f"DROP ROLE {ROLE}")


# SQLite


@contextmanager
def _pragma(refusing: str, accepting: str) -> Iterator[None]:
    """Each connection of this process has the first pragma within, and afterwards the second."""
    with pytest.MonkeyPatch.context() as patch:
        commit = ledger.BACKENDS["sqlite"]
        fresh = db._fresh

        def set_to(pragma: str) -> None:
            with connections["default"].cursor() as cursor:
                cursor.execute(f"PRAGMA {pragma}")

        def refusing_commit(*args: Any) -> ledger.Changed:
            set_to(refusing)
            try:
                return commit(*args)
            finally:
                set_to(accepting)

        def refusing_call(function: Any, args: Any, kwargs: Any) -> Any:
            def within() -> Any:  # not around it: a thread's first connection is opened inside
                set_to(refusing)
                try:
                    return function(*args, **kwargs)
                finally:
                    set_to(accepting)

            return fresh(update_wrapper(within, function), (), {})

        patch.setitem(ledger.BACKENDS, "sqlite", refusing_commit)
        patch.setattr(db, "_fresh", refusing_call)
        yield


def read_only_file() -> AbstractContextManager[None]:
    """The file of the database, or its file system, became read-only."""
    return _pragma("query_only = 1", "query_only = 0")


@contextmanager
def full_disk() -> Iterator[None]:
    """The file cannot become larger, and has no free pages."""
    with contextlib.closing(
        sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)
    ) as raw:
        raw.execute("PRAGMA busy_timeout = 20000")
        raw.execute("VACUUM")
        pages = raw.execute("PRAGMA page_count").fetchone()[0]
    with _pragma(f"max_page_count = {pages}", "max_page_count = 1073741823"):
        yield


@contextmanager
def locked() -> Iterator[None]:
    """Another process holds the lock for longer than anybody waits."""
    path = connection.settings_dict["NAME"]
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.closing(
            sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        ) as holder,
        _pragma("busy_timeout = 200", "busy_timeout = 20000"),
    ):
        patch.setattr(ledger, "_LOCK_WAIT", 0.2)
        holder.execute("PRAGMA busy_timeout = 20000")
        holder.execute("BEGIN IMMEDIATE")
        yield
        holder.execute("ROLLBACK")


POSTGRES: dict[str, Refusing] = {
    "read only": read_only,
    "full disk": full,
    "statement timeout": slow,
    "idle timeout": idle,
    "revoked privileges": revoked,
}
SQLITE: dict[str, Refusing] = {
    "read only": read_only_file,
    "full disk": full_disk,
    "locked": locked,
}


def no_room() -> OperationalError:
    """What the database says that has no room."""
    cause: Any = psycopg.errors.DiskFull("no room")
    if connection.vendor == "sqlite":
        cause = sqlite3.OperationalError("database or disk is full")
        cause.sqlite_errorcode = sqlite3.SQLITE_FULL
    error = OperationalError(str(cause))
    error.__cause__ = cause
    return error


def refuse_held_calls(monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> None:
    """The function of held calls fails so often, before it has written anything."""
    real = getattr(held_calls, name)
    left = iter(range(times))

    def function(*args: Any, **kwargs: Any) -> Any:
        if next(left, None) is not None:
            raise no_room()
        return real(*args, **kwargs)

    function.__name__ = name
    function.__qualname__ = name
    function.__module__ = held_calls.__name__
    monkeypatch.setattr(held_calls, name, function)
