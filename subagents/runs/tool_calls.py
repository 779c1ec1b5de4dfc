"""The tool calls of a run: made, found again after a crash, waited for while people decide."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import structlog
from django.utils import timezone

from mcpregistry.db import db_call, estimate_database_now
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.failpoints import failpoint
from mcpregistry.services.upkeep import reaping
from subagents.domain import context, outputs
from subagents.domain.budget import time_left
from subagents.domain.context import REFUSAL, GuardOutcome, Reckoning, Trigger
from subagents.domain.lifecycle import CallState, Exit, RunState
from subagents.domain.spec import TargetSpec
from subagents.domain.transcript import BROKEN, CallView, failure
from subagents.leased.database_retry import retry_while_unavailable
from subagents.leased.leases import Lease
from subagents.llm.tokens import counter
from subagents.models import ToolCall
from subagents.runs import records, telemetry
from subagents.runs.records import ToolCallEnd
from subagents.runs.run_views import RunView
from subagents.runs.toolbox import Toolbox, describe_end, find_recorded_end, read_output

log = structlog.get_logger(__name__)

_OPEN = {InvocationState.PENDING, InvocationState.READY}
_MOST_ATTEMPTS = 3  # of a call that repeating cannot harm
# between looks at calls of which somebody else has the end; that wakes the run at once
_PATIENCE = timedelta(hours=1)
# for the record of a call that was just cancelled
_LOOKS = 40
_LOOK_EVERY = 0.05
_DEAD = {"CONNECTION_FAILED", "SERVER_DIED", "STALE_REVISION"}


async def make(held: Lease, seen: RunView, tools: Toolbox, calls: Sequence[CallView]) -> bool:
    """Make these calls at the same time; each one's end is written down as it comes.

    When the run must conclude, no call is made any more: its result could not be used.
    """
    if seen.final is not None:
        return await _refuse_all(held, seen.final, calls)
    if time_left(seen.spec, seen.spent) <= 0:
        await db_call(records.must_conclude, held, Exit.TIME_LIMIT)
        return True
    results = _Results(held, seen, tools)
    ends = await asyncio.gather(*(_make_one(results, call) for call in calls))
    dead = next((end for end in ends if end is not None and _is_server_dead(end)), None)
    if dead is not None and seen.spec.fail_on_server_death:
        error = f"ToolExecutionError: {dead.text}"
        await db_call(records.finish, held, state=RunState.FAILED, exit=Exit.TOOL, error=error)
        return False
    return True


async def _make_one(results: _Results, call: CallView) -> ToolCallEnd | None:
    """The end, or None while there is none: people decide first, another run answers, or it is made
    once more."""
    held = results.held
    seen = results.seen
    tools = results.tools
    invocation, attempt = await db_call(records.start_call, held, call.id)
    failpoint("run_call_started")
    end = _unreadable(call, seen) or await _call_in_time(
        tools, call, invocation, time_left(seen.spec, seen.spent)
    )
    if isinstance(end, ToolCallEnd):
        return await results.settle(call, end, attempt)
    # which stays started: the next step finds out what becomes of it, and sleeps
    if end is not InvocationState.DISPATCHED:
        await db_call(records.move_call, held, call.id, was=CallState.STARTED, to=CallState.WAITING)
    return None


async def find_out(held: Lease, seen: RunView, tools: Toolbox, calls: Sequence[CallView]) -> bool:
    """What became of calls that somebody else has started; never by making them again blindly."""
    results = _Results(held, seen, tools)
    open_ones = 0
    for call in calls:
        found = await db_call(_find_known_end, call.invocation, tools.engine.recorder.writer)
        if found is None:  # its record comes before its first byte: nothing was sent
            await db_call(
                records.move_call, held, call.id, was=CallState.STARTED, to=CallState.PLANNED
            )
        elif isinstance(found, ToolCallEnd):
            await results.settle(call, found, call.attempt)
        elif found in _OPEN:
            await db_call(
                records.move_call, held, call.id, was=CallState.STARTED, to=CallState.WAITING
            )
        else:
            open_ones += 1
    if not open_ones:
        return True
    return not await db_call(
        records.sleep, held, waiting=False, wake_at=estimate_database_now() + _PATIENCE
    )


def _find_known_end(invocation: str, writer: str) -> ToolCallEnd | InvocationState | None:
    """What the records say of a call that an earlier worker has started. Of one that has lost the
    run, nobody waits for the end."""
    found = find_recorded_end(invocation)
    return (
        find_recorded_end(invocation)
        if found == InvocationState.DISPATCHED and reaping.give_up(invocation, writer)
        else found
    )


async def look_at_waiting(
    held: Lease, seen: RunView, tools: Toolbox, calls: Sequence[CallView]
) -> bool:
    """Take what people have decided meanwhile; sleep when they have decided nothing."""
    results = _Results(held, seen, tools)
    news = False
    for call in calls:
        found = await db_call(find_recorded_end, call.invocation)
        if isinstance(found, ToolCallEnd):
            await db_call(records.resume_clock, held)
            await results.admit(call, found, was=CallState.WAITING)
            news = True
    return news or not await db_call(
        records.sleep, held, waiting=True, wake_at=estimate_database_now() + _PATIENCE
    )


class _Results:
    """The results of one step, written down as they come, under the context guard."""

    def __init__(self, held: Lease, seen: RunView, tools: Toolbox) -> None:
        self.held = held
        self.seen = seen
        self.tools = tools
        self._lock = asyncio.Lock()
        self._room: context.Room | None = None

    async def settle(self, call: CallView, end: ToolCallEnd, attempt: int) -> ToolCallEnd | None:
        """Write the end down, unless nobody knows it and making the call again cannot harm: None
        then."""
        if (
            end.state == CallState.UNKNOWN
            and self.tools.repeatable(call.name)
            and attempt < _MOST_ATTEMPTS
        ):
            await db_call(
                records.move_call, self.held, call.id, was=CallState.STARTED, to=CallState.PLANNED
            )
            return None
        await self.admit(call, end, was=CallState.STARTED)
        return end

    async def admit(self, call: CallView, end: ToolCallEnd, *, was: CallState) -> None:
        """Write the end down as the model will read it: whole, as a first page, or refused by the
        guard."""
        held = self.held
        async with self._lock:
            shown, store = _limit_size(end, self.seen, call)
            target = max(self.seen.spec.targets, key=lambda t: t.room, default=None)
            over = (
                None
                if target is None
                else await asyncio.to_thread(self._reckon_overflow, target, shown.text)
            )
            if target is not None and over is not None:
                await db_call(telemetry.guard, target, Trigger.TOOL, GuardOutcome.FINAL, over)
                shown = ToolCallEnd(
                    end.state, REFUSAL, end.whole, is_error=True, facts=end.facts | _details(over)
                )
                log.info("agent:context", run=held.key, call=call.name, **_details(over))
                await db_call(records.must_conclude, held, Exit.TOKEN_LIMIT)
            energy = self.tools.energy(call.name)
            failpoint("run_call_answered")
            write = partial(
                db_call, records.end_call, held, call.id, shown, was=was, store=store, energy=energy
            )
            await retry_while_unavailable(write)
            failpoint("run_call_ended")

    def _reckon_overflow(self, target: TargetSpec, text: str) -> Reckoning | None:
        """In a thread of its own, for counting takes a while."""
        count = counter(target.tokenizer, target.label)
        room = self._room
        if room is None:
            last = self.seen.turns[-1]
            ratio = context.ratio_of(last.input_tokens, last.estimated)
            room = context.Room(target, _count_known_tokens(self.seen, count), ratio)
            self._room = room
        return room.admit(count(text))


def _details(reckoning: Reckoning) -> dict[str, int]:
    """In the names of the third source design."""
    return {
        "projected_tokens": reckoning.projected,
        "limit_tokens": reckoning.limit,
        "remaining_tokens": reckoning.remaining,
    }


def _count_known_tokens(seen: RunView, count: Any) -> int:
    """Tokens that the next request has already: the last one with its answer, and results that came
    since."""
    last = seen.turns[-1]
    billed = (last.input_tokens or round(last.estimated * 1.15)) + last.output_tokens
    return billed + sum(count(call.result) for call in last.calls if call.result)


def _limit_size(end: ToolCallEnd, seen: RunView, call: CallView) -> tuple[ToolCallEnd, bool]:
    """A result over the limit is stored; the model gets its beginning and how to read on."""
    limit = seen.spec.max_result_bytes
    if (
        len(end.text.encode(errors="surrogatepass")) <= limit
        or call.name == outputs.TOOL["function"]["name"]
    ):
        return end, False
    handle = outputs.handle_of(seen.id, f"{call.turn}/{call.index}")
    text = outputs.preview(handle, end.text, limit=limit)
    return ToolCallEnd(end.state, text, end.text, end.is_error, end.facts), True


async def _call_in_time(
    tools: Toolbox, call: CallView, invocation: str, seconds: float
) -> ToolCallEnd | InvocationState:
    """A call that outlasts the run's time is cancelled, down to its server; what became of it is in
    its record."""
    try:
        async with asyncio.timeout(seconds):
            return await _make_call(tools, call, invocation)
    except TimeoutError:
        pass
    for _ in range(_LOOKS):
        found = await db_call(find_recorded_end, invocation)
        if isinstance(found, ToolCallEnd):
            return found
        await asyncio.sleep(_LOOK_EVERY)
    return InvocationState.DISPATCHED  # found out in a later step


async def _make_call(
    tools: Toolbox, call: CallView, invocation: str
) -> ToolCallEnd | InvocationState:
    """The call's end, or its state while it has none: held for people, or answered by a run of its
    own."""
    arguments: dict[str, Any] = json.loads(call.arguments or "{}")
    arguments, read = tools.read_arguments(call.name, arguments)
    if read:
        await db_call(records.read_as, call.id, invocation, read)
    if call.name == outputs.TOOL["function"]["name"]:
        return await db_call(read_output, tools.run, arguments)
    if tools.catalogue.find(call.name) is None:
        return _make_refusal(tools.unknown(call.name))
    outcome = await tools.call(call.name, arguments, invocation=invocation)
    return (
        outcome.state
        if outcome.state in (*_OPEN, InvocationState.DISPATCHED)
        else describe_end(outcome)
    )


async def _refuse_all(held: Lease, why: Exit, calls: Sequence[CallView]) -> bool:
    """What an operator wanted made again was made once: of that, what was told before stays
    true."""
    text = (
        REFUSAL
        if why == Exit.TOKEN_LIMIT
        else failure("the run must give its final answer, so this call was not made")
    )
    for call in calls:
        end = ToolCallEnd(CallState.REFUSED, text, is_error=True)
        if call.result:
            end = ToolCallEnd(CallState.UNKNOWN, call.result, is_error=True)
        await db_call(records.end_call, held, call.id, end, was=CallState.PLANNED)
    return True


def _unreadable(call: CallView, seen: RunView) -> ToolCallEnd | None:
    """Why arguments are none, in words that help the model to do better."""
    try:
        value = json.loads(call.arguments or "{}")
        problem = (
            "" if isinstance(value, dict) and BROKEN not in value else "they have a different type"
        )
    except ValueError as error:
        problem = str(error)
    if not problem:
        return None
    if seen.turns[-1].finish == "length":
        return _make_refusal(
            "Your answer was cut off at your output limit, so the arguments are incomplete and nothing was called. "
            "Call the tool again with shorter arguments, or split the work into several calls."
        )
    return _make_refusal(
        f"The arguments are not a JSON object ({problem}). Call the tool again with a JSON object."
    )


def _make_refusal(text: str) -> ToolCallEnd:
    return ToolCallEnd(CallState.REFUSED, failure(text), is_error=True)


def _is_server_dead(end: ToolCallEnd) -> bool:
    return end.facts.get("code") in _DEAD


async def wait_until_recorded(run_id: str) -> None:
    """Wait for the records of calls that were cancelled just now: their ends are written a moment
    later. Not for long, as of a call whose worker has died, the end comes much later."""
    for _ in range(_LOOKS):
        if not await db_call(has_open_record, run_id):
            return
        await asyncio.sleep(_LOOK_EVERY)


def has_open_record(run_id: str) -> bool:
    """Whether a call of the run was sent, and its record has no end."""
    calls = ToolCall.objects.filter(run_id=run_id, state=CallState.STARTED).values_list(
        "invocation", flat=True
    )
    return any(find_recorded_end(call) is InvocationState.DISPATCHED for call in calls)


def settle_started(run_id: str) -> None:
    """For a run that is being ended: say of each call that was out what the records say of it."""
    for call in ToolCall.objects.filter(run_id=run_id, state=CallState.STARTED):
        found = find_recorded_end(call.invocation)
        if found is None:
            state = CallState.CANCELLED
            text = ""
        elif isinstance(found, ToolCallEnd):
            state = found.state
            text = found.text
        else:
            state = CallState.UNKNOWN
            text = "The run ended before this call was answered."
        ToolCall.objects.filter(pk=call.pk, state=CallState.STARTED).update(
            state=state, result=text, finished_at=timezone.now()
        )
