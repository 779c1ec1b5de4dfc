"""How a model's answer ended, in our own few words, whatever the provider calls it."""

from __future__ import annotations

from enum import StrEnum


class Finish(StrEnum):
    """The outcome of a request that was answered at all; other failures are a ``ModelError``."""

    STOP = "stop"
    CALLS = "calls"  # it asks for tools
    LENGTH = "length"  # cut off at the output limit
    POLICY = "policy"  # the provider's filter has withheld the answer or broken it off
    REFUSAL = "refusal"  # the model itself declines
    EMPTY = "empty"  # neither text nor calls, and no reason

    @property
    def answered(self) -> bool:
        """Whether the model has said what it wanted to say, or as much as fitted."""
        return self in (Finish.STOP, Finish.CALLS, Finish.LENGTH)


def finish_of(reason: str | None, *, text: str, calls: int, refused: bool = False) -> Finish:
    """``reason``: of the provider, in OpenAI's words (litellm translates); ``refused``: the model
    said so itself."""
    if refused:
        return Finish.REFUSAL
    if reason == "content_filter":
        return Finish.POLICY
    if reason == "length":
        return Finish.LENGTH
    if calls:
        return Finish.CALLS
    return Finish.STOP if text.strip() else Finish.EMPTY
