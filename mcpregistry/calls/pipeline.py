"""One tool call from request to record, stage by stage; every face goes through here.

resolve -> authorise -> validate -> decide -> afford -> approve -> claim -> dispatch -> finish

Whatever refuses, refuses before anything is sent; the refusal is recorded as well. The record of
the intent is durable before the first byte goes out, and the end before the answer goes back. A
call is never repeated here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

import structlog
from django.db import Error

from mcpregistry.calls import budgets, record_rows, stages
from mcpregistry.calls.call import Call, CallOutcome, CallRequest, JudgedCall
from mcpregistry.calls.catalog import CatalogueEntry
from mcpregistry.calls.energy import Energy
from mcpregistry.calls.rates import CallRates, RateLimitedError
from mcpregistry.calls.record_rows import make_outcome
from mcpregistry.calls.recorded_outcomes import load_outcome
from mcpregistry.calls.recording.errors import EndedOtherwiseError, make_not_recorded_error
from mcpregistry.calls.recording.recorder import Recorder
from mcpregistry.calls.refusal_floods import RefusalFloods
from mcpregistry.database_errors import is_passing
from mcpregistry.db import db_call
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import (
    Denied,
    DownstreamError,
    SlipsnisseError,
    ToolRefused,
    Unavailable,
)
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.policy.decision import CallPolicy, Decision, RuleOutcome
from mcpregistry.failpoints import failpoint
from mcpregistry.ids import make_ordered_id
from mcpregistry.services.approvals.refusals import RefusedBefore
from mcpregistry.services.policy.permits import Used
from mcpregistry.services.records.audit import AuditFact

log = structlog.get_logger(__name__)

_STOPPED = "this process was stopped before the answer arrived"
_CRASHED = "The call failed because of an internal error."
_ASK = error_texts.ASK_OPERATOR
R = TypeVar("R")


class Dispatcher(Protocol):
    """Sends a claimed call to whoever serves it.

    Returns the raw result object, or ``{"resultType": "task", "taskId": …}`` with the id of our
    handle for a call that goes on; raises DownstreamError. Calls ``on_sent`` once the first byte
    may have left.
    """

    async def __call__(self, call: Call, *, on_sent: Any) -> dict[str, Any]:
        """Send the call; see the class."""


class HoldStage(Protocol):
    """Asks people and waits. Returns how the call ended, or that it is pending still."""

    async def __call__(self, call: Call) -> CallOutcome:
        """Hold the call; see the class."""


class Permits(Protocol):
    """What is needed of approvals before anybody is asked."""

    async def use_permit(self, call: Call) -> Used | None:
        """The permit by which the call may run without asking, one use of it taken; None when there
        is none."""
        ...

    def give_back(self, call: Call) -> None:
        """Nothing ran of a call that has taken a use of a permit."""
        ...

    def drop(self, call: Call) -> None:
        """Nobody waits for the call any more, whatever has become of it."""
        ...


class Pipeline:
    """The stages in order, bound to what they need; one per engine."""

    def __init__(
        self,
        *,
        recorder: Recorder,
        dispatchers: Mapping[str, Dispatcher],
        policy: CallPolicy,
        approvals: Permits,
        waiting: HoldStage,
    ) -> None:
        self.recorder = recorder
        self.dispatchers = dispatchers
        self.policy = policy
        self.approvals = approvals
        self.waiting = waiting
        self.rates = CallRates()
        self.energy = Energy()
        self.floods = RefusalFloods(self._record_flood)
        self.repeats = RefusalFloods(self._record_repeats)  # of calls that people have refused
        # calls that are cancelled now are cut by us, not by their callers
        self.process_stops = False

    async def run(self, request: CallRequest) -> CallOutcome:
        """Make the call. Never raises for anything that happened to the call; see CallOutcome."""
        return await self.proceed(self.judge(request))

    def judge(self, request: CallRequest) -> JudgedCall:
        """Resolve to decide. Records nothing and uses nothing up, so it may be done without going
        on."""
        call_id = request.call_id or make_ordered_id()
        received_at = datetime.now(UTC)
        started = time.monotonic()
        entry: CatalogueEntry = stages.NO_ENTRY
        arguments_json = ""
        binding = ""
        decision = stages.UNDECIDED
        refusal = None
        try:
            entry = stages.resolve(request)
            stages.authorise(request, entry)
            arguments_json = stages.validate(request, entry)
            decision = stages.decide_call(request, entry, self.policy)
            binding = stages.bind(request, entry, arguments_json, decision)
            stages.refuse_denied(decision)
        except SlipsnisseError as error:
            refusal = error
        except Exception:
            # a fault of ours must not let the call through, nor end it without a record
            log.exception("call.crashed", call=call_id)
            refusal = Denied(_CRASHED, remedy=_ASK)
        call = Call(
            call_id, request, entry, arguments_json, binding, decision, received_at, started
        )
        return JudgedCall(call, refusal)

    async def proceed(self, judged: JudgedCall) -> CallOutcome:
        """Go on with a judged call: record its refusal, hold it, or send it. Never raises, like
        ``run``."""
        return await self.energy.add_cost(judged.call, await self._check_and_run(judged))

    async def _check_and_run(self, judged: JudgedCall) -> CallOutcome:
        call = judged.call
        refusal = judged.refusal
        try:
            # of what is refused as well: each is a durable row
            await self.rates.take(call.request.catalogue.agent)
            afforded = await budgets.reserve(call) if refusal is None else call
        except RateLimitedError as limited:
            return await self._refuse_beyond_rate(call, limited)
        except SlipsnisseError as error:
            return await self._refuse_call(call, refusal or error)
        except asyncio.CancelledError:
            self._record_early_departure(call)
            raise
        if refusal is not None:
            return await self._refuse_call(call, refusal)
        return await self._run_and_settle(afforded)

    async def _run_and_settle(self, call: Call) -> CallOutcome:
        held = call.decision.outcome is RuleOutcome.ASK
        outcome = await (self._hold_call(call) if held else self._record_and_execute(call))
        await budgets.settle(call, outcome)
        return outcome

    async def _refuse_beyond_rate(self, call: Call, limited: SlipsnisseError) -> CallOutcome:
        """Refused beyond the rate. A run finds each of its calls again by its id, so those are
        recorded one by one."""
        return await self._refuse_or_count(
            self.floods, call.request.catalogue.agent.slug, call, limited, InvocationState.DENIED
        )

    async def _refuse_repeat(self, call: Call, refusal: RefusedBefore) -> CallOutcome:
        """People have refused this very call. Who keeps asking is answered more and more slowly."""
        outcome = await self._refuse_or_count(
            self.repeats, refusal.request_id, call, refusal, InvocationState.REJECTED
        )
        await asyncio.sleep(compute_repeat_pause(self.repeats.get_repeat_count(refusal.request_id)))
        return outcome

    async def _refuse_or_count(
        self,
        floods: RefusalFloods,
        key: str,
        call: Call,
        refusal: SlipsnisseError,
        state: InvocationState,
    ) -> CallOutcome:
        first = floods.count_repeat(call, key) if call.request.origin != "run" else None
        if first is None:
            return await self._refuse_call(call, refusal, state)
        return replace(make_outcome(call, state, error=refusal), invocation_id=first)

    def _record_flood(self, call: Call, more: int, first: str) -> None:
        said = (
            f"The agent exceeded its rate limit: {more} more calls were denied within a minute after the call {first}. "
            "This record is for the last of them."
        )
        row = record_rows.build_refused_row(
            call, make_outcome(call, InvocationState.DENIED, error=RateLimitedError(said))
        )
        self._record_soon(self.recorder.begin_soon, row, record_rows.make_ended_fact(call, row))

    def _record_repeats(self, call: Call, more: int, first: str) -> None:
        said = (
            f"An approver had rejected this call: {more} more identical calls were rejected within a minute after the "
            f"call {first}. This record is for the last of them."
        )
        row = record_rows.build_refused_row(
            call, make_outcome(call, InvocationState.REJECTED, error=RefusedBefore(said))
        )
        self._record_soon(self.recorder.begin_soon, row, record_rows.make_ended_fact(call, row))

    def close(self) -> None:
        """Record what was only counted so far; before the recorder is closed."""
        self.floods.close()
        self.repeats.close()

    async def _refuse_call(
        self, call: Call, refusal: SlipsnisseError, state: InvocationState = InvocationState.DENIED
    ) -> CallOutcome:
        outcome = make_outcome(call, state, error=refusal)
        try:
            row = record_rows.build_refused_row(call, outcome)
            await self.recorder.begin(row, record_rows.make_ended_fact(call, row))
        except SlipsnisseError as error:
            return replace(
                outcome, error_code=error.code, message=error.message, remedy=error.remedy
            )
        return outcome

    async def _hold_call(self, call: Call) -> CallOutcome:
        """People are asked, unless one of them has permitted such calls; the rest is in
        ``calls.approvals``."""
        try:
            permit = await self._use_permit(call)
            if permit is None:
                return await self.waiting(call)
        except RefusedBefore as again:
            return await self._refuse_repeat(call, again)
        except SlipsnisseError as refusal:
            return await self._refuse_call(call, refusal)
        except Error:
            log.exception("call.not_held", call=call.id)
            # it cannot be looked up: should it be there all the same, nobody waits for it
            self.approvals.drop(call)
            return make_outcome(call, InvocationState.NOT_SENT, error=make_not_recorded_error())
        except Exception:
            # only while asking: what fails later is told by the record
            # (``calls/approvals/caller_waiting.py``)
            log.exception("call.crashed", call=call.id)
            self.approvals.drop(call)
            crash = Denied(_CRASHED, remedy=f"The call was not made. {_ASK}")
            return await self._refuse_call(call, crash, InvocationState.CANCELLED)
        return await self._record_and_execute(
            replace(call, decision=Decision(RuleOutcome.ALLOW, permit.why), permit=permit.id)
        )

    async def _use_permit(self, call: Call) -> Used | None:
        try:
            return await self.approvals.use_permit(call)
        except asyncio.CancelledError:
            self._record_early_departure(call)
            raise

    def _record_early_departure(self, call: Call) -> None:
        reason = (
            _STOPPED
            if self.process_stops
            else "the caller disconnected before an approval was requested"
        )
        row = record_rows.build_refused_row(
            call, _make_cancelled_outcome(call, InvocationState.CANCELLED, reason)
        )
        self._record_soon(self.recorder.begin_soon, row, record_rows.make_ended_fact(call, row))

    async def _record_and_execute(self, call: Call) -> CallOutcome:
        """The intent goes to disk, then the call goes out, then its end goes to disk."""
        try:
            # Durable before the first byte goes out: after a crash the record says that the call
            # may have been made.
            await self.recorder.begin(
                record_rows.build_intent(call), record_rows.make_dispatched_fact(call)
            )
        except asyncio.CancelledError:
            self.abandon(call)
            raise
        except SlipsnisseError as error:
            self._return_unused_permit(call, InvocationState.NOT_SENT)
            return make_outcome(call, InvocationState.NOT_SENT, error=error)
        return await self.execute(call)

    async def execute(self, call: Call) -> CallOutcome:
        """Send a call whose intent is on disk, and record its end. Never raises but for being
        cancelled.

        A server's task goes on after this; whoever follows it records its end
        (``calls/remote_tasks/adoption.py``).
        """
        try:
            call = await budgets.add_remarks(call)
        except asyncio.CancelledError:
            self.abandon(call)
            raise
        outcome = await self._reserve_energy(call) or await self._dispatch_call(call)
        if outcome.state is InvocationState.DISPATCHED:
            await budgets.restore_call_remarks(call)
            return outcome
        outcome = await self._record_end(call, budgets.add_remarks_to_outcome(call, outcome))
        await self.energy.settle(call)
        return outcome

    async def _reserve_energy(self, call: Call) -> CallOutcome | None:
        """How the call ends for which there is no energy; None: it may go out. Here, for here pass
        approved calls too."""
        try:
            await self.energy.reserve(call)
        except asyncio.CancelledError:
            self.abandon(call)
            raise
        except SlipsnisseError as error:
            return make_outcome(call, InvocationState.NOT_SENT, error=error)
        return None

    def abandon(self, call: Call) -> None:
        """A claimed call whose caller left before it was sent."""
        reason = (
            _STOPPED if self.process_stops else "the caller disconnected before the call was sent"
        )
        self._end_soon(call, InvocationState.NOT_SENT, reason)

    async def _dispatch_call(self, call: Call) -> CallOutcome:
        # Whether a byte may have left decides between "not sent" and "unknown". The transport says
        # it; nobody guesses.
        sent = False

        def on_sent() -> None:
            nonlocal sent
            sent = True
            failpoint("after_send")

        try:
            result = await self.dispatchers[call.entry.offer.kind](call, on_sent=on_sent)
        except asyncio.CancelledError:
            state = InvocationState.UNKNOWN if sent else InvocationState.NOT_SENT
            self._end_soon(
                call, state, _STOPPED if self.process_stops else "the caller cancelled the call"
            )
            raise
        except ToolRefused as error:
            refused = make_outcome(call, InvocationState.TOOL_ERROR, error=error)
            return replace(refused, rpc_code=error.rpc_code, rpc_data=error.data)
        except DownstreamError as error:
            return make_outcome(
                call,
                InvocationState.UNKNOWN if error.sent else InvocationState.NOT_SENT,
                error=error,
            )
        except SlipsnisseError as error:
            return make_outcome(
                call, InvocationState.UNKNOWN if sent else InvocationState.NOT_SENT, error=error
            )
        except Exception as error:  # its text may hold a secret: it goes to the log only
            log.exception("call.crashed", call=call.id)
            crash: SlipsnisseError = DownstreamError(_CRASHED, remedy=_ASK, sent=sent)
            if is_passing(error):
                crash = Unavailable(
                    error_texts.DATABASE_UNAVAILABLE,
                    remedy="" if sent else error_texts.TRY_AGAIN_SOON,
                )
            return make_outcome(
                call, InvocationState.UNKNOWN if sent else InvocationState.NOT_SENT, error=crash
            )
        if result.get("resultType") == "task":
            return replace(make_outcome(call, InvocationState.DISPATCHED), task_id=result["taskId"])
        return make_outcome(
            call,
            InvocationState.TOOL_ERROR if result.get("isError") else InvocationState.SUCCEEDED,
            result=result,
        )

    async def _record_end(self, call: Call, outcome: CallOutcome) -> CallOutcome:
        failpoint("before_end")
        self._return_unused_permit(call, outcome.state)
        try:
            row = record_rows.build_end(call, outcome)
            await self.recorder.end(row, record_rows.make_ended_fact(call, row))
        except EndedOtherwiseError:
            return await self._read_recorded_outcome(call, outcome)
        except SlipsnisseError:
            # It did happen, and saying otherwise would be a lie. The recorder keeps the end until
            # it is written.
            log.error("call.end_not_recorded", call=call.id)
            return replace(outcome, late=True)
        return outcome

    @staticmethod
    async def _read_recorded_outcome(call: Call, outcome: CallOutcome) -> CallOutcome:
        """Somebody else has ended the call for good, so that is what everybody is told."""
        log.error("call.ended_otherwise", call=call.id, state=outcome.state.value)
        try:
            return await db_call(load_outcome, call.id) or replace(outcome, late=True)
        except Error:
            log.exception("call.not_looked_up", call=call.id)
            return replace(outcome, late=True)

    def _end_soon(self, call: Call, state: InvocationState, reason: str) -> None:
        """A call that is out ends while its caller is being cancelled: nothing is waited for."""
        self._return_unused_permit(call, state)
        row = record_rows.build_end(call, _make_cancelled_outcome(call, state, reason))
        self._record_soon(self.recorder.end_soon, row, record_rows.make_ended_fact(call, row))

    def _return_unused_permit(self, call: Call, state: InvocationState) -> None:
        """A use of a permit is for a call that runs."""
        if call.permit and state is InvocationState.NOT_SENT:
            self.approvals.give_back(call)

    @staticmethod
    def _record_soon(record: Callable[[R, AuditFact], None], row: R, fact: AuditFact) -> None:
        try:
            record(row, fact)
        except SlipsnisseError:
            log.error("call.end_not_recorded", about=fact.subject)


def compute_repeat_pause(repeats: int) -> float:
    """Seconds that the next who repeats a refused call waits for its answer: less than any known
    host bears."""
    return min(2.0, 0.125 * 2 ** min(repeats, 10)) if repeats else 0.0


def _make_cancelled_outcome(call: Call, state: InvocationState, reason: str) -> CallOutcome:
    return replace(make_outcome(call, state), error_code="CANCELLED", message=reason)
