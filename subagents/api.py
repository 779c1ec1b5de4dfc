"""Expert tools and runs over REST: what there is, start, watch, steer. The rules are those of the pages.

An agent's token may start the expert tools that it may call, and look after its own runs; those of
others are absent to it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, Literal

from django.db.models import QuerySet
from django.http import HttpRequest, StreamingHttpResponse
from ninja import Path, Query, Schema, Status
from pydantic import Field

from mcpregistry.api.auth import Principal, actor, principal
from mcpregistry.api.paging import Cursor, Limit, page
from mcpregistry.api.permissions import TABLE, Rule
from mcpregistry.api.routes import Routes
from mcpregistry.api.schemas.basics import Object, Page, Problem, Slug, Text
from mcpregistry.api.v1 import api
from mcpregistry.db import db_call
from mcpregistry.domain.errors import NotFound
from mcpregistry.domain.reveal import reveal
from subagents.domain.lifecycle import RunState
from subagents.models import ExpertTool, LanguageModel, Run, ToolCall, Turn
from subagents.queries import expert_figures, run_totals
from subagents.runs.answers import in_words
from subagents.services import accounting, runs
from subagents.services.experts import schema_of

TABLE.update(
    {
        "GET /experts": Rule("subagents.view_experttool"),
        "GET /experts/{name}": Rule("subagents.view_experttool"),
        "POST /experts/{name}/runs": Rule("subagents.run_expert", agent=True),
        "GET /savings": Rule("subagents.view_run"),
        "GET /runs": Rule("subagents.view_run", agent=True),
        "GET /runs/{run_id}": Rule("subagents.view_run", agent=True),
        "GET /runs/{run_id}/events": Rule("subagents.view_run", agent=True),
        "GET /runs/{run_id}/accounting": Rule("subagents.view_run", agent=True),
        "POST /runs/{run_id}/cancel": Rule("subagents.run_expert", agent=True),
        "POST /runs/{run_id}/resume": Rule("subagents.steer_run"),
        "POST /runs/{run_id}/replay": Rule("subagents.run_expert"),
        "POST /runs/{run_id}/calls/{call_id}/settle": Rule("subagents.steer_run"),
    }
)
router = Routes(tags=["expert tools"])

Name = Annotated[Text, Path(min_length=1, max_length=60)]
RunId = Annotated[Text, Path(min_length=1, max_length=32)]
_LOOK_EVERY = 0.3  # seconds


class ExpertOut(Schema):
    name: str
    description: str
    enabled: bool
    version: int
    input_schema: dict[str, Any]
    models: list[str] = Field(description="In the order in which they are asked.")
    agent: str = Field(description="The identity of its runs; its grants are the whitelist.")
    users: list[str]
    endpoints: list[str]
    figures: dict[str, Any] | None = None


class RunOut(Schema):
    id: str
    expert: str
    version: int
    state: RunState
    exit: str
    doing: str = Field(description="What an open run does at this moment.")
    error: str
    answer: str
    structured: Any | None
    agent: str
    origin: str
    input_tokens: int
    output_tokens: int
    cost: float | None = Field(description="US dollars; null when a model has no prices.")
    savings: dict[str, Any]
    created_at: datetime
    finished_at: datetime | None


class TurnOut(Schema):
    number: int
    model: str
    final: bool
    text: str
    input_tokens: int
    output_tokens: int
    cost: float | None
    duration_ms: float


class ToolCallOut(Schema):
    id: int
    turn: int
    name: str
    state: str
    call: str = Field(description="The id of its record under /invocations, once it was begun.")
    characters: int


class RunDetail(RunOut):
    arguments: dict[str, Any]
    turns: list[TurnOut]
    calls: list[ToolCallOut]


class RunOrder(Schema):
    arguments: Object = Field(default_factory=dict)


class ReplayOrder(Schema):
    version: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = Field(default=None, description="Default: the newest.")
    model: Annotated[Text, Field(max_length=300)] = Field(
        default="", description="provider/name of a model to ask in place of the version's own."
    )


class SettleOrder(Schema):
    what: Literal["done", "failed", "repeat"]
    note: Annotated[Text, Field(max_length=1000)] = ""


class Sums(Schema):
    runs: int
    done: int
    failed: int
    open: int
    cost: float | None = Field(description="US dollars; null when nothing is known.")
    tokens: int | None
    saved: float | None = Field(description="Tokens kept out of the callers' contexts; negative when it cost more.")
    definitions: float | None = Field(description="Tokens of definitions saved on each turn of a caller, on average.")
    money: float | None = Field(description="US dollars against the callers' model, an estimate; null without one.")
    reread: float | None = Field(description="Tokens read over all turns for each token that there was to read.")


class ExpertSums(Sums):
    expert_name: str


class SavingsOut(Sums):
    days: int
    experts: list[ExpertSums] = Field(description="The twenty most used.")


class Entries(Schema):
    items: list[dict[str, Any]]


def _experts() -> QuerySet[ExpertTool]:
    related = "users", "endpoints", "ordered_targets__model__provider"
    return ExpertTool.objects.with_newest().select_related("agent").prefetch_related(*related)


def _expert(expert: ExpertTool, figures: dict[str, Any] | None = None) -> ExpertOut:
    return ExpertOut(
        name=expert.name, description=expert.description, enabled=expert.enabled,
        version=expert.newest_number or 0, input_schema=schema_of(expert),
        models=[str(target.model) for target in expert.ordered_targets.all()],
        agent=expert.agent.slug, users=[agent.slug for agent in expert.users.all()],
        endpoints=[endpoint.slug for endpoint in expert.endpoints.all()], figures=figures,
    )  # fmt: skip


def _facts(run: Run) -> dict[str, Any]:
    return {
        "id": run.pk, "expert": run.expert_name, "version": run.version.number, "state": run.state, "exit": run.exit,
        "doing": "" if run.finished_at else in_words(run.state, [call.name for call in run.open_calls]),
        "error": run.error, "answer": run.answer,
        "structured": json.loads(run.structured) if run.structured else None, "agent": run.caller,
        "origin": run.origin, "input_tokens": run.input_tokens, "output_tokens": run.output_tokens,
        "cost": None if run.cost is None else float(run.cost), "savings": run.savings,
        "created_at": run.created_at, "finished_at": run.finished_at,
    }  # fmt: skip


def _run(run: Run) -> RunOut:
    return RunOut(**_facts(run))


def _detail(run: Run) -> RunDetail:
    turns = [
        TurnOut(
            number=t.number, model=t.model_name, final=t.final, text=reveal(t.text, 20_000), input_tokens=t.input_tokens,
            output_tokens=t.output_tokens, cost=None if t.cost is None else float(t.cost), duration_ms=t.duration_ms,
        )
        for t in Turn.objects.filter(run=run)
    ]  # fmt: skip
    calls = [
        ToolCallOut(
            id=c.pk, turn=c.turn_number, name=reveal(c.name, 500), state=c.state, call=c.invocation,
            characters=c.raw_characters,
        )
        for c in ToolCall.objects.filter(run=run)
    ]  # fmt: skip
    return RunDetail(**_facts(run), arguments=json.loads(run.arguments), turns=turns, calls=calls)


@router.get("/experts", response=Page[ExpertOut])
def list_experts(
    request: HttpRequest,
    *,
    q: Annotated[Text | None, Query(max_length=200, description="Part of the name or description.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ExpertOut]:
    rows = _experts()
    if q:
        rows = rows.filter(name__icontains=q) | rows.filter(description__icontains=q)
    return page(rows, order=("name",), limit=limit, cursor=cursor, show=_expert)


@router.get("/experts/{name}", response=ExpertOut)
def get_expert(request: HttpRequest, name: Name) -> ExpertOut:
    """With the figures of the last 30 days: runs, cost, context saved, and whether the answers were enough."""
    expert = _experts().filter(name=name).first()
    if expert is None:
        raise NotFound(f"There is no expert tool '{name}'.")
    return _expert(expert, expert_figures(expert))


@router.post("/experts/{name}/runs", response={202: RunOut})
def start_run(request: HttpRequest, name: Name, payload: RunOrder) -> Status[RunOut]:
    """Starts a run and answers at once; look at /runs/{id}, or watch /runs/{id}/events."""
    who = principal(request)
    if who.agent is not None and not ExpertTool.objects.filter(name=name, enabled=True, users=who.agent).exists():
        raise NotFound(f"There is no expert tool '{name}'.")
    caller = who.agent.slug if who.agent is not None else ""
    run = runs.start(expert=name, arguments=payload.arguments, origin="rest", caller=caller)
    return Status(202, _run(_own(who, run.pk)))


@router.get("/savings", response=SavingsOut)
def get_savings(
    request: HttpRequest, *, days: Annotated[int, Query(ge=1, le=365, description="Looking back from now.")] = 30
) -> SavingsOut:
    """What all expert tools together used and saved, and each of them. Estimates, as on the overview."""
    return SavingsOut(**run_totals(days=days))


@router.get("/runs", response=Page[RunOut])
def list_runs(
    request: HttpRequest,
    *,
    expert: Annotated[Text | None, Query(max_length=60)] = None,
    state: RunState | None = None,
    agent: Slug | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[RunOut]:
    """Newest first; an agent sees its own."""
    exact = {"expert_name": expert, "state": state, "caller": agent}
    rows = _visible(principal(request)).filter(**{key: value for key, value in exact.items() if value is not None})
    return page(rows, order=("-created_at", "-id"), limit=limit, cursor=cursor, show=_run)


@router.get("/runs/{run_id}", response=RunDetail)
def get_run(request: HttpRequest, run_id: RunId) -> RunDetail:
    return _detail(_own(principal(request), run_id))


@router.get("/runs/{run_id}/accounting", response=Entries)
def get_run_accounting(request: HttpRequest, run_id: RunId) -> Entries:
    """One entry for each answer of a model, failed request and tool call."""
    return Entries(items=list(accounting.entries(_own(principal(request), run_id))))


@router.get("/runs/{run_id}/events", response=None)
async def watch_run(request: HttpRequest, run_id: RunId) -> StreamingHttpResponse:
    """Server-sent events: ``run`` with the whole run whenever something has changed; ends with the run."""
    who = principal(request)
    await db_call(_own, who, run_id)
    response = StreamingHttpResponse(_events(who, run_id), content_type="text/event-stream")
    response["Cache-Control"] = "no-store"
    return response


async def _events(who: Principal, run_id: str) -> AsyncIterator[bytes]:
    told, quiet = "", 0.0
    while True:
        run, text = await db_call(_event, who, run_id)
        if text != told:
            told, quiet = text, 0.0
            yield f"event: run\ndata: {text}\n\n".encode()
        if run.finished_at is not None:
            return
        await asyncio.sleep(_LOOK_EVERY)
        quiet += _LOOK_EVERY
        if quiet >= 15:  # proxies drop a stream that is silent for a minute
            quiet = 0.0
            yield b": still running\n\n"


def _event(who: Principal, run_id: str) -> tuple[Run, str]:
    run = _own(who, run_id)
    return run, _run(run).model_dump_json()


@router.post("/runs/{run_id}/cancel", response=RunOut)
def cancel_run(request: HttpRequest, run_id: RunId) -> RunOut:
    """It stops within a second, down to the call that is out at a server. Cancelling an ended run changes nothing."""
    run = _own(principal(request), run_id)
    runs.cancel(run_id=run.pk, actor=actor(request))
    return _run(_own(principal(request), run_id))


@router.post("/runs/{run_id}/resume", response={200: RunOut, 409: Problem})
def resume_run(request: HttpRequest, run_id: RunId) -> RunOut:
    run = _own(principal(request), run_id)
    runs.resume(run_id=run.pk, actor=actor(request))
    return _run(_own(principal(request), run_id))


@router.post("/runs/{run_id}/replay", response={202: RunOut})
def replay_run(request: HttpRequest, run_id: RunId, payload: ReplayOrder | None = None) -> Status[RunOut]:
    """The same question once more as a new run, to compare cost and answer."""
    run, order = _own(principal(request), run_id), payload or ReplayOrder()
    model = _model(order.model) if order.model else None
    new = runs.replay(run_id=run.pk, actor=actor(request), version=order.version, model=model)
    return Status(202, _run(_own(principal(request), new.pk)))


def _model(label: str) -> LanguageModel:
    provider, _, name = label.partition("/")
    model = LanguageModel.objects.filter(provider__slug=provider, name=name).first()
    if model is None:
        raise NotFound(f"There is no model '{label}'.", remedy="Write it as provider/name.")
    return model


@router.post("/runs/{run_id}/calls/{call_id}/settle", response={200: RunDetail, 409: Problem})
def settle_call(request: HttpRequest, run_id: RunId, call_id: int, payload: SettleOrder) -> RunDetail:
    """Say what became of a call whose outcome is unknown."""
    run = _own(principal(request), run_id)
    if not ToolCall.objects.filter(pk=call_id, run=run).exists():
        raise NotFound("This run has no such call.")
    runs.settle(call_id=call_id, as_what=payload.what, actor=actor(request), note=payload.note)
    return _detail(_own(principal(request), run_id))


def _visible(who: Principal) -> QuerySet[Run]:
    rows = Run.objects.select_related("version").with_open_calls()
    return rows if who.agent is None else rows.filter(caller=who.agent.slug)


def _own(who: Principal, run_id: str) -> Run:
    run = _visible(who).filter(pk=run_id).first()
    if run is None:
        raise NotFound("There is no such run.")
    return run


api.add_router("", router)
