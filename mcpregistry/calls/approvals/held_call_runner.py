"""Held calls in the life of one process: asked for, watched, and run exactly once over all
processes.

The database is the truth. Whoever holds a ticket may ``run`` it: one claims the call, over all
processes, and the others get that one's end from the record. What runs does so in a task of its
own, so that one caller's leaving does not take it from the others.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, TypeVar

import structlog
from django.db import Error

from mcpregistry.calls import record_rows
from mcpregistry.calls.approvals.background_writes import BackgroundWrites
from mcpregistry.calls.approvals.finishing import finish_despite_cancel
from mcpregistry.calls.approvals.permit_uses import PermitUses
from mcpregistry.calls.approvals.revalidation import ApprovalVoidError, CatalogueOf, revalidate_call
from mcpregistry.calls.approvals.waiter_leases import WaiterLeases
from mcpregistry.calls.call import Call, CallOutcome
from mcpregistry.calls.recording.errors import NotClaimedError
from mcpregistry.calls.recording.recorder import Recorder
from mcpregistry.calls.watch.changes import Feed
from mcpregistry.calls.watch.configuration import LiveConfiguration
from mcpregistry.calls.watch.state_watch import StateWatch
from mcpregistry.db import db_call
from mcpregistry.domain.calls import outcome_texts
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.lifecycle import TERMINAL, InvocationState
from mcpregistry.domain.policy.decision import DEFAULT_TERMS, CallPolicy
from mcpregistry.domain.policy.risk import assess_risk
from mcpregistry.failpoints import failpoint
from mcpregistry.models import ApprovalRequest
from mcpregistry.models.feed import CALLS
from mcpregistry.services.approvals import (
    held_calls,
    requests,
    ticket_lookup,
    unproven_approvals,
    votes,
)
from mcpregistry.services.approvals.held_calls import HeldCallTicket
from mcpregistry.services.conversations.conversation_scope import explain_conversation_limit
from mcpregistry.services.policy.permits import Used
from mcpregistry.services.records import signed_calls
from mcpregistry.services.tasks.host_tasks import TaskWish

__all__ = ["Approvals", "HeldCallTicket", "TaskWish"]

log = structlog.get_logger(__name__)

T = TypeVar("T")

GONE = "The caller disconnected"
CLOSING_SECONDS = 10.0


class Sender(Protocol):
    """What is needed of the pipeline: sending a claimed call, and ending one that is not sent after
    all."""

    async def execute(self, call: Call) -> CallOutcome: ...
    def abandon(self, call: Call) -> None: ...


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


class Approvals:
    """The held calls of this process: one per engine, used by the pipeline, the faces and the
    worker."""

    def __init__(
        self,
        *,
        recorder: Recorder,
        feed: Feed,
        live: LiveConfiguration,
        catalogue_of: CatalogueOf,
        policy: CallPolicy,
        sender: Callable[[], Sender],
    ) -> None:
        self._recorder = recorder
        self._live = live
        self._catalogue_of = catalogue_of
        self._policy = policy
        self._sender = sender
        self._watch = StateWatch(feed, CALLS, held_calls.load_call_states)
        self._seats = WaiterLeases()
        self._running: dict[str, asyncio.Task[CallOutcome | None]] = {}
        self._kept = BackgroundWrites()
        self._permits = PermitUses(live, self._kept)

    @property
    def stopping(self) -> bool:
        """The process ends: tell callers "pending", do not cancel for them."""
        return self._watch.stopping

    def stop(self) -> None:
        """Let go of everybody who waits; what runs goes on until ``close``."""
        self._watch.stop()

    async def close(self) -> None:
        """End what still runs (its end is recorded), and finish what was begun in the
        background."""
        running = list(self._running.values())
        if running:
            await asyncio.wait(running, timeout=CLOSING_SECONDS)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._kept.close()
        await self._seats.close()

    async def wait_until_done(self) -> None:
        """Once what is done in the background is done."""
        await self._kept.wait_until_done()

    # Asking

    async def use_permit(self, call: Call) -> Used | None:
        """The permit by which the call may run without asking, see ``PermitUses``; None: people are
        to be asked."""
        return await self._permits.take_use(call)

    def give_back(self, call: Call) -> None:
        """The call did not run: the use of a permit that it has taken is for another one. Does not
        wait."""
        self._permits.give_back(call)

    async def ask(
        self, call: Call, waiting_as: str, *, task: TaskWish | None = None, said: str = ""
    ) -> HeldCallTicket:
        """Hold the call, or join the identical one. ``waiting_as`` is an ApprovalRequest.WaitMode
        value.

        The ticket's state may be any: a joined request may be decided, running or ended already; go
        on with ``run`` in every state but PENDING. Raises SlipsnisseError when it cannot be
        recorded.
        """
        request = call.request
        asking = asyncio.ensure_future(
            db_call(
                held_calls.ask,
                row=record_rows.build_held_row(call, self._recorder.writer),
                terms=call.decision.terms or DEFAULT_TERMS,
                risk=assess_risk(call.entry.offer.tool),
                waiting_as=waiting_as,
                now=datetime.now(UTC),
                said=said,
                expert=request.expert,
                host=request.host.name or request.host_name,
                task=task,
            )
        )
        return await self._await_ticket(asking, call)

    async def rejoin_request(self, request_id: str, call: Call) -> HeldCallTicket | None:
        """The caller's own request with this id, if the call is the one that it is about."""
        row = record_rows.build_held_row(call, self._recorder.writer)
        asking = asyncio.ensure_future(db_call(held_calls.rejoin, request_id=request_id, row=row))
        return await self._await_ticket(asking, call)

    async def find(self, held_id: str, agent_slug: str) -> HeldCallTicket | None:
        """By the id of the request or of the call; only the agent's own. Holds nothing."""
        return await db_call(held_calls.find, held_id=held_id, agent_slug=agent_slug)

    async def find_ticket(self, call: Call) -> HeldCallTicket | None:
        """Of a call whose asking failed: its ticket, for it may have been written all the same.
        None: it was not."""
        return await db_call(ticket_lookup.find_caller_ticket, call_id=call.id)

    async def _await_ticket(self, asking: asyncio.Future[T], call: Call) -> T:
        """A caller that leaves meanwhile leaves a request behind: let go of that as well."""
        try:
            ticket = await asyncio.shield(asking)
            if isinstance(ticket, HeldCallTicket) and ticket.caller:
                self._seats.add_waiter(ticket.caller)
            return ticket
        except asyncio.CancelledError:
            self._kept.start_write(partial(self._let_go, asking, call, keep=self.stopping))
            raise

    async def _let_go(self, asking: asyncio.Future[Any], call: Call, *, keep: bool) -> None:
        await asyncio.wait({asking})
        error = asking.exception()
        ticket = await self.find_ticket(call) if isinstance(error, Error) else await asking
        if isinstance(ticket, HeldCallTicket):
            await self._leave(ticket, GONE, keep=keep)

    # Waiting

    async def wait_for_decision(self, ticket: HeldCallTicket, timeout: float) -> InvocationState:
        """Wait until the call is PENDING no more, at most ``timeout`` seconds. Returns its state
        now.

        When the time to decide is over it ends the call as EXPIRED. Returns at once (PENDING) when
        the site shuts down; look at ``stopping``.
        """
        rest = (ticket.decide_by - datetime.now(UTC)).total_seconds()
        state = await self._watch.wait_for_change(
            ticket.call_id, InvocationState.PENDING, max(0.0, min(timeout, rest))
        )
        if (
            state is InvocationState.PENDING
            and datetime.now(UTC) >= ticket.decide_by
            and not self.stopping
        ):
            return await db_call(held_calls.expire, request_id=ticket.id, now=datetime.now(UTC))
        return state

    async def change_wait_mode(self, ticket: HeldCallTicket, waiting_as: str) -> None:
        """Note that the caller waits in another way now (the next of the ways)."""
        await db_call(held_calls.change_way_of_waiting, request_id=ticket.id, waiting_as=waiting_as)

    async def detach_caller(self, ticket: HeldCallTicket) -> CallOutcome:
        """The caller is told "pending" and will come back: from now on its going does not
        cancel."""
        now = await db_call(held_calls.mark_caller_away, request_id=ticket.id, caller=ticket.caller)
        now = replace(now, joined=ticket.joined)
        return CallOutcome(ticket.call_id, InvocationState.PENDING, ticket=now)

    def detach_caller_soon(self, ticket: HeldCallTicket) -> CallOutcome:
        """``detach_caller`` while the database refuses to write: it is noted as soon as that
        accepts it. Does not wait."""
        self._kept.start_write(partial(self._detach_caller, ticket))
        return CallOutcome(ticket.call_id, InvocationState.PENDING, ticket=ticket)

    async def _detach_caller(self, ticket: HeldCallTicket) -> None:
        await self.detach_caller(ticket)

    def forget_caller(self, ticket: HeldCallTicket) -> None:
        """Whatever became of its caller: the seat is not renewed any more, should giving it back
        have failed."""
        self._seats.remove_waiter(ticket.caller)

    def leave_soon(self, ticket: HeldCallTicket, reason: str = GONE) -> None:
        """The caller is gone: cancels what has not run, unless others wait or the rule says run.
        Does not wait."""
        self._kept.start_write(partial(self._leave, ticket, reason, keep=self.stopping))

    async def _leave(self, ticket: HeldCallTicket, reason: str, *, keep: bool = False) -> None:
        """``keep``: it is we who are leaving, and the caller may come back to the next process."""
        now = datetime.now(UTC)
        self._seats.remove_waiter(ticket.caller)
        given_up = await db_call(
            held_calls.leave,
            request_id=ticket.id,
            caller=ticket.caller,
            reason=reason,
            now=now,
            keep=keep,
        )
        running = self._running.get(ticket.call_id)
        if given_up and running is not None:
            running.cancel()

    def drop(self, call: Call) -> None:
        """Something of ours broke: nobody waits for this call any more."""
        self._kept.start_write(partial(self._drop, call))

    async def _drop(self, call: Call) -> None:
        if ticket := await self.find_ticket(call):
            await self._leave(ticket, "The call failed because of an internal error")

    async def cancel(self, ticket: HeldCallTicket, reason: str) -> InvocationState:
        """Withdraw the request on the caller's word."""
        return await db_call(held_calls.cancel, request_id=ticket.id, reason=reason, actor="caller")

    async def confirm(self, ticket: HeldCallTicket, by: str) -> InvocationState:
        """The person at the host said yes. Raises Denied where the rule does not let the requester
        confirm."""
        return InvocationState(
            (await db_call(votes.confirm, request_id=ticket.id, by=by)).call.state
        )

    async def refuse(self, ticket: HeldCallTicket, by: str) -> InvocationState:
        """The person at the host said no."""
        return InvocationState(
            (await db_call(votes.refuse, request_id=ticket.id, by=by)).call.state
        )

    # Running

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
            if self.stopping:
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
        return await self._sender().execute(claimed) if claimed else None

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
            self._sender().abandon(claimed)
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
