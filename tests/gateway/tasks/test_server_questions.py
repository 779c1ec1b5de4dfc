"""A server answers a call with a question (``input_required``): passed to hosts that can bear it,
else refused plainly."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from mcpregistry.calls.call import CallHost as Calling
from mcpregistry.calls.call import CallOutcome, CallRequest
from mcpregistry.domain.calls.forwarding import Forwarding, HostUnansweredError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.gateway.live_calls import LiveCalls
from mcpregistry.models import Agent, ApprovalRequest, AuditEntry, Invocation, PolicyRule, Server
from mcpregistry.services.access import tokens
from mcpregistry.services.approvals import votes
from tests.fakes.hosts import FORM, Host
from tests.fakes.stage import ACTOR, Web, fresh, outside
from tests.gateway.tasks.play import begin, call, text_of, until
from tests.waiting import HANG_LIMIT

pytestmark = [pytest.mark.e2e, pytest.mark.one_database]
ABLE = {"elicitation": {"form": {}, "url": {}}, "sampling": {}}
ALL = FORM | {"sampling": {}, "roots": {}}
PREFIX = "asks__test_input_required_result_"


def settled(site: Web) -> None:
    """Until the gateway has heard of the last change of the configuration."""
    agent = Agent.objects.get(slug="local")
    site.wait_known(tokens.issue_token(name=fresh("t"), agent=agent, actor=ACTOR)[1])


async def again(host: Host, tool: str, **more: object) -> dict:
    params = {"name": tool, "arguments": {}, "_meta": host.meta(), **more}
    return await host.request("tools/call", params)


@pytest.mark.exhaustive(but=("http",))
async def test_the_question_names_its_server_and_the_answer_reaches_it(opened, door):
    async with opened(door, abilities=FORM) as host:
        asked = await call(host, f"{PREFIX}elicitation")
        assert asked["resultType"] == "input_required"
        assert (
            asked["inputRequests"]["user_name"]["params"]["message"]
            == "The server asks asks: What is your name?"
        )
        said = {"user_name": {"action": "accept", "content": {"name": "Ann"}}}
        end = (await again(host, f"{PREFIX}elicitation", inputResponses=said))["result"]
    assert text_of(end) == "Hello, Ann!"


@pytest.mark.exhaustive(one_in=2)
async def test_the_servers_state_travels_sealed_and_comes_back_as_it_was(opened, door):
    async with opened(door, abilities=FORM) as host:
        asked = await call(host, f"{PREFIX}request_state")
        assert "state-1" not in json.dumps(asked)
        said = {"inputResponses": {"confirm": {"action": "accept", "content": {"ok": True}}}}
        end = await again(
            host, f"{PREFIX}request_state", requestState=asked["requestState"], **said
        )
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


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize(("era", "abilities"), [("2025-11-25", {}), ("2026-07-28", {})])
async def test_a_host_that_cannot_bear_it_is_told_plainly(opened, door, era, abilities):
    async with opened(door, era=era, abilities=abilities) as host:
        refused = await call(host, f"{PREFIX}elicitation")
    assert refused["isError"] is True
    assert "INPUT_NEEDED" in text_of(refused)


async def test_nothing_is_added_to_what_people_approved(opened, site, bob, worker):
    """A held call goes to the server as it was decided on: it cannot be continued with answers."""
    server = await outside(Server.objects.get, slug="asks")
    rule = await outside(
        PolicyRule.objects.create, name="ask about asks", server=server, outcome="ask"
    )
    said = {"user_name": {"action": "accept", "content": {"name": "Ann"}}}
    try:
        async with opened() as host, asyncio.timeout(HANG_LIMIT):
            while "taskId" not in (
                held := (await again(host, f"{PREFIX}elicitation", inputResponses=said))["result"]
            ):
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
        call = Invocation.objects.filter(tool_name="test_input_required_result_elicitation").latest(
            "received_at"
        )
        return call, AuditEntry.objects.get(subject=f"call:{call.pk}", kind="call.dispatched").body

    record, body = await outside(last)
    assert record.state == InvocationState.SUCCEEDED
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


# From servers of both eras to hosts of both eras


async def person(params: dict) -> dict:
    """At the host: who answers what is asked, form, page, model and folders alike."""
    if "messages" in params:
        return {
            "role": "assistant",
            "content": {"type": "text", "text": "Paris"},
            "model": "m",
            "stopReason": "endTurn",
        }
    if params.get("mode") == "url":
        return {"action": "accept"}
    return {"action": "accept", "content": {"username": "ann", "email": "a@example.com"}}


@pytest.mark.exhaustive(one_in=9)
@pytest.mark.parametrize("server", ["asks", "older"])
@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_questions_reach_the_host_that_made_the_call_whatever_the_eras(
    opened, door, era, server
):
    """Form, page and model; and each is one that this host was asked, with its server named where
    there is a text."""
    async with opened(door, era=era, abilities=ABLE, person=person) as host:
        form, page, model = [
            await host.call(f"{server}__test_{kind}", {"message": "Who?"})
            for kind in ("elicitation", "url", "sampling")
        ]
    assert (
        text_of(form)
        == 'answered: {"action": "accept", "content": {"email": "a@example.com", "username": "ann"}}'
    )
    assert text_of(page) == 'answered: {"action": "accept"}'
    assert '"text": "Paris"' in text_of(model)
    asked = [each.get("message") for each in host.asked]
    assert asked == [
        f"The server {server} asks: Who?",
        f"The server {server} asks: Please sign in",
        None,
    ]


@pytest.mark.exhaustive(but=("http-2025-11-25",))
@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_a_server_of_both_versions_that_asks_by_request_reaches_hosts_of_both(
    opened, door, era
):
    """A modern host's first call may show that the tool cannot ask on the newer connection; an
    older host's never does."""
    async with opened(door, era=era, abilities=ABLE, person=person) as host:
        found = text_of(await host.call("requests__test_elicitation", {"message": "Who?"}))
        if era == "2026-07-28" and "no back-channel" in found:
            assert host.asked == []
            found = text_of(await host.call("requests__test_elicitation", {"message": "Who?"}))
        assert '"username":"ann"' in found
        assert [each["message"] for each in host.asked] == ["The server requests asks: Who?"]
        rounds = await host.call("requests__test_input_required_result_request_state", {})
        if era == "2025-11-25" and "call again" in text_of(rounds):
            rounds = await host.call("requests__test_input_required_result_request_state", {})
        assert text_of(rounds) == "state-ok"


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_an_older_server_is_told_in_words_that_nobody_can_be_asked(opened, door, era):
    async with opened(
        door, era=era, abilities={"elicitation": {"form": {}}, "roots": {}}, person=person
    ) as host:
        # not declared by this host, and the last not allowed to this server
        for kind in ("url", "sampling", "roots"):
            answer = await host.call(f"older__test_{kind}", {})
            assert "cannot answer this request" in json.dumps(answer)
    assert host.asked == []


async def test_an_answer_to_a_waiting_call_is_good_for_once_and_for_its_own_call(opened):
    async with opened(abilities=ABLE, person=person) as host:
        asked = (await again(host, "older__test_elicitation"))["result"]
        said = await host.answers(asked)
        refused = await again(host, "older__test_sampling", **said)  # the state is of another tool
        assert refused["error"]["code"] == -32602
        end = (await again(host, "older__test_elicitation", **said))["result"]
        assert "ann" in text_of(end)
        over = await again(host, "older__test_elicitation", **said)
        assert over["error"]["code"] == -32602
        assert "no longer waits for an answer" in over["error"]["message"]

    def records() -> list[str]:
        found = Invocation.objects.filter(
            tool_name="test_elicitation", server_slug="older", host_name__contains=host.info["name"]
        )
        return [row.state for row in found]

    assert await outside(records) == [
        InvocationState.SUCCEEDED
    ]  # question and answer are of one call


@pytest.mark.exhaustive(one_in=2)
async def test_when_two_calls_are_out_only_a_stream_of_its_own_tells_whose_question_it_is(
    opened, door
):
    async with opened(door, abilities=ABLE, person=person) as host:
        calls = [host.call("older__test_elicitation", {"message": f"Call {n}?"}) for n in (1, 2)]
        ends = await asyncio.gather(*calls)
    assert all("ann" in text_of(end) for end in ends)
    assert sorted(each["message"] for each in host.asked) == [
        f"The server older asks: Call {n}?" for n in (1, 2)
    ]


def able(heard: list[Any] | None = None) -> CallRequest:
    """A request of a host that can be asked; what its server says is noted in ``heard``."""
    host = Calling(mrtr=True, forwarding=Forwarding({"elicitation": {}}))
    told = (
        {}
        if heard is None
        else {"on_log": heard.append, "on_progress": lambda *said: heard.append(said)}
    )
    return CallRequest(cast("Any", None), "x", {}, "http", host=host, **cast("Any", told))


async def test_what_a_server_says_after_its_question_goes_to_the_request_that_has_brought_the_answer():
    calls = LiveCalls()
    first = list[Any]()
    second = list[Any]()
    opened, live = calls.make_askable(able(first))
    log = opened.on_log
    report = opened.on_progress
    ask = opened.host.forwarding.ask
    assert live is not None
    assert log is not None
    assert report is not None
    assert ask is not None
    asked = asyncio.Event()

    async def work() -> CallOutcome:
        log({"data": "before"})
        waiting = asyncio.ensure_future(ask("elicitation/create", {}))
        await asked.wait()
        log({"data": "meanwhile"})
        report(1, None, None)  # nobody's: the next request may have asked for none
        await waiting
        log({"data": "after"})
        report(2, None, None)
        return CallOutcome("", InvocationState.SUCCEEDED, {})

    question = await live.run(work())
    asked.set()
    await until_quiet()
    await calls.continue_call(question.live, able(second), {"question1": {"action": "decline"}})
    assert first == [{"data": "before"}]
    assert second == [{"data": "meanwhile"}, {"data": "after"}, (2, None, None)]


async def until_quiet() -> None:
    """What is ready to run has run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_question_that_came_while_another_was_answered_is_put_to_the_host_too():
    calls = LiveCalls()
    other = asyncio.Event()
    opened, live = calls.make_askable(able())
    ask = opened.host.forwarding.ask
    assert ask is not None
    assert live is not None

    async def later() -> Any:
        await other.wait()
        return await ask("elicitation/create", {"message": "second"})

    async def work() -> CallOutcome:
        return CallOutcome(
            "",
            InvocationState.SUCCEEDED,
            {"said": await asyncio.gather(ask("roots/list", {}), later())},
        )

    first = await live.run(work())
    assert first.result is not None
    assert list(first.result["inputRequests"]) == ["question1"]
    other.set()
    while len(live._asked) < 2:
        await asyncio.sleep(0)
    second = await calls.continue_call(first.live, able(), {"question1": {"roots": []}})
    assert second.result is not None
    assert list(second.result["inputRequests"]) == ["question2"]
    end = await calls.continue_call(second.live, able(), {"question2": {"action": "decline"}})
    assert end.result == {"said": [{"roots": []}, {"action": "decline"}]}
    assert not calls._waiting


@pytest.mark.exhaustive
async def test_a_host_that_did_not_come_back_is_not_waited_for_again_and_a_question_withdrawn_is_no_question(
    monkeypatch,
):
    monkeypatch.setattr("mcpregistry.gateway.live_calls.PATIENCE", 0.01)
    calls = LiveCalls()
    opened, live = calls.make_askable(able())
    ask = opened.host.forwarding.ask
    assert ask is not None
    assert live is not None

    async def work() -> CallOutcome:
        withdrawn = asyncio.ensure_future(ask("roots/list", {}))
        asyncio.get_running_loop().call_soon(withdrawn.cancel)
        await asyncio.wait({withdrawn})
        with pytest.raises(HostUnansweredError):
            await ask("roots/list", {})
        monkeypatch.setattr("mcpregistry.gateway.live_calls.PATIENCE", 10_000.0)
        with pytest.raises(HostUnansweredError):
            await ask("roots/list", {})
        return CallOutcome("", InvocationState.SUCCEEDED, {})

    asked = await live.run(work())
    assert asked.result is not None
    assert list(asked.result["inputRequests"]) == ["question2"]
    assert (await asyncio.wait_for(live._task, HANG_LIMIT)).state is InvocationState.SUCCEEDED
    assert not calls._waiting
