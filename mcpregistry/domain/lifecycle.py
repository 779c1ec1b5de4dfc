"""The states of an Invocation and the moves between them. Terminal states never change again, but
for ``SUPPOSED``."""

from __future__ import annotations

from enum import StrEnum


class InvocationState(StrEnum):
    """Where one call stands; the values are stored in ``Invocation.state``. The moves
    are drawn in ``docs/explanation/architecture.md``."""

    RECEIVED = "received"
    DENIED = "denied"
    PENDING = "pending"
    READY = "ready"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    VOID = "void"
    DISPATCHED = "dispatched"
    SUCCEEDED = "succeeded"
    TOOL_ERROR = "tool_error"
    NOT_SENT = "not_sent"
    UNKNOWN = "unknown"


MOVES: dict[InvocationState, frozenset[InvocationState]] = {
    InvocationState.RECEIVED: frozenset(
        {InvocationState.DENIED, InvocationState.PENDING, InvocationState.READY}
    ),
    InvocationState.PENDING: frozenset(
        {
            InvocationState.REJECTED,
            InvocationState.EXPIRED,
            InvocationState.CANCELLED,
            InvocationState.VOID,
            InvocationState.READY,
        }
    ),
    # READY may still lose its approval's ground (void) or its caller (cancelled) before the claim.
    InvocationState.READY: frozenset(
        {
            InvocationState.DISPATCHED,
            InvocationState.VOID,
            InvocationState.CANCELLED,
            InvocationState.EXPIRED,
        }
    ),
    InvocationState.DISPATCHED: frozenset(
        {
            InvocationState.SUCCEEDED,
            InvocationState.TOOL_ERROR,
            InvocationState.NOT_SENT,
            InvocationState.UNKNOWN,
        }
    ),
}

# The error code of an UNKNOWN that nobody has seen: the clock supposed it of a call whose lease ran
# out. It is the one end that another may replace, see ``CORRECTIONS``.
SUPPOSED = "LEASE_EXPIRED"

TERMINAL: frozenset[InvocationState] = frozenset(
    state for state in InvocationState if state not in MOVES
)

# Ends that count as failures of the server or of us; a refusal by policy is not one.
FAILED = (InvocationState.TOOL_ERROR, InvocationState.NOT_SENT, InvocationState.UNKNOWN)

# Ended, and nothing ran.
NEVER_RAN: frozenset[InvocationState] = TERMINAL - MOVES[InvocationState.DISPATCHED] | {
    InvocationState.NOT_SENT
}

# What a supposed UNKNOWN may become: what the process that has the server's answer says, though it
# was thought dead.
CORRECTIONS: frozenset[InvocationState] = MOVES[InvocationState.DISPATCHED] - {
    InvocationState.UNKNOWN
}


def is_move_allowed(old: InvocationState, new: InvocationState) -> bool:
    """Whether ``MOVES`` allows the step from ``old`` to ``new``."""
    return new in MOVES.get(old, frozenset())
