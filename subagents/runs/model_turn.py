"""One turn of the model: which target is asked, what it may cost, whether it fits, and what it said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec
from django.utils import timezone

from mcpregistry.db import db_call
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.failpoints import failpoint
from subagents.domain import budget, context
from subagents.domain.context import Outcome, Reckoning, Trigger
from subagents.domain.fallback import GiveUp, Wait, choose
from subagents.domain.lifecycle import Exit, RunState
from subagents.domain.spec import TargetSpec
from subagents.domain.transcript import concluding, messages
from subagents.domain.trouble import ModelError, Trouble
from subagents.llm.client import Reply, Target
from subagents.llm.tokens import counter
from subagents.runs import lease, records, telemetry
from subagents.runs.targets import target_for
from subagents.runs.toolbox import Toolbox
from subagents.runs.views import RunView

Complete = Callable[..., Awaitable[Reply]]

_SHORT_WAIT = 2.0  # seconds that are waited here; for longer the run sleeps


@dataclass(frozen=True, slots=True)
class Request:
    """A turn as it will be asked for, the same for every target."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    final: Exit | None
    note: str
    number: int


class Thinking:
    def __init__(self, complete: Complete) -> None:
        self._complete = complete

    async def turn(
        self, held: lease.Lease, seen: RunView, tools: Toolbox, final: Exit | None, *, note: str = ""
    ) -> bool:
        """Ask for the turn that comes now. True: look again at once; False: the run has ended or sleeps.

        ``final``: why no tools are offered any more; ``note``: what the model is told before it, if not that.
        """
        choice = choose(seen.spec.targets, seen.failed)
        if isinstance(choice, Wait):
            return await self._wait(held, choice.seconds)
        if isinstance(choice, GiveUp):
            return await _given_up(held, seen, choice)
        request = _request(seen, tools, final, note)
        estimated, reckoning = await asyncio.to_thread(_reckoned, choice.target, seen, request)
        if not reckoning.fits:
            return await _too_large(held, seen, choice.target, reckoning, final)
        worst = budget.reserve(
            choice.target.prices, estimated_input=reckoning.projected, max_output=choice.target.max_output
        )
        # One more turn must stay affordable, or the run could not even say what it has found.
        if not budget.affordable(seen.spec, seen.spent, worst if final else worst * 2):
            return await _unaffordable(held, final)
        return await self._ask(held, seen, choice.target, request, estimated=estimated, worst=worst)

    async def _ask(
        self, held: lease.Lease, seen: RunView, spec: TargetSpec, request: Request, *, estimated: int, worst: Decimal
    ) -> bool:
        began = timezone.now()
        left = seen.spec.max_seconds - seen.spent.seconds
        if left <= 0:
            await db_call(records.finish, held, state=RunState.FAILED, exit=Exit.TIME_LIMIT, error=_OUT_OF_TIME)
            return False
        schema = seen.spec.output_schema if request.final or not request.tools else None
        try:
            target = await db_call(_begun, held, spec, seen, left, worst)
            failpoint("run_turn_begun")
            reply = await self._complete(target, request.messages, request.tools, response_schema=schema)
        except ModelError as error:
            telemetry.ATTEMPTS.labels(model=spec.label, trouble=error.trouble).inc()
            await db_call(
                records.failed_attempt, held, error, target=spec, number=request.number, started_at=began
            )  # fmt: skip
            return True
        telemetry.TURNS.labels(model=spec.label).inc()
        await db_call(
            records.end_turn, held, reply, target=spec, number=request.number, final=request.final,
            note=request.note, estimated=estimated, started_at=began,
            most_calls=max(0, seen.spec.max_calls - seen.spent.calls),
        )  # fmt: skip
        failpoint("run_turn_ended")
        return True

    @staticmethod
    async def _wait(held: lease.Lease, seconds: float) -> bool:
        if seconds <= _SHORT_WAIT:
            await asyncio.sleep(max(0.0, seconds))
            return True
        await db_call(records.sleep, held, waiting=False, wake_at=timezone.now() + timedelta(seconds=seconds))
        return False


def _begun(held: lease.Lease, spec: TargetSpec, seen: RunView, left: float, worst: Decimal) -> Target:
    """The turn is begun. A key that is not to be had is as good as a wrong one: the next model is asked."""
    records.begin_turn(held, worst=worst)
    try:
        return target_for(spec.model_id, temperature=seen.spec.temperature, at_most=left)
    except ConfigInvalid as error:
        raise ModelError(Trouble.AUTH, str(error)) from error


_OUT_OF_TIME = "The run's time was over before the model had answered."


def _request(seen: RunView, tools: Toolbox, final: Exit | None, note: str) -> Request:
    note = note or (concluding(final) if final else "")
    instructions: Mapping[str, str] = tools.instructions() if seen.spec.tool_instructions else {}
    said = messages(seen.spec, seen.arguments, seen.turns, instructions, note)
    offered: Sequence[dict[str, Any]] = () if final else tools.definitions()
    return Request(said, list(offered), final, note, len(seen.turns) + 1)


def _reckoned(target: TargetSpec, seen: RunView, request: Request) -> tuple[int, Reckoning]:
    """(our estimate of the whole request, what the guard reckons with), in tokens. Counting takes a while."""
    count = counter(target.tokenizer, target.label)
    text = msgspec.json.encode([request.messages, request.tools]).decode()
    estimated = count(text)
    last = seen.turns[-1] if seen.turns else None
    ratio = context.ratio_of(last.input_tokens, last.estimated) if last else context.ratio_of(0, 0)
    reckoning = context.reckon(target, known=0, added=estimated, ratio=ratio)
    return estimated, reckoning


async def _too_large(
    held: lease.Lease, seen: RunView, target: TargetSpec, reckoning: Reckoning, final: Exit | None
) -> bool:
    """Another target may have the room; otherwise conclude; and if even that does not fit, say so."""
    roomier = any(t.room >= reckoning.projected for t in seen.spec.targets)
    outcome = Outcome.SKIP if roomier else Outcome.FINAL
    telemetry.guard(target, Trigger.TURN, outcome, reckoning)
    if roomier:
        error = ModelError(Trouble.CONTEXT, f"{reckoning.projected} tokens do not fit into {reckoning.limit}.")
        await db_call(
            records.failed_attempt, held, error, target=target, number=len(seen.turns) + 1, started_at=timezone.now()
        )
        return True
    if final is None:
        await db_call(records.must_conclude, held, Exit.TOKEN_LIMIT)
        return True
    await db_call(
        records.finish, held, state=RunState.FAILED, exit=Exit.TOKEN_LIMIT,
        error=f"Even the last turn does not fit: {reckoning.projected} tokens into {reckoning.limit}.",
    )  # fmt: skip
    return False


async def _unaffordable(held: lease.Lease, final: Exit | None) -> bool:
    if final is None:
        await db_call(records.must_conclude, held, Exit.BUDGET)
        return True
    await db_call(
        records.finish, held, state=RunState.FAILED, exit=Exit.BUDGET,
        error="The money budget does not bear another answer of the model.",
    )  # fmt: skip
    return False


async def _given_up(held: lease.Lease, seen: RunView, choice: GiveUp) -> bool:
    tried = ", ".join(target.label for target in seen.spec.targets) or "none is configured"
    why = f" ({choice.trouble.value})" if choice.trouble else ""
    await db_call(
        records.finish, held, state=RunState.FAILED, exit=choice.exit,
        error=f"No model answered{why}. Asked: {tried}. The attempts are on the run's page.",
    )  # fmt: skip
    return False
