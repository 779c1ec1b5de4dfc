"""The other interfaces: Anthropic's, OpenAI's responses, REST, and MCP with formats; each with its
official client where it has one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ValidationError

from mcpregistry.db import db_call
from mcpregistry.domain.errors import ArgumentsInvalid
from mcpregistry.models import Endpoint, Invocation
from mcpregistry.services.access import agents
from subagents.admin.headend import get_address
from subagents.domain.formats import split_format
from subagents.models import ExpertTool, Run
from subagents.services import experts
from tests.subagents.headends.conftest import headend, token
from tests.subagents.headends.test_openai import ASKED, client
from tests.subagents.kit import WORDS, Bench, call, offered
from tests.waiting import HANG_LIMIT

# the clients take a second to load, and each worker of pytest reads this file: only tests load them
if TYPE_CHECKING:
    import anthropic

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
FORMATS = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
LONG = {"text": "one two three four five six seven eight nine ten"}


def prepared(bench: Bench, kind: str, *turns: Any, **fields: Any) -> str:
    offered(bench, *turns, **fields)
    headend(kind)
    return token()


def claude(served: Any, **how: Any) -> anthropic.AsyncAnthropic:
    import anthropic

    return anthropic.AsyncAnthropic(base_url=served.address, timeout=HANG_LIMIT, **how)


@pytest.mark.exhaustive(but=("api_key",))
@pytest.mark.parametrize("how", ["api_key", "auth_token"])
async def test_anthropics_client_lists_counts_and_gets_a_message(
    bench: Bench, serving: Any, how: str
) -> None:
    key = await db_call(prepared, bench, "anthropic")
    served = await serving()
    async with claude(served, **{how: key}) as asks:
        assert [each.id async for each in await asks.models.list()] == ["expert"]
        assert (await asks.models.retrieve("expert")).type == "model"
        assert (await asks.messages.count_tokens(model="expert", messages=ASKED)).input_tokens > 0
        answer = await asks.messages.create(
            model="expert", max_tokens=1_000, messages=ASKED, system="Be kind."
        )
    assert answer.content[0].text == (
        "It said Instructions of the client program:\n\nBe kind.\n\nQuestion:\n\nhello."
    )
    assert answer.stop_reason == "end_turn"
    run = await db_call(Run.objects.get)
    assert answer.id == f"msg_{run.call_id}"
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens == run.input_tokens
    assert answer.usage.output_tokens == run.output_tokens


async def test_anthropics_stream_has_its_events_in_order(bench: Bench, serving: Any) -> None:
    key = await db_call(prepared, bench, "anthropic")
    served = await serving()
    asking = {"model": "expert", "max_tokens": 1_000, "messages": ASKED}
    async with claude(served, api_key=key) as asks, asks.messages.stream(**asking) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert final.content[0].text == "It said hello."
    order = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert [kind for kind in dict.fromkeys(kinds) if kind in order] == order
    assert final.usage.output_tokens == (await db_call(Run.objects.get)).output_tokens


@pytest.mark.exhaustive
async def test_anthropics_errors(bench: Bench, serving: Any) -> None:
    import anthropic

    refused = {"status": 401, "message": "no such key"}
    key = await db_call(prepared, bench, "anthropic", {"text": "x", "attempts": [refused, refused]})
    served = await serving()
    async with claude(served, api_key="nobody's") as asks:
        with pytest.raises(anthropic.AuthenticationError):
            await asks.models.list()
    async with claude(served, api_key=key) as asks:
        with pytest.raises(anthropic.NotFoundError):
            await asks.messages.create(model="other", max_tokens=10, messages=ASKED)
        with pytest.raises(anthropic.UnprocessableEntityError) as failed:
            await asks.messages.create(model="expert", max_tokens=10, messages=ASKED)
        with pytest.raises(anthropic.APIStatusError, match="no such key"):
            async with asks.messages.stream(
                model="expert", max_tokens=10, messages=ASKED
            ) as stream:
                await stream.get_final_message()
    assert failed.value.request_id
    assert failed.value.body["request_id"] == failed.value.request_id
    assert await db_call(Run.objects.count) == 1, (
        "the same question gets the error of the run that has just failed"
    )


@pytest.mark.exhaustive
async def test_an_answer_is_cut_at_what_the_client_takes(bench: Bench, serving: Any) -> None:
    key = await db_call(prepared, bench, "anthropic", LONG)
    served = await serving()
    async with claude(served, api_key=key) as asks:
        answer = await asks.messages.create(model="expert", max_tokens=3, messages=ASKED)
    assert (answer.content[0].text, answer.stop_reason) == ("one two three", "max_tokens")


async def test_openais_responses(bench: Bench, serving: Any) -> None:
    import openai

    key = await db_call(prepared, bench, "openai")
    served = await serving()
    async with client(served, key) as asks:
        answer = await asks.responses.create(model="expert", input="hello")
        assert (answer.output_text, answer.status) == ("It said hello.", "completed")
        kinds = []
        async for event in await asks.responses.create(model="expert", input=ASKED, stream=True):
            assert event.sequence_number == len(kinds)
            kinds.append(event.type)
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds[-1] == "response.completed"
        assert event.response.output_text == "It said hello."
        assert event.response.usage.total_tokens > 0
        with pytest.raises(openai.BadRequestError, match="whole conversation"):
            await asks.responses.create(model="expert", input="x", previous_response_id="resp_1")
    assert await db_call(Run.objects.count) == 2


async def test_an_answer_that_must_fit_a_schema(bench: Bench, serving: Any) -> None:
    import openai

    key = await db_call(
        prepared,
        bench,
        "openai",
        {"text": "n is 3"},
        {"text": '{"n": 3}'},
        {"text": '{"n": "x"}'},
        {"text": "no"},
    )
    served = await serving()
    async with client(served, key) as asks:
        answer = await asks.chat.completions.create(
            model="expert", messages=ASKED, response_format=FORMATS
        )
        assert json.loads(answer.choices[0].message.content) == {"n": 3}
        wrong = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "nothing"}}}
        with pytest.raises(openai.BadRequestError, match="schema of the answer"):
            await asks.chat.completions.create(
                model="expert", messages=ASKED, response_format=wrong
            )
    run = await db_call(Run.objects.get)
    assert (run.answer_format, json.loads(run.answer_schema)) == ("json", SCHEMA)
    assert await db_call(lambda: run.turns.count()) == 2, "the model was told once what was wrong"


async def test_rest_answers_in_three_formats(bench: Bench, serving: Any) -> None:
    key = await db_call(prepared, bench, "rest")
    served = await serving()
    async with served.client(key) as asks:
        text = await asks.get("/v1/expert", params={"q": "hello"})
        markdown = await asks.get("/v1/expert", params={"text": "hello", "format": "markdown"})
        whole = await asks.post("/v1/expert", json={"text": "hello", "format": "json"})
        plain = await asks.post(
            "/v1/expert", content="hello", headers={"content-type": "text/plain"}
        )
        unknown = await asks.get("/v1/expert", params={"q": "hello", "format": "pdf"})
        nothing = await asks.get("/v1/other", params={"q": "hello"})
        wrong = await asks.post("/v1/expert", json={"no": 1})
    for answer, kind in ((text, "text/plain"), (markdown, "text/markdown"), (plain, "text/plain")):
        assert (answer.status_code, answer.text) == (200, "It said hello.")
        assert answer.headers["content-type"].startswith(kind)
    assert whole.json()["answer"] == "It said hello."
    assert whole.json()["run"] == whole.headers["x-slipsnisse-run"]
    assert (unknown.status_code, nothing.status_code, wrong.status_code) == (422, 404, 400)
    assert (
        "'text' is a required property" in wrong.json()["message"]
        or "text" in wrong.json()["message"]
    )
    formats = await db_call(lambda: sorted(Run.objects.values_list("answer_format", flat=True)))
    assert formats == ["", "markdown", "text", "text"]


@pytest.mark.exhaustive
async def test_rest_takes_a_schema_and_tells_its_health(bench: Bench, serving: Any) -> None:
    key = await db_call(prepared, bench, "rest", {"text": '{"n": 3}'})
    served = await serving()
    async with served.client(key) as asks:
        answer = await asks.post(
            "/v1/expert", json={"text": "hello", "format": "json", "schema": SCHEMA}
        )
        assert answer.json()["answer"] == {"n": 3}
        assert (await asks.get("/health")).json() == {"status": "ok", "failed_servers": []}
        strangers = await asks.get("/health", headers={"authorization": ""})
        assert strangers.json() == {"status": "ok"}
        assert (await asks.delete("/v1/expert")).status_code == 404


@pytest.mark.exhaustive
async def test_hosts_say_a_format_where_the_endpoint_has_an_mcp_headend(
    bench: Bench, serving: Any
) -> None:
    await db_call(prepared, bench, "mcp", {"text": '{"n": 3}'})
    served = await serving()
    listed = served.engine.get_catalogue("default", "ann").entries["expert"].listing["inputSchema"]
    assert listed["required"] == ["text", "format"]
    assert listed["properties"]["format"]["enum"] == ["text", "markdown", "json"]
    missing = await call(served, arguments={"text": "hello"})
    assert (missing.error_code, "format" in missing.message) == ("ARGUMENTS_INVALID", True)
    needs = await call(served, arguments={"text": "hello", "format": "json"})
    assert (needs.error_code, needs.message) == (
        "ARGUMENTS_INVALID",
        "The format json requires a schema.",
    )
    given = await call(served, arguments={"text": "hello", "format": "json", "schema": SCHEMA})
    assert given.result["structuredContent"] == {"n": 3}
    assert await db_call(lambda: Run.objects.get().arguments) == '{"text":"hello"}'


@pytest.mark.exhaustive
async def test_a_tool_with_several_arguments_takes_an_object(bench: Bench, serving: Any) -> None:
    import openai

    def prepare() -> str:
        offered(
            bench,
            {"text": "done"},
            arguments={
                **WORDS,
                "properties": {**WORDS["properties"], "n": {"type": "integer"}},
                "required": ["text", "n"],
            },
        )
        headend("openai", aliases={"gpt": "expert"})
        return token()

    key = await db_call(prepare)
    served = await serving()
    async with client(served, key) as asks:
        assert [each.id for each in (await asks.models.list()).data] == ["expert", "gpt"]
        for text, said in (("hello", '"n"'), ('{"text": "x", "n": NaN}', "JSON does not support")):
            with pytest.raises(openai.BadRequestError, match=said):
                await asks.chat.completions.create(
                    model="gpt", messages=[{"role": "user", "content": text}]
                )
        given = [{"role": "user", "content": '{"text": "x", "n": 2}'}]
        answer = await asks.chat.completions.create(model="gpt", messages=given)
    assert (answer.model, answer.choices[0].message.content) == ("gpt", "done")
    assert await db_call(lambda: json.loads(Run.objects.get().arguments)) == {"text": "x", "n": 2}


async def test_two_agents_see_their_own_models(bench: Bench, serving: Any) -> None:
    """And a headend of another endpoint has a path, and models, of its own."""

    def prepare() -> tuple[str, str]:
        key = prepared(bench, "openai")
        other = Endpoint.objects.create(slug="other")
        expert = ExpertTool.objects.get()
        second = experts.save_expert(
            expert=ExpertTool(name="second", description="d", arguments=WORDS),
            targets=[each.model for each in expert.ordered_targets.all()],
            actor="test",
        )
        second.users.add(*expert.users.all())
        second.endpoints.add(other)
        headend("openai", slug="team", endpoint=other, path="team-a/v1")
        return key, expert.name

    key, _ = await db_call(prepare)
    served = await serving()
    async with served.client(key) as asks:
        lists = [(await asks.get(f"/{path}/models")).json()["data"] for path in ("v1", "team-a/v1")]
    assert [[each["id"] for each in listed] for listed in lists] == [["expert"], ["second"]]
    assert await db_call(Invocation.objects.count) == 0


@pytest.mark.exhaustive
async def test_a_tool_with_its_own_format_refuses_a_schema(bench: Bench, serving: Any) -> None:
    """The schema would be ignored, and the client would read a text as JSON."""
    arguments = {
        "type": "object",
        "properties": {"text": {"type": "string"}, "format": {}},
        "required": ["text"],
    }
    key = await db_call(prepared, bench, "openai", arguments=arguments)
    served = await serving()
    async with served.client(key) as asks:
        body = {"model": "expert", "messages": ASKED, "response_format": FORMATS}
        refused = await asks.post("/v1/chat/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")
    assert await db_call(Run.objects.count) == 0


def test_the_path_of_an_anthropic_headend_ends_with_v1(db: None) -> None:
    """Clients of Anthropic add /v1 to the address that they are given, so another path could not be
    reached."""
    agents.save_endpoint(endpoint=Endpoint(slug="default"), actor="test")
    with pytest.raises(ValidationError, match="Use a path that ends with v1"):
        headend("anthropic", path="claude")
    assert get_address(headend("anthropic", path="claude/v1")).endswith("/claude")


def test_an_invalid_schema_of_an_answer_is_named_as_such() -> None:
    with pytest.raises(
        ArgumentsInvalid,
        match=r"^The schema of the answer cannot be used: .*[^.]\. Correct the schema\.$",
    ):
        split_format({"format": "json", "schema": {"type": "nonsense"}})
