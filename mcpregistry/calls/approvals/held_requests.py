"""What callers do with held calls: ask for them, wait for a decision, leave.

The database is the truth: the request stays as it is there, whatever happens to its callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import structlog
from django.db import Error

from mcpregistry.calls import record_rows
from mcpregistry.calls.approvals.background_writes import BackgroundWrites
from mcpregistry.calls.approvals.waiter_leases import WaiterLeases
from mcpregistry.calls.call import Call, CallOutcome
from mcpregistry.calls.recording.recorder import Recorder
from mcpregistry.calls.watch.state_watch import StateWatch
from mcpregistry.db import db_call
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.policy.decision import DEFAULT_TERMS
from mcpregistry.domain.policy.risk import assess_risk
from mcpregistry.services.approvals import (
    held_calls,
    ticket_lookup,
    votes,
)
from mcpregistry.services.approvals.held_calls import HeldCallTicket
from mcpregistry.services.tasks.host_tasks import TaskWish

log = structlog.get_logger(__name__)

T = TypeVar("T")

GONE = "The caller disconnected"


class HeldRequests:
    """The callers of held calls in this process; one per engine. ``cancel_attempt`` stops the
    execution of a call (its id) that nobody waits for any more."""

    def __init__(
        self,
        recorder: Recorder,
        watch: StateWatch[InvocationState],
        writes: BackgroundWrites,
        cancel_attempt: Callable[[str], None],
    ) -> None:
        self._recorder = recorder
        self._watch = watch
        self._kept = writes
        self._cancel_attempt = cancel_attempt
        self._leases = WaiterLeases()

    @property
    def stopping(self) -> bool:
        """The process ends: tell callers "pending", do not cancel for them."""
        return self._watch.stopping

    async def close(self) -> None:
        """Renew no caller's place any more."""
        await self._leases.close()

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
                self._leases.add_waiter(ticket.caller)
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
        self._leases.remove_waiter(ticket.caller)

    def leave_soon(self, ticket: HeldCallTicket, reason: str = GONE) -> None:
        """The caller is gone: cancels what has not run, unless others wait or the rule says run.
        Does not wait."""
        self._kept.start_write(partial(self._leave, ticket, reason, keep=self.stopping))

    async def _leave(self, ticket: HeldCallTicket, reason: str, *, keep: bool = False) -> None:
        """``keep``: it is we who are leaving, and the caller may come back to the next process."""
        now = datetime.now(UTC)
        self._leases.remove_waiter(ticket.caller)
        given_up = await db_call(
            held_calls.leave,
            request_id=ticket.id,
            caller=ticket.caller,
            reason=reason,
            now=now,
            keep=keep,
        )
        if given_up:
            self._cancel_attempt(ticket.call_id)

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
