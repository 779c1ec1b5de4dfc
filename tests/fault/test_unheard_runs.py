"""A run whose beginning was committed though nobody heard of it: its caller is told what has become
of it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from django.db import OperationalError

from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Invocation
from subagents.models import Run
from subagents.runs import tool_source
from tests.fault.agreement import contradictions
from tests.fault.database import failing, until
from tests.fault.test_database_errors_runs import (
    ASKED,
    Bench,
    Model,
    asked,
    bench,
    offered,
    worker,
    working,
)

__all__ = ["bench", "worker", "working"]  # fixtures

pytestmark = pytest.mark.fault


def unheard_beginning(monkeypatch: pytest.MonkeyPatch, *, written: bool) -> None:
    """The connection breaks while the first run is begun."""
    real = tool_source._begin
    left = [1]

    def _begin(*given: Any) -> Any:
        if not left[0]:
            return real(*given)
        left[0] = 0
        if written:
            real(*given)
        silent = psycopg.OperationalError("server closed the connection unexpectedly")
        raise OperationalError(str(silent)) from silent

    monkeypatch.setattr(tool_source, "_begin", _begin)


@pytest.mark.exhaustive
@pytest.mark.parametrize("story", ["asked", "asked_as_a_task"])
async def test_a_run_that_was_begun_all_the_same_answers_its_caller(
    bench: Bench, working: Any, monkeypatch: pytest.MonkeyPatch, story: str
) -> None:
    await db_call(offered, bench)
    here = await working(complete=Model(story))
    unheard_beginning(monkeypatch, written=True)
    told = await ASKED[story](bench, here)
    await until(
        lambda: Invocation.objects.get(pk=told.invocation_id).state == InvocationState.SUCCEEDED
    )
    assert told.state == (
        InvocationState.SUCCEEDED if story == "asked" else InvocationState.DISPATCHED
    )
    assert await db_call(Run.objects.filter(call_id=told.invocation_id).count) == 1


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("written", [False, True])
async def test_a_run_of_which_nobody_knows_is_unknown_and_one_that_was_not_begun_was_not_sent(
    bench: Bench, working: Any, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    await db_call(offered, bench)
    here = await working(complete=Model("asked"))
    unheard_beginning(monkeypatch, written=written)
    if not written:
        assert (await asked(bench, here)).state == InvocationState.NOT_SENT
        assert await db_call(Run.objects.count) == 0
        return
    with failing("tool_source._find_begun_run"):
        told = await asked(bench, here)
    assert told.state == InvocationState.UNKNOWN
    assert "not known whether" in told.message
    await until(lambda: not Run.objects.filter(finished_at=None).exists())
    assert await db_call(contradictions, told.state, told.invocation_id, 1) == []
