"""Held calls in the life of one process: asked for, watched, and run exactly once over all processes.

The database is the truth; this class adds what a process needs to wait well: one shared look per
tenth of a second for all calls that it holds, and the claim through the recorder.
"""

from __future__ import annotations

from mcpregistry.calls.call import Call, CallOutcome
from mcpregistry.domain.lifecycle import State
from mcpregistry.services.holding import TaskWish, Ticket

__all__ = ["Approvals", "TaskWish", "Ticket"]


class Approvals:
    async def ask(self, call: Call, waiting_as: str, *, task: TaskWish | None = None, said: str = "") -> Ticket:
        """Hold the call, or join the identical one. ``waiting_as`` is an ApprovalRequest.Waiting value.

        The ticket's state may be any: a joined request may be decided, running or ended already; go on
        with ``run`` in every state but PENDING. Raises SlipsnisseError when it cannot be recorded.
        """
        raise NotImplementedError

    async def changed(self, ticket: Ticket, timeout: float) -> State:
        """Wait until the call is PENDING no more, at most ``timeout`` seconds. Returns its state now.

        When the time to decide is over it ends the call as EXPIRED. Returns at once (PENDING) when the
        site shuts down; look at ``stopping``.
        """
        raise NotImplementedError

    @property
    def stopping(self) -> bool:
        """The process ends: tell callers "pending", do not cancel for them."""
        raise NotImplementedError

    async def run(self, ticket: Ticket, call: Call | None = None) -> CallOutcome:
        """The end of the call: run by whoever claims it first, told to everybody else who holds a ticket.

        In any state but PENDING. ``call`` lends its progress and meta to the dispatch. A refusal is an
        outcome too. Cancelling leaves: see ``left``.
        """
        raise NotImplementedError

    async def outcome(self, ticket: Ticket) -> CallOutcome:
        """How the call stands, from the records alone; PENDING and READY come back with the ticket."""
        raise NotImplementedError

    async def waits_as(self, ticket: Ticket, waiting_as: str) -> None:
        """Note that the caller waits in another way now (the next rung)."""
        raise NotImplementedError

    async def away(self, ticket: Ticket) -> CallOutcome:
        """The caller is told "pending" and will come back: from now on its going does not cancel."""
        raise NotImplementedError

    def left(self, ticket: Ticket, reason: str = "the caller left before it was approved") -> None:
        """The caller is gone, without waiting: cancels what has not run, unless others wait or the rule says run."""
        raise NotImplementedError

    async def cancel(self, ticket: Ticket, reason: str) -> State:
        """Withdraw the request on the caller's word."""
        raise NotImplementedError

    async def confirm(self, ticket: Ticket, by: str) -> State:
        """The person at the host said yes. Raises Denied where the rule does not let the requester confirm."""
        raise NotImplementedError
