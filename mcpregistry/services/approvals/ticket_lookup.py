"""Held calls by who made them: for a process that does not know whether what it asked for was
written."""

from __future__ import annotations

from mcpregistry.models import ApprovalRequest
from mcpregistry.services.approvals.held_calls import HeldCallTicket, make_ticket


def find_caller_ticket(*, call_id: str) -> HeldCallTicket | None:
    """What the caller would hold that made this call, had it heard of it: a seat, or the handle of
    its task."""
    rows = ApprovalRequest.objects.select_related("call__host_task", "group")
    if request := rows.filter(seats__pk=call_id).first():
        return make_ticket(request, joined=request.call_id != call_id, caller=call_id)
    request = rows.filter(call_id=call_id).first()
    if request is None:
        return None
    task = getattr(request.call, "host_task", None)
    return make_ticket(request, task_id=task.pk if task else "")
