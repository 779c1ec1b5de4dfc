"""The database fails once, wherever a request to a headend needs it: what the client is told agrees with the record."""

from __future__ import annotations

from typing import Any

import pytest

from mcpregistry.db import db_call
from subagents.domain.lifecycle import RunState
from subagents.headends.errors import from_code
from subagents.models import HeadendRequest, Run
from tests.fault.database import failing
from tests.subagents.headends.test_endings import CHAT, asked, no_open_runs
from tests.subagents.headends.test_openai import prepared
from tests.subagents.kit import Bench
from tests.waiting import until

pytestmark = [pytest.mark.fault, pytest.mark.exhaustive(on="postgresql")]

POINTS = [
    "places.join_queue",
    "tool_source._begin",
    "places.read_queues",
    "session._get_run@1",
    "session._get_run@2",
    "answers.seen",
    "places.release",
]


@pytest.mark.exhaustive(but=("places.join_queue-False", "tool_source._begin-True", "places.release-False"))
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
    assert kept == (1 if point == "places.release" else 0), "a place that could not be given back ends with its lease"


@pytest.mark.parametrize("code", ["UNAVAILABLE", "NOT_RECORDED"])
def test_clients_may_retry_what_the_database_did_not_let_begin(code: str) -> None:
    error = from_code(code, "The database is unavailable.", "Try again in a moment.", started=False)
    assert (error.status, error.may_retry, error.started) == (503, True, False)
    assert not from_code(code, "x", "y", started=True).may_retry
