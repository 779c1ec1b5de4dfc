"""What the record, and the audit log, are told of a call: made from the values of the pipeline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from mcpregistry.calls.call import Call, CallOutcome
from mcpregistry.db import reckoned_now
from mcpregistry.domain.calls import ends
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.kinds import spelled
from mcpregistry.domain.lifecycle import State
from mcpregistry.domain.schema.output import output_warning
from mcpregistry.domain.text.canonical import plain, stored
from mcpregistry.models.signing import keyed_digest
from mcpregistry.services.records import ending
from mcpregistry.services.records.audit import Fact
from mcpregistry.services.records.call_rows import Claim, Held, Identity, Intent, Refused
from mcpregistry.services.records.ending import End, Ended

_LEASE_GRACE = timedelta(seconds=60)
_NO_TIMEOUT = timedelta(hours=24)  # lease of a call to a server whose calls have no time limit


def outcome_of(
    call: Call,
    state: State,
    *,
    result: dict[str, object] | None = None,
    error: SlipsnisseError | None = None,
) -> CallOutcome:
    """How the call ends at this moment. What is unknown, and what was not sent, is said so in
    words."""
    duration = ending.duration_ms(call.received_at, datetime.now(UTC))
    if error is None:
        return CallOutcome(
            call.id, state, result, duration_ms=duration, warning=_warning(call, state, result)
        )
    tool = call.entry.offer.tool if call.entry else None
    advice = (
        ends.advice(state, read_only=tool.read_only, idempotent=tool.idempotent) if tool else ""
    )
    remedy = f"{error.remedy} {advice}".strip()
    return CallOutcome(call.id, state, None, error.code, error.message, remedy, duration)


def _warning(call: Call, state: State, result: dict[str, object] | None) -> str:
    if state is not State.SUCCEEDED:
        return ""
    tool = call.entry.offer.tool
    return output_warning(tool.data, result)


# Rows


def identity(call: Call) -> Identity:
    """The columns of a call's record that say what was asked, by whom, and what was decided."""
    request = call.request
    offer = call.entry.offer if call.entry else None
    return {
        "id": call.id,
        "agent_slug": request.catalogue.agent.slug,
        "endpoint_slug": request.catalogue.endpoint.slug,
        "server_slug": offer.server.slug if offer else "",
        "server_revision": offer.server.revision if offer else 0,
        "tool_name": plain(
            offer.tool.key if offer else spelled(request.catalogue.kind, request.name), 500
        ),
        "exposed_name": plain(call.entry.name if call.entry else request.name, 500),
        "definition_hash": offer.tool.definition_hash if offer else "",
        "binding": call.binding,
        "arguments": call.arguments_json or stored(dict(request.arguments)),
        "outcome": call.decision.outcome.value,
        "origin": request.origin,
        "host_name": plain(request.host_name, 100),
        "requester": plain(request.requester.name, 150),
        "requester_id": request.requester.id,
        "request_id": plain(request.request_id, 100),
        "conversation_id": request.conversation or None,
        "received_at": call.received_at,
    }


def intent(call: Call) -> Intent:
    """Of a call that is about to be sent."""
    return {
        **identity(call),
        "state": State.DISPATCHED.value,
        "reason": plain(call.decision.reason),
        "dispatched_at": datetime.now(UTC),
        "lease_until": lease_end(call),
    }


def held(call: Call, writer: str) -> Held:
    """Of a call that people are asked about."""
    return {**identity(call), "writer": writer, "reason": plain(call.decision.reason)}


def claim(call: Call, revision: int) -> Claim:
    """Of an approved call that is about to be sent, if it is still what was looked at under this
    revision."""
    return {
        "id": call.id,
        "received_at": call.received_at,
        "agent_slug": call.request.catalogue.agent.slug,
        "binding": call.binding,
        "fence": call.fence,
        "dispatched_at": datetime.now(UTC),
        "lease_until": lease_end(call),
        "revision": revision,
    }


def refused(call: Call, outcome: CallOutcome) -> Refused:
    """Of a call that ends as it begins."""
    return {**identity(call), **_ended(call, outcome)}


def end(call: Call, outcome: CallOutcome) -> End:
    """Of a call that is out. An approved one keeps its whole result: others may come back for
    it."""
    before = State.DISPATCHED.value
    return {
        **_ended(call, outcome),
        "id": call.id,
        "before": before,
        "fence": call.fence,
        "keep": call.fence > 0,
    }


def lease_end(call: Call) -> datetime:
    """Until when a call that is out is ours to end, by the database's clock."""
    now = reckoned_now()
    timeout = call.entry.offer.server.request_timeout
    return now + (timedelta(seconds=timeout) if timeout else _NO_TIMEOUT) + _LEASE_GRACE


def _ended(call: Call, outcome: CallOutcome) -> Ended:
    """At the moment that the outcome says."""
    return ending.ended(
        outcome.state,
        received_at=call.received_at,
        now=call.received_at + timedelta(milliseconds=outcome.duration_ms),
        reason=f"{outcome.message} {outcome.remedy}".strip() or call.decision.reason,
        code=outcome.error_code,
        result=outcome.result,
        warning=outcome.warning,
    )


# Audit entries


def dispatched_fact(call: Call) -> Fact:
    """The call is about to be sent."""
    return Fact(
        "call.dispatched", call.request.catalogue.agent.slug, f"call:{call.id}", _about(call)
    )


def ended_fact(call: Call, ended: Ended) -> Fact:
    """The call has ended."""
    return ending.fact(call.id, ended, actor=call.request.catalogue.agent.slug, about=_about(call))


def _about(call: Call) -> dict[str, object]:
    """Identities and hashes, never arguments or results themselves."""
    offer = call.entry.offer if call.entry else None
    about: dict[str, object] = {
        "tool": f"{offer.server.slug}::{offer.tool.key}"
        if offer
        else plain(call.request.name, 500),
        "binding": call.binding,
        "decision": call.decision.outcome.value,
    }
    if call.request.requester.name:
        about["requester"] = plain(call.request.requester.name, 150)
    if answers := call.request.host.forwarding.answers:
        about["answers"] = keyed_digest(
            "answers", stored(dict(answers))
        )  # what the host said to the server's questions
    return about
