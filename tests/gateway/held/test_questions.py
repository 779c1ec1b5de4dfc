"""Questions to the person at the host, in both eras, and the sealed state that travels with
them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from mcpregistry.domain.calls.wait_strategy import PEOPLE_NEED
from mcpregistry.domain.lifecycle import InvocationState
from tests.fakes.hosts import BOTH, FORM, TASKS, URL, Host, http_host, nobody, stdio_host, yes
from tests.fakes.stage import MODERN, folder, fresh, outside
from tests.gateway.held.conftest import ERAS, LEGACY, Case, is_pending, words

pytestmark = [pytest.mark.e2e, pytest.mark.one_database]


@pytest.mark.exhaustive(but=("http-2026-07-28",))
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("door", ["http", "stdio"])
async def test_where_the_rule_lets_the_requester_confirm_the_person_at_the_host_is_asked(
    site, stage, token, case, era, door
):
    options: dict[str, Any] = {"era": era, "abilities": FORM, "person": yes, "name": "claude-code"}
    opened = (
        http_host(site, token, **options)
        if door == "http"
        else stdio_host(stage, "--cwd", str(folder()), **options)
    )
    async with opened as host:
        result = await host.call("echo__mine", case.arguments)
    assert result["structuredContent"]["arguments"] == case.arguments
    (asked,) = host.asked
    assert asked["requestedSchema"]["properties"]["confirm"]["type"] == "boolean"
    assert "Tool: mine on the server echo" in asked["message"]
    assert case.arguments["mark"] in asked["message"]
    request = await case.request()
    (vote,) = await outside(lambda: list(request.votes.all()))
    assert (vote.via, vote.approve, vote.name) == ("host", True, "the user of claude-code 1")
    assert len(case.sent()) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("era", ERAS)
async def test_a_rule_that_keeps_the_requester_out_never_asks_him(brisk, token, case, era):
    async with http_host(brisk, token, era=era, abilities=BOTH, person=yes) as host:
        assert is_pending(await host.call("echo__ask", case.arguments))
        assert host.asked == []
    assert case.sent() == []


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize("action", ["cancel", "decline"])
@pytest.mark.parametrize("era", ERAS)
async def test_an_answer_that_comes_at_once_means_that_nobody_was_there(
    site, token, case, era, action
):
    """Claude Code -p cancels, Codex exec and Copilot -p decline: the next step follows, and people
    can still decide."""

    async def headless(params: dict[str, Any]) -> dict[str, Any]:
        return {"action": action}

    async with http_host(
        site, token, era=era, abilities=FORM, person=headless, name="codex-mcp-client"
    ) as host:
        while True:
            calling = asyncio.create_task(host.call("echo__mine", case.arguments))
            began = time.monotonic()
            telling = asyncio.create_task(host.until_told("Waiting for an approver"))
            await asyncio.wait({calling, telling}, return_when=asyncio.FIRST_COMPLETED)
            if telling.done() or time.monotonic() - began < PEOPLE_NEED:
                break
            telling.cancel()  # on a busy machine even that answer takes as long as a person needs
            case.arguments = {"mark": fresh("case")}
            host.asked.clear()
        await telling
        assert (await case.request()).call.state == InvocationState.PENDING
        await case.approve()
        assert (await calling)["structuredContent"]["arguments"] == case.arguments
    assert len(host.asked) == 1


@pytest.mark.exhaustive(but=("2026-07-28",))
@pytest.mark.parametrize("era", ERAS)
async def test_a_person_who_reads_and_declines_ends_the_call(site, token, case, era):
    async def reads(params: dict[str, Any]) -> dict[str, Any]:
        # what is measured: nobody reads faster than a second, by a clock that may be put back
        await asyncio.sleep(2.0)
        return {"action": "decline"}

    async with http_host(
        site, token, era=era, abilities=FORM, person=reads, name="claude-code"
    ) as host:
        result = await host.call("echo__mine", case.arguments)
    assert result["isError"] is True
    assert "by the user of claude-code" in words(result)
    assert (await case.request()).call.state == InvocationState.REJECTED
    assert case.sent() == []


@pytest.mark.parametrize("era", ERAS)
async def test_an_approver_may_be_faster_than_the_person_who_is_asked(site, token, case, era):
    asked = asyncio.Event()

    async def slow(params: dict[str, Any]) -> dict[str, Any] | None:
        asked.set()
        await asyncio.sleep(0.5)
        return {"action": "cancel"} if era == MODERN else None

    async with http_host(site, token, era=era, abilities=FORM, person=slow) as host:
        calling = asyncio.create_task(host.call("echo__mine", case.arguments))
        await asked.wait()
        await case.approve()
        assert (await calling)["structuredContent"]["arguments"] == case.arguments
    assert len(case.sent()) == 1


async def test_a_request_refused_by_an_approver_stays_refused_when_the_person_at_the_host_confirms_it_later(
    site, token, case
):
    asked = asyncio.Event()

    async def late(params: dict[str, Any]) -> dict[str, Any]:
        asked.set()
        await case.until(InvocationState.REJECTED)
        return {"action": "accept", "content": {"confirm": True}}

    async with http_host(site, token, abilities=FORM, person=late) as host:
        calling = asyncio.create_task(host.call("echo__mine", case.arguments))
        await asked.wait()
        await case.reject("no")
        result = await calling
    assert "REJECTED by Ann Lee: no" in words(result)
    assert case.sent() == []
    assert len(await case.calls()) == 1


@pytest.mark.parametrize("era", ERAS)
async def test_url_mode_leads_to_the_page_and_never_decides(brisk, token, case, era):
    async with http_host(
        brisk, token, era=era, abilities=URL, person=yes, name="claude-code"
    ) as host:
        assert is_pending(await host.call("echo__mine", case.arguments))
    (asked,) = host.asked
    request = await case.request()
    assert (asked["mode"], asked["url"]) == (
        "url",
        f"http://127.0.0.1:8000/approvals/{request.pk}/",
    )
    assert request.call.state == InvocationState.PENDING


@pytest.mark.parametrize("era", ERAS)
async def test_copilot_is_never_asked_by_url(brisk, token, case, era):
    async with http_host(
        brisk, token, era=era, abilities=URL, person=yes, name="copilot-cli"
    ) as host:
        assert is_pending(await host.call("echo__mine", case.arguments))
    assert host.asked == []


async def test_arguments_that_no_dialogue_shows_whole_are_confirmed_on_the_page_only(
    brisk, token, case
):
    case.arguments["long"] = "x" * 5_000
    async with http_host(brisk, token, abilities=BOTH, person=yes) as host:
        assert is_pending(await host.call("echo__mine", case.arguments))
    assert [asked["mode"] for asked in host.asked] == ["url"]
    case.arguments["long"] += "y"
    async with http_host(brisk, token, abilities=FORM, person=yes) as host:
        assert is_pending(await host.call("echo__mine", case.arguments))
    assert host.asked == []


# The sealed state of a question


async def asked_once(
    host: Host, case: Case, tool: str = "echo__mine"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters of a first round, and its ``input_required`` answer."""
    params = {"name": tool, "arguments": case.arguments, "_meta": host.meta()}
    answer = await host.request("tools/call", params)
    assert answer["result"]["resultType"] == "input_required"
    return params, answer["result"]


async def test_a_state_that_was_changed_copied_stolen_or_used_for_another_call_is_refused(
    site, brisk, stage, token, case
):
    site.wait_known(stage.tokens["other"])
    async with (
        http_host(site, token, abilities=FORM, person=yes) as host,
        http_host(site, stage.tokens["other"], abilities=FORM) as stranger,
    ):
        params, question = await asked_once(host, case)
        reply = await host.answers(question)
        state = reply["requestState"]
        last = "A" if state[-5] != "A" else "B"
        tampered = [
            (host, params | reply | {"requestState": state[:-5] + last + state[-4:]}),
            (host, params | reply | {"requestState": "nonsense"}),
            (host, params | reply | {"arguments": case.arguments | {"more": 1}}),
            (host, params | reply | {"name": "echo__ask"}),
            (stranger, params | reply),
        ]
        for sender, changed in tampered:
            answer = await sender.request("tools/call", changed)
            assert answer["error"]["code"] == -32602, answer
            assert answer["error"]["message"] == "Invalid or expired requestState"
        assert (await case.request()).call.state == InvocationState.PENDING
        assert "result" in await host.request("tools/call", params | reply)
        assert len(case.sent()) == 1
        again = await host.request("tools/call", params | reply)  # a copy of what was good once
        assert again["error"]["message"] == "Invalid or expired requestState"
    assert len(case.sent()) == 1
    assert len(await case.calls()) == 1


async def test_a_state_is_good_in_every_process_of_the_site(site, brisk, token, case):
    async with (
        http_host(site, token, abilities=FORM, person=yes) as here,
        http_host(brisk, token, abilities=FORM, person=yes) as there,
    ):
        params, question = await asked_once(here, case)
        answer = await there.request("tools/call", params | await here.answers(question))
        assert answer["result"]["structuredContent"]["arguments"] == case.arguments
        again = await here.request("tools/call", params | await here.answers(question))
        assert "error" in again
    assert len(case.sent()) == 1


async def test_a_repeated_call_that_brings_no_answer_is_asked_again(site, token, case):
    async with http_host(site, token, abilities=FORM, person=yes) as host:
        params, question = await asked_once(host, case)
        answer = await host.request(
            "tools/call", params | {"requestState": question["requestState"]}
        )
        assert answer["result"]["resultType"] == "input_required"
        assert "result" in await host.request(
            "tools/call", params | await host.answers(answer["result"])
        )
    assert len(case.sent()) == len(await case.calls()) == 1


async def test_abilities_are_those_of_the_request_not_of_the_connection(brisk, token, case):
    async with http_host(brisk, token, abilities=FORM, person=nobody) as host:
        await asked_once(host, case)
        host.abilities = {}
        assert is_pending(await host.call("echo__mine", case.arguments))
    assert host.asked == []


@pytest.mark.exhaustive
async def test_tasks_declared_on_an_older_wire_are_no_tasks(brisk, token, case):
    async with http_host(brisk, token, era=LEGACY, abilities=TASKS) as host:
        assert is_pending(await host.call("echo__ask", case.arguments))
    assert (await case.request()).waiting_as == "away"
