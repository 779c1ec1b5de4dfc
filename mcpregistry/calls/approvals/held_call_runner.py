"""Runs approved calls, each exactly once over all processes.

Whoever holds a ticket may ``run`` its call: one process claims it, and the others get that one's
end from the record. What runs does so in a task of its own, so that one caller's leaving does not
take it from the others.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

import structlog

from mcpregistry.calls import record_rows
from mcpregistry.calls.approvals.finishing import finish_despite_cancel
from mcpregistry.calls.approvals.revalidation import ApprovalVoidError, CatalogueOf, revalidate_call
from mcpregistry.calls.call import Call, CallOutcome
from mcpregistry.calls.execution import Execution
from mcpregistry.calls.recording.errors import NotClaimedError
from mcpregistry.calls.recording.recorder import Recorder
from mcpregistry.calls.watch.configuration import LiveConfiguration
from mcpregistry.calls.watch.state_watch import StateWatch
from mcpregistry.db import db_call
from mcpregistry.domain.calls import outcome_texts
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.lifecycle import TERMINAL, InvocationState
from mcpregistry.domain.policy.decision import CallPolicy
from mcpregistry.failpoints import failpoint
from mcpregistry.models import ApprovalRequest
from mcpregistry.services.approvals import (
    held_calls,
    requests,
    unproven_approvals,
    votes,
)
from mcpregistry.services.approvals.held_calls import HeldCallTicket
from mcpregistry.services.conversations.conversation_scope import explain_conversation_limit
from mcpregistry.services.records import signed_calls

log = structlog.get_logger(__name__)

CLOSING_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _ApprovalCheck:
    """An approved request just before the claim.

    ``problems``: why the audit log does not prove the approval. ``lost``: why the approval no
    longer holds.
    """

    request: ApprovalRequest
    revision: int
    problems: Sequence[str] = ()
    lost: str = ""


class HeldCallRunner:
    """The runs of held calls in this process; one per engine."""

    def __init__(
        self,
        *,
        recorder: Recorder,
        watch: StateWatch[InvocationState],
        live: LiveConfiguration,
        catalogue_of: CatalogueOf,
        policy: CallPolicy,
        execution: Execution,
    ) -> None:
        self._recorder = recorder
        self._watch = watch
        self._live = live
        self._catalogue_of = catalogue_of
        self._policy = policy
        self._execution = execution
        self._running: dict[str, asyncio.Task[CallOutcome | None]] = {}

    async def close(self) -> None:
        """End what still runs; its end is recorded."""
        running = list(self._running.values())
        if running:
            await asyncio.wait(running, timeout=CLOSING_SECONDS)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def cancel_attempt(self, call_id: str) -> None:
        """Cancel the call if it runs in this process."""
        attempt = self._running.get(call_id)
        if attempt is not None:
            attempt.cancel()

    async def run(self, ticket: HeldCallTicket, call: Call | None = None) -> CallOutcome:
        """The end of the call: run by whoever claims it first, told to everybody else who holds a
        ticket.

        In any state but PENDING. ``call`` lends its progress and meta to the dispatch. A refusal is
        an outcome too. PENDING comes back when the site shuts down before there is an end.
        """
        outcome = await self.settle(ticket, call)
        if outcome.state in TERMINAL:
            await self._record_delivery(ticket)
        return outcome

    async def _record_delivery(self, ticket: HeldCallTicket) -> None:
        """As well as it can: the call has ended, and that is told whatever fails here. At worst it
        is told twice."""
        try:
            await db_call(
                held_calls.record_delivery,
                request_id=ticket.id,
                caller=ticket.caller,
                now=datetime.now(UTC),
            )
        except Exception:
            log.exception("approvals.delivery_not_recorded", call=ticket.call_id)

    async def settle(self, ticket: HeldCallTicket, call: Call | None = None) -> CallOutcome:
        """Like ``run``, for nobody: the end stays to be told to the caller who comes back for
        it."""
        while True:
            running = self._running.get(ticket.call_id)
            if running is not None:
                await asyncio.wait({running})
            request = await db_call(held_calls.load, ticket.id)
            state = InvocationState(request.call.state)
            if state in TERMINAL:
                return await _add_edit_note(request, _build_outcome(request))
            if self._watch.stopping:
                return CallOutcome(
                    ticket.call_id, InvocationState.PENDING, ticket=held_calls.make_ticket(request)
                )
            if state is InvocationState.READY:
                outcome = await self._join_attempt(request, call)
                if outcome is not None:
                    return await _add_edit_note(request, outcome)
            else:
                await self._watch.wait_for_change(ticket.call_id, state, None)

    async def settle_call(self, call_id: str) -> CallOutcome | None:
        """Run an approved call that waits for nobody. None: it is not ready, or not held at all."""
        ticket = await db_call(held_calls.load_ready_ticket, call_id=call_id)
        return await self.settle(ticket) if ticket else None

    async def read_outcome(self, ticket: HeldCallTicket) -> CallOutcome:
        """How the call stands, from the records alone; PENDING and READY come back with the
        ticket."""
        request = await db_call(held_calls.load, ticket.id)
        return await _add_edit_note(request, _build_outcome(request))

    async def _join_attempt(
        self, request: ApprovalRequest, call: Call | None
    ) -> CallOutcome | None:
        """Try to be the one who runs it. None: look again.

        One attempt for each call, whoever joined: callers wake together, and the attempt that loses
        the claim must not hide the one that is out.
        """
        attempt = self._running.get(request.call_id)
        if attempt is None:
            attempt = asyncio.ensure_future(self._attempt(request.pk, call))
            self._running[request.call_id] = attempt
            attempt.add_done_callback(partial(self._forget_attempt, request.call_id))
        await asyncio.wait({attempt})  # never cancels it: that is for ``leave_soon`` to decide
        try:
            return None if attempt.cancelled() else attempt.result()
        except SlipsnisseError as error:
            # not recorded, so not made: it may be claimed another time
            log.error("approvals.not_run", call=request.call_id, code=error.code)
            return CallOutcome(
                request.call_id, InvocationState.READY, ticket=held_calls.make_ticket(request)
            )

    def _forget_attempt(self, call_id: str, attempt: asyncio.Task[CallOutcome | None]) -> None:
        if self._running.get(call_id) is attempt:
            del self._running[call_id]

    async def _attempt(self, request_id: str, call: Call | None) -> CallOutcome | None:
        now = datetime.now(UTC)
        look = await db_call(self._check_request, request_id, now)
        request = look.request
        if InvocationState(request.call.state) is not InvocationState.READY:
            return None
        if look.problems:
            await db_call(
                unproven_approvals.refuse, request_id=request_id, problems=look.problems, now=now
            )
            return None
        try:
            if look.lost:
                raise ApprovalVoidError(look.lost)
            ours = revalidate_call(
                request, catalogue_of=self._catalogue_of, policy=self._policy, now=now, call=call
            )
        except ApprovalVoidError as lost:
            await db_call(held_calls.void, request_id=request_id, reason=lost.message, now=now)
            return None
        failpoint("before_claim")
        # Over all processes one claim wins: a compare-and-set on state, binding, fence, deadline
        # and revision.
        claimed = await self._claim(ours, look.revision)
        return await self._execution.execute(claimed) if claimed else None

    def _check_request(self, request_id: str, now: datetime) -> _ApprovalCheck:
        """In a database thread: the request, the configuration as it is this moment, and why it may
        not run, if so."""
        # Read before the request: whatever changes in between raises the revision, and the claim
        # fails on it.
        revision = self._live.refresh().revision
        request = held_calls.load(request_id)
        if request.execute_by is not None and request.execute_by <= now:
            held_calls.expire(request_id=request_id, now=now)
            request = held_calls.load(request_id)
        if InvocationState(request.call.state) is not InvocationState.READY:
            return _ApprovalCheck(request, revision)
        cast = votes.list_votes(request)
        if problems := signed_calls.find_contradictions(request, cast):
            return _ApprovalCheck(request, revision, problems)
        return _ApprovalCheck(
            request,
            revision,
            lost=votes.explain_lost_quorum(request, cast)
            or explain_conversation_limit(request.call),
        )

    async def _claim(self, call: Call, revision: int) -> Call | None:
        """Not to be interrupted: whether the claim was won decides what is to be recorded."""
        try:
            fence, cancelled = await finish_despite_cancel(
                self._recorder.claim(
                    record_rows.build_claim(call, revision), record_rows.make_dispatched_fact(call)
                )
            )
        except NotClaimedError:
            return None
        failpoint("after_claim")
        claimed = replace(call, fence=fence)
        if cancelled:
            self._execution.abandon(claimed)
            raise asyncio.CancelledError
        return claimed


def _build_outcome(request: ApprovalRequest) -> CallOutcome:
    """As recorded; the result is there while retention keeps it."""
    call = request.call
    state = InvocationState(request.call.state)
    if state not in TERMINAL:
        return CallOutcome(call.pk, state, ticket=held_calls.make_ticket(request))
    result = json.loads(request.result) if request.result else None
    said = "" if result is not None else call.reason
    # of other ends the reason says it all
    remedy = outcome_texts.advise_after_end(state) if state is InvocationState.EXPIRED else ""
    duration = call.duration_ms or 0.0
    return CallOutcome(
        call.pk, state, result, call.error_code, said, remedy, duration, warning=call.warning
    )


async def _add_edit_note(request: ApprovalRequest, outcome: CallOutcome) -> CallOutcome:
    """An approver has changed the arguments: the agent is told what ran instead of what it asked
    for."""
    if not request.edited or outcome.result is None:
        return outcome
    return replace(
        outcome, result=await db_call(requests.build_agent_result, request, outcome.result)
    )
