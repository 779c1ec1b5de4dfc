"""Sends a call whose intent is on disk, and records its end.

A call is never repeated here. If a byte may have left, a failed call ends as "unknown", otherwise
as "not sent". The transport reports which of the two is true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import structlog
from django.db import Error

from mcpregistry.calls import budgets, record_rows
from mcpregistry.calls.call import Call, CallOutcome
from mcpregistry.calls.energy import Energy
from mcpregistry.calls.in_flight import InFlight
from mcpregistry.calls.record_rows import make_cancelled_outcome, make_outcome
from mcpregistry.calls.recorded_outcomes import load_outcome
from mcpregistry.calls.recording.errors import EndedOtherwiseError
from mcpregistry.calls.recording.recorder import Recorder
from mcpregistry.database_errors import is_passing
from mcpregistry.db import db_call
from mcpregistry.domain import error_texts
from mcpregistry.domain.errors import (
    DownstreamError,
    SlipsnisseError,
    ToolRefused,
    Unavailable,
)
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.failpoints import failpoint

log = structlog.get_logger(__name__)

CRASHED = "The call failed because of an internal error."


class Dispatcher(Protocol):
    """Sends a claimed call to whoever serves it.

    Returns the raw result object, or ``{"resultType": "task", "taskId": …}`` with the id of our
    handle for a call that goes on; raises DownstreamError. Calls ``on_sent`` once the first byte
    may have left.
    """

    async def __call__(self, call: Call, *, on_sent: Any) -> dict[str, Any]:
        """Send the call; see the class."""


class ReturnsPermits(Protocol):
    """Takes back the uses of permits by calls that did not run. Does not wait."""

    def give_back(self, call: Call) -> None:
        """The use that this call has taken is for another one."""


class Execution:
    """The last stages of a call: dispatch and finish. One per engine."""

    def __init__(
        self,
        *,
        recorder: Recorder,
        dispatchers: Mapping[str, Dispatcher],
        permits: ReturnsPermits,
        in_flight: InFlight,
    ) -> None:
        self.dispatchers = dispatchers
        self.energy = Energy()
        self._recorder = recorder
        self._permits = permits
        self._in_flight = in_flight

    async def execute(self, call: Call) -> CallOutcome:
        """Send a call whose intent is on disk, and record its end. Never raises but for being
        cancelled.

        If the server makes a task of the call, ``calls/remote_tasks/adoption.py`` records the end.
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
        """End a claimed call whose caller left before it was sent. Does not wait."""
        self._end_soon(
            call, InvocationState.NOT_SENT, "the caller disconnected before the call was sent"
        )

    async def _dispatch_call(self, call: Call) -> CallOutcome:
        sent = False

        def on_sent() -> None:
            nonlocal sent
            sent = True
            failpoint("after_send")

        try:
            result = await self.dispatchers[call.entry.offer.kind](call, on_sent=on_sent)
        except asyncio.CancelledError:
            state = InvocationState.UNKNOWN if sent else InvocationState.NOT_SENT
            self._end_soon(call, state, "the caller cancelled the call")
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
            crash: SlipsnisseError = DownstreamError(
                CRASHED, remedy=error_texts.ASK_OPERATOR, sent=sent
            )
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
        self.return_unused_permit(call, outcome.state)
        try:
            row = record_rows.build_end(call, outcome)
            await self._recorder.end(row, record_rows.make_ended_fact(call, row))
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
        """Another process has recorded the final end of the call. Return that end."""
        log.error("call.ended_otherwise", call=call.id, state=outcome.state.value)
        try:
            return await db_call(load_outcome, call.id) or replace(outcome, late=True)
        except Error:
            log.exception("call.not_looked_up", call=call.id)
            return replace(outcome, late=True)

    def _end_soon(self, call: Call, state: InvocationState, reason: str) -> None:
        """End a call while its caller is being cancelled: nothing is waited for. ``reason`` holds
        unless it is this process that stops."""
        self.return_unused_permit(call, state)
        reason = self._in_flight.explain_cancel(reason)
        row = record_rows.build_end(call, make_cancelled_outcome(call, state, reason))
        self._recorder.end_soon(row, record_rows.make_ended_fact(call, row))

    def return_unused_permit(self, call: Call, state: InvocationState) -> None:
        """A use of a permit is for a call that runs."""
        if call.permit and state is InvocationState.NOT_SENT:
            self._permits.give_back(call)
