"""What a caller is told of a call's end, in words: a model mostly reads nothing but text.

Two ends look alike in their codes and must not in their words: of a call that was not sent nothing
has happened, of one that was sent and not answered nobody knows. A model that does not read the
difference repeats the call.
"""

from __future__ import annotations

from mcpregistry.domain.error_texts import OUTCOME_UNKNOWN
from mcpregistry.domain.lifecycle import InvocationState

NOT_SENT = "The call was not sent, so nothing has happened."
LOOK_FIRST = f"{OUTCOME_UNKNOWN} Do not repeat it before you have checked, or asked the user."
CUT_OFF = f"OUTCOME UNKNOWN: this process of Slipsnisse stopped before it answered. {LOOK_FIRST}"
_ONLY_READS = f"{OUTCOME_UNKNOWN} An approver has confirmed that the tool only reads, so you can repeat the call."
_IDEMPOTENT = (
    f"{OUTCOME_UNKNOWN} An approver has confirmed that repeating the tool with the same arguments has no further effect, "
    "so you can repeat the call."
)
_ASK_AGAIN = "Tell the user. If the call is still needed, make it again: approvers are asked again."
RECORD_LATE = "The outcome of this call could not be recorded yet. Until it is recorded, the record shows the call as in progress or unknown."
CORRECTED = "This call was first reported as OUTCOME UNKNOWN, because no outcome was recorded in time. This is its real outcome:"
_HEADLINES = {InvocationState.UNKNOWN: "OUTCOME UNKNOWN", InvocationState.NOT_SENT: "NOT SENT"}


def advise_after_end(
    state: InvocationState, *, read_only: bool | None = False, idempotent: bool = False
) -> str:
    """What follows from the end itself, whatever has caused it; "" where the cause says it all.

    ``read_only`` and ``idempotent`` are what an approver has confirmed of the tool.
    """
    if state is InvocationState.NOT_SENT:
        return NOT_SENT
    if state is InvocationState.EXPIRED:
        return _ASK_AGAIN
    if state is not InvocationState.UNKNOWN:
        return ""
    if read_only:
        return _ONLY_READS
    return _IDEMPOTENT if idempotent else LOOK_FIRST


def compose_headline(state: InvocationState, code: str) -> str:
    """How a text about this end begins: the error's code, and before it what became of the call,
    where that is in doubt."""
    named = _HEADLINES.get(state, "")
    return f"{named} ({code})" if named and code else named or code
