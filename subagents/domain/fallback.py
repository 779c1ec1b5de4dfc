"""Which model is asked next: the first target until it fails, then the next; the request stays the
same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from subagents.domain.lifecycle import Exit
from subagents.domain.model_errors import After, ErrorKind, ModelError
from subagents.domain.spec import TargetSpec

ROUNDS = 3  # times that each target is asked for one turn
_LONGEST_WORDS = 200  # characters of a provider's refusal
_LONGEST_WAIT = 60.0  # that we choose; a provider may ask for more
_WAIT = 1.0
_ANSWER = 1.0  # seconds that a run must still have after a wait, to be answered at all


@dataclass(frozen=True, slots=True)
class Failed:
    """One attempt of this turn that failed. ``retry_after`` and ``ago`` are in seconds."""

    model_id: int
    kind: ErrorKind
    retry_after: float | None
    ago: float
    message: str = ""


@dataclass(frozen=True, slots=True)
class TargetAttempt:
    """Ask this target now. It gets ``seconds``, so that those which are asked after it have their
    share of the run's time."""

    target: TargetSpec
    seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class Wait:
    """No target may be asked for so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No target is left; why the run ends, and the last error. ``why`` says of each target what it
    came to."""

    exit: Exit
    kind: ErrorKind | None
    why: str = ""


_EXITS = {
    ErrorKind.AUTH: Exit.AUTH,
    ErrorKind.QUOTA: Exit.QUOTA,
    ErrorKind.NETWORK: Exit.NO_RESPONSE,
    ErrorKind.TIMEOUT: Exit.NO_RESPONSE,
    ErrorKind.CONTEXT: Exit.TOKEN_LIMIT,
    ErrorKind.EMPTY: Exit.EMPTY,
}


def choose(
    targets: Sequence[TargetSpec], failed: Sequence[Failed], *, left: float = math.inf
) -> TargetAttempt | Wait | GiveUp:
    """What to do for this turn after the attempts so far. Waits only when every target has to be
    waited for.

    ``left``: seconds that the run has; who asks to be left alone for longer is not waited for.
    """
    usable = [
        target for target in targets if not _out(target, failed) and _in_time(target, failed, left)
    ]
    if not usable:
        last = failed[-1].kind if failed else None
        return GiveUp(
            _EXITS.get(last, Exit.MODEL) if last else Exit.MODEL, last, _why(targets, failed, left)
        )
    rounds = min(_tries(target, failed) for target in usable)
    due = [target for target in usable if _tries(target, failed) == rounds]
    waits = [_wait(target, failed) for target in due]
    ready = [target for target, wait in zip(due, waits, strict=True) if wait <= 0]
    return TargetAttempt(ready[0], left / len(due)) if ready else Wait(min(waits))


def _why(targets: Sequence[TargetSpec], failed: Sequence[Failed], left: float) -> str:
    """Who was asked, and what came of it; and who was not."""
    return (
        " ".join(f"{target.label}: {_fate(target, failed, left)}" for target in targets)
        or "No model is configured."
    )


def _fate(target: TargetSpec, failed: Sequence[Failed], left: float) -> str:
    own = [f for f in failed if f.model_id == target.model_id]
    if not own:
        return "no request was sent."
    last = own[-1]
    times = f" ({len(own)} times)" if len(own) > 1 else ""
    said = f" ({last.message[:_LONGEST_WORDS]})" if last.message else ""
    if _out(target, failed) or _in_time(target, failed, left):
        return f"{last.kind.value}{times}{said}."
    wait = f"the next attempt is possible in {_wait(target, failed):.0f} s, but the run has only {left:.0f} s left"
    return f"{last.kind.value}{times}{said}; {wait}."


def _out(target: TargetSpec, failed: Sequence[Failed]) -> bool:
    own = [f for f in failed if f.model_id == target.model_id]
    return len(own) >= ROUNDS or any(_after(f.kind) == After.SKIP for f in own)


def _in_time(target: TargetSpec, failed: Sequence[Failed], left: float) -> bool:
    wait = _wait(target, failed)
    return wait <= 0 or wait + _ANSWER <= left


def _tries(target: TargetSpec, failed: Sequence[Failed]) -> int:
    return sum(f.model_id == target.model_id for f in failed)


def _wait(target: TargetSpec, failed: Sequence[Failed]) -> float:
    """Seconds until this target may be asked again: what it told us, or a growing pause."""
    own = [f for f in failed if f.model_id == target.model_id]
    if not own:
        return 0.0
    told = own[-1].retry_after
    pause = told if told is not None else min(_WAIT * 2 ** (len(own) - 1), _LONGEST_WAIT)
    return pause - own[-1].ago


def _after(kind: ErrorKind) -> After:
    return ModelError(kind, "").after
