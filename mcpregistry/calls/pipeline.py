"""One tool call from request to record, stage by stage; every face goes through here.

resolve -> authorise -> validate -> decide    ``judge``: records nothing, uses nothing up
afford -> approve -> claim                    ``proceed``: budgets, people, the durable intent
dispatch -> finish                            ``Execution``: energy, the server, the end

Whatever refuses, refuses before anything is sent; the refusal is recorded as well
(``RefusalRecords``). The record of the intent is durable before the first byte goes out, and the
end before the answer goes back. A call is never repeated here.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

import structlog
from django.db import Error

from mcpregistry.calls import budgets, record_rows, stages
from mcpregistry.calls.call import Call, CallOutcome, CallRequest, JudgedCall
from mcpregistry.calls.catalog import CatalogueEntry
from mcpregistry.calls.execution import CRASHED, Execution
from mcpregistry.calls.rates import CallRates, RateLimitedError
from mcpregistry.calls.record_rows import make_outcome
from mcpregistry.calls.recording.errors import make_not_recorded_error
from mcpregistry.calls.recording.recorder import Recorder
from mcpregistry.calls.refusal_records import RefusalRecords
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import Denied, SlipsnisseError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.policy.decision import CallPolicy, Decision, RuleOutcome
from mcpregistry.ids import make_ordered_id
from mcpregistry.services.approvals.refusals import RefusedBefore
from mcpregistry.services.policy.permits import Used

log = structlog.get_logger(__name__)

_ASK = error_texts.ASK_OPERATOR


class HoldStage(Protocol):
    """Asks people and waits."""

    async def hold(self, call: Call) -> CallOutcome:
        """Hold the call. Returns how it ended, or that it is pending still."""
        ...

    def drop(self, call: Call) -> None:
        """Give up the caller's place, if the call is held. Does not wait."""
        ...


class Permits(Protocol):
    """Permits, which approvers have given for later calls."""

    async def take_use(self, call: Call) -> Used | None:
        """The permit by which the call may run without asking, one use of it taken; None when there
        is none."""
        ...


class Pipeline:
    """The stages in order, bound to what they need; one per engine."""

    def __init__(
        self,
        *,
        recorder: Recorder,
        policy: CallPolicy,
        permits: Permits,
        holder: HoldStage,
        execution: Execution,
        refusals: RefusalRecords,
    ) -> None:
        self.policy = policy
        self.rates = CallRates()
        self.execution = execution
        self.holder = holder
        self._recorder = recorder
        self._permits = permits
        self._refusals = refusals

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
            refusal = Denied(CRASHED, remedy=_ASK)
        call = Call(
            call_id, request, entry, arguments_json, binding, decision, received_at, started
        )
        return JudgedCall(call, refusal)

    async def proceed(self, judged: JudgedCall) -> CallOutcome:
        """Go on with a judged call: record its refusal, hold it, or send it. Never raises, like
        ``run``."""
        call = judged.call
        try:
            # refused calls count as well: each is a durable row
            await self.rates.take(call.request.catalogue.agent)
            if judged.refusal is not None:
                raise judged.refusal
            afforded = await budgets.reserve(call)
        except RateLimitedError as limited:
            outcome = await self._refusals.record_beyond_rate(call, limited)
        except SlipsnisseError as error:
            outcome = await self._refusals.record(call, judged.refusal or error)
        except asyncio.CancelledError:
            self._refusals.record_departure(call)
            raise
        else:
            is_held = afforded.decision.outcome is RuleOutcome.ASK
            outcome = await (self._approve(afforded) if is_held else self._claim(afforded))
            await budgets.settle(afforded, outcome)
        return await self.execution.energy.add_cost(call, outcome)

    async def _approve(self, call: Call) -> CallOutcome:
        """Ask people about the call, unless one of them has permitted such calls; the rest is in
        ``calls.approvals``."""
        try:
            permit = await self._take_permit(call)
            if permit is None:
                return await self.holder.hold(call)
        except RefusedBefore as again:
            return await self._refusals.record_repeat(call, again)
        except SlipsnisseError as refusal:
            return await self._refusals.record(call, refusal)
        except Error:
            log.exception("call.not_held", call=call.id)
            # it cannot be looked up: should it be there all the same, nobody waits for it
            self.holder.drop(call)
            return make_outcome(call, InvocationState.NOT_SENT, error=make_not_recorded_error())
        except Exception:
            # only while asking: what fails later is told by the record
            # (``calls/approvals/caller_waiting.py``)
            log.exception("call.crashed", call=call.id)
            self.holder.drop(call)
            crash = Denied(CRASHED, remedy=f"The call was not made. {_ASK}")
            return await self._refusals.record(call, crash, InvocationState.CANCELLED)
        permitted = Decision(RuleOutcome.ALLOW, permit.why)
        return await self._claim(replace(call, decision=permitted, permit=permit.id))

    async def _take_permit(self, call: Call) -> Used | None:
        try:
            return await self._permits.take_use(call)
        except asyncio.CancelledError:
            self._refusals.record_departure(call)
            raise

    async def _claim(self, call: Call) -> CallOutcome:
        """Write the intent to disk; then the call goes out. After a crash the record says that it
        may have been made."""
        try:
            await self._recorder.begin(
                record_rows.build_intent(call), record_rows.make_dispatched_fact(call)
            )
        except asyncio.CancelledError:
            self.execution.abandon(call)
            raise
        except SlipsnisseError as error:
            self.execution.return_unused_permit(call, InvocationState.NOT_SENT)
            return make_outcome(call, InvocationState.NOT_SENT, error=error)
        return await self.execution.execute(call)
