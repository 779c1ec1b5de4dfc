"""Held calls over REST: what a program gets while people are asked, and what people decide
there."""

from __future__ import annotations

import asyncio
import itertools
import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from mcpregistry.api.approvals import seconds_to_wait
from mcpregistry.db import db_call
from mcpregistry.models import (
    ApprovalRequest,
    AuditEntry,
    Configuration,
    Invocation,
    Permit,
    PolicyRule,
)
from mcpregistry.services.access import tokens
from tests.api.conftest import ROOT, new_agent, new_user
from tests.api.test_calls import Site, site  # noqa: F401 - the fixture
from tests.fault.refusals import refuse_held_calls
from tests.waiting import HANG_LIMIT
from tests.waiting import until as until_true


def more_people(given: dict[str, str]) -> None:
    """Everything is held; two who may decide, and an agent without any grant."""
    Configuration.objects.update(default_outcome="ask")
    for name in ("ann", "bob"):
        given[name] = tokens.issue_token(user=new_user("approver"), name="t", actor="test")[1]
    given["stranger"] = tokens.issue_token(agent=new_agent("stranger"), name="t", actor="test")[1]


@pytest.fixture
async def held(site: Site) -> Site:  # noqa: F811
    await db_call(more_people, site.tokens)

    async def asks() -> bool:
        return (await site.call("echo__echo", {"params": {"probe": True}}))[0] == 202

    await until_true(asks)
    return site


async def send(
    site: Site,  # noqa: F811 -- it is the fixture
    method: str,
    path: str,
    who: str,
    body: Any = None,
    **headers: str,
) -> tuple[int, Any]:
    """One request below /approvals."""
    headers |= {"Authorization": f"Bearer {site.tokens[who]}"}
    data = {} if body is None else {"data": json.dumps(body), "content_type": "application/json"}
    response = await site.client.generic(method, f"{ROOT}/approvals{path}", headers=headers, **data)
    return response.status_code, response.json()


async def ask(site: Site, **arguments: Any) -> str:  # noqa: F811
    """A held call of the agent "robot"; gives the request's id."""
    status, answer = await site.call("echo__echo", {"params": arguments, "said": "I need it"})
    assert status == 202, answer
    return answer["mcp"]["approval"]["id"]


async def approve(site: Site, held_id: str, who: str = "ann", **more: Any) -> tuple[int, Any]:  # noqa: F811
    _, shown = await send(site, "GET", f"/{held_id}", who)
    return await send(site, "POST", f"/{held_id}/approve", who, {"seen": shown["seen"]} | more)


async def test_a_held_call_answers_202_with_a_handle_and_says_what_to_do(held):
    status, answer = await held.call("echo__echo", {"params": {"a": 1}})
    ticket = answer["mcp"]["approval"]
    assert (status, answer["success"], answer["result"], answer["error"]) == (
        202,
        False,
        None,
        None,
    )
    assert ticket["state"] == answer["mcp"]["state"] == "pending"
    assert ticket["url"].endswith(f"/approvals/{ticket['id']}/")
    assert "exactly the same arguments" in ticket["message"]
    assert (await send(held, "GET", f"/{ticket['id']}/result", "robot"))[0] == 202


@pytest.mark.exhaustive
async def test_a_call_that_is_approved_while_the_disk_is_full_answers_202(held, monkeypatch):
    calling = asyncio.ensure_future(held.call("echo__echo", {"params": {"a": 3}}, Prefer="wait=60"))
    mine = ApprovalRequest.objects.filter(call__arguments__contains='"a":3')
    held_id = await until_true(lambda: db_call(lambda: mine.values_list("pk", flat=True).first()))
    refuse_held_calls(monkeypatch, "mark_caller_away", 3)
    refuse_held_calls(monkeypatch, "load", 1)
    assert (await approve(held, held_id))[0] == 200
    status, answer = await calling
    assert (status, answer["mcp"]["approval"]["id"], answer["mcp"]["error_code"]) == (
        202,
        held_id,
        "",
    )
    assert (await held.call("echo__echo", {"params": {"a": 3}}, Prefer="wait=60"))[0] == 200


async def test_the_identical_request_joins_runs_once_approved_and_answers(held):
    held_id = await ask(held, a=1)
    assert await ask(held, a=1) == held_id
    status, shown = await approve(held, held_id, reason="fine")
    assert (status, shown["state"], shown["decided_reason"]) == (200, "ready", "fine")
    status, waiting = await send(held, "GET", f"/{held_id}/result", "robot")
    assert (status, waiting["state"]) == (202, "ready")  # a GET runs nothing
    status, answer = await held.call("echo__echo", {"params": {"a": 1}})
    assert (status, answer["result"]["arguments"]) == (200, {"a": 1})
    status, result = await send(held, "GET", f"/{held_id}/result", "robot")
    assert (status, result["success"], result["state"]) == (200, True, "succeeded")
    assert result["result"]["structuredContent"]["arguments"] == {"a": 1}
    assert await db_call(Invocation.objects.filter(arguments='{"a":1}').count) == 1


async def test_a_refusal_is_the_callers_403_with_the_reason(held):
    held_id = await ask(held, a=1)
    status, shown = await send(
        held, "POST", f"/{held_id}/reject", "ann", {"reason": "not on a Friday"}
    )
    assert (status, shown["state"]) == (200, "rejected")
    status, answer = await held.call("echo__echo", {"params": {"a": 1}})
    assert status == 403
    assert "not on a Friday" in answer["message"]
    status, second = await send(held, "POST", f"/{held_id}/reject", "bob", {})
    assert (status, second["code"]) == (409, "ALREADY_DECIDED")


async def test_a_refusal_by_mistake_is_taken_back_and_people_are_asked_again(held):
    held_id = await ask(held, a=1)
    _, shown = await send(held, "POST", f"/{held_id}/reject", "ann", {"reason": "wrong button"})
    assert shown["refused_until"] > shown["decided_at"]
    assert (await send(held, "POST", f"/{held_id}/lift-refusal", "viewer", {}))[0] == 403
    status, lifted = await send(
        held, "POST", f"/{held_id}/lift-refusal", "ann", {"reason": "my mistake"}
    )
    assert (status, lifted["state"], lifted["refused_until"]) == (200, "rejected", None)
    status, second = await send(held, "POST", f"/{held_id}/lift-refusal", "ann", {})
    assert (status, second["code"]) == (409, "CONFLICT")
    entry = await db_call(AuditEntry.objects.get, kind="approval.refusal_lifted")
    assert (entry.actor[:13], "my mistake" in entry.body) == ("user:approver", True)
    assert await ask(held, a=1) != held_id


@pytest.mark.exhaustive
async def test_prefer_wait_holds_the_answer_until_the_decision(held):
    calling = asyncio.create_task(
        held.call("echo__echo", {"params": {"a": 2}}, Prefer=f"wait={HANG_LIMIT:.0f}")
    )

    async def asked() -> ApprovalRequest | None:
        rows = (await send(held, "GET", "?state=pending&limit=1", "viewer"))[1]["items"]
        if not rows or rows[0]["agent"] != "robot":
            return None
        return await db_call(ApprovalRequest.objects.filter(call__arguments='{"a":2}').first)

    found = await until_true(asked)
    await approve(held, found.pk)
    status, answer = await calling
    assert (status, answer["result"]["arguments"]) == (200, {"a": 2})


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        (None, 0),
        ("", 0),
        ("wait=7", 7),
        ("respond-async, wait=7", 7),
        ("WAIT = 3; x=1", 3),
        ("wait=99999", 50),
        ("wait=-1", 0),
        ("wait=1e9", 0),
        ("await=5", 0),
        ("wait=", 0),
    ],
)
def test_the_prefer_header(prefer, seconds):
    assert seconds_to_wait(prefer) == seconds


@pytest.mark.exhaustive
async def test_an_idempotency_key_is_free_again_while_the_call_is_held(held):
    key = {"Idempotency-Key": "k-1"}
    first, _ = await held.call("echo__echo", {"params": {"a": 3}}, **key)
    second, answer = await held.call("echo__echo", {"params": {"a": 3}}, **key)
    assert (first, second) == (202, 202)
    await approve(held, answer["mcp"]["approval"]["id"])
    ran = await held.call("echo__echo", {"params": {"a": 3}}, **key)
    assert ran[0] == 200
    assert await held.call("echo__echo", {"params": {"a": 3}}, **key) == ran
    assert await db_call(Invocation.objects.filter(arguments='{"a":3}').count) == 1


async def test_an_edit_is_what_runs_and_the_agent_is_told(held):
    held_id = await ask(held, a=4)
    status, shown = await approve(held, held_id, arguments={"a": 5})
    assert (status, shown["arguments"], shown["edited"]) == (200, {"a": 4}, {"a": 5})
    _, answer = await held.call("echo__echo", {"params": {"a": 4}})
    assert answer["mcp"]["content"]["structuredContent"]["arguments"] == {"a": 5}
    assert "a: 4 -> 5" in answer["mcp"]["content"]["content"][0]["text"]
    assert answer["result"]["arguments"] == {"a": 5}


async def test_an_approval_of_other_bytes_than_those_that_were_seen_is_a_conflict(held):
    held_id = await ask(held, a=6)
    status, answer = await send(held, "POST", f"/{held_id}/approve", "ann", {"seen": "0" * 64})
    assert (status, answer["code"]) == (409, "CONFLICT")
    status, answer = await send(held, "POST", f"/{held_id}/approve", "ann", {})
    assert (status, answer["code"]) == (422, "ARGUMENTS_INVALID")


async def test_an_edit_that_does_not_fit_the_schema_is_refused_and_nothing_is_decided(held):
    status, answer = await held.call("echo__narrow", {"params": {"a": 1}})
    held_id = answer["mcp"]["approval"]["id"]
    status, answer = await approve(held, held_id, arguments={"b": 1})
    assert (status, answer["code"]) == (422, "ARGUMENTS_INVALID")
    assert (await send(held, "GET", f"/{held_id}", "viewer"))[1]["state"] == "pending"


async def test_a_permit_given_along_lets_such_calls_run_at_once(held):
    held_id = await ask(held, a=7, b=1)
    until = (timezone.now() + timedelta(hours=1)).isoformat()
    status, _ = await approve(held, held_id, permit={"until": until, "pins": {"a": 7}, "uses": 5})
    assert status == 200
    assert await db_call(Permit.objects.count) == 1

    async def runs() -> bool:
        return (await held.call("echo__echo", {"params": {"a": 7, "b": 2}}))[0] == 200

    await until_true(runs)
    assert (await held.call("echo__echo", {"params": {"a": 8}}))[0] == 202


async def test_agents_see_and_withdraw_their_own_requests_and_never_decide(held):
    held_id = await ask(held, a=8)
    status, shown = await send(held, "GET", f"/{held_id}", "robot")
    assert (status, shown["said"], shown["arguments"]) == (200, "I need it", {"a": 8})
    for method, path, body in (
        ("POST", f"/{held_id}/approve", {"seen": shown["seen"]}),
        ("POST", f"/{held_id}/reject", {}),
        ("GET", "", None),
    ):
        assert (await send(held, method, path, "robot", body))[0] == 403
    status, foreign = await send(held, "GET", f"/{held_id}", "stranger")
    _, unknown = await send(held, "GET", "/unknown", "stranger")
    assert (status, foreign["message"].replace(held_id, "unknown")) == (404, unknown["message"])
    for path in ("/withdraw", "/result"):
        method = "POST" if path == "/withdraw" else "GET"
        assert (
            await send(
                held, method, f"/{held_id}{path}", "stranger", {} if method == "POST" else None
            )
        )[0] == 404
    status, shown = await send(
        held, "POST", f"/{held_id}/withdraw", "robot", {"reason": "not needed"}
    )
    assert (status, shown["state"]) == (200, "cancelled")
    assert (await approve(held, held_id))[0] == 409


async def test_who_may_not_decide_is_told_why(held):
    held_id = await ask(held, a=9)
    for who in ("viewer", "operator"):
        assert (await approve(held, held_id, who))[0] == 403
    assert (await send(held, "GET", f"/{held_id}", "viewer"))[1]["state"] == "pending"


async def test_the_list_is_filtered_and_paged(held):
    ids = [await ask(held, a=number) for number in (20, 21, 22)]
    await send(held, "POST", f"/{ids[0]}/reject", "ann", {})
    _, pending = await send(held, "GET", "?state=pending", "viewer")
    assert {ids[1], ids[2]} <= {row["id"] for row in pending["items"]}
    assert ids[0] not in {row["id"] for row in pending["items"]}
    _, decided = await send(held, "GET", "?state=decided", "viewer")
    assert [row["id"] for row in decided["items"]] == [ids[0]]
    _, first = await send(held, "GET", "?limit=2", "viewer")
    _, second = await send(held, "GET", f"?limit=2&cursor={first['next']}", "viewer")
    assert [row["id"] for row in (*first["items"], *second["items"])][:3] == ids[::-1]
    for query, count in (
        ("agent=robot&server=echo&tool=echo&risk=high", 4),
        ("agent=idle", 0),
        ("rule=nothing", 0),
    ):
        assert len((await send(held, "GET", f"?{query}", "viewer"))[1]["items"]) == count, query


async def test_two_have_to_agree_where_the_rule_says_so(held):
    await db_call(PolicyRule.objects.create, name="two", outcome="ask", quorum=2, priority=900)
    numbers = itertools.count()

    async def asked() -> str | None:
        held_id = await ask(held, two=next(numbers))
        return (
            held_id
            if (await send(held, "GET", f"/{held_id}", "viewer"))[1]["quorum"] == 2
            else None
        )

    held_id = await until_true(asked)
    assert (await approve(held, held_id, "ann"))[1]["state"] == "pending"
    assert (await approve(held, held_id, "ann"))[0] == 409
    _, shown = await approve(held, held_id, "bob")
    assert (shown["state"], [vote["via"] for vote in shown["votes"]]) == ("ready", ["rest", "rest"])
