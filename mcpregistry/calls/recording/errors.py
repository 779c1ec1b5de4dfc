"""Why a record was not made."""

from __future__ import annotations

from mcpregistry.domain.errors import SlipsnisseError


class NotRecordedError(SlipsnisseError):
    """The database did not take the record, so the call must not happen."""

    code = "NOT_RECORDED"


def make_not_recorded_error() -> NotRecordedError:
    """Of a call that was not made for that."""
    remedy = "Ask the operator to check the database. It is full, locked, read-only or unavailable."
    return NotRecordedError("The call was not made: it could not be recorded.", remedy=remedy)


def make_recorder_stopped_error() -> NotRecordedError:
    """Of a call that nobody could record until the process starts again."""
    remedy = "Restart this process. Its log shows why the recorder stopped."
    return NotRecordedError(
        "The call was not made: the recorder of this process has stopped.", remedy=remedy
    )


class NotClaimedError(SlipsnisseError):
    """Somebody else has the call, or it is no longer what was to be claimed: look at it again."""

    code = "NOT_CLAIMED"


class EndedOtherwiseError(SlipsnisseError):
    """The call has another end in its record, which stays: look there."""

    code = "ENDED_OTHERWISE"
