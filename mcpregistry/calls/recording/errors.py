"""Why a record was not made."""

from __future__ import annotations

from mcpregistry.domain.errors import SlipsnisseError


class NotRecorded(SlipsnisseError):
    """The database did not take the record, so the call must not happen."""

    code = "NOT_RECORDED"


def not_recorded() -> NotRecorded:
    """Of a call that was not made for that."""
    remedy = "Ask the operator: the database is full, locked, read-only or unavailable."
    return NotRecorded("The call was not made: it could not be recorded.", remedy=remedy)


def recorder_stopped() -> NotRecorded:
    """Of a call that nobody could record until the process starts again."""
    remedy = "Restart this process. Its log shows why the recorder stopped."
    return NotRecorded(
        "The call was not made: the recorder of this process has stopped.", remedy=remedy
    )


class NotClaimed(SlipsnisseError):
    """Somebody else has the call, or it is no longer what was to be claimed: look at it again."""

    code = "NOT_CLAIMED"


class EndedOtherwise(SlipsnisseError):
    """The call has another end in its record, which stays: look there."""

    code = "ENDED_OTHERWISE"
