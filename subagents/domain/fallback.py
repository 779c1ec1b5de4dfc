"""Which model is asked next: the first target until it fails, then the next; the request stays the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from subagents.domain.lifecycle import Exit
from subagents.domain.spec import TargetSpec
from subagents.domain.trouble import After, ModelError, Trouble

ROUNDS = 3  # times that each target is asked for one turn
_LONGEST_WAIT = 60.0
_WAIT = 1.0


@dataclass(frozen=True, slots=True)
class Failed:
    """One attempt of this turn that failed. ``ago`` is in seconds."""

    model_id: int
    trouble: Trouble
    retry_after: float | None
    ago: float


@dataclass(frozen=True, slots=True)
class Ask:
    target: TargetSpec


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    exit: Exit
    trouble: Trouble | None


_EXITS = {
    Trouble.AUTH: Exit.AUTH,
    Trouble.QUOTA: Exit.QUOTA,
    Trouble.NETWORK: Exit.NO_RESPONSE,
    Trouble.TIMEOUT: Exit.NO_RESPONSE,
    Trouble.CONTEXT: Exit.TOKEN_LIMIT,
}


def choose(targets: Sequence[TargetSpec], failed: Sequence[Failed]) -> Ask | Wait | GiveUp:
    """What to do for this turn after the attempts so far. Waits only when every target has to be waited for."""
    if any(_after(f.trouble) == After.ABORT for f in failed):
        return GiveUp(Exit.MODEL, failed[-1].trouble)
    usable = [target for target in targets if not _out(target, failed)]
    if not usable:
        last = failed[-1].trouble if failed else None
        return GiveUp(_EXITS.get(last, Exit.MODEL) if last else Exit.MODEL, last)
    rounds = min(_tries(target, failed) for target in usable)
    due = [target for target in usable if _tries(target, failed) == rounds]
    waits = [_wait(target, failed) for target in due]
    ready = [target for target, wait in zip(due, waits, strict=True) if wait <= 0]
    return Ask(ready[0]) if ready else Wait(min(waits))


def _out(target: TargetSpec, failed: Sequence[Failed]) -> bool:
    own = [f for f in failed if f.model_id == target.model_id]
    return len(own) >= ROUNDS or any(_after(f.trouble) == After.SKIP for f in own)


def _tries(target: TargetSpec, failed: Sequence[Failed]) -> int:
    return sum(f.model_id == target.model_id for f in failed)


def _wait(target: TargetSpec, failed: Sequence[Failed]) -> float:
    """Seconds until this target may be asked again: what it told us, or a growing pause."""
    own = [f for f in failed if f.model_id == target.model_id]
    if not own:
        return 0.0
    told = own[-1].retry_after
    pause = told if told is not None else _WAIT * 2 ** (len(own) - 1)
    return min(pause, _LONGEST_WAIT) - own[-1].ago


def _after(trouble: Trouble) -> After:
    return ModelError(trouble, "").after
