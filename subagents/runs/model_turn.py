"""One turn of the model: which target is asked, what it may cost, whether it fits, and what it
said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
from django.db import IntegrityError
from django.utils import timezone

from mcpregistry.db import db_call, estimate_database_now
from mcpregistry.domain.errors import ConfigInvalid
from mcpregistry.failpoints import failpoint
from mcpregistry.services.budgets.spending import BudgetSpent
from mcpregistry.services.energy.reservations import Shortage
from subagents.domain import budget, context
from subagents.domain.context import GuardOutcome, Reckoning, Trigger
from subagents.domain.fallback import GiveUp, Wait, choose
from subagents.domain.finish_reasons import Finish
from subagents.domain.lifecycle import Exit, RunState
from subagents.domain.model_errors import ErrorKind, ModelError
from subagents.domain.spec import TargetSpec
from subagents.domain.transcript import concluding, for_model, messages, so_far, was_asked_again
from subagents.leased.database_retry import retry_while_unavailable
from subagents.leased.leases import Lease
from subagents.llm.model_values import ModelReply, ModelTarget
from subagents.llm.tokens import counter
from subagents.runs import budgets, records, telemetry, tracing
from subagents.runs.lease import fence_run
from subagents.runs.run_views import RunView
from subagents.runs.targets import build_target
from subagents.runs.toolbox import Toolbox

Complete = Callable[..., Awaitable[ModelReply]]

_SHORT_WAIT = 2.0  # seconds that are waited here; for longer the run sleeps
_LOOK_AGAIN = 5.0  # seconds at most: somebody may give energy, or use less than was set aside


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A turn as it will be asked for, the same for every target."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    final: Exit | None
    note: str
    number: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Who is asked, what it may cost in dollars at worst, and how many tokens the answer may
    have."""

    target: TargetSpec
    estimated: int
    worst: Decimal
    output: int


class TurnUnansweredError(Exception):
    """There will be no answer of a model to this turn; the run ends for this reason, unless it can
    do without."""

    def __init__(self, exit: Exit, error: str) -> None:
        super().__init__(error)
        self.exit = exit


class Thinking:
    """Asks the models of a run, one turn at a time. ``complete`` is the door to them."""

    def __init__(self, complete: Complete) -> None:
        self._complete = complete

    async def turn(
        self,
        held: Lease,
        seen: RunView,
        tools: Toolbox,
        final: Exit | None,
        *,
        note: str = "",
        insist: bool = False,
    ) -> bool:
        """Ask for the turn that comes now. True: look again at once; False: the run has ended or
        sleeps.

        ``final``: why no tools are offered any more; ``note``: what the model is told before it, if
        not that. With ``insist`` a turn that no model will answer raises Unanswered, instead of
        ending the run.
        """
        try:
            return await self._turn(held, seen, _request(seen, tools, final, note))
        except TurnUnansweredError as why:
            if insist:
                raise
            await db_call(
                records.finish,
                held,
                state=RunState.FAILED,
                exit=why.exit,
                error=str(why),
                answer=so_far(seen.turns),
            )
            return False

    async def _turn(self, held: Lease, seen: RunView, request: TurnRequest) -> bool:
        left = seen.spec.max_seconds - seen.spent.seconds
        if left <= 0:
            raise TurnUnansweredError(
                Exit.TIME_LIMIT, "The time limit of the run was reached before the model answered."
            )
        choice = choose(seen.spec.targets, seen.failed, left=left)
        if isinstance(choice, GiveUp):
            raise TurnUnansweredError(choice.exit, f"No model answered. {choice.why}")
        if isinstance(choice, Wait):
            return await self._wait(held, choice.seconds)
        estimated, reckoning = await asyncio.to_thread(_reckon_tokens, choice.target, seen, request)
        if not reckoning.fits:
            return await _handle_too_large(held, seen, choice.target, reckoning, request.final)
        plan = _plan_affordable_turn(seen, request, choice.target, estimated, reckoning)
        if plan is None:
            await db_call(records.must_conclude, held, Exit.BUDGET)
            return True
        output = budget.likely_output([turn.output_tokens for turn in seen.turns], most=plan.output)
        twice = request.final is None
        if short := await db_call(
            records.reserve_energy, held, input=estimated, output=output, twice=twice
        ):
            return await _sleep_without_energy(held, short, left, request.final)
        return await self._ask(held, seen, plan, request, choice.seconds)

    async def _ask(
        self, held: Lease, seen: RunView, plan: Plan, request: TurnRequest, left: float
    ) -> bool:
        began = timezone.now()
        schema = seen.spec.output_schema if request.final or not request.tools else None

        async def record_failure(error: ModelError, reply: ModelReply | None = None) -> bool:
            await db_call(
                records.record_failed_attempt,
                held,
                error,
                target=plan.target,
                number=request.number,
                started_at=began,
                reply=reply,
            )
            return True

        try:
            target = await db_call(_begin_with_target, held, plan, seen, left, request.final)
            failpoint("run_turn_begun")
            reply = await self._complete(
                target,
                for_model(request.messages, plan.target.label),
                request.tools,
                response_schema=schema,
                **({"trace": partial(tracing.record, held.key)} if seen.is_traced else {}),
            )
        except ModelError as error:
            return await record_failure(error)
        except BudgetSpent as spent:
            if request.final is None:
                await db_call(records.must_conclude, held, Exit.BUDGET)
                return True
            raise TurnUnansweredError(Exit.BUDGET, str(spent)) from spent
        if (useless := _useless(reply, request, plan)) is not None:
            return await record_failure(useless, reply)
        await _record_reply(
            held,
            reply,
            target=plan.target,
            number=request.number,
            final=request.final,
            note=request.note,
            estimated=plan.estimated,
            started_at=began,
            most_calls=max(0, seen.spec.max_calls - seen.spent.calls),
        )
        failpoint("run_turn_ended")
        return True

    @staticmethod
    async def _wait(held: Lease, seconds: float) -> bool:
        if seconds <= _SHORT_WAIT:
            await asyncio.sleep(max(0.0, seconds))
            return True
        wake_at = estimate_database_now() + timedelta(seconds=seconds)
        return not await db_call(records.sleep, held, waiting=False, wake_at=wake_at)


async def _sleep_without_energy(
    held: Lease, short: Shortage, left: float, final: Exit | None
) -> bool:
    """The run sleeps where its pool lets work wait and there can be enough in its time (``left``);
    else it concludes."""
    if not short.waits or short.soonest >= left:
        if final is None:
            await db_call(records.must_conclude, held, Exit.ENERGY)
            return True
        raise TurnUnansweredError(
            Exit.ENERGY,
            f"The next answer of the model is estimated to cost {short.needed:.1f} units of energy; "
            f'{short.available:.1f} are left in the pool "{short.pool}". {short.remedy}',
        )
    wake_at = estimate_database_now() + timedelta(
        seconds=min(max(short.seconds, _SHORT_WAIT), _LOOK_AGAIN)
    )
    what_for = f'energy: {short.available:.1f} of about {short.needed:.1f} units are left in the pool "{short.pool}"'
    return not await db_call(records.sleep, held, waiting=False, wake_at=wake_at, what_for=what_for)


async def _record_reply(held: Lease, reply: ModelReply, *, number: int, **facts: Any) -> None:
    """What is paid for is written down, also when the database is away for a moment.

    Refused as written already: by a commit of which we did not hear.
    """
    try:
        await retry_while_unavailable(
            partial(db_call, records.end_turn, held, reply, number=number, **facts)
        )
    except IntegrityError:
        if not await db_call(records.is_written, held.key, number):
            raise


def _begin_with_target(
    held: Lease, plan: Plan, seen: RunView, left: float, final: Exit | None
) -> ModelTarget:
    """The turn is begun. A key that is not to be had is as good as a wrong one: the next model is
    asked.

    Raises BudgetSpent when a budget of those who pay for the run does not bear it; then nothing is
    begun.
    """
    _begin(held, plan, final)
    try:
        target = build_target(
            plan.target.model_id,
            temperature=seen.spec.temperature,
            at_most=left,
            options=seen.spec.model_options,
        )
    except ConfigInvalid as error:
        raise ModelError(ErrorKind.AUTH, str(error)) from error
    return replace(target, max_output=min(target.max_output, plan.output))


def _begin(held: Lease, plan: Plan, final: Exit | None) -> None:
    tokens = plan.estimated + plan.output
    prices = plan.target.prices
    needs = budgets.coming(
        held.key, worst=plan.worst, tokens=tokens, prices=prices, twice=final is None
    )
    if needs is None:
        records.begin_turn(held, worst=plan.worst)
        return
    with fence_run(held):  # the run is locked before its budgets, as by all others
        refusal = budgets.reserve(held.key, needs)
        if refusal is None:
            records.begin_turn(held, worst=plan.worst)
    if refusal is not None:
        raise refusal


def _useless(reply: ModelReply, request: TurnRequest, plan: Plan) -> ModelError | None:
    """Why the next model is asked although this one has answered: it may not speak, or has nothing
    to say."""
    if reply.finish == Finish.POLICY:
        return ModelError(ErrorKind.POLICY, "The provider withheld the answer (content filter).")
    if reply.finish == Finish.REFUSAL:
        return ModelError(ErrorKind.POLICY, "The model declined to answer.")
    if (
        reply.text.strip()
        or (reply.calls and request.final is None)
        or not was_asked_again(request.note)
    ):
        return None
    if reply.finish == Finish.LENGTH:
        return ModelError(
            ErrorKind.EMPTY,
            f"The model reached its output limit of {plan.output} tokens before it answered.",
        )
    return ModelError(ErrorKind.EMPTY, "The model gave an empty answer twice.")


def _request(seen: RunView, tools: Toolbox, final: Exit | None, note: str) -> TurnRequest:
    note = note or (concluding(final) if final else "")
    instructions: Mapping[str, str] = tools.instructions() if seen.spec.tool_instructions else {}
    said = messages(seen.spec, seen.arguments, seen.turns, instructions, note)
    offered: Sequence[dict[str, Any]] = () if final else tools.definitions()
    return TurnRequest(said, list(offered), final, note, len(seen.turns) + 1)


def _reckon_tokens(
    target: TargetSpec, seen: RunView, request: TurnRequest
) -> tuple[int, Reckoning]:
    """(our estimate of the whole request, what the guard reckons with), in tokens. Counting takes a
    while."""
    count = counter(target.tokenizer, target.label)
    text = msgspec.json.encode([for_model(request.messages, ""), request.tools]).decode()
    # What it thought before is sent again; a signature is no text that could be counted.
    estimated = count(text) + sum(
        t.reasoning for t in seen.turns if t.state and t.made_by == target.label
    )
    last = seen.turns[-1] if seen.turns else None
    ratio = context.ratio_of(last.input_tokens, last.estimated) if last else context.ratio_of(0, 0)
    reckoning = context.reckon(target, known=0, added=estimated, ratio=ratio)
    return estimated, reckoning


async def _handle_too_large(
    held: Lease, seen: RunView, target: TargetSpec, reckoning: Reckoning, final: Exit | None
) -> bool:
    """Another target may have the room; otherwise conclude; and if even that does not fit, say
    so."""
    roomier = any(t.room >= reckoning.projected for t in seen.spec.targets)
    outcome = GuardOutcome.SKIP if roomier else GuardOutcome.FINAL
    await db_call(telemetry.guard, target, Trigger.TURN, outcome, reckoning)
    if roomier:
        error = ModelError(
            ErrorKind.CONTEXT,
            f"The request has {reckoning.projected:,} tokens, but the context window has room for only {reckoning.limit:,} tokens.",
        )
        await db_call(
            records.record_failed_attempt,
            held,
            error,
            target=target,
            number=len(seen.turns) + 1,
            started_at=timezone.now(),
        )
        return True
    if final is None:
        await db_call(records.must_conclude, held, Exit.TOKEN_LIMIT)
        return True
    raise TurnUnansweredError(
        Exit.TOKEN_LIMIT,
        f"Even the request for the final answer is too large. It has {reckoning.projected:,} tokens, but the context window has room for only {reckoning.limit:,} tokens.",
    )


def _plan_affordable_turn(
    seen: RunView, request: TurnRequest, target: TargetSpec, estimated: int, reckoning: Reckoning
) -> Plan | None:
    """None: the budget bears no turn but the last. One more must stay possible, or the run could
    not even say what it has found. Raises Unanswered when it bears none at all.
    """
    last = request.final is not None
    tokens = reckoning.projected
    output = budget.output_room(
        seen.spec, seen.spent, input=tokens, most=target.max_output, last=last
    )
    worst = budget.reserve(target.prices, estimated_input=tokens, max_output=output)
    enough = budget.affordable(seen.spec, seen.spent, worst if last else worst * 2)
    if output and enough:
        return Plan(target, estimated, worst, output)
    if not last:
        return None
    book = "money" if output else "token"
    raise TurnUnansweredError(
        Exit.BUDGET, f"The {book} budget of the run does not allow another answer of the model."
    )
