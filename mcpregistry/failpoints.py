"""Named places at which a test can let this process crash, fail or stall. Nothing happens
otherwise.

``SLIPSNISSE_FAILPOINT=name:crash`` kills the process there as ``kill -9`` would, ``name:raise``
raises, ``name:stall`` stops it until somebody sends SIGCONT. ``name:dberror`` raises a database
error there the first time, ``name:dberror@3`` the third time, and never again; besides the names
below every function that async code runs in a database thread is such a point (``held_calls.ask``).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import OperationalError

NAMES = (
    "held",  # a call was just recorded as pending
    "voted",  # the vote is committed, nobody has been told
    "before_claim",  # its grounds were checked
    "after_claim",  # the claim is durable, nothing has been sent
    "after_send",  # the first byte may have left
    "committing",  # the recorder is about to write rows
    "before_end",  # the answer is here and not yet recorded
    "run_begun",  # a run and its handle are written, not committed
    "run_leased",  # the run is this worker's
    "run_turn_begun",  # its model is about to be asked, the money is set aside
    "run_turn_ended",  # the model's answer and its calls are committed
    "run_call_started",  # a tool call is about to be made
    "run_call_answered",  # its end is known and not yet written
    "run_call_ended",  # its end is committed
    # a file of audit entries has its name, the entries are in the database still
    "archive_written",
    "archive_recorded",  # the records of the archive are written, not committed
    "maintenance_leased",  # the request is this worker's
    "maintenance_acted",  # a step has looked outside, nothing of it is written
    "migration_noted",  # a migration and its note are written, not committed
    "migration_applied",  # they are committed
    "triggers_made",  # all migrations are applied, and the triggers are there
    "roles_made",  # the roles as well, it is not noted yet
    "run_ending",  # the run's end is written with its call's, not committed
)


class FailpointReached(RuntimeError):
    """What ``name:raise`` raises."""


@dataclass(slots=True)
class Armed:
    """One named point, what happens there, and how many times it is still passed until then
    (``dberror`` only)."""

    name: str = ""
    how: str = ""
    left: int = 1


def _parse_failpoint(text: str) -> Armed:
    name, _, rest = text.partition(":")
    how, _, time = rest.partition("@")
    return Armed(name, how, int(time or 1))


_armed = Armed()


def arm() -> None:
    """As the environment says now: at the start of a process."""
    global _armed  # noqa: PLW0603 - one for each process, as the variable
    _armed = _parse_failpoint(os.environ.get("SLIPSNISSE_FAILPOINT", ""))


arm()


@contextmanager
def arm_for_test(text: str) -> Iterator[Armed]:
    """For tests within this process: as if the variable said so, until the block ends. ``left`` is
    0 once it was hit."""
    global _armed  # noqa: PLW0603 - one for each process, as the variable
    before = _armed
    _armed = _parse_failpoint(text)
    try:
        yield _armed
    finally:
        _armed = before


def failpoint(name: str) -> None:
    """Named places call this; nothing happens unless the name is armed."""
    if name == _armed.name:
        _hit_failpoint(name)


def database_point(function: Callable[..., object]) -> None:
    """``db_call`` calls this before each function: the points of ``dberror`` are named after them,
    MODULE.FUNCTION."""
    if _armed.how == "dberror" and _armed.name == point_of(function):
        _hit_failpoint(_armed.name)


def point_of(function: Callable[..., object]) -> str:
    """The name of the point before this function runs in a database thread."""
    return f"{function.__module__.rpartition('.')[2]}.{getattr(function, '__qualname__', '')}"


def _hit_failpoint(name: str) -> None:
    if _armed.how == "dberror":
        _armed.left -= 1
        if _armed.left == 0:
            raise OperationalError(f"the database fails at {name}")
        return
    if _armed.how == "raise":
        raise FailpointReached(name)
    os.kill(os.getpid(), signal.SIGSTOP if _armed.how == "stall" else signal.SIGKILL)
