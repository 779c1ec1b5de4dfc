"""What a run writes, each in one transaction under its lease: a turn with its calls, a call's
start, its end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cache, partial
from typing import Any

from django.db import transaction
from django.db.models import Case, F, Q, Value, When
from django.utils import timezone

from mcpregistry.db import read_database_now
from mcpregistry.domain.text.canonical import clean_text
from mcpregistry.failpoints import failpoint
from mcpregistry.models import ApprovalRequest
from mcpregistry.prepared_queries import Given, Insert, Select, Update
from mcpregistry.services.approvals import held_calls
from mcpregistry.services.energy import pools, reservations
from mcpregistry.services.energy.reservations import Shortage
from mcpregistry.services.tasks import host_tasks
from subagents.domain.budget import cache_saved, price
from subagents.domain.lifecycle import CALL_MOVES, RUN_MOVES, CallState, Exit, RunState
from subagents.domain.model_errors import ModelError
from subagents.domain.outputs import handle_of
from subagents.domain.spec import TargetSpec
from subagents.leased.leases import Lease, LostLease
from subagents.llm.model_values import ModelReply, TokenUsage
from subagents.models import Attempt, Run, StoredOutput, ToolCall, Turn
from subagents.runs import budgets, telemetry
from subagents.runs.lease import fence_run, look
from subagents.runs.run_answers import tell_caller
from subagents.services import runs

_LONGEST_ERROR = 2_000
_LONGEST = 16_000_000  # characters: no text is cut here, only made fit for a text column


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """How a tool call ended. ``text`` is what the model reads; ``whole`` the result it was made
    from."""

    state: CallState
    text: str
    whole: str = ""
    is_error: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


def begin_turn(lease: Lease, *, worst: Decimal) -> None:
    """Set the worst cost of the coming turn aside: if we die before its end is written, ``take``
    counts it as spent.

    Where that changes nothing, nothing is written; whether the run is still ours is looked at all
    the same.
    """
    run = look(lease)
    if run.state == RunState.RUNNING and run.reserved_cost == worst and not run.call_id:
        return
    with fence_run(lease) as run:
        _move_run(run, RunState.RUNNING, reserved_cost=worst)
        _say(run, "Thinking.")


def end_turn(
    lease: Lease,
    reply: ModelReply,
    *,
    target: TargetSpec,
    number: int,
    final: Exit | None,
    note: str,
    estimated: int,
    started_at: datetime,
    most_calls: int = 1_000,
) -> None:
    """Write the model's answer, the calls that it plans, and what it cost.

    ``most_calls``: how many the run may still make. What is asked beyond that is counted and
    dropped: a thousand refusals would only fill the conversation.
    """
    usage = reply.usage
    cost = _cost(target, usage)
    saved = cache_saved(target.prices, cached=usage.cached, cache_write=usage.cache_write)
    calls = () if final is not None else reply.calls
    with fence_run(lease) as run:
        _TURN(
            [
                {
                    "run": run.id,
                    "number": number,
                    "model": target.model_id,
                    "model_name": target.label,
                    "final": final is not None,
                    "note": note,
                    "text": clean_text(reply.text, _LONGEST),
                    "finish": reply.finish,
                    "dropped_calls": len(calls[most_calls:]),
                    "input_tokens": usage.input,
                    "output_tokens": usage.output,
                    "cached_tokens": usage.cached,
                    "cache_write_tokens": usage.cache_write,
                    "estimated_tokens": estimated,
                    "cost": cost,
                    "started_at": started_at,
                    "reasoning_tokens": usage.reasoning,
                    "cache_saved": saved,
                    "provider_state": _state(reply),
                    "duration_ms": (timezone.now() - started_at).total_seconds() * 1000,
                }
            ]
        )
        _PLANNED(
            [
                {
                    "run": run.id,
                    "turn_number": number,
                    "index": i,
                    "provider_id": _own(c.id, number, i),
                    "name": clean_text(c.name, 500),
                    "arguments": clean_text(c.arguments, _LONGEST),
                }
                for i, c in enumerate(calls[:most_calls])
            ]
        )
        _SPENT(
            id=run.id,
            input=usage.input,
            output=usage.output,
            cached=usage.cached,
            cost=_sum(run.cost, cost),
            reserved_cost=Decimal(0),
            final_reason=final.value if final else "",
        )
        _draw(run.id, f"{run.id}:{number}", usage)
        budgets.spend(run.id, f"{run.id}:{number}", cost=cost, usage=usage)
        if usage.reasoning or usage.cached or usage.cache_write:
            _CACHED(
                id=run.id,
                reasoning=usage.reasoning,
                written=usage.cache_write,
                cache_saved=_sum(run.cache_saved, saved),
            )
        telemetry.TURNS.inc(model=target.label)


def reserve_energy(
    lease: Lease, *, input: int, output: int, twice: bool = False
) -> Shortage | None:
    """Set aside what the coming turn will probably draw, in tokens, where the expert tool's agent
    has a pool.

    A Shortage: the turn must not be asked for now.
    """
    pool, agent = _DRAWS_ON.get(id=lease.key)
    if pool is None:
        return None
    with fence_run(lease):
        return reservations.reserve_turn(
            pool_id=pool, run=lease.key, agent=agent, input=input, output=output, twice=twice
        )


def _draw(run: str, reference: str, usage: TokenUsage) -> None:
    """What the turn used is taken from the pool of the expert tool's agent, in the transaction that
    writes the turn.

    Nothing is set aside for it any more.
    """
    pool, agent = _DRAWS_ON.get(id=run)
    if pool is None:
        return
    if usage.input or usage.output:
        pools.charge_turn(
            pool_id=pool,
            agent=agent,
            reference=reference,
            input=usage.input,
            cached=usage.cached,
            output=usage.output,
        )
    reservations.release(run=run)


_DRAWS_ON = Select(
    Run.objects.filter(id=Given("id")).values_list(
        "version__expert__agent__energy_pool_id", "version__expert__agent__slug", named=True
    )
)


def is_written(run: str, number: int) -> bool:
    """Whether this turn of the run was written down already."""
    return Turn.objects.filter(run=run, number=number).exists()


_TURN = Insert(Turn)
_PLANNED = Insert(ToolCall)
_SPENT = Update(
    Run.objects.filter(id=Given("id")),
    "cost",
    "reserved_cost",
    "final_reason",
    input_tokens=F("input_tokens") + Given("input", like="input_tokens"),
    output_tokens=F("output_tokens") + Given("output", like="output_tokens"),
    cached_tokens=F("cached_tokens") + Given("cached", like="cached_tokens"),
)


_CACHED = Update(
    Run.objects.filter(id=Given("id")),
    "cache_saved",
    reasoning_tokens=F("reasoning_tokens") + Given("reasoning", like="reasoning_tokens"),
    cache_write_tokens=F("cache_write_tokens") + Given("written", like="cache_write_tokens"),
)


def _state(reply: ModelReply) -> str:
    """As JSON in ASCII: what a provider wants back may hold characters that a database refuses."""
    return "" if reply.state is None else json.dumps(reply.state)


def _own(given: str, number: int, index: int) -> str:
    """Some providers repeat an id within a conversation, or give none; a history must not."""
    return given if given and len(given) <= 64 else f"call_{number}_{index}"


def record_failed_attempt(
    lease: Lease,
    error: ModelError,
    *,
    target: TargetSpec,
    number: int,
    started_at: datetime,
    reply: ModelReply | None = None,
) -> None:
    """A request that brought no answer, or one of no use (``reply``), which is paid for all the
    same."""
    now = timezone.now()
    usage = reply.usage if reply else TokenUsage()
    cost = _cost(target, usage) if reply else None
    with fence_run(lease) as run:
        attempt = Attempt.objects.create(
            run_id=run.id,
            turn_number=number,
            model_id=target.model_id,
            model_name=target.label,
            trouble=error.kind,
            message=clean_text(error.message),
            status=error.status,
            retry_after=error.retry_after,
            at=now,
            input_tokens=usage.input,
            output_tokens=usage.output,
            cost=cost,
            duration_ms=(now - started_at).total_seconds() * 1000,
        )
        _SPENT(
            id=run.id,
            input=usage.input,
            output=usage.output,
            cached=usage.cached,
            reserved_cost=Decimal(0),
            cost=_sum(run.cost, cost),
            final_reason=run.final_reason,
        )
        _draw(run.id, f"{run.id}:{number}:{attempt.pk}", usage)
        budgets.spend(run.id, f"{run.id}:{number}:{attempt.pk}", cost=cost, usage=usage)
        telemetry.ATTEMPTS.inc(model=target.label, trouble=error.kind)


def _cost(target: TargetSpec, usage: TokenUsage) -> Decimal | None:
    return price(
        target.prices,
        input=usage.input,
        output=usage.output,
        cached=usage.cached,
        cache_write=usage.cache_write,
    )


def _sum(before: Decimal | None, more: Decimal | None) -> Decimal | None:
    """Unknown costs are left out; a run none of whose costs are known has none."""
    return before if more is None else (before or Decimal(0)) + more


def start_call(lease: Lease, call_id: int) -> tuple[str, int]:
    """Note that the call is about to be made: from now on it may have been sent.

    Returns its record's id and the attempt's number. The id is derived, so that the record can be
    found whatever happens to us in the next moment.
    """
    with fence_run(lease) as run:
        call = _CALL.get(id=call_id)
        attempt = call.attempt + 1
        place = f"{run.id}/{call.turn_number}/{call.index}/{attempt}"
        invocation = hashlib.sha256(place.encode()).hexdigest()[:32]
        _move(
            call_id,
            CallState.PLANNED,
            CallState.STARTED,
            attempt=attempt,
            invocation=invocation,
            started_at=timezone.now(),
        )
        if run.state != RunState.RUNNING:
            _move_run(run, RunState.RUNNING)
        _say(run, f"Calling {call.name}.")
    return invocation, attempt


def read_as(call_id: int, invocation: str, what: Sequence[str]) -> None:
    """Which arguments were read in the schema's type, before the call is made so. Nothing, if it is
    another's by now."""
    rows = ToolCall.objects.filter(pk=call_id, state=CallState.STARTED, invocation=invocation)
    rows.update(coerced=clean_text("\n".join(what), _LONGEST))


def end_call(
    lease: Lease,
    call_id: int,
    ended: ToolCallEnd,
    *,
    was: CallState,
    store: bool = False,
    energy: float = 0.0,
) -> None:
    """Write the call's end as the model will read it; with ``store`` the whole result is kept for
    paging.

    ``energy``: what it drew, unless it was never sent.
    """
    with fence_run(lease) as run:
        if energy and ended.state != CallState.REFUSED:
            _DRAWN(id=run.id, drawn=energy)
        stored = (
            _store_output(run.id, _CALL.get(id=call_id), clean_text(ended.whole, _LONGEST))
            if store
            else None
        )
        _move(
            call_id,
            was,
            ended.state,
            result=clean_text(ended.text, _LONGEST),
            is_error=ended.is_error,
            stored=stored,
            raw_characters=len(ended.whole),
            details=ended.facts,
            finished_at=timezone.now(),
        )


_CALL = Select(
    ToolCall.objects.filter(id=Given("id")).values_list(
        "turn_number", "index", "attempt", "name", named=True
    )
)
_DRAWN = Update(
    Run.objects.filter(id=Given("id")), energy=F("energy") + Given("drawn", like="energy")
)


def move_call(lease: Lease, call_id: int, *, was: CallState, to: CallState) -> None:
    """Move the call from state ``was`` to ``to``."""
    with fence_run(lease):
        _move(call_id, was, to)


def _move(call_id: int, was: CallState, to: CallState, **values: Any) -> None:
    assert to in CALL_MOVES[was], f"{was} -> {to}"
    if not _moving(ToolCall, *values)(id=call_id, was=was, state=to, **values):
        raise LostLease(f"tool call {call_id} is no longer {was}")


@cache
def _moving(model: type[ToolCall | Run], *columns: str) -> Update:
    """One row from a state to another, with these columns."""
    rows = model._default_manager.filter(id=Given("id"), state=Given("was", like="state"))
    return Update(rows, "state", *columns)


def _store_output(run_id: str, call: Any, text: str) -> str:
    """Its handle."""
    handle = handle_of(run_id, f"{call.turn_number}/{call.index}")
    facts = {
        "run_id": run_id,
        "text": text,
        "bytes": len(text.encode(errors="surrogatepass")),
        "lines": text.count("\n") + 1,
        "sha256": hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest(),
    }
    StoredOutput.objects.update_or_create(handle=handle, defaults=facts)
    return handle


def must_conclude(lease: Lease, reason: Exit) -> None:
    """Note that the next turn is the last; the first reason stands."""
    with fence_run(lease) as run:
        if not run.final_reason:
            Run.objects.filter(pk=run.id).update(final_reason=reason)


def sleep(lease: Lease, *, waiting: bool, wake_at: datetime, what_for: str = "") -> bool:
    """Give the run back until then. ``waiting``: for a person, which does not count as the run's
    time.

    ``what_for``: what else it waits for, for whoever looks. Returns False, and gives nothing back,
    if it was cancelled meanwhile: it would be cancelled only when it wakes.
    """
    now = read_database_now()
    with fence_run(lease) as run:
        if run.cancel_requested:
            return False
        since = (run.waiting_since or now) if waiting else None
        _move_run(
            run,
            RunState.WAITING if waiting else RunState.RUNNING,
            waiting_since=since,
            lease_until=None,
            worker="",
            wake_at=wake_at,
            sleeps_for=what_for,
        )
        if waiting:
            _say(run, "Waiting for a decision on the next call.")
        elif what_for:
            _say(run, f"Waiting for {what_for}.")
    return True


def resume_clock(lease: Lease) -> None:
    """Note that people have decided, so the run's time goes on."""
    with fence_run(lease) as run:
        if run.waiting_since:
            waited = (read_database_now() - run.waiting_since).total_seconds()
            Run.objects.filter(pk=run.id).update(
                state=RunState.RUNNING,
                waiting_since=None,
                waited_seconds=F("waited_seconds") + waited,
            )


def finish(
    lease: Lease,
    *,
    state: RunState,
    exit: Exit,
    answer: str = "",
    structured: str = "",
    error: str = "",
    savings: dict[str, Any] | None = None,
    reusable: str = "",
    unfinished: Sequence[CallState] = (CallState.PLANNED, CallState.WAITING),
) -> None:
    """End the run. Calls that were never made are cancelled with it."""
    now = timezone.now()
    with fence_run(lease) as run:
        _withdraw(run)
        reservations.release(run=run.id)
        budgets.release(run.id)
        _prepare_never_made(*unfinished)(run=run.id, finished_at=now)
        _move_run(
            run,
            state,
            exit=exit,
            answer=clean_text(answer, _LONGEST),
            structured=structured,
            error=clean_text(error, _LONGEST_ERROR),
            savings=savings or {},
            reusable=reusable,
            finished_at=now,
            lease_until=None,
            worker="",
            wake_at=None,
            waiting_since=None,
            reserved_cost=Decimal(0),
        )
        if run.call_id:
            tell_caller(Run.objects.get(pk=run.id))
        for child in _CHILDREN.fetch_rows(parent=run.id):
            runs.cancel(
                run_id=child.id, actor=f"run:{run.id}", reason="the run that started it has ended"
            )
        if run.parent_id:
            transaction.on_commit(partial(runs.nudge, run.parent_id))
        telemetry.RUNS.inc(expert=run.expert_name, exit=exit)
        failpoint("run_ending")


_CHILDREN = Select(Run.objects.open().filter(parent=Given("parent")).values_list("id", named=True))
_WAITING = Select(
    ToolCall.objects.filter(run=Given("run"), state=CallState.WAITING).values_list(
        "invocation", named=True
    )
)


@cache
def _prepare_never_made(*unfinished: CallState) -> Update:
    """Cancelled; but what an operator wanted made again has been made once, and what it did is not
    known."""
    repeats = Q(state=CallState.PLANNED) & ~Q(result="")
    state = Case(When(repeats, then=Value(CallState.UNKNOWN)), default=Value(CallState.CANCELLED))
    return Update(
        ToolCall.objects.filter(run=Given("run"), state__in=unfinished), "finished_at", state=state
    )


def _move_run(run: Any, to: RunState, **values: Any) -> None:
    was = RunState(run.state)
    assert to == was or to in RUN_MOVES[was], f"{was} -> {to}"
    if not _moving(Run, *values)(id=run.id, was=was, state=to, **values):
        raise LostLease(f"run {run.id} is no longer {was}")


def _say(run: Any, what: str) -> None:
    """To the host that has taken a task for this run, if one has."""
    if run.call_id:
        host_tasks.set_status_message(call_id=run.call_id, message=what)


def _withdraw(run: Any) -> None:
    """Nobody needs to decide any more about calls of a run that is over."""
    waiting = [call.invocation for call in _WAITING.fetch_rows(run=run.id)]
    for request in ApprovalRequest.objects.filter(call_id__in=waiting) if waiting else ():
        held_calls.cancel(
            request_id=request.pk, reason="the run that started it has ended", actor=f"run:{run.id}"
        )
