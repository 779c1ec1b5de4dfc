"""What a run used, as flat entries for files and programs: one for each answer, failed request and
tool call."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from mcpregistry.models import Invocation
from subagents.models import Attempt, Run, ToolCall, Turn


def list_entries(run: Run) -> Iterator[dict[str, Any]]:
    """The entries in the order in which things ended (``at``); times in milliseconds, cost in US
    dollars or None."""
    found = [*_list_turns(run), *_list_attempts(run), *_list_calls(run)]
    yield from sorted(found, key=lambda entry: entry["at"])


def _list_turns(run: Run) -> Iterator[dict[str, Any]]:
    for turn in Turn.objects.filter(run=run):
        ended = turn.started_at + timedelta(milliseconds=turn.duration_ms)
        yield _head(run, "llm", ended, "ok", turn.duration_ms) | {
            "provider": turn.model_name.partition("/")[0],
            "model": turn.model_name.partition("/")[2],
            "inputTokens": turn.input_tokens,
            "outputTokens": turn.output_tokens,
            "totalTokens": turn.input_tokens + turn.output_tokens,
            "cachedTokens": turn.cached_tokens,
            "cacheWriteTokens": turn.cache_write_tokens,
            "reasoningTokens": turn.reasoning_tokens,
            "cacheSavedUsd": None if turn.cache_saved is None else float(turn.cache_saved),
            "costUsd": None if turn.cost is None else float(turn.cost),
        }


def _list_attempts(run: Run) -> Iterator[dict[str, Any]]:
    for attempt in Attempt.objects.filter(run=run):
        yield _head(run, "llm", attempt.at, "failed", attempt.duration_ms) | {
            "provider": attempt.model_name.partition("/")[0],
            "model": attempt.model_name.partition("/")[2],
            "error": attempt.trouble,
            "message": attempt.message,
        }


def _list_calls(run: Run) -> Iterator[dict[str, Any]]:
    calls = list(ToolCall.objects.filter(run=run, finished_at__isnull=False))
    named = Invocation.objects.only("server_slug", "tool_name")
    records = named.in_bulk([call.invocation for call in calls if call.invocation])
    for call in calls:
        record = records.get(call.invocation)
        entry = _head(run, "tool", call.finished_at, call.state, _latency(call)) | {
            "mcpServer": record.server_slug if record else "",
            "command": record.tool_name if record else call.name,
            "charactersIn": len(call.arguments),
            "charactersOut": call.raw_characters or len(call.result),
        }
        coerced = {"coerced": call.coerced.splitlines()} if call.coerced else {}
        yield entry | ({"details": call.details} if call.details else {}) | coerced


def _head(run: Run, kind: str, at: Any, status: str, latency: float | None) -> dict[str, Any]:
    return {
        "type": kind,
        "run": run.pk,
        "expert": run.expert_name,
        "at": at.isoformat(),
        "status": status,
        "latency": None if latency is None else round(latency, 1),
    }


def _latency(call: ToolCall) -> float | None:
    if call.started_at is None or call.finished_at is None:
        return None
    return (call.finished_at - call.started_at).total_seconds() * 1000
