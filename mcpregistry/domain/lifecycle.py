"""The states of an Invocation and the moves between them. Terminal states never change again, but
for ``SUPPOSED``."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where one call stands; the values are stored in ``Invocation.state``. DESIGN.md draws the
    moves."""

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


MOVES: dict[State, frozenset[State]] = {
    State.RECEIVED: frozenset({State.DENIED, State.PENDING, State.READY}),
    State.PENDING: frozenset(
        {State.REJECTED, State.EXPIRED, State.CANCELLED, State.VOID, State.READY}
    ),
    # READY may still lose its approval's ground (void) or its caller (cancelled) before the claim.
    State.READY: frozenset({State.DISPATCHED, State.VOID, State.CANCELLED, State.EXPIRED}),
    State.DISPATCHED: frozenset({State.SUCCEEDED, State.TOOL_ERROR, State.NOT_SENT, State.UNKNOWN}),
}

# The error code of an UNKNOWN that nobody has seen: the clock supposed it of a call whose lease ran
# out. It is the one end that another may replace, see ``CORRECTIONS``.
SUPPOSED = "LEASE_EXPIRED"

TERMINAL: frozenset[State] = frozenset(state for state in State if state not in MOVES)

# Ends that count as failures of the server or of us; a refusal by policy is not one.
FAILED = (State.TOOL_ERROR, State.NOT_SENT, State.UNKNOWN)

# Ended, and nothing ran.
NEVER_RAN: frozenset[State] = TERMINAL - MOVES[State.DISPATCHED] | {State.NOT_SENT}

# What a supposed UNKNOWN may become: what the process that has the server's answer says, though it
# was thought dead.
CORRECTIONS: frozenset[State] = MOVES[State.DISPATCHED] - {State.UNKNOWN}


def may_move(old: State, new: State) -> bool:
    """Whether ``MOVES`` allows the step from ``old`` to ``new``."""
    return new in MOVES.get(old, frozenset())
