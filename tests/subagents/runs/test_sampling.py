"""What servers ask of a model, answered by the model of an expert tool: in both eras, paid for,
recorded, bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from mcpregistry.calls.call import CallHost
from mcpregistry.calls.sampling import MOST, Sampling
from mcpregistry.db import db_call
from mcpregistry.domain.calls.forwarding import NOTHING, Forwarding, HostUnansweredError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import Agent, Invocation, Server
from mcpregistry.services.access import grants
from mcpregistry.services.definitions import decisions, observe
from mcpregistry.services.servers import lifecycle
from subagents.models import Run
from subagents.runs.sampling import build_question
from tests.calls.conftest import ACTOR
from tests.fakes import sdk
from tests.fakes.servers import conformance_server
from tests.fakes.targets import LOOPBACK
from tests.subagents.kit import Bench, call
from tests.waiting import until

PARIS = {"text": "Paris."}
TOOL = {"legacy": "asks__test_sampling", "modern": "asks__test_input_required_result_sampling"}


@pytest.fixture
def address() -> Iterator[str]:
    with sdk.serving(conformance_server.make_server().streamable_http_app()) as base:
        yield f"{base}/mcp"


def asking(bench: Bench, address: str, mode: str, **fields: Any) -> Server:
    """A server that asks for a model, granted to "ann"; the expert tool has no tools and takes one
    text."""
    bench.server()  # makes ann and the endpoint
    fields = {"sampling_expert": "expert", "protocol_mode": mode} | fields
    row = Server(
        slug="asks", transport="http", url=address, allowed_networks=list(LOOPBACK), **fields
    )
    server = lifecycle.save_server(server=row, actor=ACTOR)
    server = lifecycle.confirm_launch(server=server, actor=ACTOR, launch_hash=server.launch_hash())
    observe.observe(server=server, listed=conformance_server.TOOLS)
    decisions.approve_waiting(server=server, actor=ACTOR)
    grants.grant_access(agent=Agent.objects.get(slug="ann"), server=server, actor=ACTOR)
    return server


def runs() -> list[tuple[str, str, str, str, int]]:
    found = Run.objects.order_by("created_at").prefetch_related("turns")
    return [(run.origin, run.caller, run.payers, run.state, run.turns.count()) for run in found]


@pytest.mark.exhaustive(but=("modern",))
@pytest.mark.parametrize("mode", ["legacy", "modern"])
async def test_an_expert_tools_model_answers_in_the_hosts_place(bench, working, address, mode):
    await db_call(lambda: (asking(bench, address, mode), bench.expert(bench.model("m", PARIS))))
    here = await working()
    outcome = await call(here, TOOL[mode], arguments={})
    assert outcome.state is InvocationState.SUCCEEDED, outcome.message
    assert "Paris." in json.dumps(outcome.result)
    assert '"m"' in json.dumps(outcome.result).replace("\\", "") or "scripts/m" in json.dumps(
        outcome.result
    )
    assert await db_call(runs) == [("sampling", "ann", "ann endpoint:default", "done", 1)]
    made = await db_call(
        lambda: list(Invocation.objects.filter(server_slug="asks").values_list("pk", flat=True))
    )
    # one call, one record
    assert made == await db_call(lambda: list(Run.objects.values_list("call_id", flat=True)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["legacy", "modern"])
@pytest.mark.parametrize("why", ["uses tools", "is not there", "may not ask"])
async def test_where_no_model_of_ours_may_answer_the_server_is_told_in_words(
    bench, working, address, mode, why
):
    def configured() -> None:
        asking(bench, address, mode, asks_sampling=why != "may not ask")
        if why != "is not there":
            bench.expert(
                bench.model("m", PARIS),
                uses=[Server.objects.get(slug="echo")] * (why == "uses tools"),
            )

    await db_call(configured)
    outcome = await call(await working(), TOOL[mode], arguments={})
    said = f"{outcome.message} {json.dumps(outcome.result)}"
    expected = {
        "uses tools": "must not have tools",
        "is not there": 'No enabled expert tool named "expert"',
    }.get(why, "")
    assert expected in said
    assert "Paris" not in said
    assert await db_call(runs) == []


@pytest.mark.exhaustive
async def test_a_call_that_is_given_up_cancels_the_run_and_the_hosts_other_answers_stay_its_own(
    bench, worker, address
):
    await db_call(lambda: (asking(bench, address, "legacy"), bench.expert(bench.model("m", PARIS))))
    here = await worker()  # which nobody wakes: the run stays open
    asked: list[str] = []

    async def host(method: str, params: Any) -> dict[str, Any]:
        asked.append(method)
        return {"action": "decline"}

    able = CallHost(forwarding=Forwarding({"elicitation": {"form": {}}, "sampling": {}}, ask=host))
    declined = await call(here, "asks__test_elicitation", arguments={}, host=able)
    assert "decline" in json.dumps(declined.result)
    assert asked == ["elicitation/create"]
    out = asyncio.ensure_future(call(here, TOOL["legacy"], arguments={}, host=able))
    await until(lambda: db_call(Run.objects.exists))
    out.cancel()
    await asyncio.gather(out, return_exceptions=True)

    await until(lambda: db_call(Run.objects.filter(cancel_requested=True).exists))
    assert asked == ["elicitation/create"]
    await here.drive(await db_call(Run.objects.get))


@pytest.mark.exhaustive
async def test_a_question_to_a_model_beside_others_does_not_go_to_the_host(bench, working, address):
    await db_call(
        lambda: (
            asking(bench, address, "modern", asks_roots=True),
            bench.expert(bench.model("m", PARIS)),
        )
    )
    able = CallHost(
        forwarding=Forwarding({"elicitation": {"form": {}}, "sampling": {}, "roots": {}})
    )
    outcome = await call(
        await working(), "asks__test_input_required_result_multiple_inputs", arguments={}, host=able
    )
    assert (outcome.error_code, outcome.result) == ("INPUT_NEEDED", None)
    assert "sampling/createMessage" in outcome.message
    assert await db_call(runs) == []


@pytest.mark.parametrize("once", [True, False])
async def test_a_call_that_asks_too_often_is_told_so_before_the_first_question_too_many_is_paid_for(
    once,
):
    paid: list[Any] = []

    async def sampler(call: Any, params: Any) -> dict[str, Any]:
        paid.append(params)
        return {}

    asking = Sampling(None, sampler, NOTHING)
    requests = {
        str(n): {"method": "sampling/createMessage", "params": {}}
        for n in range(MOST + 1 if once else MOST)
    }
    result = {"resultType": "input_required", "inputRequests": requests}
    if not once:
        await asking.answer_requests(result)
    with pytest.raises(HostUnansweredError, match="at most 10"):
        await asking.answer_requests(result)
    assert len(paid) == (0 if once else MOST)


TEXT = {"role": "user", "content": {"type": "text", "text": "Hello"}}


def test_messages_become_one_text():
    assert build_question({"messages": [TEXT]}) == "Hello"
    answer = {
        "role": "assistant",
        "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}],
    }
    assert build_question({"systemPrompt": "Be brief.", "messages": [TEXT, answer]}) == (
        "Instructions:\nBe brief.\n\nUser:\nHello\n\nAssistant:\nHi\nthere"
    )


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"messages": []},
        {"messages": "x"},
        {"messages": [7]},
        {"messages": [{"role": "user"}]},
        {"messages": [TEXT | {"role": "system"}]},
        {"messages": [TEXT], "tools": [{"name": "x"}]},
        {"messages": [{"role": "user", "content": {"type": "image", "data": ""}}]},
        {"messages": [{"role": "user", "content": {"type": "text", "text": "x" * 200_001}}]},
    ],
)
def test_what_a_text_cannot_say_is_declined(params):
    with pytest.raises(HostUnansweredError):
        build_question(params)
