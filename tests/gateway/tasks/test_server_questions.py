"""A server answers a call with a question (``input_required``): passed to hosts that can bear it, else refused plainly."""

from __future__ import annotations

import asyncio
import json

import pytest

from mcpregistry.domain.lifecycle import State
from mcpregistry.models import Agent, ApprovalRequest, AuditEntry, Invocation, PolicyRule, Server
from mcpregistry.services.access import tokens
from mcpregistry.services.approvals import votes
from tests.fakes.hosts import FORM, Host
from tests.fakes.stage import ACTOR, Web, fresh, outside
from tests.gateway.tasks.play import begin, call, text_of, until

pytestmark = [pytest.mark.e2e, pytest.mark.one_database]
ALL = FORM | {"sampling": {}, "roots": {}}
PREFIX = "asks__test_input_required_result_"


def settled(site: Web) -> None:
    """Until the gateway has heard of the last change of the configuration."""
    agent = Agent.objects.get(slug="local")
    site.wait_known(tokens.issue_token(name=fresh("t"), agent=agent, actor=ACTOR)[1])


async def again(host: Host, tool: str, **more: object) -> dict:
    params = {"name": tool, "arguments": {}, "_meta": host.meta(), **more}
    return await host.request("tools/call", params)


async def test_the_question_names_its_server_and_the_answer_reaches_it(opened, door):
    async with opened(door, abilities=FORM) as host:
        asked = await call(host, f"{PREFIX}elicitation")
        assert asked["resultType"] == "input_required"
        assert asked["inputRequests"]["user_name"]["params"]["message"] == "The server asks asks: What is your name?"
        said = {"user_name": {"action": "accept", "content": {"name": "Ann"}}}
        end = (await again(host, f"{PREFIX}elicitation", inputResponses=said))["result"]
    assert text_of(end) == "Hello, Ann!"


async def test_the_servers_state_travels_sealed_and_comes_back_as_it_was(opened, door):
    async with opened(door, abilities=FORM) as host:
        asked = await call(host, f"{PREFIX}request_state")
        assert "state-1" not in json.dumps(asked)
        said = {"inputResponses": {"confirm": {"action": "accept", "content": {"ok": True}}}}
        end = await again(host, f"{PREFIX}request_state", requestState=asked["requestState"], **said)
        assert text_of(end["result"]) == "state-ok"
        # of another tool, or changed: refused before anything reaches a server
        for tool, state in (
            (f"{PREFIX}multi_round", asked["requestState"]),
            (f"{PREFIX}request_state", asked["requestState"] + "A"),
        ):
            refused = await again(host, tool, requestState=state, **said)
            assert refused["error"]["code"] == -32602


async def test_a_host_is_only_asked_what_it_can_answer(opened):
    async with opened(abilities=FORM) as host:  # no sampling
        refused = await call(host, f"{PREFIX}sampling")
    assert refused["isError"] is True
    assert "sampling/createMessage" in text_of(refused)
    assert refused["structuredContent"]["error"] == "INPUT_NEEDED"
    async with opened(abilities=ALL) as host:
        assert (await call(host, f"{PREFIX}sampling"))["resultType"] == "input_required"
        assert (await call(host, f"{PREFIX}list_roots"))["resultType"] == "input_required"


@pytest.mark.parametrize(("era", "abilities"), [("2025-11-25", FORM), ("2026-07-28", {})])
async def test_a_host_that_cannot_bear_it_is_told_plainly(opened, door, era, abilities):
    async with opened(door, era=era, abilities=abilities) as host:
        refused = await call(host, f"{PREFIX}elicitation")
    assert refused["isError"] is True
    assert "INPUT_NEEDED" in text_of(refused)


async def test_nothing_is_added_to_what_people_approved(opened, site, bob, worker):
    """A held call goes to the server as it was decided on: it cannot be continued with answers."""
    server = await outside(Server.objects.get, slug="asks")
    rule = await outside(PolicyRule.objects.create, name="ask about asks", server=server, outcome="ask")
    said = {"user_name": {"action": "accept", "content": {"name": "Ann"}}}
    try:
        async with opened() as host, asyncio.timeout(60):
            while "taskId" not in (held := (await again(host, f"{PREFIX}elicitation", inputResponses=said))["result"]):
                await asyncio.sleep(0.05)  # until the rule has reached the process
            request = await outside(ApprovalRequest.objects.get, call__host_task__pk=held["taskId"])
            await outside(votes.vote, request_id=request.pk, user=bob, approve=True, via="web")
            worker.run(request.call_id)
            seen = await until(host, held["taskId"])
    finally:
        await outside(rule.delete)
        await outside(settled, site)
    assert seen["result"]["isError"] is True
    assert "INPUT_NEEDED" in text_of(seen["result"])


async def test_the_answers_are_noted_by_their_hash_only(opened):
    async with opened(abilities=FORM) as host:
        said = {"user_name": {"action": "accept", "content": {"name": "Secret Ann"}}}
        await again(host, f"{PREFIX}elicitation", inputResponses=said)

    def last() -> tuple[Invocation, str]:
        call = Invocation.objects.filter(tool_name="test_input_required_result_elicitation").latest("received_at")
        return call, AuditEntry.objects.get(subject=f"call:{call.pk}", kind="call.dispatched").body

    record, body = await outside(last)
    assert record.state == State.SUCCEEDED
    assert "Ann" not in body
    assert len(json.loads(body)["answers"]) == 64


async def test_a_capability_that_a_server_demands_is_relayed_with_its_data(opened):
    async with opened(abilities=FORM) as host:
        answer = await again(host, "asks__test_missing_capability")
    assert answer["error"]["code"] == -32021
    assert answer["error"]["data"] == {"requiredCapabilities": {"sampling": {}}}
    async with opened(abilities=ALL) as host:
        assert "isError" not in (await again(host, "asks__test_missing_capability"))["result"]


async def test_a_task_after_a_question(opened):
    async with opened() as host:
        asked = await call(host, "remote__test_tool_with_task")
        assert asked["resultType"] == "input_required"
        said = {"user_name": {"action": "accept", "content": {"name": "Ann"}}}
        made = (await again(host, "remote__test_tool_with_task", inputResponses=said))["result"]
        assert made["resultType"] == "task"
        assert "requestState" not in made
        assert (await begin(host, "remote__slow_compute", seconds=0.1)) != made["taskId"]
