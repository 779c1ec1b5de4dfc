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

from mcpregistry.calls import rows
from mcpregistry.calls.approvals.kept import Kept
from mcpregistry.calls.approvals.permit_uses import PermitUses
from mcpregistry.calls.approvals.revalidation import CatalogueOf, GroundLost, resume
from mcpregistry.calls.approvals.seats import Seats
from mcpregistry.calls.approvals.settled import settled
from mcpregistry.calls.call import Call, CallOutcome
from mcpregistry.calls.recording.errors import NotClaimed
from mcpregistry.calls.recording.recorder import Recorder
from mcpregistry.calls.watch.changes import Feed
from mcpregistry.calls.watch.configuration import LiveConfiguration
from mcpregistry.calls.watch.waiting import Watch
from mcpregistry.db import db_call
from mcpregistry.domain.calls import ends
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.lifecycle import TERMINAL, State
from mcpregistry.domain.policy.decision import DEFAULT_TERMS, Policy
from mcpregistry.domain.policy.risk import risk_of
from mcpregistry.failpoints import failpoint
from mcpregistry.models import ApprovalRequest
from mcpregistry.models.feed import CALLS
from mcpregistry.services.approvals import held_calls, lookups, requests, unproven, votes
from mcpregistry.services.approvals.held_calls import Ticket
from mcpregistry.services.conversations.entering import out_of_sight
from mcpregistry.services.policy.permits import Used
from mcpregistry.services.records import bound
from mcpregistry.services.tasks.host_tasks import TaskWish

__all__ = ["Approvals", "TaskWish", "Ticket"]

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
class _Look:
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
        policy: Policy,
        sender: Callable[[], Sender],
    ) -> None:
        self._recorder = recorder
        self._live = live
        self._catalogue_of = catalogue_of
        self._policy = policy
        self._sender = sender
        self._watch = Watch(feed, CALLS, held_calls.states)
        self._seats = Seats()
        self._running: dict[str, asyncio.Task[CallOutcome | None]] = {}
        self._kept = Kept()
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

    async def settled(self) -> None:
        """Once what is done in the background is done."""
        await self._kept.settled()

    # Asking

    async def permitted(self, call: Call) -> Used | None:
        """The permit by which the call may run without asking, see ``PermitUses``; None: people are
        to be asked."""
        return await self._permits.taken(call)

    def give_back(self, call: Call) -> None:
        """The call did not run: the use of a permit that it has taken is for another one. Does not
        wait."""
        self._permits.give_back(call)

    async def ask(
        self, call: Call, waiting_as: str, *, task: TaskWish | None = None, said: str = ""
    ) -> Ticket:
        """Hold the call, or join the identical one. ``waiting_as`` is an ApprovalRequest.Waiting
        value.

        The ticket's state may be any: a joined request may be decided, running or ended already; go
        on with ``run`` in every state but PENDING. Raises SlipsnisseError when it cannot be
        recorded.
        """
        request = call.request
        asking = asyncio.ensure_future(
            db_call(
                held_calls.ask,
                row=rows.held(call, self._recorder.writer),
                terms=call.decision.terms or DEFAULT_TERMS,
                risk=risk_of(call.entry.offer.tool),
                waiting_as=waiting_as,
                now=datetime.now(UTC),
                said=said,
                expert=request.expert,
                host=request.host.name or request.host_name,
                task=task,
            )
        )
        return await self._held(asking, call)

    async def again(self, request_id: str, call: Call) -> Ticket | None:
        """The caller's own request with this id, if the call is the one that it is about."""
        row = rows.held(call, self._recorder.writer)
        asking = asyncio.ensure_future(db_call(held_calls.rejoin, request_id=request_id, row=row))
        return await self._held(asking, call)

    async def find(self, held_id: str, agent_slug: str) -> Ticket | None:
        """By the id of the request or of the call; only the agent's own. Holds nothing."""
        return await db_call(held_calls.find, held_id=held_id, agent_slug=agent_slug)

    async def perhaps_held(self, call: Call) -> Ticket | None:
        """Of a call whose asking failed: its ticket, for it may have been written all the same.
        None: it was not."""
        return await db_call(lookups.of_caller, call_id=call.id)

    async def _held(self, asking: asyncio.Future[T], call: Call) -> T:
        """A caller that leaves meanwhile leaves a request behind: let go of that as well."""
        try:
            ticket = await asyncio.shield(asking)
            if isinstance(ticket, Ticket) and ticket.caller:
                self._seats.keep(ticket.caller)
            return ticket
        except asyncio.CancelledError:
            self._kept.soon(partial(self._let_go, asking, call, keep=self.stopping))
            raise

    async def _let_go(self, asking: asyncio.Future[Any], call: Call, *, keep: bool) -> None:
        await asyncio.wait({asking})
        error = asking.exception()
        ticket = await self.perhaps_held(call) if isinstance(error, Error) else await asking
        if isinstance(ticket, Ticket):
            await self._leave(ticket, GONE, keep=keep)

    # Waiting

    async def changed(self, ticket: Ticket, timeout: float) -> State:
        """Wait until the call is PENDING no more, at most ``timeout`` seconds. Returns its state
        now.

        When the time to decide is over it ends the call as EXPIRED. Returns at once (PENDING) when
        the site shuts down; look at ``stopping``.
        """
        rest = (ticket.decide_by - datetime.now(UTC)).total_seconds()
        state = await self._watch.until_not(
            ticket.call_id, State.PENDING, max(0.0, min(timeout, rest))
        )
        if state is State.PENDING and datetime.now(UTC) >= ticket.decide_by and not self.stopping:
            return await db_call(held_calls.expire, request_id=ticket.id, now=datetime.now(UTC))
        return state

    async def waits_as(self, ticket: Ticket, waiting_as: str) -> None:
        """Note that the caller waits in another way now (the next of the ways)."""
        await db_call(held_calls.waits_as, request_id=ticket.id, waiting_as=waiting_as)

    async def away(self, ticket: Ticket) -> CallOutcome:
        """The caller is told "pending" and will come back: from now on its going does not
        cancel."""
        now = await db_call(held_calls.away, request_id=ticket.id, caller=ticket.caller)
        now = replace(now, joined=ticket.joined)
        return CallOutcome(ticket.call_id, State.PENDING, ticket=now)

    def away_soon(self, ticket: Ticket) -> CallOutcome:
        """``away`` while the database refuses to write: it is noted as soon as that accepts it.
        Does not wait."""
        self._kept.soon(partial(self._away, ticket))
        return CallOutcome(ticket.call_id, State.PENDING, ticket=ticket)

    async def _away(self, ticket: Ticket) -> None:
        await self.away(ticket)

    def waits_no_more(self, ticket: Ticket) -> None:
        """Whatever became of its caller: the seat is not renewed any more, should giving it back
        have failed."""
        self._seats.forget(ticket.caller)

    def left(self, ticket: Ticket, reason: str = GONE) -> None:
        """The caller is gone: cancels what has not run, unless others wait or the rule says run.
        Does not wait."""
        self._kept.soon(partial(self._leave, ticket, reason, keep=self.stopping))

    async def _leave(self, ticket: Ticket, reason: str, *, keep: bool = False) -> None:
        """``keep``: it is we who are leaving, and the caller may come back to the next process."""
        now = datetime.now(UTC)
        self._seats.forget(ticket.caller)
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
        self._kept.soon(partial(self._drop, call))

    async def _drop(self, call: Call) -> None:
        if ticket := await self.perhaps_held(call):
            await self._leave(ticket, "The call failed because of an internal error")

    async def cancel(self, ticket: Ticket, reason: str) -> State:
        """Withdraw the request on the caller's word."""
        return await db_call(held_calls.cancel, request_id=ticket.id, reason=reason, actor="caller")

    async def confirm(self, ticket: Ticket, by: str) -> State:
        """The person at the host said yes. Raises Denied where the rule does not let the requester
        confirm."""
        return State((await db_call(votes.confirm, request_id=ticket.id, by=by)).call.state)

    async def refuse(self, ticket: Ticket, by: str) -> State:
        """The person at the host said no."""
        return State((await db_call(votes.refuse, request_id=ticket.id, by=by)).call.state)

    # Running

    async def run(self, ticket: Ticket, call: Call | None = None) -> CallOutcome:
        """The end of the call: run by whoever claims it first, told to everybody else who holds a
        ticket.

        In any state but PENDING. ``call`` lends its progress and meta to the dispatch. A refusal is
        an outcome too. PENDING comes back when the site shuts down before there is an end.
        """
        outcome = await self.settle(ticket, call)
        if outcome.state in TERMINAL:
            await self._delivered(ticket)
        return outcome

    async def _delivered(self, ticket: Ticket) -> None:
        """As well as it can: the call has ended, and that is told whatever fails here. At worst it
        is told twice."""
        try:
            await db_call(
                held_calls.delivered,
                request_id=ticket.id,
                caller=ticket.caller,
                now=datetime.now(UTC),
            )
        except Exception:
            log.exception("approvals.delivery_not_recorded", call=ticket.call_id)

    async def settle(self, ticket: Ticket, call: Call | None = None) -> CallOutcome:
        """Like ``run``, for nobody: the end stays to be told to the caller who comes back for
        it."""
        while True:
            running = self._running.get(ticket.call_id)
            if running is not None:
                await asyncio.wait({running})
            request = await db_call(held_calls.load, ticket.id)
            state = State(request.call.state)
            if state in TERMINAL:
                return await _with_edit(request, _outcome(request))
            if self.stopping:
                return CallOutcome(
                    ticket.call_id, State.PENDING, ticket=held_calls.ticket_of(request)
                )
            if state is State.READY:
                outcome = await self._attempted(request, call)
                if outcome is not None:
                    return await _with_edit(request, outcome)
            else:
                await self._watch.until_not(ticket.call_id, state, None)

    async def settle_call(self, call_id: str) -> CallOutcome | None:
        """Run an approved call that waits for nobody. None: it is not ready, or not held at all."""
        ticket = await db_call(held_calls.ready_ticket, call_id=call_id)
        return await self.settle(ticket) if ticket else None

    async def outcome(self, ticket: Ticket) -> CallOutcome:
        """How the call stands, from the records alone; PENDING and READY come back with the
        ticket."""
        request = await db_call(held_calls.load, ticket.id)
        return await _with_edit(request, _outcome(request))

    async def _attempted(self, request: ApprovalRequest, call: Call | None) -> CallOutcome | None:
        """Try to be the one who runs it. None: look again.

        One attempt for each call, whoever joined: callers wake together, and the attempt that loses
        the claim must not hide the one that is out.
        """
        attempt = self._running.get(request.call_id)
        if attempt is None:
            attempt = asyncio.ensure_future(self._attempt(request.pk, call))
            self._running[request.call_id] = attempt
            attempt.add_done_callback(partial(self._over, request.call_id))
        await asyncio.wait({attempt})  # never cancels it: that is for ``left`` to decide
        try:
            return None if attempt.cancelled() else attempt.result()
        except SlipsnisseError as error:
            # not recorded, so not made: it may be claimed another time
            log.error("approvals.not_run", call=request.call_id, code=error.code)
            return CallOutcome(request.call_id, State.READY, ticket=held_calls.ticket_of(request))

    def _over(self, call_id: str, attempt: asyncio.Task[CallOutcome | None]) -> None:
        if self._running.get(call_id) is attempt:
            del self._running[call_id]

    async def _attempt(self, request_id: str, call: Call | None) -> CallOutcome | None:
        now = datetime.now(UTC)
        look = await db_call(self._look, request_id, now)
        request = look.request
        if State(request.call.state) is not State.READY:
            return None
        if look.problems:
            await db_call(unproven.refuse, request_id=request_id, problems=look.problems, now=now)
            return None
        try:
            if look.lost:
                raise GroundLost(look.lost)
            ours = resume(
                request, catalogue_of=self._catalogue_of, policy=self._policy, now=now, call=call
            )
        except GroundLost as lost:
            await db_call(held_calls.void, request_id=request_id, reason=lost.message, now=now)
            return None
        failpoint("before_claim")
        # Over all processes one claim wins: a compare-and-set on state, binding, fence, deadline
        # and revision.
        claimed = await self._claim(ours, look.revision)
        return await self._sender().execute(claimed) if claimed else None

    def _look(self, request_id: str, now: datetime) -> _Look:
        """In a database thread: the request, the configuration as it is this moment, and why it may
        not run, if so."""
        # Read before the request: whatever changes in between raises the revision, and the claim
        # fails on it.
        revision = self._live.refresh().revision
        request = held_calls.load(request_id)
        if request.execute_by is not None and request.execute_by <= now:
            held_calls.expire(request_id=request_id, now=now)
            request = held_calls.load(request_id)
        if State(request.call.state) is not State.READY:
            return _Look(request, revision)
        cast = votes.cast(request)
        if problems := bound.find_contradictions(request, cast):
            return _Look(request, revision, problems)
        return _Look(
            request, revision, lost=votes.lost_votes(request, cast) or out_of_sight(request.call)
        )

    async def _claim(self, call: Call, revision: int) -> Call | None:
        """Not to be interrupted: whether the claim was won decides what is to be recorded."""
        try:
            fence, cancelled = await settled(
                self._recorder.claim(rows.claim(call, revision), rows.dispatched_fact(call))
            )
        except NotClaimed:
            return None
        failpoint("after_claim")
        claimed = replace(call, fence=fence)
        if cancelled:
            self._sender().abandon(claimed)
            raise asyncio.CancelledError
        return claimed


def _outcome(request: ApprovalRequest) -> CallOutcome:
    """As recorded; the result is there while retention keeps it."""
    call = request.call
    state = State(request.call.state)
    if state not in TERMINAL:
        return CallOutcome(call.pk, state, ticket=held_calls.ticket_of(request))
    result = json.loads(request.result) if request.result else None
    said = "" if result is not None else call.reason
    # of other ends the reason says it all
    remedy = ends.advice(state) if state is State.EXPIRED else ""
    duration = call.duration_ms or 0.0
    return CallOutcome(
        call.pk, state, result, call.error_code, said, remedy, duration, warning=call.warning
    )


async def _with_edit(request: ApprovalRequest, outcome: CallOutcome) -> CallOutcome:
    """An approver has changed the arguments: the agent is told what ran instead of what it asked
    for."""
    if not request.edited or outcome.result is None:
        return outcome
    return replace(outcome, result=await db_call(requests.result_told, request, outcome.result))
