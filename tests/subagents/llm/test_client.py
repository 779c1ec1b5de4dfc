"""Our one door to models against the scripted server: each line here pins a behaviour of
litellm."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from subagents.domain.model_errors import After, ErrorKind, ModelError
from subagents.llm.client import complete, load_litellm, ready
from subagents.llm.model_values import ModelReply, ModelTarget
from subagents.llm.scripted.app import ScriptedModels
from tests.subagents.kit import Heard, overhear
from tests.subagents.llm.conftest import KEY, KINDS, target
from tests.waiting import HANG_LIMIT, until

SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "default": "."},
        "zone": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "additionalProperties": False,
    "$defs": {"unused": {"type": "integer"}},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": SCHEMA}}
    for name in ("clock__now", "files__read")
]
FOREVER = 100 * HANG_LIMIT
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": json.dumps({"path": "README.md"})},
]


def answered(reply: ModelReply, *results: str) -> list[dict[str, Any]]:
    calls = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for c in reply.calls
    ]
    return [
        *MESSAGES,
        {"role": "assistant", "content": reply.text or None, "tool_calls": calls},
        *(
            {"role": "tool", "tool_call_id": c.id, "name": c.name, "content": result}
            for c, result in zip(reply.calls, results, strict=True)
        ),
    ]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_turn_with_tools_and_the_one_after_it(kind: str, base: str) -> None:
    asked = target(kind, base, "talk")
    first = await complete(asked, MESSAGES, TOOLS)
    assert first.finish == "calls"
    assert [(c.name, json.loads(c.arguments)) for c in first.calls] == [
        ("clock__now", {"zone": "UTC"}),
        ("files__read", {"path": "README.md"}),
    ]
    second = await complete(asked, answered(first, "the text", '{"hour": 12}'), TOOLS)
    assert (second.text, second.calls, second.finish) == (
        "It is 12; the file says the text.",
        (),
        "stop",
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_without_tools_the_model_is_offered_none_though_the_history_has_calls(
    kind: str, base: str, models: ScriptedModels
) -> None:
    asked = target(kind, base, "talk")
    history = answered(await complete(asked, MESSAGES, TOOLS), "the text", '{"hour": 12}')
    assert (await complete(asked, history)).text == "No tools, so: 12."
    assert models.journal[-1]["tools"] == []


@pytest.mark.parametrize("kind", KINDS)
async def test_usage_counts_cached_tokens_within_the_input(kind: str, base: str) -> None:
    usage = (await complete(target(kind, base, "talk"), MESSAGES, TOOLS)).usage
    assert (usage.input, usage.output) == (1600, 20)
    if kind != "ollama":  # its wire has no word for it
        assert usage.cached == 400
    assert usage.cache_write == (200 if kind == "anthropic" else 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_broken_arguments_come_as_the_text_that_they_are(kind: str, base: str) -> None:
    (call,) = (await complete(target(kind, base, "broken"), MESSAGES, TOOLS)).calls
    assert call.name == "files__read"
    if kind in ("anthropic", "google", "ollama"):  # these wires carry objects only
        assert json.loads(call.arguments) == {"__broken__": '{"path": '}
    else:
        assert call.arguments == '{"path": '


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_that_ran_out_of_room_says_so(kind: str, base: str) -> None:
    assert (await complete(target(kind, base, "cut"), MESSAGES)).finish == "length"


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("model", "error_kind", "after"),
    [
        ("limited", ErrorKind.RATE_LIMITED, After.RETRY),
        ("failing", ErrorKind.OVERLOADED, After.RETRY),
        ("overloaded", ErrorKind.OVERLOADED, After.RETRY),
        ("forbidden", ErrorKind.AUTH, After.SKIP),
        ("missing", ErrorKind.NOT_FOUND, After.SKIP),
        ("poor", ErrorKind.QUOTA, After.SKIP),
        ("dropping", ErrorKind.NETWORK, After.RETRY),
    ],
)
async def test_each_trouble_is_known_whoever_reports_it(
    kind: str, model: str, error_kind: ErrorKind, after: After, base: str, models: ScriptedModels
) -> None:
    with pytest.raises(ModelError) as caught:
        await complete(target(kind, base, model), MESSAGES)
    assert (caught.value.kind, caught.value.after) == (error_kind, after)
    assert caught.value.retry_after == (7 if model == "limited" else None)
    assert KEY not in caught.value.message
    assert len(models.journal) == 1, "nothing but our own policy may try again"


@pytest.mark.exhaustive(one_in=9)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_stalled_provider_is_given_up_in_time(kind: str, base: str) -> None:
    await ready()
    with pytest.raises(ModelError) as caught:
        await complete(target(kind, base, "stalling", timeout=1.0), MESSAGES)
    assert caught.value.kind == ErrorKind.TIMEOUT


@pytest.mark.parametrize("kind", KINDS)
async def test_cancelling_ends_the_request(kind: str, base: str, models: ScriptedModels) -> None:
    running = asyncio.ensure_future(
        complete(target(kind, base, "stalling", timeout=FOREVER), MESSAGES)
    )
    await until(lambda: models.journal)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_provider_that_is_not_there() -> None:
    with pytest.raises(ModelError) as caught:
        await complete(target("openai", "http://127.0.0.1:1", "plain"), MESSAGES)
    assert caught.value.kind == ErrorKind.NETWORK


@pytest.mark.parametrize("kind", KINDS)
async def test_the_callers_messages_and_schemas_stay_as_they_are(kind: str, base: str) -> None:
    messages = copy.deepcopy(MESSAGES)
    tools = copy.deepcopy(TOOLS)
    await complete(target(kind, base, "talk"), messages, tools)
    assert (messages, tools) == (MESSAGES, TOOLS)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_schema_goes_with_a_request_that_offers_no_tools(
    kind: str, base: str
) -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "integer"}},
        "required": ["answer"],
    }
    said = await complete(target(kind, base, "json"), MESSAGES, response_schema=schema)
    assert json.loads(said.text) == {"answer": 42}


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Heard]:
    return overhear(monkeypatch)


async def test_a_key_of_our_environment_goes_nowhere(
    base: str, heard: list[Heard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-from-the-environment")
    await complete(
        ModelTarget("openai", "plain", f"{base}/v1", networks=("127.0.0.1/32",)), MESSAGES
    )
    assert heard[0].headers[b"authorization"] == b"Bearer none"


async def test_the_headers_of_a_provider_are_sent(base: str, heard: list[Heard]) -> None:
    headers = {"HTTP-Referer": "https://tools.example.org", "X-Title": "Slipsnisse"}
    await complete(target("openrouter", base, "plain", headers=headers), MESSAGES)
    assert heard[0].headers[b"http-referer"] == b"https://tools.example.org"
    assert heard[0].headers[b"x-title"] == b"Slipsnisse"


@pytest.mark.parametrize("kind", KINDS)
async def test_json_is_asked_for(kind: str, base: str, heard: list[Heard]) -> None:
    await complete(target(kind, base, "plain"), MESSAGES)
    assert set(heard[-1].headers[b"accept"].split(b", ")) == {b"application/json"}


async def test_nothing_is_printed(base: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError):
        await complete(target("openai", base, "failing"), MESSAGES)
    await complete(target("google", base, "plain"), MESSAGES)
    assert capfd.readouterr() == ("", "")


@pytest.mark.exhaustive
def test_the_import_reads_no_env_file_and_no_network(tmp_path: Any) -> None:
    (tmp_path / ".env").write_text("PLANTED_SECRET=1\n")
    program = (
        "import os, socket, threading\n"
        "def refused(*a, **k): raise AssertionError('network at import')\n"
        "socket.socket.connect = refused\n"
        "from subagents.llm.client import load_litellm\n"
        "load_litellm()\n"
        "from subagents.llm.tokens import counter\n"
        "assert counter('tiktoken:o200k_base')('a b c d') == 4\n"
        "assert 'PLANTED_SECRET' not in os.environ\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_no_callback_and_no_retry_of_litellms_own_is_left() -> None:
    litellm = load_litellm()
    assert litellm.callbacks == []
    # its own, inert without a cache
    assert not {*litellm.success_callback, *litellm.failure_callback} - {"cache"}
    assert litellm.num_retries is None
