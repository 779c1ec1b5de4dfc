"""Held calls over REST: the queue, the decision (people only), and for agents how their own calls
stand.

The same rules as on the pages: ``services.approvals`` holds them. An agent sees its own requests;
those of others are absent to it. It can withdraw, and never decide.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from django.db.models import Prefetch
from django.http import HttpRequest
from ninja import Header, Path, Query, Status

from mcpregistry.api import lookup
from mcpregistry.api.auth import Principal, person, principal
from mcpregistry.api.paging import Cursor, Limit, read_page
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.approvals import (
    ApprovalDetail,
    ApprovalOut,
    ApproveOrder,
    LiftOrder,
    RejectOrder,
    ResultOut,
    Ticket,
    WithdrawOrder,
    approval_detail,
    approval_out,
    ticket_out,
)
from mcpregistry.api.schemas.basics import Page, Problem, Slug, Text, When
from mcpregistry.calls.engine import get_current_engine
from mcpregistry.db import db_call
from mcpregistry.domain.calls.wait_strategy import SHORT
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest, ApprovalVote
from mcpregistry.services.approvals import held_calls, votes
from mcpregistry.services.policy.permits import PermitWish

router = PermissionRouter(tags=["approvals"])

Id = Annotated[Text, Path(min_length=1, max_length=32)]
Prefer = Annotated[
    Text | None,
    Header(
        alias="Prefer",
        max_length=200,
        description=f"`wait=SECONDS`: how long to wait for the result, at most {SHORT:.0f} seconds.",
    ),
]
_ROWS = ApprovalRequest.objects.select_related("call", "group", "rule").prefetch_related(
    Prefetch("votes", ApprovalVote.objects.order_by("id"))
)
_PAYLOADS = ("said", "result", "edited", "call__arguments", "call__result")
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*(\d{1,6})\b", re.IGNORECASE | re.ASCII)


def seconds_to_wait(prefer: str | None) -> float:
    """``wait`` of a Prefer header (RFC 7240), 0 when there is none."""
    found = _WAIT.search(prefer or "")
    return min(float(found[1]), SHORT) if found else 0.0


@router.get("/approvals", response=Page[ApprovalOut])
def list_approvals(
    request: HttpRequest,
    *,
    state: Annotated[
        InvocationState | Literal["decided"] | None,
        Query(description="State of the call. `decided` means every state except pending."),
    ] = None,
    agent: Slug | None = None,
    server: Slug | None = None,
    tool: Annotated[Text | None, Query(max_length=500)] = None,
    rule: Annotated[
        Text | None, Query(max_length=200, description="Name of the rule when it held the call.")
    ] = None,
    risk: Literal["low", "medium", "high"] | None = None,
    since: Annotated[When | None, Query(description="Only requests from this time on.")] = None,
    until: Annotated[When | None, Query(description="Only requests before this time.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ApprovalOut]:
    """Held calls, newest first. An agent sees only its own."""
    exact = {
        "call__agent_slug": agent,
        "call__server_slug": server,
        "call__tool_name": tool,
        "rule_name": rule,
        "risk": risk,
        "asked_at__gte": since,
        "asked_at__lt": until,
    }
    rows = (
        _ROWS.visible_to(principal(request).who)
        .defer(*_PAYLOADS)
        .filter(**{k: v for k, v in exact.items() if v is not None})
    )
    if state == "decided":
        rows = rows.exclude(call__state=InvocationState.PENDING)
    elif state is not None:
        rows = rows.filter(call__state=state)
    return read_page(
        rows, order=("-asked_at", "-id"), limit=limit, cursor=cursor, show=approval_out
    )


@router.get("/approvals/{approval_id}", response=ApprovalDetail)
def get_approval(request: HttpRequest, approval_id: Id) -> ApprovalDetail:
    """One held call with its arguments, votes and outcome."""
    return _load_detail(principal(request), approval_id)


@router.get("/approvals/{approval_id}/result", response={200: ResultOut, 202: Ticket})
async def get_approval_result(
    request: HttpRequest, approval_id: Id, *, prefer: Prefer = None
) -> Status[ResultOut] | Status[Ticket]:
    """The result of the tool, or 202 while there is none.

    This operation never runs the call. To run an approved call, send the same call again.
    """
    row = await db_call(_own, principal(request), approval_id)
    held = get_current_engine().approvals
    ticket = await held.requests.find(row.pk, row.call.agent_slug)
    assert ticket is not None
    state = (
        await held.requests.wait_for_decision(ticket, seconds_to_wait(prefer))
        if ticket.state is InvocationState.PENDING
        else ticket.state
    )
    outcome = await held.runner.read_outcome(ticket)
    if (
        state in (InvocationState.PENDING, InvocationState.READY, InvocationState.DISPATCHED)
        and outcome.result is None
    ):
        return Status(202, ticket_out(ticket, outcome.state))
    return Status(
        200,
        ResultOut(
            approval=ticket.id,
            call=ticket.call_id,
            state=outcome.state,
            success=outcome.state is InvocationState.SUCCEEDED,
            message=f"{outcome.message} {outcome.remedy}".strip(),
            result=outcome.result,
        ),
    )


@router.post("/approvals/{approval_id}/approve", response={200: ApprovalDetail, 409: Problem})
def approve_call(request: HttpRequest, approval_id: Id, payload: ApproveOrder) -> ApprovalDetail:
    """Approve the call with exactly the arguments that `seen` identifies, or with the edited
    arguments in the request."""
    wish = payload.permit and PermitWish(
        payload.permit.until, payload.permit.pins, payload.permit.uses
    )
    user = person(request)
    assert user is not None, "the permission table lets no agent in"
    votes.vote(
        request_id=approval_id,
        user=user,
        approve=True,
        reason=payload.reason,
        arguments=payload.arguments,
        seen=payload.seen,
        permit=wish or None,
        via="rest",
    )
    return _load_detail(principal(request), approval_id)


@router.post("/approvals/{approval_id}/reject", response={200: ApprovalDetail, 409: Problem})
def reject_call(request: HttpRequest, approval_id: Id, payload: RejectOrder) -> ApprovalDetail:
    """Reject the call. One rejection is enough, and the call is never made."""
    user = person(request)
    assert user is not None, "the permission table lets no agent in"
    votes.vote(request_id=approval_id, user=user, approve=False, reason=payload.reason, via="rest")
    return _load_detail(principal(request), approval_id)


@router.post("/approvals/{approval_id}/lift-refusal", response={200: ApprovalDetail, 409: Problem})
def lift_refusal(request: HttpRequest, approval_id: Id, payload: LiftOrder) -> ApprovalDetail:
    """Allow the identical call to be requested again: it then waits for an approval. This call
    stays rejected."""
    user = person(request)
    assert user is not None, "the permission table lets no agent in"
    votes.lift_refusal(request_id=approval_id, user=user, reason=payload.reason)
    return _load_detail(principal(request), approval_id)


@router.post("/approvals/{approval_id}/withdraw", response={200: ApprovalDetail, 409: Problem})
def withdraw_call(request: HttpRequest, approval_id: Id, payload: WithdrawOrder) -> ApprovalDetail:
    """Cancel the request on behalf of its caller. A call that has already run is not changed."""
    who = principal(request)
    # who may call tools may take a call back
    rows = _ROWS.visible_to(who.agent) if who.agent else _ROWS.all()
    row = lookup.one(rows, "request", pk=approval_id)
    held_calls.cancel(
        request_id=row.pk, reason=payload.reason or "cancelled by its caller", actor=who.actor
    )
    return approval_detail(rows.get(pk=row.pk))


def _load_detail(who: Principal, approval_id: str) -> ApprovalDetail:
    return approval_detail(_own(who, approval_id))


def _own(who: Principal, approval_id: str) -> ApprovalRequest:
    """The request, if this principal may know of it. An agent knows of its own."""
    return lookup.one(_ROWS.visible_to(who.who), "request", pk=approval_id)
