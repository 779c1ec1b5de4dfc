"""Models that think, over each provider's wire: the scripted server refuses what the real one
documents to refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from subagents.domain.finish_reasons import Finish
from subagents.domain.model_errors import ErrorKind, ModelError
from subagents.domain.transcript import FAILED, STATE
from subagents.llm.client import complete
from subagents.llm.failures import retry_after
from subagents.llm.model_values import ModelReply
from subagents.llm.scripted.app import ScriptedModels
from subagents.llm.scripted.script import load
from tests.subagents.kit import Heard, overhear
from tests.subagents.llm.conftest import target
from tests.subagents.llm.test_client import MESSAGES, TOOLS, answered

CALL = {"name": "clock__now", "arguments": {"zone": "UTC"}}
THINKING = {
    "turns": [
        {
            "thinking": "I need the time.",
            "calls": [CALL],
            "usage": {"input": 900, "output": 300, "reasoning": 250},
        },
        {"thinking": "Once more.", "calls": [CALL, CALL]},
        {"text": "It is 12."},
    ]
}
SONNET = "claude-sonnet-4-5"
OPTIONS = {
    "anthropic": {"thinking": {"type": "enabled", "budget_tokens": 2048}},
    "google": {"reasoning_effort": "high"},
    "ollama": {"think": True},
}
WIRES = [
    ("anthropic", SONNET),
    ("anthropic", "claude-nobody-knows"),
    ("google", "gemini-3-pro-preview"),
    ("google", "gemini-2.0-flash-001"),
    ("compatible", "deepseek-chat"),
    ("openrouter", "kimi-k2"),
    ("ollama", "qwen3"),
]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch, models: ScriptedModels) -> list[Heard]:
    for name in {model for _, model in WIRES} | {"claude-opus-4-7"}:
        models.script = models.script.merge(load({name: THINKING}))
    return overhear(monkeypatch)


def again(
    messages: list[dict[str, Any]], reply: ModelReply, *, own: bool = True
) -> list[dict[str, Any]]:
    """The conversation with this answer and results of its calls; ``own``: the same model is asked
    next."""
    results = ["{}"] * len(reply.calls)
    said = answered(reply, *results)[len(MESSAGES) :]
    if own and reply.state is not None:
        said[0][STATE] = json.loads(json.dumps(reply.state))
    return [*messages, *said]


@pytest.mark.exhaustive(one_in=4)
@pytest.mark.parametrize(("kind", "model"), WIRES)
async def test_a_thinking_model_gets_its_own_thoughts_back(
    kind: str, model: str, base: str, heard: list[Heard]
) -> None:
    asked = target(kind, base, model, options=OPTIONS.get(kind, {}), max_output=4096)
    first = await complete(asked, MESSAGES, TOOLS)
    assert first.finish == Finish.CALLS
    assert all(len(call.id) <= 64 for call in first.calls), "nothing is hidden in an id"
    talk = again(list(MESSAGES), first)
    second = await complete(asked, talk, TOOLS)
    assert len(second.calls) == 2
    last = await complete(asked, again(talk, second), TOOLS)
    assert (last.text, last.finish) == ("It is 12.", Finish.STOP)


@pytest.mark.parametrize(("kind", "model"), [w for w in WIRES if w[0] != "ollama"])
async def test_tokens_of_thinking_are_counted_within_the_output(
    kind: str, model: str, base: str, heard: list[Heard]
) -> None:
    asked = target(kind, base, model, options=OPTIONS.get(kind, {}))
    usage = (await complete(asked, MESSAGES, TOOLS)).usage
    assert (usage.output, usage.reasoning) == (300, 250)


async def test_thoughts_that_are_not_sent_back_are_refused_by_the_scripted_server_too(
    base: str, heard: list[Heard]
) -> None:
    """So that the tests above prove something."""
    for kind, model in (("compatible", "deepseek-chat"), ("google", "gemini-2.0-flash-001")):
        asked = target(kind, base, model)
        talk = again(list(MESSAGES), await complete(asked, MESSAGES, TOOLS), own=False)
        with pytest.raises(ModelError) as caught:
            await complete(asked, talk, TOOLS)
        assert caught.value.kind == ErrorKind.BAD_REQUEST


async def test_after_another_models_call_claude_is_asked_without_thinking_and_its_old_thoughts(
    base: str, heard: list[Heard]
) -> None:
    asked = target("anthropic", base, SONNET, options=OPTIONS["anthropic"])
    talk = again(list(MESSAGES), await complete(asked, MESSAGES, TOOLS))
    other = target("compatible", base, "deepseek-chat")
    talk = again(
        talk,
        await complete(other, again(list(MESSAGES), await complete(other, MESSAGES, TOOLS)), TOOLS),
        own=False,
    )
    assert (await complete(asked, talk, TOOLS)).text == "It is 12."
    assert "thinking" not in json.dumps(heard[-1].body)


async def test_a_call_of_another_model_gets_an_empty_reasoning_beside_those_of_deepseek(
    base: str, heard: list[Heard]
) -> None:
    asked = target("compatible", base, "deepseek-chat")
    talk = again(list(MESSAGES), await complete(asked, MESSAGES, TOOLS))
    talk = again(talk, await complete(asked, talk, TOOLS), own=False)
    assert (await complete(asked, talk, TOOLS)).text == "It is 12."
    said = [
        m.get("reasoning_content") for m in heard[-1].body["messages"] if m["role"] == "assistant"
    ]
    assert said == ["I need the time.", " "]


@pytest.mark.parametrize("max_output", [1_600, 2_048, 4_096])
@pytest.mark.parametrize("options", [OPTIONS["anthropic"], {"reasoning_effort": "high"}])
async def test_the_budget_of_thinking_is_below_the_output_limit_and_no_temperature_is_sent(
    options: dict[str, Any], max_output: int, base: str, heard: list[Heard]
) -> None:
    asked = target("anthropic", base, SONNET, options=options, max_output=max_output)
    assert (await complete(asked, MESSAGES, TOOLS)).calls
    sent = heard[-1].body
    assert 1024 <= sent["thinking"]["budget_tokens"] < sent["max_tokens"] == max_output
    assert "temperature" not in sent


async def test_a_claude_that_decides_by_itself_is_told_the_effort_and_no_temperature(
    base: str, heard: list[Heard]
) -> None:
    options = {"reasoning_effort": "medium"}
    await complete(target("anthropic", base, "claude-opus-4-7", options=options), MESSAGES, TOOLS)
    sent = heard[-1].body
    assert (sent["thinking"], sent["output_config"]) == ({"type": "adaptive"}, {"effort": "medium"})
    await complete(target("anthropic", base, "claude-opus-4-7"), MESSAGES, TOOLS)
    assert not {"temperature", "thinking"} & set(heard[-1].body)


@pytest.mark.parametrize(
    ("model", "options", "sent"),
    [
        ("gemini-3-pro-preview", {"reasoning_effort": "high"}, {"thinkingLevel": "high"}),
        ("gemini-2.0-flash-001", {"reasoning_effort": "low"}, {"thinkingBudget": 1024}),
        (
            "gemini-2.0-flash-001",
            {"thinking_config": {"thinkingBudget": 77}},
            {"thinkingBudget": 77},
        ),
    ],
)
async def test_gemini_is_told_how_long_to_think(
    model: str, options: dict[str, Any], sent: dict[str, Any], base: str, heard: list[Heard]
) -> None:
    await complete(target("google", base, model, options=options), MESSAGES, TOOLS)
    assert heard[-1].body["generationConfig"]["thinkingConfig"] == sent


async def test_no_option_is_dropped_for_a_model_that_litellm_does_not_know(
    base: str, heard: list[Heard]
) -> None:
    options = {
        "reasoning_effort": "high",
        "seed": 7,
        "top_k": 3,
        "chat_template_kwargs": {"enable_thinking": True},
    }
    for kind in ("openrouter", "compatible"):
        await complete(target(kind, base, "plain", options=options), MESSAGES, TOOLS)
        assert {name: heard[-1].body.get(name) for name in options} == options


@pytest.mark.parametrize("written", ["boom: no such file", "(tool failed: boom: no such file)"])
@pytest.mark.parametrize(
    ("kind", "model"), [("anthropic", SONNET), ("openai", "plain"), ("google", "plain")]
)
async def test_a_failed_tool_is_marked_once_on_the_wire(
    kind: str, model: str, written: str, base: str, heard: list[Heard]
) -> None:
    asked = target(kind, base, "talk")
    talk = again(list(MESSAGES), await complete(asked, MESSAGES, TOOLS))
    talk[-1] |= {FAILED: True, "content": written}
    await complete(asked, talk, TOOLS)
    sent = json.dumps(heard[-1].body)
    if kind == "anthropic":
        (good, bad) = heard[-1].body["messages"][-1]["content"]
        assert (bad["is_error"], bad["content"]) == (True, written)
        assert "is_error" not in good
    else:
        assert (sent.count("(tool failed: boom: no such file)"), sent.count("tool failed")) == (
            1,
            1,
        )
        assert "is_error" not in sent


# What is kept in the providers' caches


async def test_claudes_cache_is_marked_behind_tools_system_and_last_message(
    base: str, heard: list[Heard]
) -> None:
    asked = target("anthropic", base, "talk")
    first = await complete(asked, MESSAGES, TOOLS)
    await complete(asked, again(list(MESSAGES), first), TOOLS)
    sent = heard[-1].body
    mark = {"type": "ephemeral"}
    assert [tool.get("cache_control") for tool in sent["tools"]] == [None, mark]
    assert [block.get("cache_control") for block in sent["system"]] == [mark]
    blocks = [block for message in sent["messages"] for block in message["content"]]
    assert [block.get("cache_control") for block in blocks] == [None] * (len(blocks) - 1) + [mark]


async def test_without_tools_no_turn_follows_and_nothing_is_written_to_a_cache(
    base: str, heard: list[Heard]
) -> None:
    await complete(target("anthropic", base, "plain"), MESSAGES)
    assert "cache_control" not in json.dumps(heard[-1].body)


async def test_openai_finds_what_begins_alike_by_a_key_and_nobody_else_gets_one(
    base: str, heard: list[Heard]
) -> None:
    asked = target("openai", base, "talk")
    first = await complete(asked, MESSAGES, TOOLS)
    await complete(asked, again(list(MESSAGES), first), TOOLS)
    keys = [each.body["prompt_cache_key"] for each in heard]
    assert keys[0] == keys[1]
    assert len(keys[0]) == 32
    for kind in ("google", "openrouter", "ollama", "compatible", "scripted"):
        await complete(target(kind, base, "plain"), MESSAGES, TOOLS)
        assert not {"prompt_cache_key", "cache_control"} & set(heard[-1].body)


# Answers that are none


@pytest.mark.parametrize(
    ("kind", "turn", "finish"),
    [
        ("openai", {"text": "half", "outcome": "filtered"}, Finish.POLICY),
        ("openai", {"text": "I won't.", "outcome": "refused"}, Finish.REFUSAL),
        ("openai", {"text": ""}, Finish.EMPTY),
        ("google", {"text": "half", "outcome": "filtered"}, Finish.POLICY),
        ("google", {"text": " "}, Finish.EMPTY),
        ("anthropic", {"text": "", "outcome": "refused"}, Finish.REFUSAL),
        ("anthropic", {"text": ""}, Finish.EMPTY),
        ("ollama", {"text": ""}, Finish.EMPTY),
        ("openrouter", {"text": "no", "outcome": "filtered"}, Finish.POLICY),
    ],
)
async def test_what_is_filtered_refused_or_empty_says_so(
    kind: str, turn: dict[str, Any], finish: Finish, base: str, models: ScriptedModels
) -> None:
    models.script = models.script.merge(load({"odd": {"turns": [turn]}}))
    assert (await complete(target(kind, base, "odd"), MESSAGES, TOOLS)).finish == finish
    assert not finish.answered


# Doors


@pytest.mark.parametrize("kind", ["compatible", "scripted"])
@pytest.mark.parametrize("model", ["gpt-5-codex", "o3-pro", "gpt-5.4"])
async def test_a_compatible_server_is_asked_by_chat_completions_whatever_its_model_is_called(
    kind: str, model: str, base: str, models: ScriptedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = overhear(monkeypatch)
    models.script = models.script.merge(load({model: {"turns": [{"text": "hello"}]}}))
    asked = target(kind, base, model, options={"reasoning_effort": "high"})
    assert (await complete(asked, MESSAGES, TOOLS)).text == "hello"
    assert heard[-1].path == "/v1/chat/completions"


@pytest.mark.parametrize(
    "model", ["gemini-2.0-flash-001", "gemini-2.5-flash", "gemma-nobody-knows"]
)
async def test_a_system_prompt_is_geminis_system_instruction(
    model: str, base: str, models: ScriptedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = overhear(monkeypatch)
    models.script = models.script.merge(load({model: {"turns": [{"text": "hello"}]}}))
    await complete(target("google", base, model), MESSAGES)
    sent = heard[-1].body
    assert sent["system_instruction"] == {"parts": [{"text": "Be brief."}]}
    assert sent["contents"] == [{"role": "user", "parts": [{"text": MESSAGES[1]["content"]}]}]


# How long to wait


@pytest.mark.parametrize("kind", ["openai", "anthropic", "google"])
@pytest.mark.parametrize(
    ("fault", "seconds"),
    [
        ({"headers": {"retry-after-ms": "1500", "retry-after": "9"}}, 1.5),
        ({"headers": {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}}, 0.0),
        ({"headers": {"retry-after": "soon"}}, None),
    ],
)
async def test_how_long_a_provider_wants_us_to_wait_is_read_in_every_form(
    kind: str, fault: dict[str, Any], seconds: float | None, base: str, models: ScriptedModels
) -> None:
    assert await waits(kind, fault, base, models) == seconds


async def test_googles_retry_delay_is_read_in_its_body(base: str, models: ScriptedModels) -> None:
    assert await waits("google", {"retry_delay": "37.5s"}, base, models) == 37.5


async def waits(
    kind: str, fault: dict[str, Any], base: str, models: ScriptedModels
) -> float | None:
    limited = {"status": 429, "message": "slow down", **fault}
    models.script = models.script.merge(
        load({"busy": {"turns": [{"text": "ok", "attempts": [limited]}]}})
    )
    with pytest.raises(ModelError) as caught:
        await complete(target(kind, base, "busy"), MESSAGES)
    assert caught.value.kind == ErrorKind.RATE_LIMITED
    return caught.value.retry_after


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        (
            {
                "Retry-After": "Wed, 21 Oct 2099 07:28:30 GMT",
                "Date": "Wed, 21 Oct 2099 07:28:00 GMT",
            },
            30,
        ),
        ({"Retry-After": "Thu, 01 Jan 1970 00:20:00 GMT"}, 200),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "-5"}, None),
        ({}, None),
    ],
)
def test_a_date_is_read_by_the_providers_clock(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert retry_after(headers, now=1000) == seconds
