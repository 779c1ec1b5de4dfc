"""How a held call waits, in the way that its host can bear (``domain/calls/wait_strategy.py``
chooses).

Whatever happens here, the request itself stays as it is in the database: a host that cannot wait is
told "pending" and comes back with the identical call, which joins. Going away before that cancels.

A question to the person at the host never ends the waiting for others: whoever answers first
decides. Only a person's word counts as an answer, see ``wait_strategy.meant``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog
from django.conf import settings
from django.db import Error

from mcpregistry.calls.approvals.patience import Patience, smallest
from mcpregistry.calls.call import Call, CallOutcome, Host, Prompt, Reply
from mcpregistry.calls.rows import outcome_of
from mcpregistry.database_errors import is_passing, unheard
from mcpregistry.domain.calls.ends import LOOK_FIRST
from mcpregistry.domain.calls.wait_strategy import Answer, WaitStep, meant, wait_steps
from mcpregistry.domain.errors import SlipsnisseError, Unavailable
from mcpregistry.domain.kinds import TOOL
from mcpregistry.domain.lifecycle import TERMINAL, State
from mcpregistry.domain.text.display import printable
from mcpregistry.domain.text.durations import two_units
from mcpregistry.services.approvals.held_calls import Ticket
from mcpregistry.services.tasks.host_tasks import TaskWish

log = structlog.get_logger(__name__)

TELL_EVERY = 10.0  # seconds between progress messages; the most impatient host waits 60
WHOLE_QUESTION = 4_000  # characters; nobody confirms in a dialogue what it cannot show whole
_STEP = 1e-6  # the protocol wants rising values; ours must not get ahead of the server's
_TASK_SLACK_MS = 60_000
_TASK_POLL_MS = 2_000
_BEGIN = 1.0  # seconds that an approved call is given to begin, however little its caller waits


class _Held(Protocol):
    """What waiting needs of ``calls.approvals.running.Approvals``; each method is described
    there."""

    @property
    def stopping(self) -> bool: ...
    async def again(self, request_id: str, call: Call) -> Ticket | None: ...
    async def perhaps_held(self, call: Call) -> Ticket | None: ...
    async def ask(
        self, call: Call, waiting_as: str, *, task: TaskWish | None = None, said: str = ""
    ) -> Ticket: ...
    async def changed(self, ticket: Ticket, timeout: float) -> State: ...
    async def run(self, ticket: Ticket, call: Call | None = None) -> CallOutcome: ...
    async def waits_as(self, ticket: Ticket, waiting_as: str) -> None: ...
    async def away(self, ticket: Ticket) -> CallOutcome: ...
    def away_soon(self, ticket: Ticket) -> CallOutcome: ...
    async def outcome(self, ticket: Ticket) -> CallOutcome: ...
    async def confirm(self, ticket: Ticket, by: str) -> State: ...
    async def refuse(self, ticket: Ticket, by: str) -> State: ...
    def left(self, ticket: Ticket) -> None: ...
    def drop(self, call: Call) -> None: ...
    def waits_no_more(self, ticket: Ticket) -> None: ...


class _CallerGone(Exception):
    """Its connection is lost, and it did not say so."""


class Waiting:
    """Holds a call in the way that its host bears; the pipeline's ``waiting`` stage."""

    def __init__(self, approvals: _Held) -> None:
        self._approvals = approvals
        self._patience = Patience()

    async def __call__(self, call: Call) -> CallOutcome:
        """Hold the call and wait. Its end, or the state pending with a ticket (and perhaps a
        prompt).

        Raises SlipsnisseError when the request cannot be recorded, and Error when it was not.
        """
        prompt = _prompt(call)
        way = wait_steps(
            tasks=call.request.host.tasks,
            questions=prompt is not None,
            may_confirm=_may_confirm(call),
            progress=call.request.host.progress and call.request.on_progress is not None,
        )
        try:
            ticket = await self._ticket(call, way[0])
        except asyncio.CancelledError:
            # its request may be recorded already; who recorded it sees to that
            self._shown(call)
            raise
        except Error as error:  # perhaps it was written all the same
            log.exception("call.not_held", call=call.id)
            return await self._perhaps_held(call, error)
        try:
            return await self._wait_through(call, ticket, way, prompt)
        except asyncio.CancelledError:
            self._gone(call, ticket)
            raise
        except _CallerGone:
            self._gone(call, ticket)
            return CallOutcome(
                ticket.call_id,
                State.CANCELLED,
                error_code="CANCELLED",
                message="The caller disconnected.",
            )
        except Exception:
            # ours, at whatever point: how the call stands is in its record, not in what failed
            log.exception("call.waiting_failed", call=ticket.call_id)
            return await self._as_recorded(ticket)
        finally:
            self._approvals.waits_no_more(ticket)

    async def _perhaps_held(self, call: Call, error: Error) -> CallOutcome:
        """People may be asked though we did not hear that it was written: looked up before anything
        is said."""
        try:
            ticket = await self._approvals.perhaps_held(call)
        except Error:
            if not unheard(error):
                raise error from None
            self._approvals.drop(call)
            doubt = Unavailable(
                "It is not known whether this call waits for an approval, because the record cannot be read.",
                remedy=f"Call mcp_approval_status with the id {call.id} in a moment.",
            )
            return outcome_of(call, State.UNKNOWN, error=doubt)
        if ticket is None:
            raise error
        if ticket.task_id and ticket.state is State.PENDING:
            return CallOutcome(ticket.call_id, State.PENDING, ticket=ticket)
        return await self._as_recorded(ticket)

    def _gone(self, call: Call, ticket: Ticket) -> None:
        self._approvals.left(ticket)
        self._shown(call)

    def _shown(self, call: Call) -> None:
        if not self._approvals.stopping:  # else it is we who go
            self._patience.left(call, time.monotonic())

    async def _as_recorded(self, ticket: Ticket) -> CallOutcome:
        """Its end, or "pending" (it waits or runs on, and its caller may come back), or that nobody
        knows."""
        try:
            outcome = await self._approvals.outcome(ticket)
            return outcome if outcome.state in TERMINAL else await self._tell_pending(ticket)
        except Exception:  # the database does not answer either
            log.exception("call.not_looked_up", call=ticket.call_id)
            message = f"The record cannot be read. Call mcp_approval_status with the id {ticket.id} in a moment."
            return CallOutcome(
                ticket.call_id, State.UNKNOWN, None, Unavailable.code, message, LOOK_FIRST
            )

    async def _tell_pending(self, ticket: Ticket) -> CallOutcome:
        """The call is still there: its caller may come back for it, whether or not that can be
        noted now."""
        try:
            return await self._approvals.away(ticket)
        except Error as error:
            if not is_passing(error):
                raise
            return self._approvals.away_soon(ticket)

    async def _ticket(self, call: Call, way: WaitStep) -> Ticket:
        """Of the request that the reply is about, even if it has ended meanwhile; else a new or
        joined one."""
        host = call.request.host
        if host.reply is not None and (
            found := await self._approvals.again(host.reply.request, call)
        ):
            return found
        return await self._approvals.ask(call, way, task=_task_wish(call, way), said=host.said)

    async def _wait_through(
        self, call: Call, ticket: Ticket, way: tuple[WaitStep, ...], prompt: Prompt | None
    ) -> CallOutcome:
        host = call.request.host
        state = ticket.state
        if way[0] is WaitStep.TASK and state is State.PENDING:
            return CallOutcome(ticket.call_id, state, ticket=ticket)
        step = way[0]
        asking = None
        if step is WaitStep.QUESTION:
            step = way[1]
            if state is State.PENDING and prompt is not None:
                prompt = _addressed(prompt, ticket)
                if host.ask is not None:
                    asking = asyncio.ensure_future(host.ask(prompt))
                elif host.reply is not None and host.reply.request == ticket.id:
                    state = await self._answered(call, ticket, host.reply, step)
                else:
                    return replace(await self._approvals.away(ticket), prompt=prompt)
        try:
            if state is State.PENDING:
                state = await self._hold(call, ticket, step, asking)
        finally:
            if asking is not None:
                asking.cancel()
        ended = await self._end(call, ticket, step) if state is not State.PENDING else None
        return ended or await self._away(call, ticket)

    async def _away(self, call: Call, ticket: Ticket) -> CallOutcome:
        """ "Pending"; or the end, if it came in this very moment."""
        outcome = await self._approvals.away(ticket)
        if outcome.ticket is not None and outcome.ticket.state in TERMINAL:
            return await self._approvals.run(ticket, call)
        return outcome

    async def _hold(
        self, call: Call, ticket: Ticket, step: WaitStep, asking: asyncio.Future[Reply] | None
    ) -> State:
        """Wait for the decision as long as the host bears it. Pending: time is up, and nobody has
        decided."""
        host = call.request.host
        tell = _teller(call, ticket) if step is WaitStep.PROGRESS else _silent
        # The host's clock runs since it called, whatever we did meanwhile.
        longest = smallest(self._patience.bears(call, step), settings.MCP_HOLD_SECONDS, host.hold)
        until = call.started + (longest or 0.0)
        while (rest := until - time.monotonic()) > 0 and not self._approvals.stopping:
            tell()
            state, reply = await self._next(host, ticket, min(rest, TELL_EVERY), asking)
            if reply is not None:
                asking = None
                state = await self._answered(call, ticket, reply, step)
            if state is not State.PENDING:
                return state
        return State.PENDING

    async def _end(self, call: Call, ticket: Ticket, step: WaitStep) -> CallOutcome | None:
        """Run it, or get the end from whoever does. None: it is not at its end, but its host waits
        no longer."""
        until = call.started + max(_BEGIN, self._patience.bears(call, step))
        running = asyncio.ensure_future(self._approvals.run(ticket, call))
        try:
            done, _ = await asyncio.wait({running}, timeout=max(0.0, until - time.monotonic()))
            if not done or _to_come_back(outcome := running.result()):
                return None
            return outcome
        finally:
            running.cancel()

    async def _next(
        self, host: Host, ticket: Ticket, timeout: float, asking: asyncio.Future[Reply] | None
    ) -> tuple[State, Reply | None]:
        """The next thing that happens within ``timeout``: a decision, or the answer to our
        question.

        Raises _CallerGone when there is nobody any more to whom either could be told.
        """
        watching = asyncio.ensure_future(self._approvals.changed(ticket, timeout))
        leaving = asyncio.ensure_future(host.left.wait()) if host.left is not None else None
        news: set[asyncio.Future[Any]] = {
            each for each in (watching, asking, leaving) if each is not None
        }
        try:
            await asyncio.wait(news, return_when=asyncio.FIRST_COMPLETED)
            if leaving is not None and leaving.done():
                raise _CallerGone
            if watching.done() and watching.result() is not State.PENDING:
                return watching.result(), None
            return State.PENDING, asking.result() if asking is not None and asking.done() else None
        finally:
            watching.cancel()
            if leaving is not None:
                leaving.cancel()

    async def _answered(self, call: Call, ticket: Ticket, reply: Reply, after: WaitStep) -> State:
        """Act on what the person at the host said, if there was one. Returns the state
        afterwards."""
        answer = meant(reply.action, confirmed=reply.confirmed or reply.url, seconds=reply.seconds)
        if reply.url and answer is Answer.YES:
            answer = Answer.NOBODY  # went to the page, and decides there
        by = f"the user of {call.request.host.title or 'the host'}"
        # somebody decided meanwhile, or the rule has changed: that stands
        with suppress(SlipsnisseError):
            if answer is Answer.YES:
                return await self._approvals.confirm(ticket, by)
            if answer is Answer.NO:
                return await self._approvals.refuse(ticket, by)
        await self._approvals.waits_as(ticket, after)
        return State.PENDING


def _to_come_back(outcome: CallOutcome) -> bool:
    """It could not be recorded, or this process stops: it stays as it is for the caller who comes
    back."""
    return outcome.ticket is not None and outcome.state not in TERMINAL


# What is asked, and of whom


def _prompt(call: Call) -> Prompt | None:
    """The question for the person at the host, or None when the host cannot put it (whole)."""
    host = call.request.host
    if not host.elicit or (host.ask is None and not host.mrtr):
        return None
    question = _question(call)
    if "form" in host.elicit and len(question) <= WHOLE_QUESTION:
        return Prompt("", question)
    return (
        Prompt("", _question(call, arguments=False), url="page") if "url" in host.elicit else None
    )


def _addressed(prompt: Prompt, ticket: Ticket) -> Prompt:
    return replace(prompt, request=ticket.id, url=ticket.url if prompt.url else "")


def _question(call: Call, *, arguments: bool = True) -> str:
    """Facts in our words; what comes from elsewhere has its invisible characters made visible."""
    offer = call.entry.offer
    lines = [
        "May this tool call run?"
        if offer.tool.kind == TOOL
        else f"May this {offer.tool.kind} be used?",
        f"{offer.tool.kind.capitalize()}: {printable(offer.tool.name)} on the server {offer.server.slug}",
        f"Agent: {call.request.catalogue.agent.slug}",
        f"Why you are asked: {printable(call.decision.reason)}",
    ]
    if arguments:
        shown = json.dumps(json.loads(call.arguments_json), ensure_ascii=False, indent=1)
        lines.append(f"Arguments:\n{printable(shown)}")
    else:
        lines.append(
            "The arguments are too long to show here. Open the approval page to read them."
        )
    return "\n".join(lines)


def _may_confirm(call: Call) -> bool:
    terms = call.decision.terms
    return terms is not None and terms.requester_may_confirm


def _task_wish(call: Call, step: WaitStep) -> TaskWish | None:
    terms = call.decision.terms
    if step is not WaitStep.TASK or terms is None:
        return None
    ttl = (terms.decide_seconds + terms.execute_seconds) * 1000 + _TASK_SLACK_MS
    return TaskWish(ttl_ms=ttl, poll_ms=_TASK_POLL_MS)


# How long, and what is said meanwhile


def _silent() -> None:
    pass


def _teller(call: Call, ticket: Ticket) -> Callable[[], None]:
    told = 0

    def tell() -> None:
        nonlocal told
        told += 1
        rest = (ticket.decide_by - datetime.now(UTC)).total_seconds()
        on_progress = call.request.on_progress
        if on_progress is not None:
            on_progress(
                told * _STEP,
                None,
                f"Waiting for {ticket.asked_of}: {two_units(rest)} left. {ticket.url}",
            )

    return tell
