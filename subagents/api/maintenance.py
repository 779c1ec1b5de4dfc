"""The background sub-agent over REST: ask it for something, watch it, stop it, read what it tells,
decide what it proposes.

An agent's token may ask for what changes nothing by itself, and look after its own requests; those
of others are absent to it. Every operation is a row or two and returns at once, whatever the
sub-agent is doing.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from django.http import HttpRequest
from ninja import Body, Path, Status

from mcpregistry.api import lookup
from mcpregistry.api.auth import Principal, actor, person, principal
from mcpregistry.api.idempotent_operations import once
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.permissions import TABLE, OperationRule
from mcpregistry.api.schemas.basics import Page, Problem, Slug, Text
from mcpregistry.api.v1 import api
from mcpregistry.domain.errors import Denied
from mcpregistry.models import Configuration, RegistryEntry
from mcpregistry.services.servers.lifecycle import may_see_secrets_of_launch
from subagents.api.maintenance_schemas import (
    Activity,
    CancelOrder,
    MessagesOut,
    Order,
    PolledEnergyOut,
    ProposalApplication,
    ProposalOut,
    RequestOut,
    message_out,
    priority_of,
    proposal_out,
    request_out,
)
from subagents.domain.maintenance import Kind, ProposalState, State
from subagents.energy import exclude_pooled
from subagents.maintenance import proposals, queue, supervision
from subagents.models import MaintenanceRequest, Proposal
from subagents.models.maintenance import MaintenanceRequestQuerySet

_ASK, _VIEW, _STEER = (f"subagents.{verb}_maintenancerequest" for verb in ("add", "view", "change"))
TABLE.update(
    {
        "GET /maintenance/requests": OperationRule(_VIEW, agent=True),
        "POST /maintenance/requests": OperationRule(_ASK, agent=True),
        "GET /maintenance/requests/{request_id}": OperationRule(_VIEW, agent=True),
        "POST /maintenance/requests/{request_id}/cancel": OperationRule(_STEER, agent=True),
        "POST /maintenance/requests/{request_id}/pause": OperationRule(_STEER, agent=True),
        "POST /maintenance/requests/{request_id}/resume": OperationRule(_STEER, agent=True),
        "GET /maintenance/messages": OperationRule(_VIEW, agent=True),
        "POST /maintenance/messages/poll": OperationRule(_STEER, agent=True),
        "GET /maintenance/active": OperationRule(_VIEW, agent=True),
        "POST /maintenance/start": OperationRule("mcpregistry.change_configuration"),
        "POST /maintenance/stop": OperationRule("mcpregistry.change_configuration"),
        "POST /maintenance/energy/poll": OperationRule(_STEER, agent=True),
        "GET /maintenance/proposals": OperationRule("subagents.view_proposal"),
        "POST /maintenance/proposals/{proposal_id}/apply": OperationRule(
            "subagents.decide_proposal"
        ),
        "POST /maintenance/proposals/{proposal_id}/decline": OperationRule(
            "subagents.decide_proposal"
        ),
    }
)
router = PermissionRouter(tags=["maintenance"])

RequestId = Annotated[Text, Path(min_length=1, max_length=32)]


@router.get("/maintenance/requests", response=Page[RequestOut])
def list_requests(
    request: HttpRequest,
    *,
    type: Kind | None = None,
    state: State | None = None,
    server: Slug | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[RequestOut]:
    """List requests, newest first. An agent sees only its own requests."""
    exact = {"kind": type, "state": state, "server_slug": server}
    rows = _query_visible(principal(request)).filter(
        **{key: value for key, value in exact.items() if value is not None}
    )
    return read_page(
        rows, order=("-created_at", "-id"), limit=limit, cursor=cursor, show=request_out
    )


@router.post("/maintenance/requests", response={202: RequestOut, 404: Problem})
@once()
def ask(request: HttpRequest, payload: Order) -> Status[RequestOut]:
    """Queue a request. Read its state at /maintenance/requests/{id}, or with POST
    /maintenance/messages/poll.

    Changes that start or serve something become proposals that a user must confirm.
    """
    who = principal(request)
    params = payload.params.model_dump(exclude_none=True)
    if who.agent is not None and params.get("call_tool"):
        raise Denied(
            "A test that an agent requests cannot call a tool.",
            remedy='Leave out "call_tool". The test still lists the tools.',
        )
    if who.agent is not None and Kind(payload.type) is Kind.TRY:
        raise Denied(
            "Agents cannot request trials.",
            remedy='Request a test instead, with the type "test_server".',
        )
    asked = queue.ask(
        kind=Kind(payload.type),
        params=params,
        actor=who.actor,
        priority=priority_of(payload.priority),
        agent=who.agent,
        supervisor=payload.supervisor,
    )
    return Status(202, request_out(asked))


@router.get("/maintenance/requests/{request_id}", response=RequestOut)
def get_request(request: HttpRequest, request_id: RequestId) -> RequestOut:
    """Get the state of one request, and the reason if nothing can work on it."""
    row = _own(principal(request), request_id)
    return request_out(row).model_copy(update={"message": supervision.describe_status(row)})


@router.post("/maintenance/requests/{request_id}/cancel", response=RequestOut)
def cancel_request(
    request: HttpRequest, request_id: RequestId, payload: CancelOrder | None = None
) -> RequestOut:
    """Cancel a request. It ends as failed with the error "cancelled: REASON", and what it has
    started is stopped.

    Cancelling a finished request changes nothing.
    """
    _own(principal(request), request_id)
    reason = payload.reason if payload else ""
    return request_out(queue.cancel(request_id=request_id, actor=actor(request), reason=reason))


@router.post("/maintenance/requests/{request_id}/pause", response={200: RequestOut, 409: Problem})
def pause_request(request: HttpRequest, request_id: RequestId) -> RequestOut:
    """Pause a request. It stops within a second, and uses no energy until it is resumed."""
    _own(principal(request), request_id)
    return request_out(queue.pause(request_id=request_id, actor=actor(request)))


@router.post("/maintenance/requests/{request_id}/resume", response={200: RequestOut, 409: Problem})
def resume_request(request: HttpRequest, request_id: RequestId) -> RequestOut:
    """Resume a request after its last completed step."""
    _own(principal(request), request_id)
    return request_out(queue.resume(request_id=request_id, actor=actor(request)))


@router.get("/maintenance/messages", response=MessagesOut)
def list_messages(request: HttpRequest) -> MessagesOut:
    """List the oldest hundred messages that were not polled yet. An agent sees those of its own
    requests."""
    return MessagesOut(
        items=[
            message_out(each)
            for each in queue.query_waiting_messages(_query_visible(principal(request)))
        ]
    )


@router.post("/maintenance/messages/poll", response=MessagesOut)
@once()
def poll_messages(request: HttpRequest) -> MessagesOut:
    """Poll the same messages. Each message is returned once; if an answer was lost, repeat its
    Idempotency-Key."""
    return MessagesOut(
        items=[
            message_out(each) for each in queue.poll_messages(_query_visible(principal(request)))
        ]
    )


@router.get("/maintenance/active", response=Activity)
def get_activity(request: HttpRequest) -> Activity:
    """Get whether the sub-agent works on a request now, and how many requests are open."""
    rows = _query_visible(principal(request))
    on = Configuration.load().sub_agent_enabled
    return Activity(enabled=on, active=queue.has_active_work(rows), open=rows.open().count())


@router.post("/maintenance/start", response=Activity)
def start_sub_agent(request: HttpRequest) -> Activity:
    """Enable the sub-agent for the whole site. It starts to work on queued requests."""
    supervision.switch(on=True, actor=actor(request))
    return get_activity(request)


@router.post("/maintenance/stop", response=Activity)
def stop_sub_agent(request: HttpRequest) -> Activity:
    """Disable the sub-agent for the whole site. Queued requests stay queued, running requests pause
    within a second."""
    supervision.switch(on=False, actor=actor(request))
    return get_activity(request)


@router.post("/maintenance/energy/poll", response=PolledEnergyOut)
@once()
def poll_energy(request: HttpRequest) -> PolledEnergyOut:
    """Get the energy that was used since the last poll. Each unit is reported once, even if several
    clients poll.

    Energy of agents with an energy pool is charged to their pools, and not reported here.
    """
    return PolledEnergyOut(
        energy=sum(queue.take_energy(exclude_pooled(_query_visible(principal(request)))).values())
    )


@router.get("/maintenance/proposals", response=Page[ProposalOut])
def list_proposals(
    request: HttpRequest,
    *,
    state: ProposalState | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ProposalOut]:
    """List proposals, newest first."""
    rows = Proposal.objects.select_related("request", "server")
    if state is not None:
        rows = rows.filter(state=state)
    return read_page(
        rows,
        order=("-id",),
        limit=limit,
        cursor=cursor,
        show=partial(proposal_out, whole=_whole(request)),
    )


@router.post(
    "/maintenance/proposals/{proposal_id}/apply", response={200: ProposalOut, 409: Problem}
)
def apply_proposal(
    request: HttpRequest,
    proposal_id: lookup.Id,
    payload: Annotated[ProposalApplication | None, Body()] = None,
) -> ProposalOut:
    """Apply a proposal as your own change. A new or changed launch is a draft until a user confirms
    it.

    Send a body only for a new server that is proposed from registries (`result.registry_entries` of
    the request).
    """
    user = person(request)
    assert user is not None  # the table lets no agent in
    choice = None
    if payload is not None and payload.entry is not None:
        entry = lookup.one(
            RegistryEntry.objects.select_related("source"), "entry", pk=payload.entry.id
        )
        choice = proposals.ChosenEntry(entry, payload.entry.wish())
    applied = proposals.apply(
        proposal_id=proposal_id, user=user, actor=actor(request), choice=choice
    )
    return proposal_out(applied, whole=_whole(request))


@router.post(
    "/maintenance/proposals/{proposal_id}/decline", response={200: ProposalOut, 409: Problem}
)
def decline_proposal(request: HttpRequest, proposal_id: lookup.Id) -> ProposalOut:
    """Decline a proposal. Nothing is changed."""
    return proposal_out(
        proposals.decline(proposal_id=proposal_id, actor=actor(request)), whole=_whole(request)
    )


def _whole(request: HttpRequest) -> bool:
    return may_see_secrets_of_launch(person(request))


def _query_visible(who: Principal) -> MaintenanceRequestQuerySet:
    return MaintenanceRequest.objects.visible_to(who.who)


def _own(who: Principal, request_id: str) -> MaintenanceRequest:
    return lookup.one(_query_visible(who), "request", pk=request_id)


api.add_router("", router)
