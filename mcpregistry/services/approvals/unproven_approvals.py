"""Approved calls that the audit log contradicts: they are not sent, and the operator is told.

Votes and terms are rows, which whoever can write to the database can invent. The entries about them
are signed with a key that is not in the database (``signed_calls.find_contradictions``).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial

import structlog
from django.db import transaction

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.models import ApprovalRequest
from mcpregistry.services.approvals import held_calls
from mcpregistry.services.records import audit

log = structlog.get_logger(__name__)

CODE = "APPROVAL_UNPROVEN"  # the error code of such a call
_MOST = 20  # problems that the entry names
_REMEDY = "The call was not made. Ask an operator to run `manage.py audit verify`: the database was changed outside of Slipsnisse."


@transaction.atomic
def refuse(*, request_id: str, problems: Sequence[str], now: datetime) -> InvocationState:
    """End an approved request for these problems. A request that has moved on since it was looked
    at stays as it is."""
    request = held_calls.lock_request(request_id)
    words = f"The audit log does not prove the approval of this call: {problems[0]}. {_REMEDY}"
    ready = request.call.state == InvocationState.READY
    if ready and held_calls.end(
        request, InvocationState.VOID, reason=words, actor="approvals", now=now, code=CODE
    ):
        # an answer that is kept is not this call's
        ApprovalRequest.objects.filter(pk=request_id).update(result="")
        said = list(problems[:_MOST])
        audit.record_entry(
            kind="approval.unproven",
            actor="approvals",
            subject=f"call:{request.call_id}",
            problems=said,
        )
        transaction.on_commit(
            partial(log.error, "approval.unproven", call=request.call_id, problems=said)
        )
    return InvocationState(request.call.state)
