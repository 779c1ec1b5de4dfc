"""Records of calls that are refused before anything is sent. A flood of them is counted: see
``refusal_floods.py``."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from mcpregistry.calls import record_rows
from mcpregistry.calls.call import Call, CallOutcome
from mcpregistry.calls.in_flight import InFlight
from mcpregistry.calls.rates import RateLimitedError
from mcpregistry.calls.record_rows import make_cancelled_outcome, make_outcome
from mcpregistry.calls.recording.recorder import Recorder
from mcpregistry.calls.refusal_floods import RefusalFloods
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.text.display import number_of
from mcpregistry.services.approvals.refusals import RefusedBefore


class RefusalRecords:
    """Those of one process. Each method returns what the caller is told."""

    def __init__(self, recorder: Recorder, in_flight: InFlight) -> None:
        self._recorder = recorder
        self._in_flight = in_flight
        self._floods = RefusalFloods(self._record_flood)
        self._repeats = RefusalFloods(self._record_repeats)  # of calls that people have refused

    def close(self) -> None:
        """Record what was only counted so far; before the recorder is closed."""
        self._floods.close()
        self._repeats.close()

    async def record(
        self, call: Call, refusal: SlipsnisseError, state: InvocationState = InvocationState.DENIED
    ) -> CallOutcome:
        """Record one refusal."""
        outcome = make_outcome(call, state, error=refusal)
        try:
            row = record_rows.build_refused_row(call, outcome)
            await self._recorder.begin(row, record_rows.make_ended_fact(call, row))
        except SlipsnisseError as error:
            return replace(
                outcome, error_code=error.code, message=error.message, remedy=error.remedy
            )
        return outcome

    async def record_beyond_rate(self, call: Call, limited: SlipsnisseError) -> CallOutcome:
        """The agent has made too many calls."""
        agent = call.request.catalogue.agent.slug
        return await self._record_or_count(
            self._floods, agent, call, limited, InvocationState.DENIED
        )

    async def record_repeat(self, call: Call, refusal: RefusedBefore) -> CallOutcome:
        """An approver has rejected the same call before. Each repetition waits longer for its
        answer."""
        outcome = await self._record_or_count(
            self._repeats, refusal.request_id, call, refusal, InvocationState.REJECTED
        )
        count = self._repeats.get_repeat_count(refusal.request_id)
        await asyncio.sleep(compute_repeat_pause(count))
        return outcome

    def record_departure(self, call: Call) -> None:
        """The caller left before anybody was asked or anything was sent. Does not wait."""
        reason = self._in_flight.explain_cancel(
            "the caller disconnected before an approval was requested"
        )
        outcome = make_cancelled_outcome(call, InvocationState.CANCELLED, reason)
        self._begin_soon(call, outcome)

    async def _record_or_count(
        self,
        floods: RefusalFloods,
        key: str,
        call: Call,
        refusal: SlipsnisseError,
        state: InvocationState,
    ) -> CallOutcome:
        """A run finds each of its calls again by its id, so those are recorded one by one."""
        first = floods.count_repeat(call, key) if call.request.origin != "run" else None
        if first is None:
            return await self.record(call, refusal, state)
        return replace(make_outcome(call, state, error=refusal), invocation_id=first)

    def _record_flood(self, call: Call, more: int, first: str) -> None:
        message = (
            f"The agent exceeded its rate limit: {number_of(more, 'more call was', 'more calls were')} denied within a minute after the call {first}. "
            "This record is for the last of these calls."
        )
        outcome = make_outcome(call, InvocationState.DENIED, error=RateLimitedError(message))
        self._begin_soon(call, outcome)

    def _record_repeats(self, call: Call, more: int, first: str) -> None:
        message = (
            f"An approver had rejected this call: {number_of(more, 'more identical call was', 'more identical calls were')} rejected within a minute after the "
            f"call {first}. This record is for the last of these calls."
        )
        outcome = make_outcome(call, InvocationState.REJECTED, error=RefusedBefore(message))
        self._begin_soon(call, outcome)

    def _begin_soon(self, call: Call, outcome: CallOutcome) -> None:
        row = record_rows.build_refused_row(call, outcome)
        self._recorder.begin_soon(row, record_rows.make_ended_fact(call, row))


def compute_repeat_pause(repeats: int) -> float:
    """Seconds that the next who repeats a refused call waits for its answer: less than any known
    host bears."""
    return min(2.0, 0.125 * 2 ** min(repeats, 10)) if repeats else 0.0
