"""Runs of expert tools over REST: start, list, watch, steer. The rules are those of the pages.

An agent's token may start the expert tools that it may call, and look after its own runs; those of
others are absent to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from django.db import Error
from django.db.models import QuerySet
from django.http import HttpRequest, StreamingHttpResponse
from ninja import Path, Query, Status

from mcpregistry.api import lookup
from mcpregistry.api.auth import Principal, actor, is_still_allowed, principal
from mcpregistry.api.idempotent_operations import once
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.permissions import TABLE, OperationRule
from mcpregistry.api.schemas.basics import Page, Problem, Slug, Text
from mcpregistry.api.v1 import api
from mcpregistry.calls.engine import get_current_engine
from mcpregistry.calls.watch.changes import Feed
from mcpregistry.calls.watch.state_watch import StateWatch
from mcpregistry.db import db_call
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import NotFound
from subagents.api.schemas import (
    Entries,
    ReplayOrder,
    RunDetail,
    RunOrder,
    RunOut,
    SettleOrder,
    run_detail,
    run_out,
)
from subagents.domain.lifecycle import RunState
from subagents.models import RUN_TOPIC, ExpertTool, LanguageModel, Run, ToolCall
from subagents.services import accounting, runs

TABLE.update(
    {
        "POST /experts/{name}/runs": OperationRule("subagents.run_expert", agent=True),
        "GET /runs": OperationRule("subagents.view_run", agent=True),
        "GET /runs/{run_id}": OperationRule("subagents.view_run", agent=True),
        "GET /runs/{run_id}/events": OperationRule("subagents.view_run", agent=True),
        "GET /runs/{run_id}/accounting": OperationRule("subagents.view_run", agent=True),
        "POST /runs/{run_id}/cancel": OperationRule("subagents.run_expert", agent=True),
        "POST /runs/{run_id}/resume": OperationRule("subagents.steer_run"),
        "POST /runs/{run_id}/replay": OperationRule("subagents.run_expert"),
        "POST /runs/{run_id}/calls/{call_id}/settle": OperationRule("subagents.steer_run"),
    }
)
router = PermissionRouter(tags=["expert tools"])

Name = Annotated[Text, Path(min_length=1, max_length=60)]
RunId = Annotated[Text, Path(min_length=1, max_length=32)]
_LOOK_SECONDS = 1.0  # between looks whether the caller may still watch
_SILENT_SECONDS = 15.0  # proxies drop a stream that is silent for a minute


@router.post("/experts/{name}/runs", response={202: RunOut})
@once()
def start_run(request: HttpRequest, name: Name, payload: RunOrder) -> Status[RunOut]:
    """Start a run. The answer comes immediately; read the result at /runs/{id}, or watch
    /runs/{id}/events."""
    who = principal(request)
    if (
        who.agent is not None
        and not ExpertTool.objects.filter(name=name, enabled=True, users=who.agent).exists()
    ):
        raise NotFound(
            error_texts.say_not_found("expert tool", name),
            remedy="List them with GET /api/v1/experts.",
        )
    caller = who.agent.slug if who.agent is not None else ""
    run = runs.start(
        expert=name,
        arguments=payload.arguments,
        origin="rest",
        caller=caller,
        requester=who.requester,
    )
    return Status(202, run_out(_own(who, run.pk)))


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
    """List runs, newest first. An agent sees only its own runs."""
    exact = {"expert_name": expert, "state": state, "caller": agent}
    rows = _query_visible(principal(request)).filter(
        **{key: value for key, value in exact.items() if value is not None}
    )
    return read_page(rows, order=("-created_at", "-id"), limit=limit, cursor=cursor, show=run_out)


@router.get("/runs/{run_id}", response=RunDetail)
def get_run(request: HttpRequest, run_id: RunId) -> RunDetail:
    """Get one run with its turns and calls."""
    return run_detail(_own(principal(request), run_id))


@router.get("/runs/{run_id}/accounting", response=Entries)
def get_run_accounting(request: HttpRequest, run_id: RunId) -> Entries:
    """Get what the run has used: one entry for each answer of a model, failed request and tool
    call."""
    return Entries(items=list(accounting.list_entries(_own(principal(request), run_id))))


@router.get("/runs/{run_id}/events", response=None)
async def watch_run(request: HttpRequest, run_id: RunId) -> StreamingHttpResponse:
    """Watch a run with server-sent events: the event ``run`` contains the whole run after each
    change.

    The stream ends when the run ends, the token is revoked, or the session of the browser ends.
    """
    await db_call(_own, principal(request), run_id)
    events = _stream_events(get_current_engine().feed, request, run_id)
    response = StreamingHttpResponse(events, content_type="text/event-stream")
    response["Cache-Control"] = "no-store"
    return response


async def _stream_events(feed: Feed, request: HttpRequest, run_id: str) -> AsyncIterator[bytes]:
    watch: StateWatch[_Shown] = StateWatch(feed, RUN_TOPIC, _load_runs)
    last = _Shown("", ended=False)
    silent = 0.0
    while not last.ended:
        now = await watch.wait_for_change(run_id, last, _LOOK_SECONDS)
        try:
            if not await db_call(_may_still_watch, request):
                return
        except Error:
            # whether the token was revoked is not known; the client opens the stream again
            return
        silent += _LOOK_SECONDS
        if now != last:
            yield f"event: run\ndata: {now.text}\n\n".encode()
        elif silent >= _SILENT_SECONDS:
            yield b": still running\n\n"
        else:
            continue
        last = now
        silent = 0.0


def _may_still_watch(request: HttpRequest) -> bool:
    return is_still_allowed(request, TABLE["GET /runs/{run_id}/events"])


@dataclass(frozen=True, slots=True)
class _Shown:
    """What an event says of a run, as JSON."""

    text: str
    ended: bool


def _load_runs(run_ids: list[str]) -> dict[str, _Shown]:
    rows = Run.objects.filter(pk__in=run_ids).select_related("version").with_open_calls()
    return {
        run.pk: _Shown(run_out(run).model_dump_json(), run.finished_at is not None) for run in rows
    }


@router.post("/runs/{run_id}/cancel", response=RunOut)
def cancel_run(request: HttpRequest, run_id: RunId) -> RunOut:
    """Cancel a run. The run and its current call to a server stop within a second.

    Cancelling an ended run changes nothing.
    """
    run = _own(principal(request), run_id)
    runs.cancel(run_id=run.pk, actor=actor(request))
    return run_out(_own(principal(request), run_id))


@router.post("/runs/{run_id}/resume", response={200: RunOut, 409: Problem})
def resume_run(request: HttpRequest, run_id: RunId) -> RunOut:
    """Let a worker continue an open run now."""
    run = _own(principal(request), run_id)
    runs.resume(run_id=run.pk, actor=actor(request))
    return run_out(_own(principal(request), run_id))


@router.post("/runs/{run_id}/replay", response={202: RunOut})
@once()
def replay_run(
    request: HttpRequest, run_id: RunId, payload: ReplayOrder | None = None
) -> Status[RunOut]:
    """Ask the same question again in a new run, to compare cost and answer."""
    run = _own(principal(request), run_id)
    order = payload or ReplayOrder()
    model = _find_model(order.model) if order.model else None
    who = principal(request)
    new = runs.replay(
        run_id=run.pk, actor=who.actor, version=order.version, model=model, requester=who.requester
    )
    return Status(202, run_out(_own(principal(request), new.pk)))


def _find_model(label: str) -> LanguageModel:
    provider, _, name = label.partition("/")
    model = LanguageModel.objects.filter(provider__slug=provider, name=name).first()
    if model is None:
        raise NotFound(
            error_texts.say_not_found("model", label),
            remedy="Use the form provider/name. The admin lists all models under Expert tools, Models.",
        )
    return model


@router.post("/runs/{run_id}/calls/{call_id}/settle", response={200: RunDetail, 409: Problem})
def settle_call(
    request: HttpRequest, run_id: RunId, call_id: int, payload: SettleOrder
) -> RunDetail:
    """Record the real outcome of a call whose outcome is unknown."""
    run = _own(principal(request), run_id)
    if not ToolCall.objects.filter(pk=call_id, run=run).exists():
        raise NotFound(
            f"This run has no call with the number {call_id}.",
            remedy=f"List its calls with GET /api/v1/runs/{run_id}.",
        )
    who = principal(request)
    user_id = who.user.pk if who.user else None
    runs.settle(
        call_id=call_id, as_what=payload.what, actor=who.actor, user_id=user_id, note=payload.note
    )
    return run_detail(_own(principal(request), run_id))


def _query_visible(who: Principal) -> QuerySet[Run]:
    return Run.objects.visible_to(who.who).select_related("version").with_open_calls()


def _own(who: Principal, run_id: str) -> Run:
    return lookup.one(_query_visible(who), "run", pk=run_id)


api.add_router("", router)
