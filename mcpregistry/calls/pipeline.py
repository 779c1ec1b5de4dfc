"""One tool call from request to record, stage by stage; every face goes through here.

resolve -> authorise -> validate -> decide -> afford -> approve -> claim -> dispatch -> finish

Whatever refuses, refuses before anything is sent; the refusal is recorded as well. The record of
the intent is durable before the first byte goes out, and the end before the answer goes back. A
call is never repeated here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import structlog

from mcpregistry.calls.budgets import Rates
from mcpregistry.calls.call import Call, CallOutcome, CallRequest, Judged
from mcpregistry.calls.catalog import Entry
from mcpregistry.calls.recorder import Recorder
from mcpregistry.domain.access import may_call
from mcpregistry.domain.binding import binding_of
from mcpregistry.domain.canonical import canonical, digest, plain, stored
from mcpregistry.domain.errors import ArgumentsInvalid, Denied, DownstreamError, NotFound, SlipsnisseError, ToolRefused
from mcpregistry.domain.lifecycle import State
from mcpregistry.domain.policy import Decision, Outcome, Policy, Question, decide
from mcpregistry.domain.schema import check_arguments
from mcpregistry.failpoints import failpoint
from mcpregistry.ids import ordered_id

log = structlog.get_logger(__name__)

_CRASHED = "The call failed inside the control plane."
_LEASE_GRACE = timedelta(seconds=60)
_NO_TIMEOUT = timedelta(hours=24)  # lease of a call to a server whose calls have no time limit


class Dispatcher(Protocol):
    """Sends a claimed call to whoever serves it.

    Returns the raw result object, or ``{"resultType": "task", "taskId": …}`` with the id of our handle
    for a call that goes on; raises DownstreamError. Calls ``on_sent`` once the first byte may have left.
    """

    async def __call__(self, call: Call, *, on_sent: Any) -> dict[str, Any]: ...


class Waiting(Protocol):
    """Asks people and waits. Returns how the call ended, or that it is pending still."""

    async def __call__(self, call: Call) -> CallOutcome: ...


class Permits(Protocol):
    async def permitted(self, call: Call) -> str:
        """Why the call may run without asking, "" when it may not."""
        ...

    def drop(self, call: Call) -> None:
        """Nobody waits for the call any more, whatever has become of it."""
        ...


class Pipeline:
    def __init__(
        self, *, recorder: Recorder, dispatchers: Mapping[str, Dispatcher], policy: Policy, approvals: Permits,
        waiting: Waiting,
    ) -> None:  # fmt: skip
        self.recorder = recorder
        self.dispatchers = dispatchers
        self.policy = policy
        self.approvals = approvals
        self.waiting = waiting
        self.rates = Rates()

    async def run(self, request: CallRequest) -> CallOutcome:
        """Make the call. Never raises for anything that happened to the call; see CallOutcome."""
        return await self.proceed(self.judge(request))

    def judge(self, request: CallRequest) -> Judged:
        """Resolve to decide. Records nothing and uses nothing up, so it may be done without going on."""
        call_id, received_at, started = request.call_id or ordered_id(), datetime.now(UTC), time.monotonic()
        entry: Entry = _NO_ENTRY
        arguments_json = binding = ""
        decision, refusal = _UNDECIDED, None
        try:
            entry = resolve(request)
            authorise(request, entry)
            arguments_json = validate(request, entry)
            decision = _OWN if entry.offer.own else decide(self.policy, _question(request, entry))
            binding = bind(request, entry, arguments_json, decision)
            _refuse_denied(decision)
        except SlipsnisseError as error:
            refusal = error
        except Exception:  # a fault of ours must not let the call through, nor end it without a record
            log.exception("call.crashed", call=call_id)
            refusal = Denied(_CRASHED, remedy="Ask the operator.")
        call = Call(call_id, request, entry, arguments_json, binding, decision, received_at, started)
        return Judged(call, refusal)

    async def proceed(self, judged: Judged) -> CallOutcome:
        """Go on with a judged call: record its refusal, hold it, or send it. Never raises, like ``run``."""
        call, refusal = judged.call, judged.refusal
        if refusal is None:
            refusal = self._afford(call)
        if refusal is not None:
            return await self._refused(call, refusal)
        if call.decision.outcome is Outcome.ASK:
            return await self._held(call)
        return await self._claimed(call)

    def _afford(self, call: Call) -> SlipsnisseError | None:
        try:
            self.rates.take(call.request.catalogue.agent, call.started)
        except SlipsnisseError as error:
            return error
        return None

    async def _refused(self, call: Call, refusal: SlipsnisseError, state: State = State.DENIED) -> CallOutcome:
        outcome = _outcome(call, state, error=refusal)
        try:
            await self.recorder.begin(_record(call, outcome), kind=f"call.{state}", facts=audit_facts(call, outcome))
        except SlipsnisseError as error:
            return replace(outcome, error_code=error.code, message=error.message, remedy=error.remedy)
        return outcome

    async def _held(self, call: Call) -> CallOutcome:
        """People are asked, unless one of them has permitted such calls; the rest is in ``calls.approvals``."""
        try:
            if permit := await self._permitted(call):
                return await self._claimed(replace(call, decision=Decision(Outcome.ALLOW, permit)))
            return await self.waiting(call)
        except SlipsnisseError as refusal:
            return await self._refused(call, refusal)
        except Exception:
            log.exception("call.crashed", call=call.id)
            self.approvals.drop(call)
            return _outcome(call, State.CANCELLED, error=Denied(_CRASHED, remedy="Ask the operator."))

    async def _permitted(self, call: Call) -> str:
        try:
            return await self.approvals.permitted(call)
        except asyncio.CancelledError:
            self._left(call, State.CANCELLED, "the caller left before anybody was asked", self.recorder.begin_soon)
            raise

    async def _claimed(self, call: Call) -> CallOutcome:
        """The intent goes to disk, then the call goes out, then its end goes to disk."""
        try:
            await self.recorder.begin(_intent(call), kind="call.dispatched", facts=audit_facts(call))
        except asyncio.CancelledError:
            self.abandon(call)
            raise
        except SlipsnisseError as error:
            return _outcome(call, State.NOT_SENT, error=error)
        return await self.execute(call)

    async def execute(self, call: Call) -> CallOutcome:
        """Send a call whose intent is on disk, and record its end. Never raises but for being cancelled.

        A server's task goes on after this; whoever follows it records its end (``calls/adoption.py``).
        """
        outcome = await self._dispatched(call)
        if outcome.state is State.DISPATCHED:
            return outcome
        return await self._finished(call, outcome)

    def abandon(self, call: Call) -> None:
        """A claimed call whose caller left before it was sent."""
        self._left(call, State.NOT_SENT, "the caller left before anything was sent", self.recorder.end_soon)

    async def _dispatched(self, call: Call) -> CallOutcome:
        sent = False

        def on_sent() -> None:
            nonlocal sent
            sent = True
            failpoint("after_send")

        try:
            result = await self.dispatchers[call.entry.offer.kind](call, on_sent=on_sent)
        except asyncio.CancelledError:
            state = State.UNKNOWN if sent else State.NOT_SENT
            self._left(call, state, "the caller cancelled it", self.recorder.end_soon)
            raise
        except ToolRefused as error:
            refused = _outcome(call, State.TOOL_ERROR, error=error)
            return replace(refused, rpc_code=error.rpc_code, rpc_data=error.data)
        except DownstreamError as error:
            return _outcome(call, State.UNKNOWN if error.sent else State.NOT_SENT, error=error)
        except SlipsnisseError as error:
            return _outcome(call, State.UNKNOWN if sent else State.NOT_SENT, error=error)
        except Exception:  # its text may hold a secret: it goes to the log only
            log.exception("call.crashed", call=call.id)
            crash = DownstreamError(_CRASHED, remedy="Ask the operator.", sent=sent)
            return _outcome(call, State.UNKNOWN if sent else State.NOT_SENT, error=crash)
        if result.get("resultType") == "task":
            return replace(_outcome(call, State.DISPATCHED), task_id=result["taskId"])
        return _outcome(call, State.TOOL_ERROR if result.get("isError") else State.SUCCEEDED, result=result)

    async def _finished(self, call: Call, outcome: CallOutcome) -> CallOutcome:
        failpoint("before_end")
        try:
            await self.recorder.end(_end(call, outcome), kind=f"call.{outcome.state}", facts=audit_facts(call, outcome))
        except SlipsnisseError:
            # It did happen, and saying otherwise would be a lie; the reaper marks the record unknown.
            log.error("call.end_not_recorded", call=call.id)
        return outcome

    def _left(self, call: Call, state: State, reason: str, record: Any) -> None:
        """The caller is being cancelled: say how the call ended, without waiting."""
        outcome = replace(_outcome(call, state), error_code="CANCELLED", message=reason)
        try:
            record(_record(call, outcome), kind=f"call.{state}", facts=audit_facts(call, outcome))
        except SlipsnisseError:
            log.error("call.end_not_recorded", call=call.id)


# The stages that need nothing but their arguments


def resolve(request: CallRequest) -> Entry:
    """The entry with exactly this name. Not granted and absent are the same to the caller."""
    entry = request.catalogue.find(request.name)
    if entry is None:
        raise NotFound(f"Unknown tool: {plain(request.name, 200)}")
    return entry


def authorise(request: CallRequest, entry: Entry) -> None:
    """The list may be older than a grant's end, and argument pins show only now."""
    catalogue = request.catalogue
    if entry.offer.own:
        return
    if not may_call(catalogue.agent, catalogue.endpoint, entry.offer.tool, request.arguments, time.time()):
        raise Denied(
            f"The agent '{catalogue.agent.slug}' is not granted '{entry.name}' with these arguments.",
            remedy="Ask the operator for a grant, or keep to the arguments that are granted.",
        )


def validate(request: CallRequest, entry: Entry) -> str:
    """The canonical JSON of the arguments, checked against the approved input schema."""
    tool = entry.offer.tool
    check_arguments(tool.definition_hash, tool.data.get("inputSchema") or {}, request.arguments)
    try:
        return canonical(request.arguments)
    except ValueError as error:
        raise ArgumentsInvalid(
            "The arguments hold a number that JSON does not have (NaN or infinity), or are nested too deeply.",
            remedy="Correct them and call again.",
        ) from error


def bind(request: CallRequest, entry: Entry, arguments_json: str, decision: Decision) -> str:
    """What exactly is decided on: any change of these gives another binding."""
    server, tool, catalogue = entry.offer.server, entry.offer.tool, request.catalogue
    return binding_of(
        agent=catalogue.agent.slug, endpoint=catalogue.endpoint.slug, server=server.slug, revision=server.revision,
        tool=plain(tool.name, 500), definition=tool.definition_hash, arguments=arguments_json,
        fingerprint=decision.terms.fingerprint if decision.terms else "",
    )  # fmt: skip


# Records


_NO_ENTRY: Any = None
_UNDECIDED = Decision(Outcome.DENY, "")
_OWN = Decision(Outcome.ALLOW, "one of ours: it only tells about calls, or every call that it makes is decided on")


def _question(request: CallRequest, entry: Entry) -> Question:
    catalogue, offer = request.catalogue, entry.offer
    return Question(
        catalogue.agent, catalogue.endpoint, offer.server, offer.tool, request.arguments,
        expert=request.expert, now=time.time(), origin=request.origin, host=request.host.name or request.host_name,
    )  # fmt: skip


def _refuse_denied(decision: Decision) -> None:
    if decision.outcome is Outcome.DENY:
        raise Denied(f"A rule denies this call: {decision.reason}.", remedy="Do not repeat it; ask the operator.")


def _outcome(
    call: Call, state: State, *, result: dict[str, Any] | None = None, error: SlipsnisseError | None = None
) -> CallOutcome:
    duration = (time.monotonic() - call.started) * 1000
    if error is None:
        return CallOutcome(call.id, state, result, duration_ms=duration)
    return CallOutcome(call.id, state, None, error.code, error.message, error.remedy, duration)


def identity(call: Call) -> dict[str, Any]:
    request = call.request
    offer = call.entry.offer if call.entry else None
    return {
        "id": call.id,
        "agent_slug": request.catalogue.agent.slug,
        "endpoint_slug": request.catalogue.endpoint.slug,
        "server_slug": offer.server.slug if offer else "",
        "server_revision": offer.server.revision if offer else 0,
        "tool_name": plain(offer.tool.name if offer else request.name, 500),
        "exposed_name": plain(call.entry.name if call.entry else request.name, 500),
        "definition_hash": offer.tool.definition_hash if offer else "",
        "binding": call.binding,
        "arguments": call.arguments_json or stored(dict(request.arguments)),
        "outcome": call.decision.outcome.value,
        "origin": request.origin,
        "host_name": plain(request.host_name, 100),
        "request_id": plain(request.request_id, 100),
        "received_at": call.received_at,
    }


def _intent(call: Call) -> dict[str, Any]:
    now = datetime.now(UTC)
    return identity(call) | {
        "state": State.DISPATCHED.value,
        "reason": plain(call.decision.reason),
        "dispatched_at": now,
        "lease_until": lease_end(call, now),
    }


def lease_end(call: Call, now: datetime) -> datetime:
    """Until when a call that is out is ours to end."""
    timeout = call.entry.offer.server.request_timeout
    return now + (timedelta(seconds=timeout) if timeout else _NO_TIMEOUT) + _LEASE_GRACE


def _record(call: Call, outcome: CallOutcome) -> dict[str, Any]:
    """Of a call that ends as it begins."""
    return identity(call) | _end(call, outcome)


def _end(call: Call, outcome: CallOutcome) -> dict[str, Any]:
    reason = f"{outcome.message} {outcome.remedy}".strip() or call.decision.reason
    return {
        "id": call.id,
        "agent_slug": call.request.catalogue.agent.slug,
        "state": outcome.state.value,
        "reason": plain(reason),
        "error_code": outcome.error_code,
        "result": outcome.result,
        "finished_at": datetime.now(UTC),
        "duration_ms": outcome.duration_ms,
        "fence": call.fence,
        "keep": call.fence > 0,  # an approved call: whoever comes back for it gets the whole result
    }


def audit_facts(call: Call, outcome: CallOutcome | None = None) -> dict[str, Any]:
    """For the audit log: identities and hashes, never arguments or results themselves."""
    offer = call.entry.offer if call.entry else None
    facts = {
        "tool": f"{offer.server.slug}::{offer.tool.name}" if offer else plain(call.request.name, 500),
        "binding": call.binding,
        "decision": call.decision.outcome.value,
    }
    if answers := call.request.host.onward.answers:
        facts["answers"] = digest(stored(dict(answers)))  # what the host said to the server's questions
    return facts | ({"state": outcome.state.value, "error": outcome.error_code} if outcome else {})
