"""A run as plain values: everything that decides its next step, read in a fixed number of queries.

Every step reads it anew, so only the columns that matter are read, by queries composed beforehand.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from mcpregistry.prepared_queries import Given, Select
from subagents.domain.budget import Spent, of_kind
from subagents.domain.fallback import Failed
from subagents.domain.lifecycle import CallState, Exit
from subagents.domain.model_errors import ErrorKind
from subagents.domain.spec import DEFAULT_WINDOW, ExpertSpec, Prices, TargetSpec
from subagents.domain.transcript import CallView, TurnView
from subagents.models import Attempt, ExpertVersion, LanguageModel, Run, ToolCall, Turn


@dataclass(frozen=True, slots=True)
class RunView:
    """Everything that decides a run's next step."""

    id: str
    spec: ExpertSpec
    arguments: Mapping[str, Any]
    turns: tuple[TurnView, ...]
    failed: tuple[Failed, ...]  # attempts at the turn that comes now
    spent: Spent
    final: Exit | None
    cancel_requested: bool
    depth: int
    is_traced: bool = False  # its requests to models are recorded


def view(run_id: str, *, now: datetime, read_only: Collection[str] = ()) -> RunView:
    """The run as it stands; ``read_only`` are the tools that an approver has confirmed to change
    nothing."""
    run = _RUN.get(id=run_id)
    turns = _turns(run_id, frozenset(read_only))
    attempts = _ATTEMPTS.fetch_rows(run=run_id, turn_number=len(turns) + 1)
    return RunView(
        id=run.id,
        spec=_as_wanted(spec_of(_body_of(run)), run),
        arguments=json.loads(run.arguments),
        turns=turns,
        failed=tuple(_build_failure(each, now) for each in attempts),
        spent=_sum_spent(run, turns, now),
        final=Exit(run.final_reason) if run.final_reason else None,
        cancel_requested=run.cancel_requested,
        depth=run.depth,
        is_traced=run.is_traced,
    )


_RUN = Select(
    Run.objects.filter(id=Given("id")).values_list(
        "id",
        "version_id",
        "version__hash",
        "asks_id",
        "arguments",
        "final_reason",
        "cancel_requested",
        "depth",
        "answer_format",
        "answer_schema",
        "model_options",
        "is_traced",
        "started_at",
        "waited_seconds",
        "waiting_since",
        "lost_seconds",
        "input_tokens",
        "output_tokens",
        "cost",
        "energy",
        named=True,
    )
)
_ATTEMPTS = Select(
    Attempt.objects.filter(run=Given("run"), turn_number=Given("turn_number"))
    .order_by("id")
    .values_list("model_id", "trouble", "message", "retry_after", "at", named=True)
)


def _as_wanted(spec: ExpertSpec, run: Any) -> ExpertSpec:
    """With the form of the answer and the options of the models that the caller has asked for."""
    if run.answer_schema:
        spec = replace(spec, output_schema=json.loads(run.answer_schema))
    if run.model_options:
        spec = replace(spec, model_options=json.loads(run.model_options))
    return replace(spec, answer_format=run.answer_format) if run.answer_format else spec


def _body_of(run: Any) -> Mapping[str, Any]:
    """The run's version; a replay may ask a model of its own."""
    body = _load_body(run.version__hash, run.version_id)
    return {**body, "targets": [run.asks_id]} if run.asks_id else body


@lru_cache(maxsize=256)
def _load_body(hash: str, version_id: int) -> Mapping[str, Any]:
    """A version never changes, and every step of every run asks for it. ``hash`` is the body's."""
    return dict(json.loads(ExpertVersion.objects.values_list("body", flat=True).get(pk=version_id)))


def spec_of(body: Mapping[str, Any]) -> ExpertSpec:
    """The spec in a version's body. Models are read as they are now: keys and prices change without
    a new version."""
    asked = {f"model{at}": pk for at, pk in enumerate(body["targets"])}
    known = {
        row.id: _target_of(row)
        for row in (_prepare_models(len(asked)).fetch_rows(**asked) if asked else ())
    }
    targets = tuple(known[pk] for pk in body["targets"] if pk in known)
    fields = {key: body[key] for key in _PLAIN if key in body}
    cost = body.get("max_cost")
    return ExpertSpec(**fields, targets=targets, max_cost=None if cost is None else Decimal(cost))


_PLAIN = (
    "name",
    "description",
    "input_schema",
    "system_prompt",
    "max_steps",
    "max_seconds",
    "max_tokens",
    "max_energy",
    "max_calls",
    "parallelism",
    "parallel",
    "output_schema",
    "tool_instructions",
    "fail_on_server_death",
    "max_result_bytes",
    "temperature",
)


@lru_cache
def _prepare_models(count: int) -> Select:
    """So many models by their keys."""
    keys: list[Any] = [Given(f"model{at}", like="id") for at in range(count)]
    return Select(
        LanguageModel.objects.filter(id__in=keys, enabled=True, provider__enabled=True)
        .order_by()
        .values_list(
            "id",
            "name",
            "provider__slug",
            "context_window",
            "max_output",
            "buffer_tokens",
            "tokenizer",
            "input_price",
            "output_price",
            "cache_read_price",
            "cache_write_price",
            "free",
            "provider__kind",
            named=True,
        )
    )


def _target_of(model: Any) -> TargetSpec:
    return TargetSpec(
        model_id=model.id,
        label=f"{model.provider__slug}/{model.name}",
        provider=model.provider__slug,
        window=model.context_window or DEFAULT_WINDOW,
        max_output=model.max_output,
        buffer=model.buffer_tokens,
        tokenizer=model.tokenizer,
        prices=of_kind(read_prices(model), model.provider__kind),
    )


def read_prices(model: Any) -> Prices:
    """The model's prices, from a LanguageModel or a row with its prices."""
    return Prices(
        model.input_price,
        model.output_price,
        model.cache_read_price,
        model.cache_write_price,
        model.free,
    )


_TURNS = Select(
    Turn.objects.filter(run=Given("run"))
    .order_by("number")
    .values_list(
        "number",
        "text",
        "finish",
        "final",
        "note",
        "input_tokens",
        "output_tokens",
        "estimated_tokens",
        "reasoning_tokens",
        "model_name",
        "provider_state",
        named=True,
    )
)
_CALLS = Select(
    ToolCall.objects.filter(run=Given("run"))
    .order_by("turn_number", "index")
    .values_list(
        "id",
        "turn_number",
        "index",
        "provider_id",
        "name",
        "arguments",
        "state",
        "result",
        "invocation",
        "attempt",
        named=True,
    )
)


def _turns(run_id: str, read_only: frozenset[str]) -> tuple[TurnView, ...]:
    by_turn: dict[int, list[CallView]] = defaultdict(list)
    for call in _CALLS.fetch_rows(run=run_id):
        by_turn[call.turn_number].append(_call_view(call, read_only))
    return tuple(
        TurnView(
            number=turn.number,
            text=turn.text,
            finish=turn.finish,
            final=turn.final,
            note=turn.note,
            calls=tuple(by_turn[turn.number]),
            input_tokens=turn.input_tokens,
            output_tokens=turn.output_tokens,
            estimated=turn.estimated_tokens,
            reasoning=turn.reasoning_tokens,
            made_by=turn.model_name,
            state=turn.provider_state,
        )
        for turn in _TURNS.fetch_rows(run=run_id)
    )


def _call_view(call: Any, read_only: frozenset[str]) -> CallView:
    return CallView(
        id=call.id,
        turn=call.turn_number,
        index=call.index,
        provider_id=call.provider_id,
        name=call.name,
        arguments=call.arguments,
        state=CallState(call.state),
        result=call.result,
        invocation=call.invocation,
        attempt=call.attempt,
        read_only=call.name in read_only,
    )


def _build_failure(attempt: Any, now: datetime) -> Failed:
    return Failed(
        model_id=attempt.model_id or 0,
        kind=ErrorKind(attempt.trouble),
        retry_after=attempt.retry_after,
        ago=(now - attempt.at).total_seconds(),
        message=attempt.message,
    )


def _sum_spent(run: Any, turns: tuple[TurnView, ...], now: datetime) -> Spent:
    waited = run.waited_seconds + (
        (now - run.waiting_since).total_seconds() if run.waiting_since else 0.0
    )
    return Spent(
        steps=len(turns),
        calls=sum(len(turn.calls) for turn in turns),
        tokens=run.input_tokens + run.output_tokens,
        cost=run.cost or Decimal(0),
        energy=run.energy,
        seconds=(now - (run.started_at or now)).total_seconds() - waited - run.lost_seconds,
    )
