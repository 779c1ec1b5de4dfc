"""What an error of the database means for the work that met it. The only place that decides this.

PostgreSQL is judged by SQLSTATE, SQLite by its result code. Errors without a code come from the
driver or from Django, which both use the class names of PEP 249.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import Unavailable


class DatabaseFault(StrEnum):
    """Why the database did not do what it was asked."""

    UNAVAILABLE = "unavailable"  # it does not answer, or the connection broke
    # it answers, but does not accept this work now: read-only, full, locked, out of time
    REFUSES = "refuses"
    REJECTS_ROW = "rejects_row"  # it never accepts these values
    BUG = "bug"  # our statement is wrong, or the error is not one of the database


# By class or by whole code; the whole code comes first.
# https://www.postgresql.org/docs/current/errcodes-appendix.html
_POSTGRES: dict[str, DatabaseFault] = {
    **dict.fromkeys(("08", "28", "3D", "57P"), DatabaseFault.UNAVAILABLE),
    # Insufficient privilege (42501) is an operator's mistake while privileges are changed, so it
    # passes as well. A prepared statement that a pooler forgot (26) and a stale plan (0A000) are
    # fine in the next session.
    **dict.fromkeys(
        (
            "25006",
            "25P03",
            "25P04",
            "26",
            "0A000",
            "40",
            "42501",
            "53",
            "55P03",
            "55006",
            "57",
            "58",
        ),
        DatabaseFault.REFUSES,
    ),
    # P0: the guards in the database raise it.
    **dict.fromkeys(("21", "22", "23", "27", "44", "54", "P0"), DatabaseFault.REJECTS_ROW),
}

# Primary result codes. https://www.sqlite.org/rescode.html
_SQLITE: dict[int, DatabaseFault] = {
    **dict.fromkeys((11, 14, 26), DatabaseFault.UNAVAILABLE),  # CORRUPT, CANTOPEN, NOTADB
    # PERM, BUSY, LOCKED, NOMEM, READONLY, INTERRUPT, IOERR, FULL, PROTOCOL, SCHEMA, NOLFS, AUTH
    **dict.fromkeys((3, 5, 6, 7, 8, 9, 10, 13, 15, 17, 22, 23), DatabaseFault.REFUSES),
    # TOOBIG, CONSTRAINT (guards too), MISMATCH, RANGE
    **dict.fromkeys((18, 19, 20, 25), DatabaseFault.REJECTS_ROW),
}

_READ_ONLY = "25006"
# sqlite3, without a code: a value that the site has not written
_NO_TEXT = "Could not decode to UTF-8"


def fault_of(error: BaseException) -> DatabaseFault:
    """What ``error`` means. Takes the errors of both drivers, and Django's, which wrap them."""
    said = _driver_error(error)
    sqlstate = _sqlstate(said)
    if sqlstate is not None:
        return next(
            (_POSTGRES[key] for key in (sqlstate, sqlstate[:3], sqlstate[:2]) if key in _POSTGRES),
            DatabaseFault.BUG,
        )
    code = getattr(said, "sqlite_errorcode", None)
    if code is not None:
        return _SQLITE.get(code & 0xFF, DatabaseFault.BUG)
    return _by_class(said)


def fault_facts(error: BaseException) -> dict[str, str]:
    """What a log event says of ``error``: its class, what it means, and the database's own code, if
    it has one.

    The text of the error is left out, because it may contain values of rows.
    """
    return {
        "error": type(error).__name__,
        "fault": fault_of(error).value,
        "code": _code(_driver_error(error)),
    }


def is_database_error(error: BaseException) -> bool:
    """Whether a driver or Django's database layer raised it."""
    return bool(_names(error) & {"DatabaseError", "InterfaceError"})


def is_passing(error: BaseException) -> bool:
    """Whether the same work may succeed later, unchanged: try again, and do not blame the work."""
    return fault_of(error) in (DatabaseFault.UNAVAILABLE, DatabaseFault.REFUSES)


def is_read_only(error: BaseException) -> bool:
    """Whether the session may not write. A session keeps that for its lifetime, so the next try
    needs a new one."""
    return _sqlstate(_driver_error(error)) == _READ_ONLY


def is_outcome_unknown(error: BaseException) -> bool:
    """Whether a transaction that failed with this may have been committed: the connection broke
    before the answer.

    With any other error the database itself says that nothing was written, or it was not reached at
    all. On SQLite there is no such doubt, because this process commits.
    """
    said: Any = _driver_error(error)
    if "OperationalError" not in _names(said) or not hasattr(said, "sqlstate"):
        return False
    if said.pgconn is not None or "Timeout" in type(said).__name__:
        return False  # no connection could be opened, or the pool had none to give
    return said.sqlstate is None or said.sqlstate.startswith(("08", "57P"))


def make_unavailable_error(error: BaseException) -> Unavailable:
    """What whoever asked for something is told of an error of the database."""
    if is_outcome_unknown(error):
        return Unavailable(
            f"{error_texts.DATABASE_UNAVAILABLE} It is not known whether the change was saved.",
            remedy="Check whether the change was saved before you try again. An operator can find the cause in the log.",
        )
    if fault_of(error) is DatabaseFault.REFUSES:
        return Unavailable(
            "The database does not accept changes at the moment: it is read-only, full, locked or overloaded.",
            remedy=error_texts.TRY_AGAIN,
        )
    return Unavailable(error_texts.DATABASE_UNAVAILABLE, remedy=error_texts.TRY_AGAIN)


def _driver_error(error: BaseException) -> BaseException:
    """The driver's own error, where Django has wrapped it."""
    cause = error.__cause__
    return cause if cause is not None and is_database_error(cause) else error


def _sqlstate(error: BaseException) -> str | None:
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) else None


def _code(error: BaseException) -> str:
    """SQLSTATE, or the name of SQLite's result code, such as ``SQLITE_BUSY_SNAPSHOT``."""
    return _sqlstate(error) or str(getattr(error, "sqlite_errorname", ""))


def _by_class(error: BaseException) -> DatabaseFault:
    names = _names(error)
    if not is_database_error(error):
        return DatabaseFault.BUG
    if "OperationalError" in names:
        return DatabaseFault.BUG if str(error).startswith(_NO_TEXT) else DatabaseFault.UNAVAILABLE
    if "InterfaceError" in names:  # the connection is closed; sqlite3 means a wrong use of it
        return (
            DatabaseFault.BUG if type(error).__module__ == "sqlite3" else DatabaseFault.UNAVAILABLE
        )
    return (
        DatabaseFault.REJECTS_ROW if names & {"IntegrityError", "DataError"} else DatabaseFault.BUG
    )


def _names(error: BaseException) -> set[str]:
    return {each.__name__ for each in type(error).__mro__}
