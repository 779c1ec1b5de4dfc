"""An answer that is given again: only to the same question, for a while, and only if nothing could
have changed it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import F

from mcpregistry.calls.call import CallHost, CallOutcome
from mcpregistry.db import db_call
from mcpregistry.models import (
    Agent,
    ApprovalRequest,
    Endpoint,
    Grant,
    Invocation,
    PolicyRule,
    Server,
    Tool,
)
from mcpregistry.services.access import agents
from mcpregistry.services.approvals import votes
from subagents.models import Run
from subagents.runs.run_answers import META_KEY
from subagents.services import experts, runs
from tests.subagents.kit import Bench, call, calls, offered


def cached(bench: Bench, *turns: Any, **fields: Any) -> None:
    offered(bench, *turns, **{"cache_seconds": 3600} | fields)
    Tool.objects.update(read_only=True)


async def text_of(here: Any, **facts: Any) -> list[str]:
    outcome: CallOutcome = await call(here, **facts)
    assert outcome.result is not None
    return [part["text"] for part in outcome.result["content"]]


async def asked_twice(bench: Bench, working: Any, **fields: Any) -> Any:
    """A worker after the first answer."""
    await db_call(cached, bench, **fields)
    here = await working()
    assert await text_of(here) == ["It said hello."]
    return here


async def many(here: Any) -> int:
    """How many runs there are after the call was made once more and answered."""
    assert (await text_of(here))[0] == "It said hello."
    return await db_call(Run.objects.count)


async def test_the_same_question_is_answered_from_the_earlier_run(
    bench: Bench, working: Any
) -> None:
    here = await asked_twice(bench, working)
    run = await db_call(Run.objects.get)
    outcome = await call(here)
    assert outcome.result is not None
    answer, note = (part["text"] for part in outcome.result["content"])
    assert (answer, outcome.result["_meta"][META_KEY]["run"]) == ("It said hello.", run.pk)
    assert run.pk in note
    assert await db_call(Run.objects.count) == 1
    record = await db_call(Invocation.objects.get, pk=outcome.invocation_id)
    assert (record.state, run.pk in record.result) == ("succeeded", True)
    assert len(bench.models.journal) == 2


@pytest.mark.exhaustive
async def test_a_host_with_tasks_gets_it_at_once(bench: Bench, working: Any) -> None:
    here = await asked_twice(bench, working)
    outcome = await call(here, host=CallHost(tasks=True))
    assert (outcome.task_id, outcome.state) == ("", "succeeded")


@pytest.mark.exhaustive
async def test_another_question_is_asked_anew(bench: Bench, working: Any) -> None:
    here = await asked_twice(bench, working)
    assert await text_of(here, arguments={"text": "bye"}) == ["It said bye."]


async def test_another_agent_is_answered_anew(bench: Bench, working: Any) -> None:
    def prepare() -> None:
        agents.save_agent(agent=Agent(slug="bob"), actor="test")
        cached(bench)
        expert = Agent.objects.get(slug="expert.expert").expert
        users = Agent.objects.filter(slug__in=["ann", "bob"])
        experts.offer(
            expert=expert,
            agents=users,
            endpoints=Endpoint.objects.filter(slug="default"),
            actor="test",
        )

    await db_call(prepare)
    here = await working()
    await text_of(here)
    assert await text_of(here, agent="bob") == ["It said hello."]
    assert await db_call(Run.objects.count) == 2


@pytest.mark.exhaustive
async def test_after_its_time_it_is_asked_anew(bench: Bench, working: Any) -> None:
    here = await asked_twice(bench, working)
    await db_call(Run.objects.update, finished_at=F("finished_at") - timedelta(seconds=3601))
    assert await many(here) == 2


@pytest.mark.exhaustive
async def test_without_a_time_nothing_is_given_again(bench: Bench, working: Any) -> None:
    assert await many(await asked_twice(bench, working, cache_seconds=0)) == 2


async def test_whatever_is_configured_otherwise_ends_it(bench: Bench, working: Any) -> None:
    # or the second call may still meet the rule, which a snapshot has seen in between
    @transaction.atomic
    def add() -> None:
        PolicyRule.objects.create(
            name="later", outcome="deny", server=Server.objects.get(slug="echo"), priority=1
        )
        PolicyRule.objects.all().delete()

    here = await asked_twice(bench, working)
    await db_call(add)
    assert await many(here) == 2


@pytest.mark.exhaustive
async def test_a_grant_that_has_ended_by_the_clock_ends_it(bench: Bench, working: Any) -> None:
    here = await asked_twice(bench, working)
    run = await db_call(Run.objects.get)
    # As if the run had had one tool more, whose grant has ended since: no configuration changes by
    # that.
    await db_call(Run.objects.filter(pk=run.pk).update, reusable="f" * 64)
    assert await many(here) == 2
    assert await db_call(Grant.objects.count) > 0


async def test_the_answer_of_a_run_that_wrote_is_never_given_again(
    bench: Bench, working: Any
) -> None:
    def prepare() -> None:
        cached(bench)
        Tool.objects.update(read_only=None)

    await db_call(prepare)
    here = await working()
    await text_of(here)
    assert await many(here) == 2
    assert len(bench.sent()) == 2


@pytest.mark.exhaustive
async def test_nor_one_that_people_were_asked_about(bench: Bench, worker: Any) -> None:
    def prepare() -> None:
        cached(bench)
        PolicyRule.objects.create(name="mine", outcome="ask", expert="expert")
        User.objects.create_user("ann").groups.add(Group.objects.get(name="approver"))

    def approve() -> str:
        request = ApprovalRequest.objects.get()
        votes.vote(
            request_id=request.pk, user=User.objects.get(username="ann"), approve=True, via="web"
        )
        return request.call_id

    await db_call(prepare)
    here = await worker()
    await call(here, host=CallHost(tasks=True))
    run = await here.drive(await db_call(Run.objects.get))
    await here.engine.approvals.runner.settle_call(await db_call(approve))
    run = await here.until(run, lambda r: r.finished_at is not None)
    assert run.reusable
    again = await call(here, host=CallHost(tasks=True))
    assert again.state == "dispatched"
    second = await db_call(Run.objects.exclude(pk=run.pk).get)
    await db_call(runs.cancel, run_id=second.pk, actor="test")
    await here.drive(second)


@pytest.mark.exhaustive
async def test_nor_one_that_failed_or_was_cut_short(bench: Bench, working: Any) -> None:
    look = calls(("echo__echo", {"text": "x"}))
    await db_call(cached, bench, look, {"text": "never"}, max_steps=1)
    here = await working()
    first = await text_of(here)
    assert await text_of(here) == first
    assert {run.exit for run in await db_call(lambda: list(Run.objects.all()))} == {
        "EXIT-MAX-TURNS-WITH-RESPONSE"
    }
    assert await db_call(runs.find_abandoned_runs) == []
