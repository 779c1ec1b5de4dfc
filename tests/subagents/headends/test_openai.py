"""Expert tools as models, with OpenAI's own client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mcpregistry.db import db_call
from mcpregistry.models import Agent, Invocation
from mcpregistry.services.access import agents
from subagents.models import Run
from tests.subagents.headends.conftest import headend, token
from tests.subagents.kit import Bench, offered
from tests.waiting import HANG_LIMIT

# the clients take a second to load, and each worker of pytest reads this file: only tests load them
if TYPE_CHECKING:
    import openai

ASKED = [{"role": "user", "content": "hello"}]


def client(served: Any, key: str, **options: Any) -> openai.AsyncOpenAI:
    import openai

    return openai.AsyncOpenAI(
        base_url=f"{served.address}/v1", api_key=key, timeout=HANG_LIMIT, **options
    )


def prepared(bench: Bench, *turns: Any, **fields: Any) -> str:
    offered(bench, *turns, **fields)
    headend()
    return token()


async def test_models_are_the_expert_tools_that_the_agent_may_call(
    bench: Bench, serving: Any
) -> None:
    import openai

    def prepare() -> tuple[str, str]:
        key = prepared(bench)
        headend("rest", aliases={"x": "expert"})
        agents.save_agent(agent=Agent(slug="bob"), actor="test")
        return key, token("bob")

    ann, bob = await db_call(prepare)
    served = await serving()
    async with client(served, ann) as asks:
        assert [each.id for each in (await asks.models.list()).data] == ["expert"]
        assert (await asks.models.retrieve("expert")).owned_by == "slipsnisse"
        with pytest.raises(openai.NotFoundError) as error:
            await asks.models.retrieve("other")
    assert error.value.code == "model_not_found"
    async with client(served, bob) as asks:
        assert (await asks.models.list()).data == []
        with pytest.raises(openai.NotFoundError):
            await asks.chat.completions.create(model="expert", messages=ASKED)
    async with client(served, "nobody's") as asks:
        with pytest.raises(openai.AuthenticationError):
            await asks.models.list()
    assert await db_call(Run.objects.count) == 0


async def test_an_answer_in_one_piece_and_its_record(bench: Bench, serving: Any) -> None:
    key = await db_call(prepared, bench)
    served = await serving()
    async with client(served, key) as asks:
        raw = await asks.chat.completions.with_raw_response.create(model="expert", messages=ASKED)
    answer = raw.parse()
    assert answer.choices[0].message.content == "It said hello."
    assert answer.choices[0].finish_reason == "stop"
    run = await db_call(Run.objects.get)
    call = await db_call(Invocation.objects.get, pk=run.call_id)
    assert (call.agent_slug, call.origin, call.state, call.exposed_name) == (
        "ann",
        "openai",
        "succeeded",
        "expert",
    )
    assert answer.id == f"chatcmpl-{call.pk}"
    assert raw.headers["x-slipsnisse-run"] == run.pk
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (
        run.input_tokens,
        run.output_tokens,
    )


async def test_an_answer_as_a_stream(bench: Bench, serving: Any) -> None:
    key = await db_call(prepared, bench)
    served = await serving()
    async with client(served, key) as asks:
        stream = await asks.chat.completions.create(
            model="expert", messages=ASKED, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert (
        "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "It said hello."
    )
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    run = await db_call(Run.objects.get)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == run.input_tokens + run.output_tokens
