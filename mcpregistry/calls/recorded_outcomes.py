"""How a call ended, from its record alone: for whoever was not there when it did."""

from __future__ import annotations

import json

from mcpregistry.calls.call import CallOutcome
from mcpregistry.domain.lifecycle import TERMINAL, InvocationState
from mcpregistry.models import ApprovalRequest, HostTask, Invocation


def load_outcome(call_id: str) -> CallOutcome | None:
    """The same by the call's id; None while it is open, or when there is no such record."""
    call = Invocation.objects.filter(pk=call_id, state__in=[*TERMINAL]).first()
    return build_recorded_outcome(call) if call else None


def build_recorded_outcome(call: Invocation) -> CallOutcome:
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
        InvocationState(call.state),
        result,
        call.error_code,
        call.reason,
        duration_ms=duration,
        warning=call.warning,
    )
