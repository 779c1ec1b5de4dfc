"""From the rows of a provider and its model to the request that reaches the provider."""

from __future__ import annotations

from typing import Any

import pytest

from mcpregistry.db import db_call
from subagents.llm.client import complete
from subagents.llm.model_values import ModelReply
from subagents.models import LanguageModel, Run
from subagents.runs.targets import build_target
from tests.subagents.kit import WORDS, Bench, Heard, confirmed, overhear, ready_provider

QUESTION = [{"role": "user", "content": "why?"}]
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": WORDS},
}


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Heard]:
    return overhear(monkeypatch)


async def asked(
    bench: Bench,
    kind: str,
    *,
    model: dict[str, Any] | None = None,
    of_run: dict[str, Any] | None = None,
    **fields: Any,
) -> ModelReply:
    """An answer of a model of such a provider, at the scripted server unless told another
    address."""

    def prepare() -> int:
        row = bench.model("m", {"text": "because"}, **(model or {}))
        root = (bench.provider.base_url or "").removesuffix("/v1")
        facts = {
            "base_url": root if kind in ("anthropic", "google", "ollama") else f"{root}/v1"
        } | fields
        provider = ready_provider("own", kind=kind, **facts)
        LanguageModel.objects.filter(pk=row.pk).update(provider=provider)
        return row.pk

    pk = await db_call(prepare)
    target = await db_call(build_target, pk, temperature=0.7, at_most=20, options=of_run or {})
    return await complete(target, QUESTION, [TOOL])


@pytest.mark.one_database
async def test_options_of_the_provider_and_overrides_of_the_model_are_sent(
    bench: Bench, heard: list[Heard]
) -> None:
    options = {"top_p": 0.9, "parallel_tool_calls": False}
    await asked(bench, "openai", options=options, model={"overrides": {"top_p": 0.5}})
    sent = heard[-1].body
    assert (sent["temperature"], sent["top_p"], sent["parallel_tool_calls"]) == (0.7, 0.5, False)


@pytest.mark.one_database
async def test_options_of_a_run_go_before_all_others(bench: Bench, heard: list[Heard]) -> None:
    given = {"temperature": 0.1, "top_p": 0.2, "parallel_tool_calls": False}
    await asked(
        bench,
        "openai",
        options={"topP": 0.9},
        model={"overrides": {"topP": 0.5, "temperature": 1}},
        of_run=given,
    )
    assert {name: heard[-1].body[name] for name in given} == given
    assert "topP" not in heard[-1].body


@pytest.mark.one_database
async def test_a_models_own_temperature_goes_before_the_expert_tools(
    bench: Bench, heard: list[Heard]
) -> None:
    await asked(
        bench, "openai", options={"temperature": 0.2}, model={"overrides": {"temperature": 0.3}}
    )
    sent = heard[-1].body
    assert sent["temperature"] == 0.3
    assert "parallel_tool_calls" not in sent  # each provider's own default, which is parallel


@pytest.mark.exhaustive(one_in=5)
@pytest.mark.one_database
@pytest.mark.parametrize(
    ("kind", "provider", "model", "sent"),
    [
        ("openai", "required", "", "required"),
        ("openrouter", "required", "auto", "auto"),
        ("openrouter", "", "required", "required"),
        ("anthropic", "auto", "required", {"type": "any"}),
        ("compatible", "", "", None),
    ],
)
async def test_the_models_tool_choice_goes_before_the_providers(
    bench: Bench, heard: list[Heard], kind: str, provider: str, model: str, sent: Any
) -> None:
    await asked(bench, kind, tool_choice=provider, model={"tool_choice": model})
    assert heard[-1].body.get("tool_choice") == sent


@pytest.mark.one_database
async def test_openrouter_is_told_who_asks(bench: Bench, heard: list[Heard], settings: Any) -> None:
    settings.SITE_URL = "https://tools.example.org"
    await asked(bench, "openrouter")
    headers = heard[-1].headers
    assert [headers[name] for name in (b"http-referer", b"x-openrouter-title", b"user-agent")] == [
        b"https://tools.example.org",
        b"Slipsnisse",
        b"slipsnisse",
    ]


@pytest.mark.one_database
@pytest.mark.parametrize("kind", ["openai", "openrouter", "compatible", "scripted"])
async def test_these_are_asked_by_chat_completions(
    bench: Bench, heard: list[Heard], kind: str
) -> None:
    await asked(bench, kind)
    assert heard[-1].path == "/v1/chat/completions"


@pytest.mark.exhaustive(one_in=3)
@pytest.mark.one_database
@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/", "/api", "/api/"])
async def test_ollama_is_reached_by_its_own_api_however_its_address_is_written(
    bench: Bench, heard: list[Heard], ending: str
) -> None:
    root = bench.provider.base_url.removesuffix("/v1")
    assert (await asked(bench, "ollama", base_url=root + ending)).text == "because"
    assert heard[-1].path == "/api/chat"


@pytest.mark.one_database
async def test_everything_that_ollama_can_be_told_reaches_it(
    bench: Bench, heard: list[Heard]
) -> None:
    options = {
        "num_ctx": 8192,
        "num_predict": 64,
        "top_p": 0.4,
        "top_k": 5,
        "min_p": 0.6,
        "repeat_last_n": 7,
        "repeat_penalty": 1.8,
        "stop": ["END"],
        "seed": 10,
    }
    await asked(bench, "ollama", options={"think": True, "temperature": 0.3, **options})
    sent = heard[-1].body
    assert (sent["think"], sent["options"]) == (True, {"temperature": 0.3, **options})


@pytest.mark.one_database
async def test_one_request_of_a_run_holds_all_of_it(
    bench: Bench, worker: Any, heard: list[Heard]
) -> None:
    def prepare() -> Run:
        bench.provider.options = {"top_p": 0.9, "parallel_tool_calls": True}
        bench.provider.tool_choice = "auto"
        confirmed(bench.provider)
        model = bench.model("m", {"text": "because"}, max_output=500)
        bench.expert(model, uses=[bench.server()], system_prompt="Be exact.", temperature=0.3)
        return bench.start("why?")

    run = await db_call(prepare)
    assert (await (await worker()).drive(run)).answer == "because"
    sent = heard[-1].body
    first, second = sent.pop("tools")
    assert first == {
        "type": "function",
        "function": {
            "name": "echo__echo",
            "description": "echo__echo",
            "parameters": {"type": "object"},
        },
    }
    assert second["function"]["name"] == "tool_output"
    assert sent == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be exact."},
            {"role": "user", "content": '{"text": "why?"}'},
        ],
        "temperature": 0.3,
        "top_p": 0.9,
        "max_tokens": 500,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
    }
