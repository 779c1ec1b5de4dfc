"""Requests that are repeated or that end early: no client starts a second run, and none waits
without end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from django.utils import timezone

from mcpregistry.db import db_call
from mcpregistry.models import PolicyRule, Token
from mcpregistry.services.access.tokens import revoke_token
from subagents.domain.lifecycle import RunState
from subagents.llm.client import complete
from subagents.models import Headend, Run
from subagents.services import runs
from subagents.services.headends import queue_places
from tests.subagents.headends.conftest import headend, token
from tests.subagents.headends.test_endings import (
    CHAT,
    INTERFACES,
    _blocking_place,
    _is_unknown,
    _queue_is,
    asked,
    no_open_runs,
)
from tests.subagents.headends.test_openai import prepared
from tests.subagents.kit import Bench, offered
from tests.waiting import until


def one_at_a_time(bench: Bench) -> str:
    key = prepared(bench)
    Headend.objects.update(concurrency=1)
    return key


@pytest.mark.exhaustive
async def test_a_request_whose_place_was_taken_does_not_wait_without_end(
    bench: Bench, serving: Any
) -> None:
    key = await db_call(one_at_a_time, bench)
    served = await serving()
    blocked = await db_call(_blocking_place)
    async with served.client(key) as one, served.client(key) as two:
        first = asyncio.ensure_future(one.post(CHAT, json=asked()))
        await until(lambda: _queue_is(2))
        again = asyncio.ensure_future(
            two.post(CHAT, json=asked(), headers={"x-stainless-retry-count": "1"})
        )
        refused = await first
        await db_call(queue_places.release, blocked)
        answer = await again
    assert (refused.status_code, refused.headers["x-should-retry"]) == (409, "false")
    assert answer.json()["choices"][0]["message"]["content"] == "It said hello."
    assert await db_call(Run.objects.count) == 1


@pytest.mark.exhaustive
async def test_a_key_of_another_request_is_not_worth_a_retry(bench: Bench, serving: Any) -> None:
    key = await db_call(prepared, bench)
    served = await serving()
    named = {"Idempotency-Key": "order-1"}
    async with served.client(key) as asks:
        await asks.post(CHAT, json=asked(), headers=named)
        refused = await asks.post(CHAT, json=asked("something else"), headers=named)
    assert (refused.status_code, refused.headers["x-should-retry"]) == (409, "false")
    assert "retry-after" not in refused.headers


@pytest.mark.exhaustive
async def test_a_client_with_a_key_gets_its_answer_after_it_disconnected(
    bench: Bench, serving: Any
) -> None:
    key = await db_call(prepared, bench)
    going_on = asyncio.Event()

    async def slow(*given: Any, **more: Any) -> Any:
        await going_on.wait()
        return await complete(*given, **more)

    served = await serving(complete=slow)
    named = {"Idempotency-Key": "order-1"}
    async with served.client(key) as asks:
        asking = asyncio.ensure_future(asks.post(CHAT, json=asked(), headers=named))
        await until(lambda: db_call(Run.objects.exists))
        asking.cancel()
        await until(lambda: _queue_is(0))
        going_on.set()
        answer = await asks.post(CHAT, json=asked(), headers=named)
    assert answer.json()["choices"][0]["message"]["content"] == "It said hello."
    assert await db_call(lambda: Run.objects.get().state) == RunState.DONE


async def test_a_token_that_is_revoked_in_the_queue_starts_no_run(
    bench: Bench, serving: Any
) -> None:
    key = await db_call(one_at_a_time, bench)
    served = await serving()
    blocked = await db_call(_blocking_place)
    async with served.client(key) as asks:
        asking = asyncio.ensure_future(asks.post(CHAT, json=asked()))
        await until(lambda: _queue_is(2))
        await db_call(lambda: revoke_token(token=Token.objects.get(), actor="test"))
        await until(lambda: _is_unknown(asks))
        await db_call(queue_places.release, blocked)
        refused = await asking
    assert (refused.status_code, refused.headers["x-should-retry"]) == (401, "false")
    assert await db_call(Run.objects.count) == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("interface", INTERFACES)
async def test_programs_recognise_that_a_run_waits(
    bench: Bench, serving: Any, interface: str
) -> None:
    """A program that wants JSON gets an error in place of a text, and the link is whole however
    short the answer must be."""
    kind, path, body, text_of = INTERFACES[interface]
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    wanted = {
        "openai": {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": schema},
            }
        },
        "responses": {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}},
        "anthropic": {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        "rest": {"schema": schema},
    }[interface]
    short = {
        "openai": {"max_tokens": 3},
        "responses": {"max_output_tokens": 3},
        "anthropic": {"max_tokens": 3},
    }
    body = body | ({} if kind == "rest" else {"model": "expert"})

    def prepare() -> str:
        offered(bench)
        headend(kind, patience_seconds=0)
        PolicyRule.objects.create(name="mine", outcome="ask", expert="expert")
        return token()

    key = await db_call(prepare)
    served = await serving()
    async with served.client(key) as asks:
        text = await asks.post(path, json=body | short.get(interface, {}))
        structured = await asks.post(path, json=body | wanted)
    assert text.status_code == (202 if kind == "rest" else 200)
    assert text_of(text.json()).endswith("to get the answer.")
    assert structured.status_code == (202 if kind == "rest" else 409)
    assert "/approvals/" in structured.text
    if kind != "rest":
        assert structured.headers["x-should-retry"] == "false"
    await db_call(lambda: [runs.cancel(run_id=run.pk, actor="test") for run in Run.objects.open()])
    await until(no_open_runs)


@pytest.mark.exhaustive
async def test_a_failed_response_has_its_id_and_a_code_that_codex_does_not_retry(
    bench: Bench, serving: Any
) -> None:
    refused = {"status": 401, "message": "no such key"}
    key = await db_call(prepared, bench, {"text": "x", "attempts": [refused, refused]})
    served = await serving()
    async with served.client(key) as asks:
        streamed = await asks.post(
            "/v1/responses", json={"model": "expert", "input": "hello", "stream": True}
        )
    events = [
        json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: ")
    ]
    assert [each["type"] for each in events] == [
        "response.created",
        "response.in_progress",
        "response.failed",
    ]
    assert len({each["response"]["id"] for each in events}) == 1
    assert events[-1]["response"]["error"]["code"] == "invalid_prompt"


@pytest.mark.exhaustive
async def test_a_repeat_directly_after_a_failed_run_gets_its_error(
    bench: Bench, serving: Any
) -> None:
    """Claude Code repeats a request after any error, first without streaming. Later, the same
    question starts a new run."""
    refused = {"status": 401, "message": "no such key"}
    key = await db_call(prepared, bench, {"text": "x", "attempts": [refused] * 9})
    served = await serving()
    async with served.client(key) as asks:
        streamed = await asks.post(CHAT, json=asked(stream=True))
        assert "exit-auth-failure" in streamed.text
        await db_call(queue_places.sweep)
        for _ in range(3):
            assert (await asks.post(CHAT, json=asked())).status_code == 422
        assert (await asks.post(CHAT, json=asked("another"))).status_code == 422
        assert await db_call(Run.objects.count) == 2
        await db_call(
            lambda: Run.objects.update(finished_at=timezone.now() - queue_places.REPEATED)
        )
        await asks.post(CHAT, json=asked())
    assert await db_call(Run.objects.count) == 3


@pytest.mark.exhaustive
async def test_an_unknown_operation_is_not_a_missing_model(bench: Bench, serving: Any) -> None:
    key = await db_call(prepared, bench)
    served = await serving()
    async with served.client(key) as asks:
        operation = await asks.post("/v1/embeddings", json={"model": "expert", "input": "x"})
        nameless = await asks.post(CHAT, json={"messages": [{"role": "user", "content": "x"}]})
    assert (operation.status_code, operation.json()["error"]["code"]) == (404, "unknown_operation")
    assert (nameless.status_code, nameless.json()["error"]["param"]) == (400, "model")


async def test_a_chat_client_in_a_browser_may_send_the_headers_of_its_sdk(
    bench: Bench, serving: Any, settings: Any
) -> None:
    settings.MCP_ALLOWED_ORIGINS = ["https://chat.example"]
    key = await db_call(prepared, bench)
    served = await serving()
    needed = [
        "authorization",
        "content-type",
        "x-api-key",
        "anthropic-version",
        "anthropic-dangerous-direct-browser-access",
        "x-stainless-lang",
        "x-stainless-retry-count",
        "openai-organization",
        "idempotency-key",
    ]
    asking = {"origin": "https://chat.example", "access-control-request-method": "POST"}
    async with served.client(key) as asks:
        preflight = await asks.options(
            CHAT, headers=asking | {"access-control-request-headers": ",".join(needed)}
        )
        answer = await asks.post(CHAT, json=asked(), headers={"origin": "https://chat.example"})
    allowed = preflight.headers["access-control-allow-headers"].lower().split(", ")
    assert [name for name in needed if name not in allowed] == []
    exposed = answer.headers["access-control-expose-headers"].lower()
    assert "x-should-retry" in exposed
    assert "x-slipsnisse-run" in exposed
