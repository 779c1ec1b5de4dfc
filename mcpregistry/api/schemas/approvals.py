"""Held calls over REST: how one stands, and what a person decides on it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.utils import timezone
from ninja import Schema
from pydantic import Field

from mcpregistry.api.schemas.basics import Input, Object, Text, When, capped, decoded
from mcpregistry.calls.approvals.status import status_of
from mcpregistry.domain.lifecycle import State
from mcpregistry.models import ApprovalRequest, ApprovalVote
from mcpregistry.services.approvals import held_calls, refusals
from mcpregistry.services.approvals.requests import arguments_hash

Reason = Annotated[Text, Field(max_length=2000, description="The agent is told it, word for word.")]


class Ticket(Schema):
    """What a caller holds of a held call."""

    id: str
    state: str
    message: str = Field(description="How it stands and what to do next, in words.")
    asked_of: str
    decide_by: datetime
    url: str = Field(description="The page where it is decided.")


class VoteOut(Schema):
    """One person's word on a held call."""

    name: str
    approve: bool
    reason: str
    via: str
    at: datetime


class ApprovalOut(Schema):
    """A held call in a list."""

    id: str
    call: str
    state: str = Field(description="The call's own state: pending, ready, then how it ended.")
    agent: str
    requester: str = Field(description="The person who asked, where one is known; they may not approve it.")
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

    Arguments are null once retention has erased them, or when they are too long to show. ``said`` are the agent's own
    words. Do not trust them.
    """

    arguments: Any
    edited: Any = Field(description="The arguments that run instead of those asked for; null when nobody edited.")
    seen: str = Field(description="Send it back with an approval: SHA-256 of the arguments that would run now.")
    votes: list[VoteOut]
    said: str
    refused_until: datetime | None = Field(
        description="Until then the identical call gets this refusal, and nobody is asked; null: it is asked about."
    )


class PermitOrder(Input):
    """Allow more such calls of this agent ahead. It can only narrow what this call asked for."""

    until: When
    pins: Object = Field(default={}, description="Some of this call's arguments, with their values.")
    uses: Annotated[int, Field(ge=1, le=100_000)] | None = None


class ApproveOrder(Input):
    """A yes to the arguments that were shown (``seen``), or to other ones given here; perhaps with a permit."""

    seen: Annotated[Text, Field(min_length=64, max_length=64, description="'seen' of what you looked at.")]
    reason: Reason = ""
    arguments: Object | None = Field(default=None, description="Approve with these instead; the agent is told.")
    permit: PermitOrder | None = None


class RejectOrder(Input):
    """A no. The agent reads the reason."""

    reason: Reason = ""


class LiftOrder(Input):
    """The refusal is taken back. The reason is for the audit log."""

    reason: Reason = ""


class WithdrawOrder(Input):
    """The caller takes its call back."""

    reason: Reason = ""


class ResultOut(Schema):
    """How a held call ended, and what the tool answered, as MCP has it."""

    approval: str
    call: str
    state: str
    success: bool
    message: str
    result: Any


def ticket_out(ticket: held_calls.Ticket, state: State) -> Ticket:
    """A ticket as its answer, with the addresses to ask at."""
    said = status_of(ticket, state)
    return Ticket(
        id=ticket.id, state=state, message=said["message"], asked_of=ticket.asked_of, decide_by=ticket.decide_by,
        url=ticket.url,
    )  # fmt: skip


def approval_out(row: ApprovalRequest) -> ApprovalOut:
    """The row as its answer."""
    return ApprovalOut(**_facts(row))


def approval_detail(row: ApprovalRequest) -> ApprovalDetail:
    """The row as its answer, with arguments and votes."""
    return ApprovalDetail(
        **_facts(row), arguments=decoded(row.call.arguments), edited=decoded(row.edited), seen=arguments_hash(row),
        votes=[_vote(vote) for vote in row.votes.all()], said=capped(row.said),
        refused_until=refusals.holds_until(row, timezone.now()),
    )  # fmt: skip


def _vote(vote: ApprovalVote) -> VoteOut:
    return VoteOut(name=vote.name, approve=vote.approve, reason=capped(vote.reason), via=vote.via, at=vote.at)


def _facts(row: ApprovalRequest) -> dict[str, Any]:
    call = row.call
    same = ("quorum", "risk", "waiting_as", "asked_at", "decide_by", "decided_at", "execute_by")
    return {name: getattr(row, name) for name in same} | {
        "id": row.pk,
        "call": call.pk,
        "state": State(call.state),
        "agent": call.agent_slug,
        "requester": call.requester,
        "endpoint": call.endpoint_slug,
        "server": call.server_slug,
        "tool": call.tool_name,
        "rule": row.rule_name,
        "group": row.group.name if row.group else None,
        "decided_reason": capped(row.decided_reason),
        "url": held_calls.ticket_of(row).url,
    }
