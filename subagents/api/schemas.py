"""How expert tools, runs and what they saved look over REST."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.basics import Object, Text
from mcpregistry.domain.text.display import show_invisible_characters
from subagents.domain.lifecycle import RunState
from subagents.models import ExpertTool, Run, ToolCall, Turn
from subagents.runs.run_answers import describe_state
from subagents.services.experts import schema_of


class ExpertOut(Schema):
    """An expert tool. ``figures`` are included only for a single one."""

    name: str
    description: str
    enabled: bool
    version: int
    input_schema: dict[str, Any]
    models: list[str] = Field(description="Models in the order in which they are used.")
    agent: str = Field(
        description="The agent of its runs. Its model can use the tools that are granted to this agent."
    )
    users: list[str]
    endpoints: list[str]
    figures: dict[str, Any] | None = None


class RunOut(Schema):
    """A run in a list."""

    id: str
    expert: str
    version: int
    state: RunState
    exit: str
    doing: str = Field(description="What a running run is doing now.")
    error: str
    answer: str
    structured: Any | None
    agent: str
    requester: str = Field(description="The user who started the run, if known.")
    conversation: str | None = Field(
        description="Id of the conversation of the call that started the run."
    )
    origin: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int = Field(description="Input tokens that were read from the provider's cache.")
    cache_write_tokens: int
    reasoning_tokens: int = Field(description="Output tokens that were used for reasoning.")
    cost: float | None = Field(description="Cost in US dollars. Null if a model has no prices.")
    cache_saved: float | None = Field(
        description="US dollars that the cache saved, minus the cost of writing to the cache."
    )
    savings: dict[str, Any]
    created_at: datetime
    finished_at: datetime | None


class TurnOut(Schema):
    """One answer of a model in a run."""

    number: int
    model: str
    final: bool
    text: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost: float | None
    cache_saved: float | None
    duration_ms: float


class ToolCallOut(Schema):
    """One tool call in a run."""

    id: int
    turn: int
    name: str
    state: str
    call: str = Field(description="Id of the call under /invocations, as soon as it has begun.")
    characters: int
    coerced: list[str] = Field(
        description="Arguments that were converted to the type of the schema, for example: /limit as integer."
    )


class RunDetail(RunOut):
    """A run with its question, turns and calls."""

    arguments: dict[str, Any]
    turns: list[TurnOut]
    calls: list[ToolCallOut]


class RunOrder(Schema):
    """Arguments that match the input schema of the tool."""

    arguments: Object = Field(default_factory=dict)


class ReplayOrder(Schema):
    """The version or model for the new run."""

    version: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = Field(
        default=None, description="Number of the version. Default: the newest version."
    )
    model: Annotated[Text, Field(max_length=300)] = Field(
        default="", description="A model, as provider/name, instead of the models of the version."
    )


class SettleOrder(Schema):
    """The outcome of an unknown call, and a note for the model."""

    what: Literal["done", "failed", "repeat"]
    note: Annotated[Text, Field(max_length=1000)] = ""


class Sums(Schema):
    """Figures over several runs."""

    runs: int
    done: int
    failed: int
    open: int
    cost: float | None = Field(description="Cost in US dollars. Null if nothing is known.")
    tokens: int | None
    saved: float | None = Field(
        description="Tokens of tool calls and results, minus the tokens of the answers. Callers did not have to read these tokens. Negative if the answers had more tokens."
    )
    definitions: float | None = Field(
        description="Average number of definition tokens that each turn of a caller saves."
    )
    money: float | None = Field(
        description="Estimated savings in US dollars, compared with the model of the "
        "callers. Null if no such model is set."
    )
    reread: float | None = Field(
        description="Tokens that the models read over all turns, divided by the tokens of the tool calls and results."
    )


class ExpertSums(Sums):
    """Figures of one expert tool."""

    expert_name: str


class SavingsOut(Sums):
    """Figures of all expert tools over the last ``days``, and of the most used ones."""

    days: int
    experts: list[ExpertSums] = Field(description="The twenty most used expert tools.")


class Entries(Schema):
    """The accounting of one run."""

    items: list[dict[str, Any]]


def expert_out(expert: ExpertTool, figures: dict[str, Any] | None = None) -> ExpertOut:
    """The row as its answer; with figures where they are given."""
    return ExpertOut(
        name=expert.name,
        description=expert.description,
        enabled=expert.enabled,
        version=expert.newest_number or 0,
        input_schema=schema_of(expert),
        models=[str(target.model) for target in expert.ordered_targets.all()],
        agent=expert.agent.slug,
        users=[agent.slug for agent in expert.users.all()],
        endpoints=[endpoint.slug for endpoint in expert.endpoints.all()],
        figures=figures,
    )


def _read_facts(run: Run) -> dict[str, Any]:
    return {
        "id": run.pk,
        "expert": run.expert_name,
        "version": run.version.number,
        "state": run.state,
        "exit": run.exit,
        "doing": ""
        if run.finished_at
        else describe_state(run.state, [call.name for call in run.open_calls], run.sleeps_for),
        "error": run.error,
        "answer": run.answer,
        "structured": json.loads(run.structured) if run.structured else None,
        "agent": run.caller,
        "requester": run.requester,
        "conversation": run.conversation_id,
        "origin": run.origin,
        "input_tokens": run.input_tokens,
        "output_tokens": run.output_tokens,
        "cached_tokens": run.cached_tokens,
        "cache_write_tokens": run.cache_write_tokens,
        "reasoning_tokens": run.reasoning_tokens,
        "cache_saved": _dollars(run.cache_saved),
        "cost": _dollars(run.cost),
        "savings": run.savings,
        "created_at": run.created_at,
        "finished_at": run.finished_at,
    }


def _dollars(amount: Decimal | None) -> float | None:
    return None if amount is None else float(amount)


def run_out(run: Run) -> RunOut:
    """The row as its answer."""
    return RunOut(**_read_facts(run))


def run_detail(run: Run) -> RunDetail:
    """The row as its answer, with its turns and calls."""
    turns = [
        TurnOut(
            number=t.number,
            model=t.model_name,
            final=t.final,
            text=show_invisible_characters(t.text, 20_000),
            input_tokens=t.input_tokens,
            cached_tokens=t.cached_tokens,
            cache_write_tokens=t.cache_write_tokens,
            reasoning_tokens=t.reasoning_tokens,
            cache_saved=_dollars(t.cache_saved),
            output_tokens=t.output_tokens,
            cost=_dollars(t.cost),
            duration_ms=t.duration_ms,
        )
        for t in Turn.objects.filter(run=run)
    ]
    calls = [
        ToolCallOut(
            id=c.pk,
            turn=c.turn_number,
            name=show_invisible_characters(c.name, 500),
            state=c.state,
            call=c.invocation,
            characters=c.raw_characters,
            coerced=c.coerced.splitlines(),
        )
        for c in ToolCall.objects.filter(run=run)
    ]
    return RunDetail(
        **_read_facts(run), arguments=json.loads(run.arguments), turns=turns, calls=calls
    )
