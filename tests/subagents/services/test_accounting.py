"""What a run used, entry by entry."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from subagents.domain.lifecycle import CallState
from subagents.models import Attempt, ExpertTool, LanguageModel, Run, ToolCall, Turn
from subagents.services import experts, runs
from subagents.services.accounting import list_entries
from tests.services.rows import ended
from tests.subagents.kit import ready_provider


@pytest.fixture
def run(db: None, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(runs, "wake", lambda run_id: None)
    provider = ready_provider("acme", kind="compatible", base_url="http://127.0.0.1:9/v1")
    model = LanguageModel.objects.create(provider=provider, name="small")
    experts.save_expert(
        expert=ExpertTool(name="digest", description="d"), targets=[model], actor="test"
    )
    return runs.start(expert="digest", arguments={}, origin="rest")


def test_entries_stand_in_the_order_in_which_things_ended(
    run: Run, django_assert_num_queries: Any
) -> None:
    def at(seconds: float) -> Any:
        return run.created_at + timedelta(seconds=seconds)

    facts = {"run": run, "number": 1, "model_name": "acme/small"}
    Attempt.objects.create(
        run=run,
        turn_number=1,
        model_name="acme/small",
        trouble="overloaded",
        message="busy",
        at=at(2),
        duration_ms=2_000,
    )
    Turn.objects.create(
        **facts,
        finish="calls",
        input_tokens=7,
        output_tokens=3,
        cached_tokens=2,
        started_at=at(2),
        duration_ms=3_000,
    )
    call = {"run": run, "turn_number": 1, "state": CallState.DONE}
    ended("a" * 32, server_slug="git", tool_name="git_log", origin="run")
    ToolCall.objects.create(
        **call,
        index=0,
        name="git__git_log",
        invocation="a" * 32,
        arguments='{"n": 1}',
        result="one",
        started_at=at(5),
        finished_at=at(9),
    )
    ToolCall.objects.create(
        **call,
        index=1,
        name="tool_output",
        arguments="{}",
        result="a page",
        raw_characters=70,
        started_at=at(5),
        finished_at=at(6),
    )
    ToolCall.objects.create(
        **call | {"state": CallState.STARTED},
        index=2,
        name="git__git_show",
        started_at=timezone.now(),
    )
    with django_assert_num_queries(4):
        found = list(list_entries(run))
    assert [entry["at"] for entry in found] == [at(seconds).isoformat() for seconds in (2, 5, 6, 9)]
    assert [(entry["type"], entry["status"], entry["latency"]) for entry in found] == [
        ("llm", "failed", 2_000),
        ("llm", "ok", 3_000),
        ("tool", "done", 1_000),
        ("tool", "done", 4_000),
    ]
    turn = {
        name: found[1][name]
        for name in (
            "provider",
            "model",
            "inputTokens",
            "outputTokens",
            "totalTokens",
            "cachedTokens",
        )
    }
    assert [*turn.values()] == ["acme", "small", 7, 3, 10, 2]
    size = ("mcpServer", "command", "charactersIn", "charactersOut")
    assert [[entry[name] for name in size] for entry in found[2:]] == [
        ["", "tool_output", 2, 70],
        ["git", "git_log", 8, 3],
    ]
