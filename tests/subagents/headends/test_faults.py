"""The database fails once, wherever a request to a headend needs it: what the client is told agrees
with the record."""

from __future__ import annotations

from typing import Any

import pytest

from mcpregistry.db import db_call, read_database_now
from mcpregistry.domain.lifecycle import InvocationState
from subagents.domain.lifecycle import RunState
from subagents.headends.errors import from_code
from subagents.models import HeadendRequest, Run
from tests.fault.database import failing
from tests.services.rows import ended
from tests.subagents.headends.test_endings import CHAT, asked, no_open_runs
from tests.subagents.headends.test_openai import prepared
from tests.subagents.kit import Bench
from tests.waiting import until

pytestmark = [pytest.mark.fault, pytest.mark.exhaustive(on="postgresql")]

POINTS = [
    "queue_places.join_queue",
    "tool_source._begin",
    "queue_places.read_queues",
    "queued_request._get_run@1",
    "queued_request._get_run@2",
    "run_answers.read_progress",
    "queue_places.release",
]


@pytest.mark.exhaustive(but=("queue_places.join_queue-False",))
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("point", POINTS)
async def test_a_client_is_told_to_come_again_only_if_nothing_was_begun(
    bench: Bench, serving: Any, point: str, stream: bool
) -> None:
    key = await db_call(prepared, bench)
    served = await serving()
    async with served.client(key) as asks:
        with failing(point):
            answer = await asks.post(CHAT, json=asked(stream=stream))
        await until(no_open_runs)
        runs = await db_call(lambda: list(Run.objects.values_list("state", flat=True)))
        text = answer.text
        if answer.status_code == 200 and "hello" in text:
            assert runs == [RunState.DONE]
        elif "retry-after" in answer.headers:
            assert runs == [], text
        else:
            assert "error" in text
            assert runs in ([], [RunState.CANCELLED], [RunState.DONE])
        again = await asks.post(CHAT, json=asked())
        assert again.status_code == 200, again.text
    kept = await db_call(lambda: HeadendRequest.objects.filter(released_at=None).count())
    assert kept == (1 if point == "queue_places.release" else 0), (
        "a place that could not be given back ends with its lease"
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("point", POINTS)
async def test_a_client_that_repeats_its_request_with_its_key_gets_an_answer(
    bench: Bench, serving: Any, point: str
) -> None:
    key = await db_call(prepared, bench)
    served = await serving()
    async with served.client(key) as asks:
        with failing(point):
            await asks.post(CHAT, json=asked(), headers={"idempotency-key": "one"})
        await until(no_open_runs)

        async def answered() -> bool:
            return (
                await asks.post(CHAT, json=asked(), headers={"idempotency-key": "one"})
            ).status_code == 200

        await until(answered)
    assert await db_call(Run.objects.filter(state=RunState.DONE).count) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["key", "retry"])
async def test_a_repeated_request_does_not_join_a_call_that_was_not_sent(
    bench: Bench, serving: Any, kind: str
) -> None:
    token = await db_call(prepared, bench)
    again = {"idempotency-key": "one"} if kind == "key" else {"x-stainless-retry-count": "1"}
    served = await serving()

    def not_sent() -> None:
        call = ended("a" * 32, state=InvocationState.NOT_SENT, error_code="UNAVAILABLE")
        HeadendRequest.objects.update(
            call_id=call.pk, released_at=None if kind == "retry" else read_database_now()
        )
        Run.objects.all().delete()

    async with served.client(token) as asks:
        assert (await asks.post(CHAT, json=asked(), headers=again)).status_code == 200
        await db_call(not_sent)
        answer = await asks.post(CHAT, json=asked(), headers=again)
    assert answer.status_code == 200, answer.text
    assert await db_call(Run.objects.filter(state=RunState.DONE).count) == 1


@pytest.mark.parametrize("code", ["UNAVAILABLE", "NOT_RECORDED"])
def test_clients_may_retry_what_the_database_did_not_let_begin(code: str) -> None:
    error = from_code(code, "The database is unavailable.", "Try again in a moment.", started=False)
    assert (error.status, error.may_retry, error.started) == (503, True, False)
    assert not from_code(code, "x", "y", started=True).may_retry
