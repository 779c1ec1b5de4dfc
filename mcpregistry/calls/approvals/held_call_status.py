"""How a held call stands, in words for its caller: the same over MCP, REST and
``mcp_approval_status``."""

from __future__ import annotations

from typing import Any

from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.offer_kinds import TOOL
from mcpregistry.services.approvals.held_calls import HeldCallTicket


def describe_held_call(
    ticket: HeldCallTicket, state: InvocationState, kind: str = TOOL
) -> dict[str, Any]:
    """How a held call stands and what its caller does next: ``message`` says all of it in words."""
    by = ticket.decide_by.isoformat(timespec="seconds").replace("+00:00", "Z")
    if state is InvocationState.PENDING:
        what = (
            f"PENDING APPROVAL: this call has not run. It waits for {ticket.asked_of}, until {by}. "
            "Tell the user, so that they can ask for a decision."
        )
        when = "After the decision"
    elif state is InvocationState.READY:
        what = "APPROVED: this call has not run yet and can run now."
        when = "Now"
    else:
        what = "APPROVED: this call is running."
        when = "In a moment"
    repeat = "call the same tool again" if kind == TOOL else f"request the same {kind} again"
    again = (
        f"{when}, {repeat} with exactly the same arguments to get its result; the call runs only once. "
        f'To see its status, call mcp_approval_status with the id "{ticket.id}". '
        "Do not change the arguments, and do not try to reach the same goal in another way."
    )
    return {
        "status": "pending" if state is InvocationState.PENDING else "approved",
        "message": f"{what} {again} Page: {ticket.url}",
        "approval": ticket.id,
        "call": ticket.call_id,
        "state": state.value,
        "asked_of": ticket.asked_of,
        "decide_by": by,
        "url": ticket.url,
    }
