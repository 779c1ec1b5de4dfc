"""States of runs and of the tool calls in them, and why runs end."""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    """Where a run stands; the values are stored in ``Run.state``."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"  # for a person's decision on one of its calls
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


# What the code really does: leases are taken only in these states, and every other move is a fault
# of ours.
RUN_MOVES: dict[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset({RunState.RUNNING, RunState.CANCELLED, RunState.FAILED}),
    RunState.RUNNING: frozenset(
        {RunState.WAITING, RunState.DONE, RunState.FAILED, RunState.CANCELLED}
    ),
    RunState.WAITING: frozenset({RunState.RUNNING, RunState.FAILED, RunState.CANCELLED}),
}


class CallState(StrEnum):
    """Where a tool call of a run stands; the values are stored in ``ToolCall.state``."""

    PLANNED = "planned"
    WAITING = "waiting"  # for a person
    STARTED = "started"  # it may have been sent
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"  # never sent: no such tool, bad arguments, denied, rejected
    UNKNOWN = "unknown"  # sent, and nobody knows what became of it
    CANCELLED = "cancelled"


CALL_MOVES: dict[CallState, frozenset[CallState]] = {
    CallState.PLANNED: frozenset(
        {CallState.STARTED, CallState.REFUSED, CallState.CANCELLED, CallState.UNKNOWN}
    ),
    # (planned -> unknown: an operator wanted it made again, and the run ended before it was)
    # back to planned: it was found that nothing had been sent, or that repeating does no harm
    CallState.STARTED: frozenset(
        {
            CallState.WAITING,
            CallState.DONE,
            CallState.FAILED,
            CallState.REFUSED,
            CallState.UNKNOWN,
            CallState.PLANNED,
            CallState.CANCELLED,
        }
    ),
    CallState.WAITING: frozenset(
        {
            CallState.DONE,
            CallState.FAILED,
            CallState.REFUSED,
            CallState.UNKNOWN,
            CallState.CANCELLED,
        }
    ),
    # an operator settles it: done, failed, or again
    CallState.UNKNOWN: frozenset({CallState.DONE, CallState.FAILED, CallState.PLANNED}),
}
OPEN_CALLS = (CallState.PLANNED, CallState.WAITING, CallState.STARTED)


class Exit(StrEnum):
    """Why a run ended, in the names of the agent tools that operators know (S2, netdata
    ai-agent)."""

    ANSWER = "EXIT-FINAL-ANSWER"
    MAX_TURNS = "EXIT-MAX-TURNS-WITH-RESPONSE"
    TOKEN_LIMIT = "EXIT-TOKEN-LIMIT"  # noqa: S105
    TIME_LIMIT = "EXIT-TIME-LIMIT"
    BUDGET = "EXIT-BUDGET"
    ENERGY = "EXIT-ENERGY"  # the agent's energy pool does not bear another turn
    CUT = "EXIT-OUTPUT-CUT"  # the answer breaks off where the model's output limit was
    CANCELLED = "EXIT-USER-STOP"
    AUTH = "EXIT-AUTH-FAILURE"
    QUOTA = "EXIT-QUOTA-EXCEEDED"
    MODEL = "EXIT-MODEL-ERROR"
    NO_RESPONSE = "EXIT-NO-LLM-RESPONSE"
    EMPTY = "EXIT-EMPTY-RESPONSE"
    TOOL = "EXIT-TOOL-FAILURE"
    INVALID_OUTPUT = "EXIT-OUTPUT-INVALID"
    CRASHED = "EXIT-INTERNAL-ERROR"
