"""A claim: one UPDATE that is won once, with its audit entry, or lost without a trace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mcpregistry.calls.recording.errors import EndedOtherwiseError, NotClaimedError
from mcpregistry.calls.recording.recorder import Recorder
from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest, AuditEntry, Configuration, Invocation
from mcpregistry.services.records import chains
from mcpregistry.services.records.audit import AuditFact

MINUTE = timedelta(minutes=1)


@pytest.fixture
async def recorder(live_db: None) -> AsyncIterator[Recorder]:
    made = Recorder("web")
    made.start(asyncio.get_running_loop())
    yield made
    await asyncio.get_running_loop().run_in_executor(None, made.close)
    assert await db_call(lambda: list(chains.verify_chains())) == []


SENT = AuditFact("call.dispatched", "ann", "call:1", {"binding": "b"})


def ready(number: int, **changes: Any) -> dict[str, Any]:
    """An approved call, and the row that claims it."""
    now = datetime.now(UTC)
    call = Invocation.objects.create(
        id=f"{number:032x}",
        state=InvocationState.READY,
        agent_slug="ann",
        tool_name="echo",
        exposed_name="echo",
        origin="http",
        outcome="ask",
        binding="b",
        writer="w",
        received_at=now,
        lease_until=now + MINUTE,
    )
    ApprovalRequest.objects.create(
        id=call.pk,
        call=call,
        rule_name="r",
        rule_fingerprint="f",
        asked_at=now,
        decide_by=now,
        execute_by=now + changes.pop("execute_in", MINUTE),
    )
    revision = Configuration.objects.get().revision
    row = {"id": call.pk, "agent_slug": "ann", "binding": "b", "fence": 0, "revision": revision}
    return row | {"dispatched_at": now, "lease_until": now + MINUTE} | changes


def row_of(number: int) -> Invocation:
    return Invocation.objects.get(pk=f"{number:032x}")


def dispatched() -> int:
    return AuditEntry.objects.filter(kind="call.dispatched").count()


async def test_a_claim_moves_the_call_and_raises_its_fence(recorder: Recorder):
    row = await db_call(ready, 1)
    assert await recorder.claim(row, SENT) == 1
    call = await db_call(row_of, 1)
    assert (call.state, call.fence, call.dispatched_at) == (
        InvocationState.DISPATCHED,
        1,
        row["dispatched_at"],
    )
    assert call.writer == recorder.writer, "it ends with the process that has sent it"
    assert await db_call(dispatched) == 1


LOST: dict[str, dict[str, Any]] = {
    "other bytes": {"binding": "c"},
    "another fence": {"fence": 1},
    "configuration changed": {"revision": -1},
    "too late": {"execute_in": -MINUTE},
    "no such call": {"id": "0" * 32},
}


@pytest.mark.parametrize("why", LOST)
async def test_a_claim_on_what_is_no_longer_so_is_lost_without_a_trace(
    recorder: Recorder, why: str
):
    row = await db_call(lambda: ready(1, **LOST[why]))
    with pytest.raises(NotClaimedError):
        await recorder.claim(row, SENT)
    call = await db_call(row_of, 1)
    assert (call.state, call.fence, await db_call(dispatched)) == (InvocationState.READY, 0, 0)


@pytest.mark.parametrize(
    "meanwhile",
    [
        {"state": InvocationState.PENDING},
        {"state": InvocationState.DISPATCHED},
        {"state": InvocationState.REJECTED},
        {"fence": 1},
    ],
    ids=["not approved", "sent by another", "refused", "begun before"],
)
async def test_a_call_that_is_no_longer_as_the_claim_says_is_left_alone(
    recorder: Recorder, meanwhile: dict[str, Any]
):
    row = await db_call(ready, 1)
    await db_call(Invocation.objects.update, **meanwhile)
    with pytest.raises(NotClaimedError):
        await recorder.claim(row, SENT)
    call = await db_call(row_of, 1)
    assert {name: getattr(call, name) for name in meanwhile} == meanwhile
    assert await db_call(dispatched) == 0


async def test_of_many_claims_in_one_commit_each_call_is_won_once(recorder: Recorder):
    rows = await db_call(lambda: [ready(number) for number in range(1, 6)])
    tried = await asyncio.gather(
        *(recorder.claim(row, SENT) for row in rows * 4), return_exceptions=True
    )
    assert [each for each in tried if not isinstance(each, NotClaimedError)] == [1] * 5
    assert await db_call(dispatched) == 5


async def test_a_lost_claim_does_not_disturb_what_is_written_with_it(recorder: Recorder):
    good, bad = await db_call(lambda: (ready(1), ready(2, binding="c")))
    tried = await asyncio.gather(
        recorder.claim(bad, SENT), recorder.claim(good, SENT), return_exceptions=True
    )
    assert isinstance(tried[0], NotClaimedError)
    assert tried[1] == 1


async def test_whoever_sees_the_end_finds_the_whole_result(recorder: Recorder):
    row = await db_call(ready, 1)
    fence = await recorder.claim(row, SENT)
    result = {"content": [{"type": "text", "text": "x" * 100_000}]}
    now = datetime.now(UTC)
    end = {
        "id": row["id"],
        "before": "dispatched",
        "fence": fence,
        "keep": True,
        "state": InvocationState.SUCCEEDED.value,
        "reason": "",
        "error_code": "",
        "result": result,
        "warning": "",
        "finished_at": now,
        "duration_ms": 1.0,
    }
    with pytest.raises(EndedOtherwiseError):
        await recorder.end(end | {"fence": fence + 1}, SENT._replace(kind="call.late"))
    # an end of somebody who is not in charge
    assert (await db_call(ApprovalRequest.objects.get)).result == ""
    await recorder.end(end, SENT._replace(kind="call.succeeded"))
    call = await db_call(row_of, 1)
    assert (call.state, len(call.result) < 100_000) == (InvocationState.SUCCEEDED, True)
    assert json.loads((await db_call(ApprovalRequest.objects.get)).result) == result
