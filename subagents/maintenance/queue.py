"""What people, agents and programs do with maintenance requests: ask, look, pause, resume, cancel,
read messages.

Every verb is a row or two and returns at once, whatever the sub-agent is doing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from mcpregistry.calls.catalog import DownstreamTools
from mcpregistry.db import read_database_now
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import Conflict, NotFound, QueueFullError
from mcpregistry.domain.snapshot_specs import RUNS
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.models import Agent, Server
from mcpregistry.services.configuration.dispatch import send_task
from mcpregistry.services.configuration.snapshot import load_snapshot
from mcpregistry.services.records import audit
from subagents.domain.maintenance import (
    STARTS_SERVER,
    ControlRequest,
    Kind,
    Priority,
    RequestMessageKind,
    State,
    Substate,
)
from subagents.leased import leases
from subagents.maintenance import supervision
from subagents.models import EffortAgent, MaintenanceMessage, MaintenanceRequest, Run
from subagents.services import runs

CLOCK = "clock"  # who asks for what repeats
AT_ONCE = 5  # requests that one worker works on
STARTING = 3  # of them that start servers: those that hang leave room for the others
MOST_OPEN = 20  # requests of one agent at a time
_MESSAGES_AT_ONCE = 100


@transaction.atomic
def ask(
    *,
    kind: Kind,
    params: Mapping[str, Any],
    actor: str,
    priority: Priority = Priority.MEDIUM,
    agent: Agent | None = None,
    supervisor: str = "",
    conversation: str = "",
) -> MaintenanceRequest:
    """Queue a request; a worker is woken once it is committed. The same one of the same agent,
    still open, is joined.

    ``params`` are those of the kind, see ``subagents.maintenance.plans``; ``supervisor``: the agent
    without whose cycles nothing of it shall be done; ``conversation``: that in which the agent
    asked. Raises NotFound (no such server, or none of this agent's, or no such supervisor) and Busy
    (the agent has ``MOST_OPEN`` already).
    """
    slug = str(params.get("server", ""))
    if kind not in (Kind.ADD, Kind.SEARCH):
        find_visible_server(slug, agent)
    if supervisor and not EffortAgent.objects.filter(expert__agent__slug=supervisor).exists():
        raise NotFound(
            error_texts.say_not_found("hosted agent", clean_text(supervisor, 63)),
            remedy="List them under Expert tools, Hosted agents, or leave the supervisor empty.",
        )
    if agent is not None:
        # one of its requests after the other
        Agent.objects.select_for_update(no_key=True).get(pk=agent.pk)
        if (same := _find_same_request(kind, params, agent)) is not None:
            return same
        _refuse_too_many(agent)
    request = MaintenanceRequest.objects.create(
        kind=kind,
        params=dict(params),
        priority=priority,
        server_slug=slug[:63],
        created_at=timezone.now(),
        agent=agent.slug if agent else "",
        requested_by=clean_text(actor, 200),
        message="Waiting for a worker.",
        supervisor=supervisor,
        conversation=conversation,
    )
    audit.record_entry(
        kind="maintenance.requested",
        actor=actor,
        subject=f"maintenance:{request.pk}",
        what=kind,
        server=slug,
    )
    transaction.on_commit(lambda: send_task("subagents.tasks.work_maintenance"))
    return request


def find_visible_server(slug: str, agent: Agent | None) -> Server:
    """The server, for an agent only if it may use any of its tools. Raises NotFound, in the same
    words for both."""
    found = Server.objects.filter(slug=slug).first()
    if found is None or (agent is not None and found.pk not in servers_of(agent)):
        raise NotFound(
            error_texts.say_not_found("server", clean_text(slug, 63)),
            remedy="To find the name, list the servers, or list the tools that you can call.",
        )
    return found


def servers_of(agent: Agent) -> set[int]:
    """The servers that serve the agent anything, as the gateway reckons it."""
    snapshot = load_snapshot()
    caller = snapshot.agents.get(agent.slug)
    offers = DownstreamTools().list_offers(snapshot, RUNS, caller, time.time()) if caller else ()
    return {offer.server.id for offer in offers}


def _find_same_request(
    kind: Kind, params: Mapping[str, Any], agent: Agent
) -> MaintenanceRequest | None:
    theirs = MaintenanceRequest.objects.open().filter(kind=kind, agent=agent.slug, wish="")
    return next((request for request in theirs if request.params == dict(params)), None)


def _refuse_too_many(agent: Agent) -> None:
    if MaintenanceRequest.objects.open().filter(agent=agent.slug).count() >= MOST_OPEN:
        raise QueueFullError(
            f"The agent has {MOST_OPEN} open requests, which is the maximum.",
            remedy="Wait until one of them has ended, or cancel requests that are no longer needed.",
        )


@transaction.atomic
def cancel(*, request_id: str, actor: str, reason: str = "") -> MaintenanceRequest:
    """It ends as failed, with the error "cancelled: …"; what runs is cut, its processes with it.
    Ended ones stay."""
    request = _lock_request(request_id)
    if request.finished_at is not None:
        return request
    reason = clean_text(reason, 500) or "no reason given"
    MaintenanceRequest.objects.filter(pk=request.pk).update(
        wish=ControlRequest.CANCEL, wish_reason=reason
    )
    audit.record_entry(
        kind="maintenance.cancelled",
        actor=actor,
        subject=f"maintenance:{request.pk}",
        reason=reason,
    )
    if request.lease_until is None:  # nobody works on it: its end is ours to write
        return end(request, State.FAILED, substate=Substate.CANCELLED, error=f"cancelled: {reason}")
    return _lock_request(request_id)


@transaction.atomic
def pause(*, request_id: str, actor: str, reason: str = "") -> MaintenanceRequest:
    """It stands still within a second and uses no energy, until it is resumed. Raises Conflict when
    it has ended.

    ``reason``: of somebody who will resume it by themselves. Who pauses it without one takes it
    over from them.
    """
    request = _open(request_id)
    taken_over = request.wish == ControlRequest.PAUSE and request.wish_reason != "" and reason == ""
    if request.wish and not taken_over:  # paused already, or being cancelled
        return request
    if request.lease_until is None:
        cut_run(request, "its request is paused")
    still = {
        "substate": Substate.PAUSED,
        "message": reason or "Paused.",
        "working_on": seat(request),
    }
    waits: dict[str, Any] = {} if request.lease_until else still
    MaintenanceRequest.objects.filter(pk=request.pk).update(
        wish=ControlRequest.PAUSE, wish_reason=reason, **waits
    )
    facts = {"reason": reason} if reason else {}
    audit.record_entry(
        kind="maintenance.paused", actor=actor, subject=f"maintenance:{request.pk}", **facts
    )
    return _lock_request(request_id)


@transaction.atomic
def resume(*, request_id: str, actor: str) -> MaintenanceRequest:
    """It goes on after the last step that was done. Raises Conflict when it has ended."""
    request = _open(request_id)
    if request.wish != ControlRequest.PAUSE:
        return request
    MaintenanceRequest.objects.filter(pk=request.pk).update(
        wish="", wish_reason="", substate="", message="Waiting for a worker."
    )
    audit.record_entry(kind="maintenance.resumed", actor=actor, subject=f"maintenance:{request.pk}")
    transaction.on_commit(lambda: send_task("subagents.tasks.work_maintenance"))
    return _lock_request(request_id)


def end(request: MaintenanceRequest, state: State, **values: Any) -> MaintenanceRequest:
    """Write the end of a request whose row is locked, or under our lease, and tell it."""
    cut_run(request, "its request has ended")
    told = (
        {"message": "Done.", "progress": 100}
        if state == State.COMPLETED
        else {"message": values["error"][:500]}
    )
    MaintenanceRequest.objects.filter(pk=request.pk, finished_at=None).update(
        state=state,
        finished_at=read_database_now(),
        lease_until=None,
        worker="",
        working_on=seat(request),
        **told,
        **values,
    )
    request.refresh_from_db()
    kind = RequestMessageKind.COMPLETION if state == State.COMPLETED else RequestMessageKind.ERROR
    tell(request, kind, result=request.result, error=request.error or None)
    return request


def cut_run(request: MaintenanceRequest, reason: str) -> str:
    """Stop the run of the model that works on a request whose row is ours. Returns its id, or ""
    where there is none.

    It ends a little later: until then it is noted as ``leaving``, and the request keeps its
    ``seat``.
    """
    model = request.notes.get("model") or {"ended": True}
    if model["ended"] or not (run := model["run"]):
        return ""
    with suppress(NotFound):  # forgotten meanwhile
        runs.cancel(run_id=run, actor="sub-agent", reason=reason)
    model |= {"run": "", "leaving": run}
    MaintenanceRequest.objects.filter(pk=request.pk).update(notes=request.notes)
    return str(run)


def leaving(request: MaintenanceRequest) -> str:
    """The run that was stopped and may still have the request's server started, or ""."""
    return _find_open_run(request, "leaving")


def seat(request: MaintenanceRequest) -> str | None:
    """The server that nobody else may start although nobody works on the request: while a run of a
    model may have it started."""
    return (
        (request.server_slug or None)
        if leaving(request) or _find_open_run(request, "run")
        else None
    )


def _find_open_run(request: MaintenanceRequest, which: str) -> str:
    run = str(request.notes.get("model", {}).get(which, ""))
    return run if run and Run.objects.open().filter(pk=run).exists() else ""


def tell(request: MaintenanceRequest, kind: RequestMessageKind, **data: Any) -> None:
    """Add a message to those that whoever asked will poll."""
    MaintenanceMessage.objects.create(
        request=request, kind=kind, data=data, created_at=timezone.now()
    )


def query_waiting_messages(requests: QuerySet[MaintenanceRequest]) -> QuerySet[MaintenanceMessage]:
    """The oldest messages of these requests that were not handed out yet."""
    return MaintenanceMessage.objects.filter(delivered_at=None, request__in=requests)[
        :_MESSAGES_AT_ONCE
    ]


@transaction.atomic
def poll_messages(requests: QuerySet[MaintenanceRequest]) -> list[MaintenanceMessage]:
    """The same, handed out, each to one alone, whoever asks at the same time."""
    waiting = MaintenanceMessage.objects.filter(delivered_at=None, request__in=requests)
    found = list(waiting.select_for_update(skip_locked=True, of=("self",))[:_MESSAGES_AT_ONCE])
    MaintenanceMessage.objects.filter(pk__in=[message.pk for message in found]).update(
        delivered_at=timezone.now()
    )
    return found


@transaction.atomic
def take_energy(requests: QuerySet[MaintenanceRequest]) -> dict[str, float]:
    """Units used since the last time somebody took them, by request: each is taken once, whoever
    asks at the same time."""
    used = requests.filter(energy_unreported__gt=0).order_by("pk").select_for_update()
    counted = dict(used.values_list("pk", "energy_unreported"))
    for key, units in counted.items():
        MaintenanceRequest.objects.filter(pk=key).update(
            energy_unreported=F("energy_unreported") - units
        )
    return counted


def has_active_work(requests: QuerySet[MaintenanceRequest]) -> bool:
    """Whether the sub-agent works on one of these now."""
    return requests.filter(state=State.IN_PROGRESS, substate="", finished_at=None).exists()


def list_due_requests(now: datetime, limit: int, *, starting: int | None = None) -> list[str]:
    """Requests that this process could work on now, one a server: first those of the dead, then the
    most urgent.

    ``starting``: at most so many of those that start a server; None: any.
    """
    rows = supervision.filter_workable(
        MaintenanceRequest.objects.open().exclude(lease_until__gte=now), now
    )
    if settings.MAINTENANCE_KINDS:
        rows = rows.filter(kind__in=settings.MAINTENANCE_KINDS)
    # one that died before it could pause is looked at
    rows = rows.exclude(wish=ControlRequest.PAUSE, lease_until=None)
    busy = set(
        MaintenanceRequest.objects.open()
        .filter(lease_until__gte=now)
        .values_list("server_slug", flat=True)
    )
    found: list[str] = []
    order = F("working_on").desc(nulls_last=True), "-priority", "created_at", "id"
    room = limit if starting is None else starting
    for key, slug, kind in rows.order_by(*order).values_list("pk", "server_slug", "kind"):
        starts = kind in STARTS_SERVER
        if (slug and slug in busy) or (starts and room <= 0):
            continue
        busy.add(slug)
        found.append(key)
        room -= starts
        if len(found) == limit:
            break
    return found


def find_unclaimed_requests(now: datetime, before: datetime) -> QuerySet[MaintenanceRequest]:
    """Return the requests that no worker has taken since ``before``, although they may be worked
    on.

    A request waits rightly while another one has its server, or while a worker's hands are full.
    """
    held = MaintenanceRequest.objects.open().filter(lease_until__gte=now)
    if held.count() >= AT_ONCE:
        return MaintenanceRequest.objects.none()
    rows = supervision.filter_workable(
        MaintenanceRequest.objects.open().filter(created_at__lt=before), now
    )
    rows = leases.filter_unclaimed(rows, before).exclude(wish=ControlRequest.PAUSE)
    if held.filter(kind__in=STARTS_SERVER).count() >= STARTING:
        rows = rows.exclude(kind__in=STARTS_SERVER)
    return rows.exclude(server_slug__in=held.exclude(server_slug="").values("server_slug"))


def _lock_request(request_id: str) -> MaintenanceRequest:
    request = MaintenanceRequest.objects.select_for_update().filter(pk=request_id).first()
    if request is None:
        raise NotFound(
            error_texts.say_no_such_number("request", request_id),
            remedy=error_texts.advise_list("Servers, Maintenance requests"),
        )
    return request


def _open(request_id: str) -> MaintenanceRequest:
    request = _lock_request(request_id)
    if request.finished_at is not None:
        raise Conflict(
            f"The request has already ended ({request.state}).", remedy="Create a new request."
        )
    return request
