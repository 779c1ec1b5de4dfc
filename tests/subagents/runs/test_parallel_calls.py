"""Calls of one turn that may change something, made at the same time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcpregistry.db import db_call
from mcpregistry.models import Invocation, PolicyRule
from subagents.models import Run
from subagents.services import runs
from tests.subagents.kit import Bench, calls
from tests.waiting import until


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("asks", [False, True])
async def test_writing_calls_go_together_if_the_expert_tool_says_so_and_nobody_is_asked(
    bench: Bench, worker: Any, asks: bool
) -> None:
    asked = calls(
        *(("slow__count", {"steps": 1, "pause": pause}) for pause in (0.3, 0.3, 0.4, 0.3))
    )

    def prepare() -> Run:
        server = bench.server("slow", "count")
        bench.expert(bench.model("m", asked, {"text": "done"}), uses=[server], parallel=True)
        if asks:
            PolicyRule.objects.create(name="ask", outcome="ask", condition="args.pause == 0.4")
        return bench.start()

    run = await db_call(prepare)
    here = await worker()
    here.runs.wake(run.pk)
    sent = await until(lambda: db_call(lambda: list(_sent_of(run, 2 if asks else 4))))
    if not asks:
        assert max(each.dispatched_at for each in sent) < min(each.finished_at for each in sent)
        return
    waiting = await until(
        lambda: db_call(
            lambda: Invocation.objects.filter(request_id=run.pk, state="pending").first()
        )
    )
    assert json.loads(waiting.arguments)["pause"] == 0.4
    assert await db_call(Invocation.objects.filter(request_id=run.pk).count) == 3, (
        "the last one waits behind it"
    )
    await db_call(runs.cancel, run_id=run.pk, actor="test")
    here.runs.wake(run.pk)
    await until(lambda: db_call(lambda: Run.objects.get(pk=run.pk).finished_at))


def _sent_of(run: Run, count: int) -> list[Invocation]:
    """The calls of a run that have ended, once there are so many."""
    ended = list(Invocation.objects.filter(request_id=run.pk).exclude(finished_at=None))
    return ended if len(ended) == count else []
