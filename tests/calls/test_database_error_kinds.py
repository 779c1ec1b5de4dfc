"""What an error of the database means, by its code: of both drivers, bare and wrapped by Django."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable

import psycopg
import psycopg_pool
import pytest
from django import db
from django.db import connection, transaction
from kombu.exceptions import OperationalError as BrokerError

from mcpregistry.database_errors import (
    DatabaseFault,
    fault_facts,
    fault_of,
    is_outcome_unknown,
    is_passing,
    is_read_only,
)

SQLSTATES = {
    DatabaseFault.UNAVAILABLE: (
        "08000",
        "08006",
        "08P01",
        "28P01",
        "3D000",
        "57P01",
        "57P02",
        "57P03",
        "57P05",
    ),
    DatabaseFault.REFUSES: (
        "25006",
        "25P03",
        "25P04",
        "40001",
        "40P01",
        "42501",
        "53100",
        "53200",
        "53300",
        "55P03",
        "55006",
        "57014",
        "58030",
        "26000",
        "0A000",
    ),
    DatabaseFault.REJECTS_ROW: ("22001", "22P05", "23502", "23505", "23514", "54000", "P0001"),
    DatabaseFault.BUG: ("42601", "42703", "42P01", "25P02", "XX000"),
}
RESULT_CODES = {
    DatabaseFault.UNAVAILABLE: (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOTADB,
    ),
    DatabaseFault.REFUSES: (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_BUSY_SNAPSHOT,
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_READONLY_DBMOVED,
        sqlite3.SQLITE_NOMEM,
    ),
    DatabaseFault.REJECTS_ROW: (
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_CONSTRAINT_TRIGGER,
        sqlite3.SQLITE_TOOBIG,
    ),
    DatabaseFault.BUG: (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISUSE),
}
WITHOUT_CODE = {
    DatabaseFault.UNAVAILABLE: (
        psycopg.OperationalError("server closed the connection unexpectedly"),
        psycopg.InterfaceError("closed"),
        psycopg_pool.PoolTimeout("none to give"),
        db.OperationalError("x"),
        db.InterfaceError("x"),
    ),
    DatabaseFault.REJECTS_ROW: (
        psycopg.DataError("NUL"),
        db.IntegrityError("x"),
        db.DataError("x"),
    ),
    DatabaseFault.BUG: (
        sqlite3.InterfaceError("x"),
        sqlite3.ProgrammingError("closed"),
        db.ProgrammingError("x"),
        db.DatabaseError("x"),
        ValueError("x"),
        TimeoutError("x"),
        BrokerError("x"),
        OSError("x"),
    ),
}


def of_postgres(sqlstate: str) -> Exception:
    try:
        return psycopg.errors.lookup(sqlstate)("said")
    except KeyError:
        error = psycopg.DatabaseError("said")
        error.sqlstate = sqlstate
        return error


def of_sqlite(code: int) -> Exception:
    error = sqlite3.OperationalError("said")
    error.sqlite_errorcode = code
    return error


def wrapped(cause: Exception) -> Exception:
    """Django gives it another class, and keeps it as the cause."""
    error = db.DatabaseError(str(cause))
    error.__cause__ = cause
    return error


def listed(table: dict[DatabaseFault, tuple[object, ...]]) -> list[object]:
    return [
        pytest.param(fault, each, id=f"{fault}-{each}")
        for fault, found in table.items()
        for each in found
    ]


@pytest.mark.parametrize(("fault", "sqlstate"), listed(SQLSTATES))
def test_an_error_of_postgresql_is_judged_by_its_sqlstate(
    fault: DatabaseFault, sqlstate: str
) -> None:
    assert fault_of(of_postgres(sqlstate)) is fault
    assert fault_of(wrapped(of_postgres(sqlstate))) is fault


@pytest.mark.parametrize(("fault", "code"), listed(RESULT_CODES))
def test_an_error_of_sqlite_is_judged_by_its_result_code(fault: DatabaseFault, code: int) -> None:
    assert fault_of(of_sqlite(code)) is fault
    assert fault_of(wrapped(of_sqlite(code))) is fault


@pytest.mark.parametrize(("fault", "error"), listed(WITHOUT_CODE))
def test_an_error_without_a_code_is_judged_by_its_class(
    fault: DatabaseFault, error: Exception
) -> None:
    assert fault_of(error) is fault


def test_facts_for_the_log_name_the_code_and_no_values() -> None:
    busy = of_sqlite(sqlite3.SQLITE_BUSY_SNAPSHOT)
    busy.sqlite_errorname = "SQLITE_BUSY_SNAPSHOT"  # type: ignore[attr-defined]
    assert fault_facts(wrapped(busy)) == {
        "error": "DatabaseError",
        "fault": "refuses",
        "code": "SQLITE_BUSY_SNAPSHOT",
    }
    assert fault_facts(of_postgres("40001"))["code"] == "40001"
    assert fault_facts(ValueError("a secret")) == {
        "error": "ValueError",
        "fault": "bug",
        "code": "",
    }


def test_an_error_of_ours_is_not_judged_by_what_caused_it() -> None:
    error = db.OperationalError("The lease could not be renewed.")
    error.__cause__ = TimeoutError()
    assert is_passing(error)


def test_only_a_read_only_session_is_to_be_left() -> None:
    assert is_read_only(wrapped(of_postgres("25006")))
    assert not is_read_only(wrapped(of_postgres("53100")))
    assert not is_read_only(of_sqlite(sqlite3.SQLITE_READONLY))


def failure(work: Callable[[], object]) -> Exception:
    try:
        work()
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


def execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.mark.fault
@pytest.mark.postgres_only
@pytest.mark.parametrize(
    "setting",
    ["statement_timeout", "idle_in_transaction_session_timeout", "default_transaction_read_only"],
)
def test_postgresqls_own_refusals_pass_and_leave_no_doubt(live_db: None, setting: str) -> None:
    def work() -> None:
        execute(f"SET {setting} = {'on' if 'read' in setting else 50}")
        with transaction.atomic():
            execute("UPDATE mcpregistry_configuration SET revision = revision")
            if "idle" in setting:
                time.sleep(0.2)
            execute("SELECT pg_sleep(0.2)")

    error = failure(work)
    connection.close()
    connection.close_pool()  # type: ignore[attr-defined]  # the setting would stay with the session
    assert is_passing(error), error
    assert not is_outcome_unknown(error) or error.__cause__.sqlstate is None  # type: ignore[union-attr]


@pytest.mark.fault
@pytest.mark.one_database
def test_sqlites_own_refusal_passes(live_db: None) -> None:
    execute("PRAGMA query_only = 1")
    try:
        error = failure(lambda: execute("UPDATE mcpregistry_configuration SET revision = revision"))
    finally:
        execute("PRAGMA query_only = 0")
    assert fault_facts(error) == {
        "error": "OperationalError",
        "fault": "refuses",
        "code": "SQLITE_READONLY",
    }


def test_a_wrong_statement_and_a_wrong_row_are_told_apart(live_db: None) -> None:
    assert fault_of(failure(lambda: execute("SELECT * FROM nothing"))) is DatabaseFault.BUG
    connection.close()
    error = failure(lambda: execute("UPDATE mcpregistry_configuration SET revision = NULL"))
    assert fault_of(error) is DatabaseFault.REJECTS_ROW
