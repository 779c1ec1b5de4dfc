"""Held calls in the life of one process: asked for, watched, and run exactly once over all processes.

The database is the truth. Whoever holds a ticket may ``run`` it: one claims the call, over all
processes, and the others get that one's end from the record. What runs does so in a task of its own,
so that one caller's leaving does not take it from the others.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

import structlog

from mcpregistry.calls.call import Call, CallOutcome
from mcpregistry.calls.grounds import CatalogueOf, GroundLost, resume
from mcpregistry.calls.live import LiveConfiguration
from mcpregistry.calls.pipeline import audit_facts, identity, lease_end
from mcpregistry.calls.recorder import NotClaimed, Recorder
from mcpregistry.calls.watching import Watch
from mcpregistry.db import db_call
from mcpregistry.domain.canonical import plain
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.lifecycle import TERMINAL, State
from mcpregistry.domain.policy import DEFAULT_TERMS, Policy
from mcpregistry.domain.risk import risk_of
from mcpregistry.failpoints import failpoint
from mcpregistry.models import ApprovalRequest
from mcpregistry.services import approvals, holding, permits
from mcpregistry.services.holding import TaskWish, Ticket

__all__ = ["Approvals", "TaskWish", "Ticket"]

log = structlog.get_logger(__name__)

T = TypeVar("T")

GONE = "The caller left before the call was made"
CLOSING_SECONDS = 10.0
_LOOK_EVERY = 0.05  # seconds; a decision made anywhere is seen in less than a tenth of a second


class Sender(Protocol):
    """What is needed of the pipeline: sending a claimed call, and ending one that is not sent after all."""

    async def execute(self, call: Call) -> CallOutcome: ...
    def abandon(self, call: Call) -> None: ...


class Approvals:
    def __init__(
        self, *, recorder: Recorder, live: LiveConfiguration, catalogue_of: CatalogueOf, policy: Policy,
        sender: Callable[[], Sender],
    ) -> None:  # fmt: skip
        self._recorder = recorder
        self._live = live
        self._catalogue_of = catalogue_of
        self._policy = policy
        self._sender = sender
        self._watch = Watch(holding.states, _LOOK_EVERY)
        self._running: dict[str, asyncio.Task[CallOutcome | None]] = {}
        self._background: set[asyncio.Task[Any]] = set()

    @property
    def stopping(self) -> bool:
        """The process ends: tell callers "pending", do not cancel for them."""
        return self._watch.stopping

    def stop(self) -> None:
        """Let go of everybody who waits; what runs goes on until ``close``."""
        self._watch.stop()

    async def close(self) -> None:
        """End what still runs (its end is recorded), and finish what was begun in the background."""
        running = list(self._running.values())
        if running:
            await asyncio.wait(running, timeout=CLOSING_SECONDS)
        for task in running:
            task.cancel()
        while running or self._background:
            await asyncio.gather(*running, *self._background, return_exceptions=True)
            running = []

    # Asking

    async def permitted(self, call: Call) -> str:
        """Why the call may run without asking: a permit covers it, and one use of that is taken. Else "".

        A caller that comes back for what was decided gets that, though a permit was given with it.
        """
        offer, agent = call.entry.offer, call.request.catalogue.agent
        if not self._live.current.permits.get((agent.id, offer.tool.id)):
            return ""
        return await db_call(_permitted, call, datetime.now(UTC))

    async def ask(self, call: Call, waiting_as: str, *, task: TaskWish | None = None, said: str = "") -> Ticket:
        """Hold the call, or join the identical one. ``waiting_as`` is an ApprovalRequest.Waiting value.

        The ticket's state may be any: a joined request may be decided, running or ended already; go on
        with ``run`` in every state but PENDING. Raises SlipsnisseError when it cannot be recorded.
        """
        request = call.request
        asking = asyncio.ensure_future(
            db_call(
                holding.ask,
                row=identity(call) | {"writer": self._recorder.writer, "reason": plain(call.decision.reason)},
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
        return await self._held(asking)

    async def again(self, request_id: str, call: Call) -> Ticket | None:
        """The caller's own request with this id, if the call is the one that it is about."""
        asking = asyncio.ensure_future(db_call(holding.rejoin, request_id=request_id, row=identity(call)))
        return await self._held(asking)

    async def find(self, held_id: str, agent_slug: str) -> Ticket | None:
        """By the id of the request or of the call; only the agent's own. Holds nothing."""
        return await db_call(holding.find, held_id=held_id, agent_slug=agent_slug)

    async def _held(self, asking: asyncio.Future[T]) -> T:
        """A caller that leaves meanwhile leaves a request behind: let go of that as well."""
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            self._spawn(self._let_go(asking, keep=self.stopping))
            raise

    async def _let_go(self, asking: asyncio.Future[Any], *, keep: bool) -> None:
        ticket = await asking
        if isinstance(ticket, Ticket):
            await self._leave(ticket, GONE, keep=keep)

    # Waiting

    async def changed(self, ticket: Ticket, timeout: float) -> State:
        """Wait until the call is PENDING no more, at most ``timeout`` seconds. Returns its state now.

        When the time to decide is over it ends the call as EXPIRED. Returns at once (PENDING) when the
        site shuts down; look at ``stopping``.
        """
        rest = (ticket.decide_by - datetime.now(UTC)).total_seconds()
        state = await self._watch.until_not(ticket.call_id, State.PENDING, max(0.0, min(timeout, rest)))
        if state is State.PENDING and datetime.now(UTC) >= ticket.decide_by and not self.stopping:
            return await db_call(holding.expire, request_id=ticket.id, now=datetime.now(UTC))
        return state

    async def waits_as(self, ticket: Ticket, waiting_as: str) -> None:
        """Note that the caller waits in another way now (the next rung)."""
        await db_call(holding.waits_as, request_id=ticket.id, waiting_as=waiting_as)

    async def away(self, ticket: Ticket) -> CallOutcome:
        """The caller is told "pending" and will come back: from now on its going does not cancel."""
        now = replace(await db_call(holding.away, request_id=ticket.id), joined=ticket.joined)
        return CallOutcome(ticket.call_id, State.PENDING, ticket=now)

    def left(self, ticket: Ticket, reason: str = GONE) -> None:
        """The caller is gone: cancels what has not run, unless others wait or the rule says run. Does not wait."""
        self._spawn(self._leave(ticket, reason, keep=self.stopping))

    async def _leave(self, ticket: Ticket, reason: str, *, keep: bool = False) -> None:
        """``keep``: it is we who are leaving, and the caller may come back to the next process."""
        now = datetime.now(UTC)
        given_up = await db_call(holding.leave, request_id=ticket.id, reason=reason, now=now, keep=keep)
        running = self._running.get(ticket.call_id)
        if given_up and running is not None:
            running.cancel()

    def drop(self, call: Call) -> None:
        """Something of ours broke: nobody waits for this call any more."""
        self._spawn(self._drop(call))

    async def _drop(self, call: Call) -> None:
        ticket = await self.find(call.id, call.request.catalogue.agent.slug)
        if ticket is not None:
            await self._leave(ticket, "The call failed inside the control plane")

    async def cancel(self, ticket: Ticket, reason: str) -> State:
        """Withdraw the request on the caller's word."""
        return await db_call(holding.cancel, request_id=ticket.id, reason=reason, actor="caller")

    async def confirm(self, ticket: Ticket, by: str) -> State:
        """The person at the host said yes. Raises Denied where the rule does not let the requester confirm."""
        return State((await db_call(approvals.confirm, request_id=ticket.id, by=by)).call.state)

    async def refuse(self, ticket: Ticket, by: str) -> State:
        """The person at the host said no."""
        return State((await db_call(approvals.refuse, request_id=ticket.id, by=by)).call.state)

    # Running

    async def run(self, ticket: Ticket, call: Call | None = None) -> CallOutcome:
        """The end of the call: run by whoever claims it first, told to everybody else who holds a ticket.

        In any state but PENDING. ``call`` lends its progress and meta to the dispatch. A refusal is an
        outcome too. PENDING comes back when the site shuts down before there is an end.
        """
        outcome = await self.settle(ticket, call)
        if outcome.state in TERMINAL:
            await db_call(holding.delivered, request_id=ticket.id, now=datetime.now(UTC))
        return outcome

    async def settle(self, ticket: Ticket, call: Call | None = None) -> CallOutcome:
        """Like ``run``, for nobody: the end stays to be told to the caller who comes back for it."""
        while True:
            running = self._running.get(ticket.call_id)
            if running is not None:
                await asyncio.wait({running})
            request = await db_call(holding.load, ticket.id)
            state = State(request.call.state)
            if state in TERMINAL:
                return await _with_edit(request, _outcome(request))
            if self.stopping:
                return CallOutcome(ticket.call_id, State.PENDING, ticket=holding.ticket_of(request))
            if state is State.READY:
                outcome = await self._attempted(request, call)
                if outcome is not None:
                    return await _with_edit(request, outcome)
            else:
                await self._watch.until_not(ticket.call_id, state, None)

    async def settle_call(self, call_id: str) -> CallOutcome | None:
        """Run an approved call that waits for nobody. None: it is not ready, or not held at all."""
        ticket = await db_call(holding.ready_ticket, call_id=call_id)
        return await self.settle(ticket) if ticket else None

    async def outcome(self, ticket: Ticket) -> CallOutcome:
        """How the call stands, from the records alone; PENDING and READY come back with the ticket."""
        request = await db_call(holding.load, ticket.id)
        return await _with_edit(request, _outcome(request))

    async def _attempted(self, request: ApprovalRequest, call: Call | None) -> CallOutcome | None:
        """Try to be the one who runs it. None: look again."""
        attempt = asyncio.ensure_future(self._attempt(request.pk, call))
        self._running[request.call_id] = attempt
        attempt.add_done_callback(lambda _: self._running.pop(request.call_id, None))
        await asyncio.wait({attempt})  # never cancels it: that is for ``left`` to decide
        try:
            return None if attempt.cancelled() else attempt.result()
        except SlipsnisseError as error:  # not recorded, so not made: it may be claimed another time
            log.error("approvals.not_run", call=request.call_id, code=error.code)
            return CallOutcome(request.call_id, State.READY, ticket=holding.ticket_of(request))

    async def _attempt(self, request_id: str, call: Call | None) -> CallOutcome | None:
        now = datetime.now(UTC)
        request, revision, why = await db_call(self._look, request_id, now)
        if State(request.call.state) is not State.READY:
            return None
        try:
            if why:
                raise GroundLost(why)
            ours = resume(request, catalogue_of=self._catalogue_of, policy=self._policy, now=now, call=call)
        except GroundLost as lost:
            await db_call(holding.void, request_id=request_id, reason=lost.message, now=now)
            return None
        failpoint("before_claim")
        claimed = await self._claim(ours, revision)
        return await self._sender().execute(claimed) if claimed else None

    def _look(self, request_id: str, now: datetime) -> tuple[ApprovalRequest, int, str]:
        """In a database thread: the request, the configuration as it is this moment, and whether the votes hold."""
        revision = self._live.refresh().revision
        request = holding.load(request_id)
        if request.execute_by is not None and request.execute_by <= now:
            holding.expire(request_id=request_id, now=now)
            request = holding.load(request_id)
        return request, revision, approvals.lost_votes(request)

    async def _claim(self, call: Call, revision: int) -> Call | None:
        """Not to be interrupted: whether the claim was won decides what is to be recorded."""
        now = datetime.now(UTC)
        row = {
            "id": call.id, "agent_slug": call.request.catalogue.agent.slug, "binding": call.binding,
            "fence": call.fence, "dispatched_at": now, "lease_until": lease_end(call, now), "revision": revision,
        }  # fmt: skip
        try:
            fence, cancelled = await _settled(self._recorder.claim(row, facts=audit_facts(call)))
        except NotClaimed:
            return None
        failpoint("after_claim")
        claimed = replace(call, fence=fence)
        if cancelled:
            self._sender().abandon(claimed)
            raise asyncio.CancelledError
        return claimed

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(_logged(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _permitted(call: Call, now: datetime) -> str:
    offer, agent = call.entry.offer, call.request.catalogue.agent
    terms = call.decision.terms or DEFAULT_TERMS
    found = permits.covering(
        agent_slug=agent.slug, tool_id=offer.tool.id, definition_hash=offer.tool.definition_hash,
        server_revision=offer.server.revision, arguments=call.request.arguments, fingerprint=terms.fingerprint,
        now=now,
    )  # fmt: skip
    if found and holding.expected(binding=call.binding, now=now):
        return ""
    return permits.use(call_id=call.id, permits=found, agent_slug=agent.slug, now=now)


def _outcome(request: ApprovalRequest) -> CallOutcome:
    """As recorded; the result is there while retention keeps it."""
    call, state = request.call, State(request.call.state)
    if state not in TERMINAL:
        return CallOutcome(call.pk, state, ticket=holding.ticket_of(request))
    result = json.loads(request.result) if request.result else None
    said = "" if result is not None else call.reason
    return CallOutcome(call.pk, state, result, call.error_code, said, duration_ms=call.duration_ms or 0.0)


async def _with_edit(request: ApprovalRequest, outcome: CallOutcome) -> CallOutcome:
    """An approver has changed the arguments: the agent is told what ran instead of what it asked for."""
    if not request.edited or outcome.result is None:
        return outcome
    return replace(outcome, result=await db_call(approvals.result_told, request, outcome.result))


async def _settled(work: Awaitable[T]) -> tuple[T, bool]:
    """Wait for it even while being cancelled; tells whether that happened."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
        except Exception:  # noqa: BLE001, S110 - it is raised below
            pass
    return task.result(), cancelled


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except SlipsnisseError as error:
        log.warning("approvals.background", code=error.code)
    except Exception:
        log.exception("approvals.background_failed")
