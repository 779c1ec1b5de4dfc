"""How a held call stands, in words for its caller: the same over MCP, REST and ``mcp_approval_status``."""

from __future__ import annotations

from typing import Any

from mcpregistry.domain.kinds import TOOL
from mcpregistry.domain.lifecycle import State
from mcpregistry.services.approvals.held_calls import Ticket


def status_of(ticket: Ticket, state: State, kind: str = TOOL) -> dict[str, Any]:
    """How a held call stands and what its caller does next: ``message`` says all of it in words."""
    by = ticket.decide_by.isoformat(timespec="seconds").replace("+00:00", "Z")
    if state is State.PENDING:
        what = f"PENDING APPROVAL: this call has not been made. It waits for {ticket.asked_of}, until {by}."
        then = "Tell the user, who may know whom to ask. Afterwards"
    elif state is State.READY:
        what = "APPROVED: this call may run and has not run yet."
        then = "Now"
    else:
        what = "APPROVED: this call is running."
        then = "In a moment"
    repeat = "call the same tool again" if kind == TOOL else f"ask for the same {kind} again"
    again = (
        f"{repeat} with exactly the same arguments: it runs once, and you get its result. "
        f'Or call mcp_approval_status with the id "{ticket.id}". '
        "Do not change the arguments, and do not try another way."
    )
    return {
        "status": "pending" if state is State.PENDING else "approved",
        "message": f"{what} {then} {again} Page: {ticket.url}",
        "approval": ticket.id,
        "call": ticket.call_id,
        "state": state.value,
        "asked_of": ticket.asked_of,
        "decide_by": by,
        "url": ticket.url,
    }
