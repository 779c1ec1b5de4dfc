"""A refused call is not asked about again at once: the identical call gets the refusal back.

Identical is the same agent, tool and canonical arguments, by whatever endpoint. How long the
refusal holds is what the rule that would ask says now, so whoever changes the rule, or lets the
call run by a rule or a permit, lifts it, and so does who may decide on the request and takes the
refusal back (``votes.lift_refusal``). Looked up only where people would be asked; every process
sees it, because it stands in the request that was refused.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings

from mcpregistry.domain.calls.binding import compute_call_key
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.policy.decision import DEFAULT_TERMS, Terms
from mcpregistry.models import ApprovalRequest
from mcpregistry.services.records.call_rows import HeldCallColumns


class RefusedBefore(SlipsnisseError):
    """People refused this very call a moment ago. ``request_id`` is that of the request that they
    decided on."""

    code = "REJECTED"

    def __init__(self, message: str, *, remedy: str = "", request_id: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.request_id = request_id


def remember(request: ApprovalRequest) -> None:
    """Somebody has refused it; within that transaction."""
    call = request.call
    key = compute_call_key(
        agent=call.agent_slug,
        server=call.server_slug,
        tool=call.tool_name,
        arguments=call.arguments,
    )
    ApprovalRequest.objects.filter(pk=request.pk).update(refused_key=key)


def forget(request: ApprovalRequest) -> bool:
    """The identical call is asked about again; whoever comes back for what was decided starts anew,
    too. Within the caller's transaction. False: there is no refusal of it to forget.
    """
    key = request.refused_key
    return bool(
        key
        and ApprovalRequest.objects.filter(refused_key=key).update(refused_key=None, join_key=None)
    )


def find_refusal_end(request: ApprovalRequest, now: datetime) -> datetime | None:
    """Until when the identical call gets this refusal back, as the rule that asked says now. None:
    it does not."""
    if request.refused_key is None or request.decided_at is None:
        return None
    rule = request.rule or DEFAULT_TERMS
    until = request.decided_at + timedelta(seconds=rule.refusal_seconds)
    return until if until > now else None


def check(*, row: HeldCallColumns, terms: Terms, now: datetime) -> None:
    """Raise RefusedBefore when people have refused this very call and need not look at it again
    yet."""
    if not terms.refusal_seconds:
        return
    key = compute_call_key(
        agent=row["agent_slug"],
        server=row["server_slug"],
        tool=row["tool_name"],
        arguments=row["arguments"],
    )
    since = now - timedelta(seconds=terms.refusal_seconds)
    refused = ApprovalRequest.objects.filter(refused_key=key, decided_at__gt=since).select_related(
        "call"
    )
    if (last := refused.order_by("-decided_at").first()) is not None:
        raise _make_repeat_refusal(last, terms.refusal_seconds)


def _make_repeat_refusal(request: ApprovalRequest, seconds: int) -> RefusedBefore:
    assert request.decided_at is not None  # it was found by it
    until = (
        (request.decided_at + timedelta(seconds=seconds))
        .isoformat(timespec="seconds")
        .replace("+00:00", "Z")
    )
    page = f"{settings.SITE_URL}/approvals/{request.pk}/"
    return RefusedBefore(
        request.call.reason,
        remedy=f"The same call was rejected recently, so no approver was asked again. You can request this call again after {until}. You can see the decision on the page {page}",
        request_id=request.pk,
    )
