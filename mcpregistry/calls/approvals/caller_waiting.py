"""How a held call waits, in the way that its host can bear (``domain/calls/wait_strategy.py``
chooses).

Whatever happens here, the request itself stays as it is in the database: a host that cannot wait is
told "pending" and comes back with the identical call, which joins. Going away before that cancels.

A question to the person at the host never ends the waiting for others: whoever answers first
decides. Only a person's word counts as an answer, see ``wait_strategy.interpret_elicitation``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import structlog
from django.conf import settings
from django.db import Error

from mcpregistry.calls.approvals.held_call_runner import HeldCallRunner
from mcpregistry.calls.approvals.held_requests import HeldRequests
from mcpregistry.calls.approvals.host_patience import HostPatience, find_smallest
from mcpregistry.calls.call import Call, CallHost, CallOutcome, HostReply, Prompt
from mcpregistry.calls.record_rows import make_outcome
from mcpregistry.database_errors import is_outcome_unknown, is_passing
from mcpregistry.domain.calls.outcome_texts import LOOK_FIRST
from mcpregistry.domain.calls.wait_strategy import (
    ElicitationAnswer,
    WaitStep,
    interpret_elicitation,
    plan_wait_steps,
)
from mcpregistry.domain.errors import SlipsnisseError, Unavailable
from mcpregistry.domain.lifecycle import TERMINAL, InvocationState
from mcpregistry.domain.offer_kinds import TOOL
from mcpregistry.domain.text.display import show_invisible_characters
from mcpregistry.domain.text.durations import format_exact_duration
from mcpregistry.services.approvals.held_calls import HeldCallTicket
from mcpregistry.services.tasks.host_tasks import TaskWish

log = structlog.get_logger(__name__)

TELL_EVERY = 10.0  # seconds between progress messages; the most impatient host waits 60
WHOLE_QUESTION = 4_000  # characters; nobody confirms in a dialogue what it cannot show whole
_STEP = 1e-6  # the protocol wants rising values; ours must not get ahead of the server's
_TASK_SLACK_MS = 60_000
_TASK_POLL_MS = 2_000
_BEGIN = 1.0  # seconds that an approved call is given to begin, however little its caller waits


class _CallerGoneError(Exception):
    """Its connection is lost, and it did not say so."""


class CallHolder:
    """Holds a call in the way that its host bears; the pipeline's ``approve`` stage."""

    def __init__(self, requests: HeldRequests, runner: HeldCallRunner) -> None:
        self._requests = requests
        self._runner = runner
        self._patience = HostPatience()

    def drop(self, call: Call) -> None:
        """Something of ours broke: nobody waits for the call any more. Does not wait."""
        self._requests.drop(call)

    async def hold(self, call: Call) -> CallOutcome:
        """Hold the call and wait. Its end, or the state pending with a ticket (and perhaps a
        prompt).

        Raises SlipsnisseError when the request cannot be recorded, and Error when it was not.
        """
        prompt = _make_prompt(call)
        way = plan_wait_steps(
            tasks=call.request.host.tasks,
            questions=prompt is not None,
            may_confirm=_can_confirm(call),
            progress=call.request.host.progress and call.request.on_progress is not None,
        )
        try:
            ticket = await self._hold_or_rejoin(call, way[0])
        except asyncio.CancelledError:
            # its request may be recorded already; who recorded it sees to that
            self._learn_patience(call)
            raise
        except Error as error:  # perhaps it was written all the same
            log.exception("call.not_held", call=call.id)
            return await self._look_up_unconfirmed(call, error)
        try:
            return await self._wait_in_steps(call, ticket, way, prompt)
        except asyncio.CancelledError:
            self._handle_departure(call, ticket)
            raise
        except _CallerGoneError:
            self._handle_departure(call, ticket)
            return CallOutcome(
                ticket.call_id,
                InvocationState.CANCELLED,
                error_code="CANCELLED",
                message="The caller disconnected.",
            )
        except Exception:
            # ours, at whatever point: how the call stands is in its record, not in what failed
            log.exception("call.waiting_failed", call=ticket.call_id)
            return await self._read_recorded_outcome(ticket)
        finally:
            self._requests.forget_caller(ticket)

    async def _look_up_unconfirmed(self, call: Call, error: Error) -> CallOutcome:
        """People may be asked though we did not hear that it was written: looked up before anything
        is said."""
        try:
            ticket = await self._requests.find_ticket(call)
        except Error:
            if not is_outcome_unknown(error):
                raise error from None
            self._requests.drop(call)
            doubt = Unavailable(
                "It is not known whether this call waits for an approval, because the record of the call cannot be read.",
                remedy=f"Call mcp_approval_status with the id {call.id} in a moment.",
            )
            return make_outcome(call, InvocationState.UNKNOWN, error=doubt)
        if ticket is None:
            raise error
        if ticket.task_id and ticket.state is InvocationState.PENDING:
            return CallOutcome(ticket.call_id, InvocationState.PENDING, ticket=ticket)
        return await self._read_recorded_outcome(ticket)

    def _handle_departure(self, call: Call, ticket: HeldCallTicket) -> None:
        self._requests.leave_soon(ticket)
        self._learn_patience(call)

    def _learn_patience(self, call: Call) -> None:
        if not self._requests.stopping:  # else it is we who go
            self._patience.record_departure(call, time.monotonic())

    async def _read_recorded_outcome(self, ticket: HeldCallTicket) -> CallOutcome:
        """Its end, or "pending" (it waits or runs on, and its caller may come back), or that nobody
        knows."""
        try:
            outcome = await self._runner.read_outcome(ticket)
            return outcome if outcome.state in TERMINAL else await self._answer_pending(ticket)
        except Exception:  # the database does not answer either
            log.exception("call.not_looked_up", call=ticket.call_id)
            message = f"The record cannot be read. Call mcp_approval_status with the id {ticket.id} in a moment."
            return CallOutcome(
                ticket.call_id, InvocationState.UNKNOWN, None, Unavailable.code, message, LOOK_FIRST
            )

    async def _answer_pending(self, ticket: HeldCallTicket) -> CallOutcome:
        """The call is still there: its caller may come back for it, whether or not that can be
        noted now."""
        try:
            return await self._requests.detach_caller(ticket)
        except Error as error:
            if not is_passing(error):
                raise
            return self._requests.detach_caller_soon(ticket)

    async def _hold_or_rejoin(self, call: Call, way: WaitStep) -> HeldCallTicket:
        """Of the request that the reply is about, even if it has ended meanwhile; else a new or
        joined one."""
        host = call.request.host
        if host.reply is not None and (
            found := await self._requests.rejoin_request(host.reply.request, call)
        ):
            return found
        return await self._requests.ask(call, way, task=_make_task_wish(call, way), said=host.said)

    async def _wait_in_steps(
        self, call: Call, ticket: HeldCallTicket, way: tuple[WaitStep, ...], prompt: Prompt | None
    ) -> CallOutcome:
        host = call.request.host
        state = ticket.state
        if way[0] is WaitStep.TASK and state is InvocationState.PENDING:
            return CallOutcome(ticket.call_id, state, ticket=ticket)
        step = way[0]
        asking = None
        if step is WaitStep.QUESTION:
            step = way[1]
            if state is InvocationState.PENDING and prompt is not None:
                prompt = _address_prompt(prompt, ticket)
                if host.ask is not None:
                    asking = asyncio.ensure_future(host.ask(prompt))
                elif host.reply is not None and host.reply.request == ticket.id:
                    state = await self._apply_reply(call, ticket, host.reply, step)
                else:
                    return replace(await self._requests.detach_caller(ticket), prompt=prompt)
        try:
            if state is InvocationState.PENDING:
                state = await self._wait_for_host(call, ticket, step, asking)
        finally:
            if asking is not None:
                asking.cancel()
        ended = (
            await self._run_to_end(call, ticket, step)
            if state is not InvocationState.PENDING
            else None
        )
        return ended or await self._detach_caller(call, ticket)

    async def _detach_caller(self, call: Call, ticket: HeldCallTicket) -> CallOutcome:
        """ "Pending"; or the end, if it came in this very moment."""
        outcome = await self._requests.detach_caller(ticket)
        if outcome.ticket is not None and outcome.ticket.state in TERMINAL:
            return await self._runner.run(ticket, call)
        return outcome

    async def _wait_for_host(
        self,
        call: Call,
        ticket: HeldCallTicket,
        step: WaitStep,
        asking: asyncio.Future[HostReply] | None,
    ) -> InvocationState:
        """Wait for the decision as long as the host bears it. Pending: time is up, and nobody has
        decided."""
        host = call.request.host
        tell = _make_progress_sender(call, ticket) if step is WaitStep.PROGRESS else _do_nothing
        # The host's clock runs since it called, whatever we did meanwhile.
        longest = find_smallest(
            self._patience.compute_hold_seconds(call, step), settings.MCP_HOLD_SECONDS, host.hold
        )
        until = call.started + (longest or 0.0)
        while (rest := until - time.monotonic()) > 0 and not self._requests.stopping:
            tell()
            state, reply = await self._wait_for_news(host, ticket, min(rest, TELL_EVERY), asking)
            if reply is not None:
                asking = None
                state = await self._apply_reply(call, ticket, reply, step)
            if state is not InvocationState.PENDING:
                return state
        return InvocationState.PENDING

    async def _run_to_end(
        self, call: Call, ticket: HeldCallTicket, step: WaitStep
    ) -> CallOutcome | None:
        """Run it, or get the end from whoever does. None: it is not at its end, but its host waits
        no longer."""
        until = call.started + max(_BEGIN, self._patience.compute_hold_seconds(call, step))
        running = asyncio.ensure_future(self._runner.run(ticket, call))
        try:
            done, _ = await asyncio.wait({running}, timeout=max(0.0, until - time.monotonic()))
            if not done or _is_unfinished(outcome := running.result()):
                return None
            return outcome
        finally:
            running.cancel()

    async def _wait_for_news(
        self,
        host: CallHost,
        ticket: HeldCallTicket,
        timeout: float,
        asking: asyncio.Future[HostReply] | None,
    ) -> tuple[InvocationState, HostReply | None]:
        """The next thing that happens within ``timeout``: a decision, or the answer to our
        question.

        Raises _CallerGone when there is nobody any more to whom either could be told.
        """
        watching = asyncio.ensure_future(self._requests.wait_for_decision(ticket, timeout))
        leaving = asyncio.ensure_future(host.left.wait()) if host.left is not None else None
        news: set[asyncio.Future[Any]] = {
            each for each in (watching, asking, leaving) if each is not None
        }
        try:
            await asyncio.wait(news, return_when=asyncio.FIRST_COMPLETED)
            if leaving is not None and leaving.done():
                raise _CallerGoneError
            if watching.done() and watching.result() is not InvocationState.PENDING:
                return watching.result(), None
            return (
                InvocationState.PENDING,
                asking.result() if asking is not None and asking.done() else None,
            )
        finally:
            watching.cancel()
            if leaving is not None:
                leaving.cancel()

    async def _apply_reply(
        self, call: Call, ticket: HeldCallTicket, reply: HostReply, after: WaitStep
    ) -> InvocationState:
        """Act on what the person at the host said, if there was one. Returns the state
        afterwards."""
        answer = interpret_elicitation(
            reply.action, confirmed=reply.confirmed or reply.url, seconds=reply.seconds
        )
        if reply.url and answer is ElicitationAnswer.YES:
            answer = ElicitationAnswer.NOBODY  # went to the page, and decides there
        by = f"the user of {call.request.host.title or 'the host'}"
        # somebody decided meanwhile, or the rule has changed: that stands
        with suppress(SlipsnisseError):
            if answer is ElicitationAnswer.YES:
                return await self._requests.confirm(ticket, by)
            if answer is ElicitationAnswer.NO:
                return await self._requests.refuse(ticket, by)
        await self._requests.change_wait_mode(ticket, after)
        return InvocationState.PENDING


def _is_unfinished(outcome: CallOutcome) -> bool:
    """It could not be recorded, or this process stops: it stays as it is for the caller who comes
    back."""
    return outcome.ticket is not None and outcome.state not in TERMINAL


# What is asked, and of whom


def _make_prompt(call: Call) -> Prompt | None:
    """The question for the person at the host, or None when the host cannot put it (whole)."""
    host = call.request.host
    if not host.elicit or (host.ask is None and not host.mrtr):
        return None
    question = _compose_question(call)
    if "form" in host.elicit and len(question) <= WHOLE_QUESTION:
        return Prompt("", question)
    return (
        Prompt("", _compose_question(call, arguments=False), url="page")
        if "url" in host.elicit
        else None
    )


def _address_prompt(prompt: Prompt, ticket: HeldCallTicket) -> Prompt:
    return replace(prompt, request=ticket.id, url=ticket.url if prompt.url else "")


def _compose_question(call: Call, *, arguments: bool = True) -> str:
    """Facts in our words; what comes from elsewhere has its invisible characters made visible."""
    offer = call.entry.offer
    lines = [
        "May this tool call run?"
        if offer.tool.kind == TOOL
        else f"May this {offer.tool.kind} be used?",
        f"{offer.tool.kind.capitalize()}: {show_invisible_characters(offer.tool.name)} on the server {offer.server.slug}",
        f"Agent: {call.request.catalogue.agent.slug}",
        f"Why you are asked: {show_invisible_characters(call.decision.reason)}",
    ]
    if arguments:
        shown = json.dumps(json.loads(call.arguments_json), ensure_ascii=False, indent=1)
        lines.append(f"Arguments:\n{show_invisible_characters(shown)}")
    else:
        lines.append(
            "The arguments are too long to show here. Open the approval page to read them."
        )
    return "\n".join(lines)


def _can_confirm(call: Call) -> bool:
    terms = call.decision.terms
    return terms is not None and terms.requester_may_confirm


def _make_task_wish(call: Call, step: WaitStep) -> TaskWish | None:
    terms = call.decision.terms
    if step is not WaitStep.TASK or terms is None:
        return None
    ttl = (terms.decide_seconds + terms.execute_seconds) * 1000 + _TASK_SLACK_MS
    return TaskWish(ttl_ms=ttl, poll_ms=_TASK_POLL_MS)


# How long, and what is said meanwhile


def _do_nothing() -> None:
    pass


def _make_progress_sender(call: Call, ticket: HeldCallTicket) -> Callable[[], None]:
    told = 0

    def send_progress() -> None:
        nonlocal told
        told += 1
        rest = (ticket.decide_by - datetime.now(UTC)).total_seconds()
        on_progress = call.request.on_progress
        if on_progress is not None:
            on_progress(
                told * _STEP,
                None,
                f"Waiting for {ticket.asked_of}: {format_exact_duration(rest)} left. {ticket.url}",
            )

    return send_progress
