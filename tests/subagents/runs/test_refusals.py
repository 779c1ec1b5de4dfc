"""The database refuses to write while a run is under way: the run goes on afterwards, and no tool
call is repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import connection, connections

from mcpregistry.db import db_call
from subagents.domain.lifecycle import Exit, RunState
from subagents.leased import database_retry
from tests.fault.database import alone
from tests.fault.refusals import POSTGRES, SQLITE, as_plain_role
from tests.subagents.kit import Bench
from tests.subagents.runs.test_takeover import slow_run
from tests.waiting import until

pytestmark = pytest.mark.fault


def kinds() -> list[Any]:
    """Reading only in the gate; the others where everything runs."""
    found = []
    for vendor, mark, names in (
        ("sqlite", "one_database", SQLITE),
        ("postgres", "postgres_only", POSTGRES),
    ):
        for name in names:
            marks = [
                getattr(pytest.mark, mark),
                *([] if name == "read only" else [pytest.mark.exhaustive]),
            ]
            found.append(pytest.param(name, marks=marks, id=f"{vendor}-{name}"))
    return found


@pytest.fixture
def role(request: pytest.FixtureRequest, live_db: None) -> Iterator[None]:
    """The product runs as somebody whose privileges can be revoked; the next test gets other
    sessions."""
    postgres = connection.vendor == "postgresql"
    with ExitStack() as stack:
        if request.node.callspec.params["kind"] == "revoked privileges":
            stack.enter_context(as_plain_role())
            connections.close_all()
        yield
    if postgres:
        connections.close_all()
        connections["default"].close_pool()  # type: ignore[attr-defined]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", kinds())
async def test_a_run_goes_on_after_its_database_refused(
    bench: Bench, worker: Any, role: None, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[BaseException]()
    real = database_retry.is_passing

    def judged(error: BaseException) -> bool:
        tried.append(error)
        return real(error)

    monkeypatch.setattr(database_retry, "is_passing", judged)
    run = await db_call(slow_run, bench)
    here = await worker()
    driving = asyncio.ensure_future(here.drive(run))
    await until(lambda: len(bench.sent()) == 1)
    refusal = ExitStack()
    refusing = (SQLITE if connection.vendor == "sqlite" else POSTGRES)[kind]
    await asyncio.to_thread(alone, lambda: refusal.enter_context(refusing()))
    try:
        await until(lambda: tried or driving.done())
    finally:
        await asyncio.to_thread(alone, refusal.close)
    done = await driving
    assert (done.state, done.exit, done.answer) == (RunState.DONE, Exit.ANSWER, "counted")
    assert len(bench.sent()) == 1
