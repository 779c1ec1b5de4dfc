"""Runs of models that think and of providers that cache: what is kept, sent back, counted and
shown."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from mcpregistry.db import db_call
from mcpregistry.models import Invocation
from subagents.api.schemas import run_detail
from subagents.models import LanguageModel, Provider, Run, ToolCall, Turn
from subagents.services.accounting import list_entries
from tests.calls.conftest import add_server, tool
from tests.subagents.admin.test_pages import client_as
from tests.subagents.kit import ANSWER, LOOK, Bench, Heard, calls, overhear, ready_provider

THINKS = {"thinking": {"type": "enabled", "budget_tokens": 2048}}
USED = {"input": 1000, "output": 300, "reasoning": 200, "cached": 600, "cache_write": 300}
LOOKS = LOOK | {"thinking": "I look.", "usage": USED}


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Heard]:
    return overhear(monkeypatch)


def claude(
    bench: Bench, *turns: Any, name: str = "claude-sonnet-4-5", **fields: Any
) -> LanguageModel:
    """A model that thinks, at a provider that speaks Anthropic's messages."""
    root = bench.provider.base_url.removesuffix("/v1")
    provider = Provider.objects.filter(slug="claudes").first() or ready_provider(
        "claudes", kind="anthropic", base_url=root, options=THINKS
    )
    model = bench.model(name, *turns, **fields)
    LanguageModel.objects.filter(pk=model.pk).update(provider=provider)
    return LanguageModel.objects.get(pk=model.pk)


async def test_a_run_of_a_thinking_claude_sends_its_thoughts_back_and_counts_them(
    bench: Bench, worker: Any, heard: list[Heard]
) -> None:
    def prepare() -> Run:
        bench.expert(
            claude(bench, LOOKS, LOOKS, ANSWER, input_price="10", output_price="50"),
            uses=[bench.server()],
        )
        return bench.start("why?")

    run = await db_call(prepare)
    run = await (await worker()).drive(run)
    assert (run.state, run.answer) == ("done", "It said why?."), run.error
    assert [h.body["messages"][1]["content"][0]["type"] for h in heard[1:]] == [
        "thinking",
        "thinking",
    ]
    assert all(
        h.body["thinking"]["type"] == "enabled" and "temperature" not in h.body for h in heard
    )
    # 200 twice, and a word in the last. Nobody has entered cache prices: a tenth to read, five
    # quarters to write.
    saved = 2 * (600 * Decimal(9) - 300 * Decimal("2.5")) / 1_000_000
    assert (run.reasoning_tokens, run.cached_tokens, run.cache_write_tokens, run.cache_saved) == (
        403,
        1200,
        600,
        saved,
    )

    def shown() -> tuple[Any, str, list[dict[str, Any]]]:
        page = client_as("viewer").get(f"/admin/subagents/run/{run.pk}/change/").content.decode()
        found = Run.objects.with_open_calls().select_related("version").get(pk=run.pk)
        return run_detail(found), page, [e for e in list_entries(run) if e["type"] == "llm"]

    rest, page, lines = await db_call(shown)
    assert (rest.reasoning_tokens, rest.cache_write_tokens, rest.cache_saved) == (
        403,
        600,
        float(saved),
    )
    assert (rest.turns[0].reasoning_tokens, rest.turns[0].cached_tokens) == (200, 600)
    assert "403 of them for reasoning" in page
    assert "Saved by the cache" in page
    assert "I look." not in page, "nobody reads what the provider wants back"
    assert (lines[0]["reasoningTokens"], lines[0]["cacheWriteTokens"]) == (200, 300)
    assert lines[0]["cacheSavedUsd"] == pytest.approx(float(saved) / 2)


@pytest.mark.exhaustive
@pytest.mark.one_database
async def test_after_a_fallback_the_other_model_gets_none_of_it(
    bench: Bench, worker: Any, heard: list[Heard]
) -> None:
    def prepare() -> Run:
        broken = {"text": "", "attempts": [{"status": 401, "message": "no"}] * 9}
        first = claude(bench, LOOKS, broken)
        bench.expert(first, bench.model("other", LOOK, ANSWER), uses=[bench.server()])
        return bench.start("why?")

    run = await db_call(prepare)
    run = await (await worker()).drive(run)
    assert (run.state, run.answer) == ("done", "It said why?."), run.error
    last = heard[-1]
    assert last.path.endswith("/chat/completions")
    assert not {"thinking", "signature", "provider_state", "made_by"} & set(
        json.dumps(last.body).split('"')
    )
    assert await db_call(
        lambda: [bool(t.provider_state) for t in Turn.objects.filter(run=run)]
    ) == [True, False]


@pytest.mark.exhaustive
async def test_arguments_in_another_type_are_read_decided_on_and_recorded_in_the_schemas(
    bench: Bench, worker: Any, heard: list[Heard]
) -> None:
    asked = calls(("echo__echo", {"text": "a", "limit": "5", "tags": '["x"]'}))

    def prepare() -> Run:
        schema = {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "limit": {"type": "integer"},
                "tags": {"type": "array"},
            },
        }
        server = add_server("echo", tool("echo", schema), env={"FAKE_JOURNAL": str(bench.journal)})
        bench.expert(bench.model("m", asked, ANSWER), uses=[server])
        return bench.start("why?")

    run = await db_call(prepare)
    run = await (await worker()).drive(run)
    assert run.state == "done", run.error
    meant = {"text": "a", "limit": 5, "tags": ["x"]}
    assert [params["arguments"] for params in await db_call(bench.sent)] == [meant]

    def recorded() -> tuple[ToolCall, Invocation, list[Any]]:
        call = ToolCall.objects.get(run=run)
        return (
            call,
            Invocation.objects.get(pk=call.invocation),
            [e for e in list_entries(run) if e["type"] == "tool"],
        )

    call, record, (line,) = await db_call(recorded)
    assert json.loads(record.arguments) == meant
    assert json.loads(call.arguments) == {"text": "a", "limit": "5", "tags": '["x"]'}
    assert call.coerced.splitlines() == line["coerced"] == ["/limit as integer", "/tags as array"]


@pytest.mark.exhaustive
@pytest.mark.one_database
async def test_a_tool_that_has_failed_is_marked_for_the_model(
    bench: Bench, worker: Any, heard: list[Heard]
) -> None:
    def prepare() -> Run:
        bench.expert(
            claude(bench, calls(("echo__nothing", {}), thinking="Hm."), {"text": "No."}),
            uses=[bench.server()],
        )
        return bench.start("why?")

    run = await db_call(prepare)
    assert (await (await worker()).drive(run)).answer == "No."
    (result,) = heard[-1].body["messages"][-1]["content"]
    assert result["is_error"] is True
    assert result["content"].startswith("(tool failed: No tool named 'echo__nothing'.")
