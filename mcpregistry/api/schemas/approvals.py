"""Held calls over REST: how one stands, and what a person decides on it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.utils import timezone
from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.basics import Object, StrictInput, Text, When, cap_text, decode_json
from mcpregistry.calls.approvals.held_call_status import describe_held_call
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest, ApprovalVote
from mcpregistry.services.approvals import held_calls, refusals
from mcpregistry.services.approvals.requests import hash_current_arguments

Reason = Annotated[
    Text,
    Field(
        max_length=2000, description="Reason for the decision. The agent reads exactly this text."
    ),
]


class Ticket(Schema):
    """The handle of a held call for its caller."""

    id: str
    state: str
    message: str = Field(description="The state of the held call and what to do next, in words.")
    asked_of: str
    decide_by: datetime
    url: str = Field(description="Address of the page on which the call is decided.")


class VoteOut(Schema):
    """The vote of one approver on a held call."""

    name: str
    approve: bool
    reason: str
    via: str
    at: datetime


class ApprovalOut(Schema):
    """A held call in a list."""

    id: str
    call: str
    state: str = Field(description="State of the call: pending, ready, or how it ended.")
    agent: str
    requester: str = Field(
        description="The user who requested the call, if known. They cannot approve it."
    )
    endpoint: str
    server: str
    tool: str
    rule: str
    group: str | None
    quorum: int
    risk: str
    waiting_as: str
    asked_at: datetime
    decide_by: datetime
    decided_at: datetime | None
    decided_reason: str
    execute_by: datetime | None
    url: str


class ApprovalDetail(ApprovalOut):
    """A held call with arguments and votes.

    Arguments are null if retention has erased them, or if they are too long to show. ``said`` is
    the message of the agent. It is not verified.
    """

    arguments: Any
    edited: Any = Field(
        description="The edited arguments that run instead of the original ones. Null if they were not edited."
    )
    seen: str = Field(
        description="SHA-256 of the arguments that would run now. Send it with an approval."
    )
    votes: list[VoteOut]
    said: str
    refused_until: datetime | None = Field(
        description="Until this time, the identical call is refused without asking an approver again. Null if the call "
        "would be held again."
    )


class PermitOrder(StrictInput):
    """Allow more calls of this kind to the agent in advance. A permit can only be narrower than
    this call."""

    until: When
    pins: Object = Field(
        default={}, description="Names and values of some of the arguments of this call."
    )
    uses: Annotated[int, Field(ge=1, le=100_000)] | None = None


class ApproveOrder(StrictInput):
    """Approve the arguments that were shown (``seen``), or the edited ones given here, optionally
    with a permit."""

    seen: Annotated[
        Text,
        Field(
            min_length=64,
            max_length=64,
            description="The value of 'seen' in the held call that you checked.",
        ),
    ]
    reason: Reason = ""
    arguments: Object | None = Field(
        default=None,
        description="Approve the call with these arguments instead. The agent sees the change.",
    )
    permit: PermitOrder | None = None


class RejectOrder(StrictInput):
    """Reject the call. The agent reads the reason."""

    reason: Reason = ""


class LiftOrder(StrictInput):
    """Allow the same call to ask again. The reason is for the audit log."""

    reason: Reason = ""


class WithdrawOrder(StrictInput):
    """The caller withdraws its call."""

    reason: Reason = ""


class ResultOut(Schema):
    """How a held call ended, and the result of the tool, as MCP defines it."""

    approval: str
    call: str
    state: str
    success: bool
    message: str
    result: Any


def ticket_out(ticket: held_calls.HeldCallTicket, state: InvocationState) -> Ticket:
    """A ticket as its answer, with the addresses to ask at."""
    said = describe_held_call(ticket, state)
    return Ticket(
        id=ticket.id,
        state=state,
        message=said["message"],
        asked_of=ticket.asked_of,
        decide_by=ticket.decide_by,
        url=ticket.url,
    )


def approval_out(row: ApprovalRequest) -> ApprovalOut:
    """The row as its answer."""
    return ApprovalOut(**_facts(row))


def approval_detail(row: ApprovalRequest) -> ApprovalDetail:
    """The row as its answer, with arguments and votes."""
    return ApprovalDetail(
        **_facts(row),
        arguments=decode_json(row.call.arguments),
        edited=decode_json(row.edited),
        seen=hash_current_arguments(row),
        votes=[_vote(vote) for vote in row.votes.all()],
        said=cap_text(row.said),
        refused_until=refusals.find_refusal_end(row, timezone.now()),
    )


def _vote(vote: ApprovalVote) -> VoteOut:
    return VoteOut(
        name=vote.name, approve=vote.approve, reason=cap_text(vote.reason), via=vote.via, at=vote.at
    )


def _facts(row: ApprovalRequest) -> dict[str, Any]:
    call = row.call
    same = ("quorum", "risk", "waiting_as", "asked_at", "decide_by", "decided_at", "execute_by")
    return {name: getattr(row, name) for name in same} | {
        "id": row.pk,
        "call": call.pk,
        "state": InvocationState(call.state),
        "agent": call.agent_slug,
        "requester": call.requester,
        "endpoint": call.endpoint_slug,
        "server": call.server_slug,
        "tool": call.tool_name,
        "rule": row.rule_name,
        "group": row.group.name if row.group else None,
        "decided_reason": cap_text(row.decided_reason),
        "url": held_calls.make_ticket(row).url,
    }
