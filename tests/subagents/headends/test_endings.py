"""What clients are told when there is no answer, and that nothing runs twice or for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.utils import timezone

from mcpregistry.db import db_call
from mcpregistry.ids import make_ordered_id
from mcpregistry.models import Agent, ApprovalRequest, Endpoint, Invocation, PolicyRule, Token
from mcpregistry.services.access import agents
from mcpregistry.services.access.tokens import revoke_token
from mcpregistry.services.approvals import votes
from mcpregistry.services.records import audit
from mcpregistry.services.upkeep import reaping
from subagents.domain.lifecycle import RunState
from subagents.headends.queued_request import SharedState
from subagents.llm.client import complete
from subagents.models import ExpertTool, Headend, HeadendRequest, Run
from subagents.services import runs
from subagents.services.headends import queue_places
from tests.subagents.headends.conftest import headend, token
from tests.subagents.headends.test_openai import ASKED, client, prepared
from tests.subagents.kit import Bench, calls, offered
from tests.waiting import until

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
COUNTS = calls(("slow__count", {"steps": 100_000, "pause": 0.1}))


def asked(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "expert", "messages": [{"role": "user", "content": text}], **more}


async def no_open_runs() -> bool:
    return not await db_call(Run.objects.open().exists)


async def test_a_failed_run_is_told_once_and_never_tried_again(bench: Bench, serving: Any) -> None:
    import openai

    refused = {"status": 401, "message": "no such key"}
    key = await db_call(prepared, bench, {"text": "x", "attempts": [refused, refused]})
    served = await serving()
    async with client(served, key, max_retries=2) as asks:
        with pytest.raises(openai.UnprocessableEntityError) as error:
            await asks.chat.completions.create(model="expert", messages=ASKED)
        other: Any = [{"role": "user", "content": "something else"}]
        with pytest.raises(openai.APIError) as cut:
            async for _ in await asks.chat.completions.create(
                model="expert", messages=other, stream=True
            ):
                pass
    assert error.value.type == "run_failed"
    assert error.value.response.headers["x-should-retry"] == "false"
    assert cut.value.code == "exit-auth-failure"
    assert len(served.answered) == 2
    assert await db_call(Run.objects.filter(state=RunState.FAILED).count) == 2


async def test_a_client_that_leaves_takes_its_run_with_it(bench: Bench, serving: Any) -> None:
    def prepare() -> str:
        server = bench.server("slow", "count")
        expert = bench.expert(bench.model("m", COUNTS, repeat=True), uses=[server])
        expert.users.add(Agent.objects.get(slug="ann"))
        expert.endpoints.add(Endpoint.objects.get(slug="default"))
        headend()
        return token()

    key = await db_call(prepare)
    served = await serving()
    for stream in (False, True):
        async with served.client(key) as asks:
            asking = asyncio.ensure_future(asks.post(CHAT, json=asked(stream=stream)))
            await until(lambda made=1 + stream: len(bench.sent()) == made)
            asking.cancel()
        await until(no_open_runs)
    ended = await db_call(lambda: list(Run.objects.values_list("state", flat=True)))
    assert ended == [RunState.CANCELLED] * 2
    assert await db_call(lambda: HeadendRequest.objects.filter(released_at=None).count()) == 0


async def test_requests_run_in_their_order_and_who_leaves_the_queue_never_runs(
    bench: Bench, serving: Any
) -> None:
    def prepare() -> str:
        key = prepared(bench)
        Headend.objects.update(concurrency=1)
        return key

    key = await db_call(prepare)
    served = await serving()
    blocked = await db_call(_blocking_place)
    async with served.client(key) as one, served.client(key) as two, served.client(key) as three:
        asking = []
        for number, asks in enumerate((one, two, three)):
            asking.append(asyncio.ensure_future(asks.post(CHAT, json=asked(f"q{number}"))))
            await until(lambda n=number: _queue_is(n + 2))
        asking[1].cancel()
        await until(lambda: _queue_is(3))
        assert await db_call(Run.objects.count) == 0
        await db_call(queue_places.release, blocked)
        await until(lambda: asking[0].done() and asking[2].done())
        texts = [
            each.result().json()["choices"][0]["message"]["content"]
            for each in (asking[0], asking[2])
        ]
    assert texts == ["It said q0.", "It said q2."]
    assert [each["arguments"]["text"] for each in bench.sent()] == ["q0", "q2"]


def _blocking_place() -> int:
    row = Headend.objects.get()
    made = queue_places.join_queue(
        headend=row.pk,
        agent="ann",
        fingerprint="x",
        process="another",
        concurrency=1,
        longest_queue=10,
    )
    HeadendRequest.objects.filter(pk=made.id).update(lease_until="2100-01-01T00:00Z")
    return made.id


async def _queue_is(length: int) -> bool:
    return bool(
        await db_call(
            lambda: queue_places.query_active_places(Headend.objects.get().pk).count() == length
        )
    )


async def test_a_full_queue_says_when_to_come_again(bench: Bench, serving: Any) -> None:
    def prepare() -> str:
        key = prepared(bench)
        Headend.objects.update(concurrency=1, longest_queue=0)
        return key

    key = await db_call(prepare)
    served = await serving()
    blocked = await db_call(_blocking_place)
    async with served.client(key) as asks:
        refused = await asks.post(CHAT, json=asked())
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
        assert int(refused.headers["retry-after"]) >= 1
        await db_call(queue_places.release, blocked)
        assert (await asks.post(CHAT, json=asked())).status_code == 200


INTERFACES: dict[str, tuple[str, str, dict[str, Any], Callable[[Any], str]]] = {
    "openai": (
        "openai",
        CHAT,
        {"messages": MESSAGES},
        lambda body: body["choices"][0]["message"]["content"],
    ),
    "responses": (
        "openai",
        "/v1/responses",
        {"input": "hello"},
        lambda body: body["output"][0]["content"][0]["text"],
    ),
    "anthropic": (
        "anthropic",
        "/v1/messages",
        {"messages": MESSAGES, "max_tokens": 1_000},
        lambda body: body["content"][0]["text"],
    ),
    "rest": (
        "rest",
        "/v1/expert",
        {"text": "hello", "format": "json"},
        lambda body: body["answer"],
    ),
}


@pytest.mark.exhaustive(but=("openai",))
@pytest.mark.parametrize("interface", INTERFACES)
async def test_the_client_is_told_that_a_person_is_asked_and_gets_the_answer_later(
    bench: Bench, serving: Any, interface: str
) -> None:
    kind, path, body, text_of = INTERFACES[interface]
    body = body | ({} if kind == "rest" else {"model": "expert"})

    def prepare() -> str:
        offered(bench)
        headend(kind, patience_seconds=0)
        PolicyRule.objects.create(name="mine", outcome="ask", expert="expert")
        User.objects.create_user("pat").groups.add(Group.objects.get(name="approver"))
        return token()

    key = await db_call(prepare)
    served = await serving()
    async with served.client(key) as asks:

        async def answer() -> str:
            return text_of((await asks.post(path, json=body)).json())

        request_page = "/approvals/"
        assert request_page in await answer()
        request = await db_call(ApprovalRequest.objects.get)
        assert f"{request_page}{request.pk}/" in await answer()
        await served.engine.approvals.runner.settle_call(await db_call(approve, request))
        await until(no_open_runs)
        assert await answer() == "It said hello."
    assert await db_call(Run.objects.count) == 1
    assert len(bench.sent()) == 1


@pytest.mark.exhaustive
async def test_two_agents_with_one_model_have_runs_of_their_own(bench: Bench, serving: Any) -> None:
    """The same question of two agents starts two runs, also if the first of them waits for an
    approval."""

    def prepare() -> tuple[str, str]:
        key = prepared(bench)
        bob = agents.save_agent(agent=Agent(slug="bob"), actor="test")
        ExpertTool.objects.get().users.add(bob)
        Headend.objects.update(patience_seconds=0)
        PolicyRule.objects.create(name="mine", outcome="ask", expert="expert")
        return key, token("bob")

    keys = await db_call(prepare)
    served = await serving()
    for key in keys:
        async with served.client(key) as asks:
            assert (await asks.post(CHAT, json=asked())).status_code == 200
    assert await db_call(lambda: sorted(Run.objects.values_list("caller", flat=True))) == [
        "ann",
        "bob",
    ]
    assert await db_call(
        lambda: sorted(
            Invocation.objects.filter(origin="openai").values_list("agent_slug", flat=True)
        )
    ) == [
        "ann",
        "bob",
    ]
    await db_call(lambda: [runs.cancel(run_id=run.pk, actor="test") for run in Run.objects.open()])
    await until(no_open_runs)


async def test_a_key_gives_the_first_answer_again(bench: Bench, serving: Any) -> None:
    key = await db_call(prepared, bench)
    served = await serving()
    named = {"Idempotency-Key": "order-1"}
    async with served.client(key) as asks:
        first = await asks.post(CHAT, json=asked(), headers=named)
        second = await asks.post(CHAT, json=asked(), headers=named)
        other = await asks.post(CHAT, json=asked("something else"), headers=named)
    assert first.json()["choices"] == second.json()["choices"]
    assert first.json()["id"] == second.json()["id"]
    assert other.status_code == 409
    assert await db_call(Run.objects.count) == 1


def approve(request: ApprovalRequest) -> str:
    votes.vote(
        request_id=request.pk, user=User.objects.get(username="pat"), approve=True, via="web"
    )
    return request.call_id


@pytest.mark.exhaustive(one_in=9)
@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"nonsense", 400, "not valid JSON"),
        (b"[]", 400, "JSON object"),
        (b'{"model": "expert", "model": "other", "messages": []}', 400, "'model' appears twice"),
        (b'{"model": "expert"}', 400, "messages"),
        (b'{"model": "other", "messages": []}', 404, "Available models: expert."),
        (
            b'{"model": "expert", "n": 2, "messages": [{"role": "user", "content": "x"}]}',
            400,
            "n must be 1",
        ),
        (
            b'{"model": "expert", "messages": [{"role": "system", "content": "x"}]}',
            400,
            "a message with the role user",
        ),
        (
            b'{"model": "expert", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}',
            400,
            "image_url",
        ),
        (
            b'{"model": "expert", "messages": [{"role": "user", "content": "### Task: make a title"}]}',
            400,
            "titles",
        ),
    ],
)
async def test_bad_requests_start_nothing_and_say_why(
    bench: Bench, serving: Any, body: bytes, status: int, said: str
) -> None:
    key = await db_call(prepared, bench)
    served = await serving()
    async with served.client(key) as asks:
        refused = await asks.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert refused.status_code == status
    assert said in refused.json()["error"]["message"]
    assert refused.headers["x-should-retry"] == "false"
    assert await db_call(lambda: (Run.objects.count(), Invocation.objects.count())) == (0, 0)


@pytest.mark.exhaustive
async def test_a_site_that_stops_leaves_the_run_to_be_joined(bench: Bench, serving: Any) -> None:
    """The client is told to come again, and the same question gets the answer of the run that went
    on."""
    key = await db_call(prepared, bench)
    blocking = asyncio.Event()

    async def slow(*given: Any, **more: Any) -> Any:
        await blocking.wait()
        return await complete(*given, **more)

    served = await serving(complete=slow)
    async with served.client(key) as asks:
        asking = asyncio.ensure_future(asks.post(CHAT, json=asked()))
        await until(lambda: db_call(Run.objects.exists))
        served.doors.begin_stop()
        stopped = await asking
        assert (stopped.status_code, "retry-after" in stopped.headers) == (503, True)
        blocking.set()
        await until(no_open_runs)
        assert await db_call(lambda: Run.objects.get().state) == RunState.DONE
        served.doors.shared = SharedState(served.engine)  # as a new process
        answer = await asks.post(CHAT, json=asked())
    assert answer.json()["choices"][0]["message"]["content"] == "It said hello."
    assert await db_call(Run.objects.count) == 1


async def test_a_retry_joins_the_run_whose_process_died(bench: Bench, serving: Any) -> None:
    """Within the lease of the dead process, too: the client says that it has tried before."""
    key = await db_call(prepared, bench)
    served = await serving()
    async with served.client(key) as asks:
        first = await asks.post(CHAT, json=asked())
        await db_call(_as_if_its_process_had_died, first.headers["x-slipsnisse-call"])
        again = await asks.post(CHAT, json=asked(), headers={"x-stainless-retry-count": "1"})
        other = await asks.post(CHAT, json=asked(), headers={"x-stainless-retry-count": "0"})
    assert again.json()["id"] == first.json()["id"] != other.json()["id"]
    assert await db_call(Run.objects.count) == 2


@pytest.mark.exhaustive
async def test_a_retry_starts_the_run_that_its_process_did_not_live_to_start(
    bench: Bench, serving: Any
) -> None:
    """While the death is not known yet, the client is told to come again."""
    key = await db_call(prepared, bench)
    served = await serving()
    async with served.client(key) as asks:
        await asks.post(CHAT, json=asked())
        lost = await db_call(_call_without_a_run, "k")
        retry = {"idempotency-key": "k", "x-stainless-retry-count": "1"}
        early = await asks.post(CHAT, json=asked(), headers=retry)
        assert (early.status_code, "retry-after" in early.headers) == (503, True)
        assert await db_call(reaping.reap_calls, timezone.now()) == 1
        again = await asks.post(CHAT, json=asked(), headers=retry)
        once_more = await asks.post(CHAT, json=asked(), headers=retry)
    assert again.json()["choices"][0]["message"]["content"] == "It said hello."
    assert again.headers["x-slipsnisse-call"] not in ("", lost)
    assert once_more.json()["id"] == again.json()["id"]
    assert await db_call(Run.objects.count) == 2


def _call_without_a_run(key: str) -> str:
    """As the last request, but with this key, and by a process that died between the call's intent
    and its run."""
    now = timezone.now()
    last = HeadendRequest.objects.latest("id")
    call = make_ordered_id()
    HeadendRequest.objects.create(
        headend=last.headend,
        agent_slug=last.agent_slug,
        fingerprint=last.fingerprint,
        idempotency_key=key,
        call_id=call,
        process="web@box:1",
        lease_until=now,
        created_at=now,
    )
    Invocation.objects.create(
        id=call,
        state="dispatched",
        writer="web:box:1:a",
        agent_slug=last.agent_slug,
        tool_name="expert",
        exposed_name="expert",
        outcome="allow",
        origin="openai",
        received_at=now,
        dispatched_at=now,
        lease_until=now,
    )
    audit.record_entry(kind="call.dispatched", actor="test", subject=f"call:{call}")
    return call


def _as_if_its_process_had_died(call: str) -> None:
    HeadendRequest.objects.filter(call_id=call).update(
        released_at=None, lease_until="2100-01-01T00:00Z"
    )


@pytest.mark.exhaustive
async def test_half_a_character_costs_itself_alone(bench: Bench, serving: Any) -> None:
    key = await db_call(prepared, bench)
    served = await serving()
    async with served.client(key) as asks:
        body = rb'{"model": "expert", "messages": [{"role": "user", "content": "half \ud83d"}]}'
        answer = await asks.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert answer.json()["choices"][0]["message"]["content"] == "It said half \ufffd."


async def test_a_revoked_token_gets_no_answer(bench: Bench, serving: Any) -> None:
    def prepare() -> tuple[str, str]:
        key = prepared(bench)
        Headend.objects.update(concurrency=1)
        return key, token()

    key, other = await db_call(prepare)
    served = await serving()
    blocked = await db_call(_blocking_place)
    async with served.client(key) as asks, served.client(other) as another:
        asking = asyncio.ensure_future(asks.post(CHAT, json=asked()))
        await until(lambda: _queue_is(2))
        await db_call(lambda: revoke_token(token=Token.objects.earliest("id"), actor="test"))
        await until(lambda: _is_unknown(asks))
        await db_call(queue_places.release, blocked)
        refused = await asking
        assert (await another.get("/v1/models")).status_code == 200
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    assert refused.headers["x-should-retry"] == "false"


async def _is_unknown(asks: Any) -> bool:
    return bool((await asks.get("/v1/models")).status_code == 401)
