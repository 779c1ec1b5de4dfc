"""How a call ended, from its record alone: for whoever was not there when it did."""

from __future__ import annotations

import json

from mcpregistry.calls.call import CallOutcome
from mcpregistry.domain.lifecycle import TERMINAL, State
from mcpregistry.models import ApprovalRequest, HostTask, Invocation


def outcome_by_id(call_id: str) -> CallOutcome | None:
    """The same by the call's id; None while it is open, or when there is no such record."""
    call = Invocation.objects.filter(pk=call_id, state__in=[*TERMINAL]).first()
    return outcome_of_record(call) if call else None


def outcome_of_record(call: Invocation) -> CallOutcome:
    """Of a call that has ended. The result is there while retention keeps it; of a long one perhaps
    only its beginning."""
    held = ApprovalRequest.objects.filter(call=call).only("result").first()
    text = (held.result if held else "") or call.result
    task = HostTask.objects.filter(call=call).exclude(result="").only("result").first()
    try:
        if task:
            result = json.loads(task.result).get("result")
        elif text:
            result = json.loads(text)
        else:
            result = None
    except ValueError:  # only its beginning was kept
        result = {
            "content": [
                {"type": "text", "text": f"{text}\n(the rest of this result was not stored)"}
            ]
        }
    duration = call.duration_ms or 0.0
    return CallOutcome(
        call.pk,
        State(call.state),
        result,
        call.error_code,
        call.reason,
        duration_ms=duration,
        warning=call.warning,
    )
