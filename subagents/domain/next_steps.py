"""What a run does next, read off its records alone. Pure, so that a crash at any point changes
nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from subagents.domain.budget import Spent, find_reached_limit
from subagents.domain.lifecycle import OPEN_CALLS, CallState, Exit
from subagents.domain.spec import ExpertSpec
from subagents.domain.transcript import CallView, TurnView


@dataclass(frozen=True, slots=True)
class AskModel:
    """One turn. ``final`` says why it is the last; then the model is offered no tools."""

    final: Exit | None


@dataclass(frozen=True, slots=True)
class RunCalls:
    """Make these calls, together."""

    calls: tuple[CallView, ...]


@dataclass(frozen=True, slots=True)
class FindOut:
    """These were started by somebody who is gone: look what became of them before anything else."""

    calls: tuple[CallView, ...]


@dataclass(frozen=True, slots=True)
class WaitForPeople:
    """Sleep until somebody has decided on one of these calls."""

    calls: tuple[CallView, ...]


@dataclass(frozen=True, slots=True)
class Conclude:
    """The model has said its last word."""

    exit: Exit


Joins = Callable[[CallView], bool]
Step = AskModel | RunCalls | FindOut | WaitForPeople | Conclude


def only_reads(call: CallView) -> bool:
    """Whether an approver has confirmed that the call's tool changes nothing."""
    return call.read_only


def next_step(
    spec: ExpertSpec,
    turns: Sequence[TurnView],
    spent: Spent,
    final: Exit | None,
    joins: Joins = only_reads,
) -> Step:
    """What the run does next.

    ``final``: the reason that an earlier step has left why the next turn must be the last.
    ``joins``: whether a call may be made at the same time as others.
    """
    if not turns:
        return AskModel(final or find_reached_limit(spec, spent))
    calls = turns[-1].calls
    started = tuple(call for call in calls if call.state == CallState.STARTED)
    if started:
        return FindOut(started)
    open_calls = [call for call in calls if call.state in OPEN_CALLS]
    if open_calls:
        batch = _batch(open_calls, spec.parallelism, joins)
        return (
            RunCalls(batch)
            if batch
            else WaitForPeople(tuple(c for c in open_calls if c.state == CallState.WAITING))
        )
    if calls:
        return AskModel(final or find_reached_limit(spec, spent))
    return Conclude(final or Exit.ANSWER)


def _batch(open_calls: Sequence[CallView], parallelism: int, joins: Joins) -> tuple[CallView, ...]:
    """The calls that may go now: those that may be made together; any other alone, and nothing
    passes it."""
    batch: list[CallView] = []
    for call in open_calls:
        if call.state == CallState.WAITING:
            if not call.read_only:
                break
            continue
        if not joins(call):
            return tuple(batch) if batch or _reading_waits(open_calls, call) else (call,)
        batch.append(call)
        if len(batch) == parallelism:
            break
    return tuple(batch)


def _reading_waits(open_calls: Sequence[CallView], call: CallView) -> bool:
    """A reading call before it still waits for people: what writes must not overtake it."""
    return any(c.state == CallState.WAITING and c.index < call.index for c in open_calls)
