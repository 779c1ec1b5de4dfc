"""The database fails once around a call over REST: the answer says what became of the call, with
and without a key."""

from __future__ import annotations

import pytest
from django.db import DataError, InterfaceError, OperationalError

from mcpregistry import failpoints
from mcpregistry.calls.engine import get_current_engine
from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Agent, Configuration, Conversation, Invocation
from mcpregistry.services.approvals import held_calls
from tests.api.conftest import _no_guesses_yet
from tests.api.test_calls import Site, died, site
from tests.fault.agreement import contradictions
from tests.fault.database import failing, until
from tests.fault.test_database_errors import tidy

__all__ = ["_no_guesses_yet", "site"]  # fixtures

pytestmark = [pytest.mark.fault, pytest.mark.exhaustive(on="postgresql")]
KEYED = {"Idempotency-Key": "k-1"}
POINTS = {
    "called": ["idempotency.keep", "committing@2"],
    "refused": ["idempotency.release"],
    "not made": ["auth._Gate._admit_or_refuse", "idempotency.claim", "committing@1"],
    "repeated": ["recorded_outcomes.build_recorded_outcome"],
    "in a conversation": ["conversation_scope.enter_conversation"],
}


@pytest.mark.exhaustive(one_in=2)
@pytest.mark.parametrize("point", POINTS["called"])
async def test_a_call_that_was_made_is_told_whatever_fails_after_it(site: Site, point: str) -> None:
    with failing(point):
        status, answer = await site.call("echo__echo", **KEYED)
    assert (status, answer["success"]) == (200, True)
    call_id = answer["mcp"]["invocation_id"]
    if answer["mcp"]["record"]:  # it says that its record is late
        await until(lambda: Invocation.objects.get(pk=call_id).finished_at)
    assert await db_call(contradictions, InvocationState.SUCCEEDED, call_id, 1) == []
    status, again = await site.call("echo__echo", **KEYED)
    assert (status, again["mcp"]["invocation_id"]) == (200, call_id)
    assert await db_call(Invocation.objects.count) == 1


@pytest.mark.parametrize("point", POINTS["refused"])
async def test_a_refusal_stays_one(site: Site, point: str) -> None:
    with failing(point):
        status, problem = await site.call("nope__nope", **KEYED)
    assert (status, problem["code"]) == (404, "NOT_FOUND")


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize("point", POINTS["not made"])
async def test_told_that_it_was_not_made_it_was_not(site: Site, point: str) -> None:
    with failing(point):
        status, problem = await site.call("echo__echo", **KEYED)
    assert (status, problem["code"] in ("UNAVAILABLE", "NOT_RECORDED")) == (503, True)
    assert await db_call(Invocation.objects.count) == 0
    assert (await site.call("echo__echo", **KEYED))[0] == 200


@pytest.mark.exhaustive(one_in=6)
@pytest.mark.parametrize(
    "error",
    [
        OperationalError("database or disk is full"),
        OperationalError("database is locked"),
        InterfaceError("gone"),
        DataError("a value that it does not take"),
        KeyError("ours"),
    ],
    ids=["full", "locked", "gone", "refused", "a fault of ours"],
)
async def test_a_call_that_could_not_be_held_may_come_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Not 409: the caller is in nobody's way."""
    await db_call(Configuration.objects.update, default_outcome="ask")
    await db_call(get_current_engine().live.refresh)

    def ask(**_: object) -> None:
        raise error

    with monkeypatch.context() as away:
        away.setattr(held_calls, "ask", ask)
        # a fault of ours is recorded as a refusal; not even that can be
        with failpoints.arm_for_test("committing:dberror@1"):
            answer = await site.client.post(
                "/api/v1/tools/echo__echo/call",
                "{}",
                content_type="application/json",
                headers={"Authorization": f"Bearer {site.tokens['robot']}"} | KEYED,
            )
    problem = answer.json()
    assert (answer.status_code, problem["code"], answer.headers["Retry-After"]) == (
        503,
        "NOT_RECORDED",
        "1",
    )
    assert "Ask the operator" in problem["remedy"]
    assert await db_call(Invocation.objects.count) == 0
    assert (await site.call("echo__echo", **KEYED))[0] == 202, "the key is free again"
    await db_call(tidy)


@pytest.mark.both_databases
async def test_a_repetition_that_cannot_be_answered_from_the_record_makes_nothing_again(
    site: Site,
) -> None:
    first = await site.call("echo__echo", **KEYED)
    await died()
    with failing("recorded_outcomes.build_recorded_outcome"):
        assert (await site.call("echo__echo", **KEYED))[0] == 503
    assert (await site.call("echo__echo", **KEYED))[1]["result"] == first[1]["result"]
    assert await db_call(Invocation.objects.count) == 1


@pytest.mark.parametrize("point", POINTS["in a conversation"])
async def test_a_call_whose_conversation_could_not_be_looked_up_was_not_made(
    site: Site, point: str
) -> None:
    opened = await db_call(
        lambda: Conversation.objects.create(agent=Agent.objects.get(slug="robot"))
    )
    with failing(point):
        status, problem = await site.call("echo__echo", {"conversation": opened.pk}, **KEYED)
    assert (status, problem["code"]) == (503, "BUSY")
    assert await db_call(Invocation.objects.count) == 0
    assert (await site.call("echo__echo", {"conversation": opened.pk}, **KEYED))[0] == 200
