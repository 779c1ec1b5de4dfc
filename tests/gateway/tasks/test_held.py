"""Held calls whose host waits with a task: what it reads, whatever people decide, and that it runs
once."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from mcpregistry.calls.background_engine import BackgroundEngine
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest, HostTask, Invocation
from mcpregistry.services.approvals import held_calls, votes
from mcpregistry.services.upkeep import reaping, retention
from tests.calls.conftest import broken
from tests.fakes.journals import called
from tests.fakes.stage import fresh, outside
from tests.gateway.tasks.play import ask, begin, call, look, text_of, until
from tests.waiting import HANG_LIMIT

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive(on="postgresql")]
MANY = 60  # approved calls at once, three times as many as are under way at any moment


async def held(task_id: str) -> ApprovalRequest:
    def find() -> ApprovalRequest:
        return ApprovalRequest.objects.select_related("call").get(call__host_task__pk=task_id)

    return await outside(find)


async def decide(task_id: str, bob: Any, **facts: Any) -> ApprovalRequest:
    request = await held(task_id)
    return await outside(
        votes.vote, request_id=request.pk, user=bob, via="web", **({"approve": True} | facts)
    )


def sent(journal: Any, note: str) -> int:
    """How often the server received the call with this argument."""
    return sum(1 for params in called(journal) if params["arguments"].get("note") == note)


@pytest.mark.exhaustive(but=("http",))
@pytest.mark.both_databases
async def test_approved_by_a_person_it_runs_once_and_the_result_is_read_later(
    opened, door, bob, worker, journal
):
    note = fresh("note")
    async with opened(door) as host:
        made = await call(host, "echo__echo", note=note)
        assert made["status"] == "working"
        assert made["statusMessage"].startswith("Waiting for an approver, until ")
        task_id = made["taskId"]
        assert (await look(host, task_id))["status"] == "working"
        request = await decide(task_id, bob)
        for _ in range(3):  # as often as a broker likes to deliver
            worker.run(request.call_id)
        seen = await until(host, task_id)
    assert seen["status"] == "completed"
    assert seen["result"]["structuredContent"]["arguments"] == {"note": note}
    assert seen["ttlMs"] > made["ttlMs"]
    assert seen["lastUpdatedAt"] > made["lastUpdatedAt"]
    assert sent(journal, note) == 1


@pytest.mark.exhaustive(one_in=2)
async def test_a_refusal_is_a_result_whose_text_gives_the_reason(opened, door, bob, journal):
    note = fresh("note")
    async with opened(door) as host:
        task_id = await begin(host, "echo__echo", note=note)
        await decide(task_id, bob, approve=False, reason="freeze until Monday")
        seen = await until(host, task_id)
    assert seen["status"] == "completed"
    assert seen["result"]["isError"] is True
    assert "freeze until Monday" in text_of(seen["result"])
    assert "freeze until Monday" in json.dumps(seen["result"]["structuredContent"])
    assert seen["result"]["structuredContent"]["state"] == "rejected"
    assert sent(journal, note) == 0


async def test_silence_is_a_result_too(opened, journal):
    note = fresh("note")
    async with opened() as host:
        task_id = await begin(host, "echo__echo", note=note)
        await outside(held_calls.expire_due, timezone.now() + timedelta(days=1))
        seen = await until(host, task_id)
    assert seen["status"] == "completed"
    assert seen["result"]["isError"] is True
    assert seen["result"]["structuredContent"]["state"] == "expired"
    assert sent(journal, note) == 0


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.both_databases
async def test_what_the_client_withdraws_is_cancelled_and_stays_so(opened, door, bob, journal):
    note = fresh("note")
    async with opened(door) as host:
        task_id = await begin(host, "echo__echo", note=note)
        await ask(host, "tasks/cancel", task_id)
        assert (await look(host, task_id))["status"] == "cancelled"
        with pytest.raises(votes.AlreadyDecided):
            await decide(task_id, bob)
        assert (await look(host, task_id))["status"] == "cancelled"
    assert (await held(task_id)).call.state == InvocationState.CANCELLED
    assert sent(journal, note) == 0


@pytest.mark.both_databases
async def test_too_late_to_withdraw_what_has_run(opened, bob, worker, journal):
    note = fresh("note")
    async with opened() as host:
        task_id = await begin(host, "echo__echo", note=note)
        worker.run((await decide(task_id, bob)).call_id)
        await until(host, task_id)
        await ask(host, "tasks/cancel", task_id)
        assert (await look(host, task_id))["status"] == "completed"
    assert sent(journal, note) == 1


async def test_the_identical_call_makes_a_task_and_a_request_of_its_own(opened):
    note = fresh("note")
    async with opened() as host:
        first, second = [await begin(host, "echo__echo", note=note) for _ in range(2)]
        assert first != second
        for task_id in (first, second):
            await ask(host, "tasks/cancel", task_id)


async def test_an_edit_runs_and_is_told(opened, bob, worker, journal):
    note = fresh("note")
    instead = fresh("instead")
    async with opened() as host:
        task_id = await begin(host, "echo__echo", note=note)
        worker.run((await decide(task_id, bob, arguments={"note": instead})).call_id)
        seen = await until(host, task_id)
    assert instead in text_of(seen["result"])
    assert note in text_of(seen["result"])
    assert (sent(journal, note), sent(journal, instead)) == (0, 1)


@pytest.mark.exhaustive
async def test_a_host_that_comes_back_after_we_were_started_anew_finds_its_result(
    opened, stage, bob, worker
):
    note = fresh("note")
    async with opened("stdio") as host:
        task_id = await begin(host, "echo__echo", note=note)
        await host.kill()
    worker.run((await decide(task_id, bob)).call_id)
    async with opened("stdio") as again:
        seen = await until(again, task_id)
    assert seen["result"]["structuredContent"]["arguments"] == {"note": note}


@pytest.mark.exhaustive
async def test_a_task_is_not_forgotten_while_its_call_is_on_record(opened, bob, worker):
    async with opened() as host:
        task_id = await begin(host, "echo__echo", note=fresh("note"))
        worker.run((await decide(task_id, bob)).call_id)
        await until(host, task_id)
        await outside(retention.prune, timezone.now() + timedelta(days=60))
        erased = await look(host, task_id)
        assert erased["status"] == "completed"
        assert "no longer stored" in text_of(erased["result"])
        await outside(retention.prune, timezone.now() + timedelta(days=900))
        assert (await ask(host, "tasks/get", task_id))["error"]["code"] == -32602


async def test_polling_notes_that_the_host_was_seen(opened):
    async with opened() as host:
        task_id = await begin(host, "echo__echo", note=fresh("note"))
        async with asyncio.timeout(HANG_LIMIT):
            while (await outside(HostTask.objects.get, pk=task_id)).seen_at is None:
                await look(host, task_id)
        await ask(host, "tasks/cancel", task_id)


@pytest.mark.exhaustive
async def test_many_approvals_over_both_doors_are_exactly_as_many_effects(
    opened, bob, worker, journal, broker
):
    notes = [fresh("race") for _ in range(MANY)]
    second = BackgroundEngine()
    try:
        async with opened() as http, opened("stdio") as stdio:

            async def one(number: int, note: str) -> str:
                host = (http, stdio)[number % 2]
                task_id = await begin(host, "echo__echo", note=note)
                request = await decide(task_id, bob)
                for each in (worker, second, worker):
                    each.run(request.call_id)
                return task_id

            places = asyncio.Semaphore(20)

            async def placed(number: int, note: str) -> str:
                async with places:
                    return await one(number, note)

            ids = await asyncio.gather(*(placed(number, note) for number, note in enumerate(notes)))
            ends = [
                await until((http, stdio)[number % 2], task_id)
                for number, task_id in enumerate(ids)
            ]
    finally:
        second.close()
    assert [end["result"]["structuredContent"]["arguments"]["note"] for end in ends] == notes
    assert [sent(journal, note) for note in notes] == [1] * MANY
    assert await outside(broken) == []


@pytest.mark.exhaustive
async def test_approvals_that_race_withdrawals_run_or_are_cancelled_never_both(
    opened, bob, worker, journal
):
    notes = [fresh("race") for _ in range(40)]

    async with opened() as host:

        async def one(note: str) -> tuple[str, int]:
            task_id = await begin(host, "echo__echo", note=note)
            request = await held(task_id)

            async def approve() -> None:
                try:
                    await decide(task_id, bob)
                except votes.AlreadyDecided:
                    return
                worker.run(request.call_id)

            await asyncio.gather(approve(), ask(host, "tasks/cancel", task_id))
            return (await until(host, task_id))["status"], sent(journal, note)

        found = await asyncio.gather(*(one(note) for note in notes))
    assert set(found) <= {("cancelled", 0), ("completed", 1)}


@pytest.mark.both_databases
async def test_the_reaper_ends_what_a_dead_process_has_sent(opened, bob):
    """The claim is durable, the process gone: the task ends as unknown, and is never run again."""
    async with opened() as host:
        task_id = await begin(host, "echo__echo", note=fresh("note"))
        request = await decide(task_id, bob)
        now = timezone.now()
        left = {
            "state": InvocationState.DISPATCHED,
            "dispatched_at": now,
            "fence": 1,
            "lease_until": now,
        }
        await outside(Invocation.objects.filter(pk=request.call_id).update, **left)
        await outside(reaping.reap_calls, now + timedelta(seconds=1))
        seen = await until(host, task_id)
    assert seen["status"] == "completed"
    assert seen["result"]["structuredContent"]["state"] == "unknown"
