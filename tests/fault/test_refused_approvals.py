"""A call is approved while the database refuses to write: its caller is told to come back, and finds it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection

from mcpregistry.calls.approvals import kept
from mcpregistry.calls.call import Host
from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import State
from mcpregistry.models import ApprovalRequest, Server
from mcpregistry.services.approvals import held_calls
from tests.calls.conftest import Site, journal, site
from tests.calls.test_approvals import asking, bob, calling, held, vote
from tests.fault.database import until

__all__ = ["asking", "bob", "journal", "site"]  # fixtures

pytestmark = pytest.mark.fault
Make = Callable[..., Any]


def full() -> OperationalError:
    """What the database says that has no room."""
    cause: Any = psycopg.errors.DiskFull("no room")
    if connection.vendor == "sqlite":
        cause = sqlite3.OperationalError("database or disk is full")
        cause.sqlite_errorcode = sqlite3.SQLITE_FULL
    error = OperationalError(str(cause))
    error.__cause__ = cause
    return error


def refusing(monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> None:
    """The function of held calls fails so often, before it has written anything."""
    real, left = getattr(held_calls, name), iter(range(times))

    def function(*args: Any, **kwargs: Any) -> Any:
        if next(left, None) is not None:
            raise full()
        return real(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__module__ = held_calls.__name__
    monkeypatch.setattr(held_calls, name, function)


async def test_an_approved_call_that_cannot_be_noted_is_told_as_pending(
    site: Make, asking: Server, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "FIRST_PAUSE", 0.01)
    here: Site = await site()
    call = calling(here)
    await held()
    refusing(monkeypatch, "load", 1)
    refusing(monkeypatch, "away", 3)
    await vote(bob)
    outcome = await call
    assert (outcome.state, outcome.error_code) == (State.PENDING, "")
    assert outcome.ticket is not None
    assert here.sent() == []
    await until(lambda: ApprovalRequest.objects.get().waiting_as == ApprovalRequest.Waiting.AWAY)
    again = await here.call("echo__echo", {"n": 1}, host=Host(hold=60))
    assert again.state == State.SUCCEEDED
    assert len(here.sent()) == 1
    assert await db_call(ApprovalRequest.objects.count) == 1
