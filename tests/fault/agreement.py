"""The invariant of everything that fails: what a caller was told agrees with the record, and with
what was sent.

Told that it succeeded: it did. Told that it was not sent, or cancelled, refused or expired: nothing
reached the server, and the record knows of no sending. Told "pending" or "unknown": there is a
record that says what becomes of it. The cells in which the database fails look at it, and so does
the matrix of deaths (``matrix.py``).
"""

from __future__ import annotations

from mcpregistry.calls.call import CallOutcome
from mcpregistry.domain.lifecycle import TERMINAL, InvocationState
from mcpregistry.models import AuditEntry, Invocation

_ANSWERED = {InvocationState.SUCCEEDED, InvocationState.TOOL_ERROR}
# what the record may say of a call that was not sent; None: nothing
_LET_GO = {None, InvocationState.NOT_SENT, InvocationState.CANCELLED}


def contradictions(told: InvocationState, call_id: str, sent: int) -> list[str]:
    """What is wrong between the words to the caller, the row, the audit log, and how often the
    server was asked."""
    recorded = Invocation.objects.filter(pk=call_id).values_list("state", flat=True).first()
    dispatched = AuditEntry.objects.filter(
        kind="call.dispatched", subject=f"call:{call_id}"
    ).count()
    fair = {
        "it was sent twice": sent <= 1 and dispatched <= 1,
        "it was sent without a record of that": dispatched >= sent,
        f"the record says {recorded}": _may_be_recorded(
            told, InvocationState(recorded) if recorded else None
        ),
        "it was sent, or may have been": told
        not in TERMINAL - _ANSWERED - {InvocationState.UNKNOWN}
        or sent == 0,
        "the record says that it was sent": told not in _NEVER or dispatched == 0,
        "it never reached the server": told not in _ANSWERED or sent == 1,
    }
    return [f"told {told}, but {wrong}" for wrong, holds in fair.items() if not holds]


_NEVER = {
    InvocationState.DENIED,
    InvocationState.REJECTED,
    InvocationState.EXPIRED,
    InvocationState.CANCELLED,
    InvocationState.VOID,
}


def _may_be_recorded(told: InvocationState, recorded: InvocationState | None) -> bool:
    match told:
        case InvocationState.NOT_SENT:
            return recorded in _LET_GO
        case InvocationState.DENIED | InvocationState.CANCELLED:
            # refused while the database was away: then there is no record
            return recorded in (None, told)
        case InvocationState.UNKNOWN:
            return recorded is not None
        case InvocationState.PENDING | InvocationState.READY | InvocationState.DISPATCHED:
            # nothing is over, and coming back finds it
            return recorded is not None and recorded not in TERMINAL
    return recorded is told


def agrees(told: CallOutcome, sent: int) -> None:
    """Of a call of this process; in a database thread."""
    assert contradictions(told.state, told.invocation_id, sent) == []
