"""What the record, and the audit log, are told of a call: made from the values of the pipeline."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from mcpregistry.calls.call import Call, CallOutcome
from mcpregistry.db import estimate_database_now
from mcpregistry.domain.calls import outcome_texts
from mcpregistry.domain.errors import SlipsnisseError
from mcpregistry.domain.lifecycle import InvocationState
from mcpregistry.domain.offer_kinds import spell_offer_key
from mcpregistry.domain.schema.output import check_output
from mcpregistry.domain.text.canonical import clean_text, encode_lossy_json
from mcpregistry.models.signing import compute_keyed_digest
from mcpregistry.services.records import ending
from mcpregistry.services.records.audit import AuditFact
from mcpregistry.services.records.call_rows import (
    CallIdentity,
    Claim,
    HeldCallColumns,
    Intent,
    RefusedCallColumns,
)
from mcpregistry.services.records.ending import CallEndColumns, End

_LEASE_GRACE = timedelta(seconds=60)
_NO_TIMEOUT = timedelta(hours=24)  # lease of a call to a server whose calls have no time limit


def make_outcome(
    call: Call,
    state: InvocationState,
    *,
    result: dict[str, object] | None = None,
    error: SlipsnisseError | None = None,
) -> CallOutcome:
    """How the call ends at this moment. What is unknown, and what was not sent, is said so in
    words."""
    duration = ending.compute_duration_ms(call.received_at, datetime.now(UTC))
    if error is None:
        return CallOutcome(
            call.id, state, result, duration_ms=duration, warning=_find_warning(call, state, result)
        )
    tool = call.entry.offer.tool if call.entry else None
    advice = (
        outcome_texts.advise_after_end(state, read_only=tool.read_only, idempotent=tool.idempotent)
        if tool
        else ""
    )
    remedy = f"{error.remedy} {advice}".strip()
    return CallOutcome(call.id, state, None, error.code, error.message, remedy, duration)


def make_cancelled_outcome(call: Call, state: InvocationState, reason: str) -> CallOutcome:
    """How the call ends whose caller is gone, or whose process stops."""
    return replace(make_outcome(call, state), error_code="CANCELLED", message=reason)


def _find_warning(call: Call, state: InvocationState, result: dict[str, object] | None) -> str:
    if state is not InvocationState.SUCCEEDED:
        return ""
    tool = call.entry.offer.tool
    return check_output(tool.data, result)


# Rows


def build_identity(call: Call) -> CallIdentity:
    """The columns of a call's record that say what was asked, by whom, and what was decided."""
    request = call.request
    offer = call.entry.offer if call.entry else None
    return {
        "id": call.id,
        "agent_slug": request.catalogue.agent.slug,
        "endpoint_slug": request.catalogue.endpoint.slug,
        "server_slug": offer.server.slug if offer else "",
        "server_revision": offer.server.revision if offer else 0,
        "tool_name": clean_text(
            offer.tool.key if offer else spell_offer_key(request.catalogue.kind, request.name), 500
        ),
        "exposed_name": clean_text(call.entry.name if call.entry else request.name, 500),
        "definition_hash": offer.tool.definition_hash if offer else "",
        "binding": call.binding,
        "arguments": call.arguments_json or encode_lossy_json(dict(request.arguments)),
        "outcome": call.decision.outcome.value,
        "origin": request.origin,
        "host_name": clean_text(request.host_name, 100),
        "requester": clean_text(request.requester.name, 150),
        "requester_id": request.requester.id,
        "request_id": clean_text(request.request_id, 100),
        "conversation_id": request.conversation or None,
        "received_at": call.received_at,
    }


def build_intent(call: Call) -> Intent:
    """Of a call that is about to be sent."""
    return {
        **build_identity(call),
        "state": InvocationState.DISPATCHED.value,
        "reason": clean_text(call.decision.reason),
        "dispatched_at": datetime.now(UTC),
        "lease_until": compute_lease_end(call),
    }


def build_held_row(call: Call, writer: str) -> HeldCallColumns:
    """Of a call that people are asked about."""
    return {**build_identity(call), "writer": writer, "reason": clean_text(call.decision.reason)}


def build_claim(call: Call, revision: int) -> Claim:
    """Of an approved call that is about to be sent, if it is still what was looked at under this
    revision."""
    return {
        "id": call.id,
        "received_at": call.received_at,
        "agent_slug": call.request.catalogue.agent.slug,
        "binding": call.binding,
        "fence": call.fence,
        "dispatched_at": datetime.now(UTC),
        "lease_until": compute_lease_end(call),
        "revision": revision,
    }


def build_refused_row(call: Call, outcome: CallOutcome) -> RefusedCallColumns:
    """Of a call that ends as it begins."""
    return {**build_identity(call), **_build_end_columns(call, outcome)}


def build_end(call: Call, outcome: CallOutcome) -> End:
    """Of a call that is out. An approved one keeps its whole result: others may come back for
    it."""
    before = InvocationState.DISPATCHED.value
    return {
        **_build_end_columns(call, outcome),
        "id": call.id,
        "before": before,
        "fence": call.fence,
        "keep": call.fence > 0,
    }


def compute_lease_end(call: Call) -> datetime:
    """Until when a call that is out is ours to end, by the database's clock."""
    now = estimate_database_now()
    timeout = call.entry.offer.server.request_timeout
    return now + (timedelta(seconds=timeout) if timeout else _NO_TIMEOUT) + _LEASE_GRACE


def _build_end_columns(call: Call, outcome: CallOutcome) -> CallEndColumns:
    """At the moment that the outcome says."""
    return ending.build_end_columns(
        outcome.state,
        received_at=call.received_at,
        now=call.received_at + timedelta(milliseconds=outcome.duration_ms),
        reason=f"{outcome.message} {outcome.remedy}".strip() or call.decision.reason,
        code=outcome.error_code,
        result=outcome.result,
        warning=outcome.warning,
    )


# Audit entries


def make_dispatched_fact(call: Call) -> AuditFact:
    """The call is about to be sent."""
    return AuditFact(
        "call.dispatched",
        call.request.catalogue.agent.slug,
        f"call:{call.id}",
        _list_fact_details(call),
    )


def make_ended_fact(call: Call, ended: CallEndColumns) -> AuditFact:
    """The call has ended."""
    return ending.build_end_fact(
        call.id, ended, actor=call.request.catalogue.agent.slug, about=_list_fact_details(call)
    )


def _list_fact_details(call: Call) -> dict[str, object]:
    """Identities and hashes, never arguments or results themselves."""
    offer = call.entry.offer if call.entry else None
    about: dict[str, object] = {
        "tool": f"{offer.server.slug}::{offer.tool.key}"
        if offer
        else clean_text(call.request.name, 500),
        "binding": call.binding,
        "decision": call.decision.outcome.value,
    }
    if call.request.requester.name:
        about["requester"] = clean_text(call.request.requester.name, 150)
    if answers := call.request.host.forwarding.answers:
        about["answers"] = compute_keyed_digest(
            "answers", encode_lossy_json(dict(answers))
        )  # what the host said to the server's questions
    return about
