"""Rows of docs/faults.md: the database is locked or read-only, and then it is not any more.

What is different while PostgreSQL is gone stands in ``tests/calls/test_changes.py`` and
``tests/controlplane/test_asgi.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial, update_wrapper
from typing import Any

import pytest
from django.db import connection, connections

from controlplane import health
from mcpregistry import db
from mcpregistry.calls.call import CallHost, CallOutcome
from mcpregistry.calls.recording import ledger
from mcpregistry.db import db_call
from mcpregistry.domain.errors import QueueFullError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Configuration, Invocation, Server
from tests.calls.conftest import Site, journal, site
from tests.calls.test_pipeline import echo
from tests.fault.agreement import agrees
from tests.fault.test_database_errors import tidy
from tests.waiting import HANG_LIMIT, until

__all__ = ["echo", "journal", "site"]  # fixtures

pytestmark = pytest.mark.fault
Make = Callable[..., Any]


@contextlib.contextmanager
def away() -> Iterator[None]:
    """Another process holds the lock for longer than anybody waits here."""
    with contextlib.closing(
        sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)
    ) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield
        holder.execute("ROLLBACK")


async def told(here: Site, n: int) -> str:
    """How a call ends: its state and code."""
    try:
        outcome: CallOutcome = await here.call("echo__echo", {"n": n}, host=CallHost(hold=0))
    except QueueFullError as error:
        # it has been away for so long that nobody knows whether the configuration still holds
        return f"not_sent {error.code}"
    return f"{outcome.state} {outcome.error_code}".strip()


def end_idle_sessions() -> None:
    """What a failover, a pooler or a firewall does to connections that nobody uses at the
    moment."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )


def take_a_moment() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(0.2)")


@pytest.fixture
def no_session_of_ours(echo: Server) -> None:
    """This thread has none that could be ended."""
    connections.close_all()


@pytest.mark.postgres_only
@pytest.mark.usefixtures("no_session_of_ours")
async def test_sessions_that_were_ended_while_idle_cost_no_call(site: Make) -> None:
    here: Site = await site()

    async def said(n: int) -> str:
        """Nothing while the feed is without a session of its own for seconds, on a busy machine:
        then no call is made."""
        words = await told(here, n)
        return "" if words == "not_sent BUSY" else words

    assert await until(partial(said, 0)) == "succeeded"
    for n in range(1, 4):
        # the pool has several now
        await asyncio.gather(*(db_call(take_a_moment) for _ in range(4)))
        await db_call(end_idle_sessions)
        assert await until(partial(said, n)) == "succeeded"
    assert len(here.sent()) == 4
    await db_call(tidy)


async def probed(feed: Any) -> tuple[int, dict[str, str]]:
    """What ``/readyz`` says."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    probes = health.HealthProbes()
    probes.gateway = "ok"
    probes.feed = feed
    await probes({"path": "/readyz"}, lambda: None, send)  # type: ignore[arg-type,typeddict-item]
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.one_database
@pytest.mark.parametrize("asked", [False, True], ids=["plain", "held"])
async def test_while_the_database_is_locked_calls_are_refused_and_run_again_when_it_is_not(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    here: Site = await site()
    assert await told(here, 1) == "succeeded"
    if asked:
        await db_call(Configuration.objects.update, default_outcome="ask")
        await db_call(here.engine.live.refresh)
    with monkeypatch.context() as patch, away():  # who waits for the lock is told before it is free
        impatient(patch)
        assert await told(here, 2) in ("not_sent NOT_RECORDED", "not_sent BUSY")

    async def again() -> bool:
        return await told(here, 3) in ("succeeded", "pending")

    await until(again)
    assert [sent["arguments"]["n"] for sent in here.sent()] == ([1] if asked else [1, 3])
    assert (
        await db_call(
            lambda: (
                Invocation.objects.filter(arguments='{"n":2}').exclude(state="cancelled").count()
            )
        )
        == 0
    )
    # a probe asks whether it works, not how fast
    monkeypatch.setattr(health, "PATIENCE", HANG_LIMIT)
    assert (await probed(here.engine.feed))[0] == 200
    await db_call(tidy)


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite would wait for a lock for twenty seconds."""
    monkeypatch.setattr(ledger, "_LOCK_WAIT", 0.3)
    fresh = db._fresh

    def wait(milliseconds: int) -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute(f"PRAGMA busy_timeout = {milliseconds}")

    def hasty(function: Any, args: Any, kwargs: Any) -> Any:
        # inside: a thread's first connection is opened anew by what is around it
        def hurried() -> Any:
            wait(200)
            try:
                return function(*args, **kwargs)
            finally:
                wait(20_000)

        return fresh(update_wrapper(hurried, function), (), {})

    monkeypatch.setattr(db, "_fresh", hasty)


@pytest.mark.one_database
async def test_a_read_only_database_takes_no_call_and_says_so(
    site: Make, echo: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorder's own connection may read only, as with a file that was set so."""
    here: Site = await site()
    await told(here, 1)
    real = ledger.BACKENDS["sqlite"]
    on = True

    def commit(work: ledger.Work, *claims: Any) -> ledger.Changed:
        connection.ensure_connection()
        connection.connection.execute(f"PRAGMA query_only = {int(on)}")
        return real(work, *claims)

    monkeypatch.setitem(ledger.BACKENDS, "sqlite", commit)
    outcome = await here.call("echo__echo", {"n": 2})
    assert (outcome.state, outcome.error_code) == (InvocationState.NOT_SENT, "NOT_RECORDED")
    await db_call(agrees, outcome, len(here.sent()) - 1)
    on = False
    assert await told(here, 3) == "succeeded"
