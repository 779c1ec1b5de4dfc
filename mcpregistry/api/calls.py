"""Call a tool over REST, through the same pipeline as over MCP: same grants, same rules, same
record.

What the tool or its server did wrong is an answer (HTTP 200, ``success`` false), as in MCP; what
the caller did wrong is a 4xx. ``?strict=1`` turns the former into 502 and 504.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated

from django.http import HttpRequest
from ninja import Query, Status

from mcpregistry.api.approvals import Prefer, seconds_to_wait
from mcpregistry.api.auth import Principal, principal
from mcpregistry.api.call_answers import content_type, failure, plain_result
from mcpregistry.api.idempotent_operations import IdempotencyKey
from mcpregistry.api.permission_router import PermissionRouter
from mcpregistry.api.schemas.approvals import Ticket, ticket_out
from mcpregistry.api.schemas.basics import Problem
from mcpregistry.api.schemas.calls import (
    CallAnswer,
    CallEnergyOut,
    CallMeta,
    CallOrder,
    CallResultMeta,
)
from mcpregistry.api.tools import ToolName
from mcpregistry.calls.call import CallHost, CallOutcome, CallRequest
from mcpregistry.calls.catalog import CatalogueEntry
from mcpregistry.calls.conversations import narrow_to_conversation
from mcpregistry.calls.engine import get_current_engine
from mcpregistry.calls.idempotency_notes import write_key_note
from mcpregistry.calls.recorded_outcomes import build_recorded_outcome
from mcpregistry.db import db_call
from mcpregistry.domain import error_texts
from mcpregistry.domain.calls.argument_edits import remove_edit_note
from mcpregistry.domain.calls.outcome_texts import RECORD_LATE
from mcpregistry.domain.errors import (
    ArgumentsInvalid,
    Denied,
    NotFound,
    QueueFullError,
    SlipsnisseError,
    Unavailable,
)
from mcpregistry.domain.lifecycle import TERMINAL, InvocationState
from mcpregistry.domain.servers.sessions import name_implicit_session
from mcpregistry.domain.text.canonical import encode_lossy_json
from mcpregistry.ids import make_ordered_id
from mcpregistry.models.signing import compute_keyed_digest
from mcpregistry.services.records import idempotency

router = PermissionRouter(tags=["calls"])

# The pipeline's refusals, as the caller's fault or a reason to come again.
_REFUSED = {
    "NOT_FOUND": 404,
    "DENIED": 403,
    "ARGUMENTS_INVALID": 422,
    "RATE_LIMITED": 429,
    "BUDGET_SPENT": 429,
    "INSUFFICIENT_ENERGY": 429,
}


class CallNotRecordedError(Unavailable):
    """503: the database did not take the record, so nothing was made."""

    code = "NOT_RECORDED"


# No fault of the caller's: nothing was made, whatever state it would have ended in, and the caller
# may come again.
_NOT_NOW: dict[str, type[SlipsnisseError]] = {
    "BUSY": QueueFullError,
    "NOT_RECORDED": CallNotRecordedError,
}
# Ends of a held call that was never made: people said no (silence is one), or nobody wants it any
# more.
_NOT_MADE = {
    InvocationState.REJECTED: 403,
    InvocationState.EXPIRED: 403,
    InvocationState.CANCELLED: 409,
    InvocationState.VOID: 409,
}


@router.post(
    "/tools/{name}/call",
    response={200: CallAnswer, 202: CallAnswer, 409: Problem, 502: CallAnswer, 504: CallAnswer},
)
async def call_tool(
    request: HttpRequest,
    name: ToolName,
    payload: CallOrder,
    *,
    strict: Annotated[
        bool, Query(description="Answer with 502 or 504 if the tool or its server failed.")
    ] = False,
    idempotency_key: IdempotencyKey = None,
    prefer: Prefer = None,
) -> Status[CallAnswer] | Status[Problem]:
    """Call a tool, by its name on the endpoint or as `server::tool`.

    The status 202 means that the call waits for an approval and has not been made. Send the
    identical request again to join it: after the approval, the call runs once, and the answer
    contains its result.
    """
    who = principal(request)
    wait = seconds_to_wait(prefer)
    if idempotency_key is None:
        return await _call(who, name, payload, strict=strict, wait=wait)
    use = {"caller": who.actor, "key": idempotency_key}
    asked = compute_keyed_digest("call", name, encode_lossy_json(payload.model_dump()))
    claim = await db_call(idempotency.claim, **use, fingerprint=asked, call_id=make_ordered_id())
    if claim.kept is not None and claim.kept.status is not None:
        return Status(claim.kept.status, CallAnswer(**json.loads(claim.kept.body)))
    if claim.ended is not None:
        outcome = await db_call(build_recorded_outcome, claim.ended)
        return _build_response(outcome, _entry(who, name, payload), name, payload, strict=strict)
    try:
        answer = await _call(who, name, payload, strict=strict, wait=wait, call_id=claim.call_id)
    except SlipsnisseError:
        await write_key_note(partial(db_call, idempotency.release, **use))
        raise
    if isinstance(answer.value, Problem) or answer.status_code == 202:
        await write_key_note(partial(db_call, idempotency.release, **use))
    else:
        body = json.dumps(answer.value.model_dump())
        await write_key_note(
            partial(db_call, idempotency.keep, **use, status=answer.status_code, body=body)
        )
    return answer


async def _call(
    who: Principal, name: str, payload: CallOrder, *, strict: bool, wait: float, call_id: str = ""
) -> Status[CallAnswer] | Status[Problem]:
    engine = get_current_engine()
    conversation = payload.conversation or ""
    catalogue = await narrow_to_conversation(
        engine.get_catalogue(payload.endpoint, _agent(who, payload.agent)), conversation
    )
    entry = catalogue.find(name)
    _check_names(entry, payload.mcp)
    # a person acted for the agent: the record says who
    name_of_host = "" if who.agent else who.actor[:100]
    host = CallHost(name=name_of_host, transport="rest", hold=wait, said=payload.said)
    outcome = await engine.call(
        CallRequest(
            catalogue,
            name,
            payload.params,
            "rest",
            host_name=name_of_host,
            request_id=payload.mcp.request_id,
            host=host,
            call_id=call_id,
            requester=who.requester,
            conversation=conversation,
            session=name_implicit_session(payload.endpoint, conversation=conversation),
        )
    )
    return _build_response(outcome, entry, name, payload, strict=strict)


def _entry(who: Principal, name: str, payload: CallOrder) -> CatalogueEntry | None:
    """The tool as it is offered today, if it still is."""
    try:
        return (
            get_current_engine()
            .get_catalogue(payload.endpoint, _agent(who, payload.agent))
            .find(name)
        )
    except NotFound:
        return None


def _build_response(
    outcome: CallOutcome,
    entry: CatalogueEntry | None,
    name: str,
    payload: CallOrder,
    *,
    strict: bool,
) -> Status[CallAnswer] | Status[Problem]:
    not_now = _NOT_NOW.get(outcome.error_code)
    if not_now and outcome.result is None and outcome.state is not InvocationState.UNKNOWN:
        raise not_now(outcome.message, remedy=outcome.remedy)
    refused = _NOT_MADE.get(outcome.state) or _REFUSED.get(outcome.error_code)
    if refused and outcome.result is None and outcome.state is not InvocationState.UNKNOWN:
        code = outcome.error_code or outcome.state.upper()
        return Status(refused, Problem(code=code, message=outcome.message, remedy=outcome.remedy))
    return Status(_status(outcome, strict=strict), _answer(outcome, entry, payload.mcp, name))


def _agent(who: Principal, named: str | None) -> str:
    if who.agent is None:
        if named is None:
            raise ArgumentsInvalid(
                error_texts.say_required("agent"), remedy='Add "agent": "SLUG" to the body.'
            )
        return named
    if named not in (None, who.agent.slug):
        raise Denied(
            "The token does not belong to the agent in the field 'agent'.",
            remedy="Leave out the field 'agent'. The token already identifies the agent.",
        )
    return who.agent.slug


def _check_names(entry: CatalogueEntry | None, meta: CallMeta) -> None:
    """An unknown tool is refused by the pipeline, which also records it."""
    if entry is None:
        return
    server = entry.offer.server
    tool = entry.offer.tool
    if meta.server_name not in (None, server.slug, server.title):
        raise ArgumentsInvalid(
            "'mcp.server_name' does not name the server of this tool.",
            remedy=f"Set 'mcp.server_name' to '{server.slug}', or leave out this field.",
        )
    if meta.tool_name not in (None, tool.name):
        raise ArgumentsInvalid(
            "'mcp.tool_name' is not the name of this tool on its server.",
            remedy=f"Set 'mcp.tool_name' to '{tool.name}', or leave out this field.",
        )


def _ticket(outcome: CallOutcome) -> Ticket | None:
    """Of a call that is held still."""
    if outcome.ticket is None or outcome.state in TERMINAL:
        return None
    return ticket_out(outcome.ticket, outcome.ticket.state)


def _status(outcome: CallOutcome, *, strict: bool) -> int:
    if _ticket(outcome) is not None:
        return 202
    if outcome.state is InvocationState.SUCCEEDED or not strict:
        return 200
    return 504 if outcome.error_code == "TIMEOUT" else 502


def _answer(
    outcome: CallOutcome, entry: CatalogueEntry | None, meta: CallMeta, name: str
) -> CallAnswer:
    success = outcome.state is InvocationState.SUCCEEDED
    # an approver's edit is told in mcp.content
    own = remove_edit_note(outcome.result) if outcome.result is not None else None
    details = CallResultMeta(
        invocation_id=outcome.invocation_id,
        state=outcome.state,
        server_name=entry.offer.server.slug if entry else "",
        tool_name=entry.offer.tool.name if entry else "",
        request_id=meta.request_id,
        response_time=round(outcome.duration_ms, 3),
        content_type=content_type(own),
        content=outcome.result,
        error_code=outcome.error_code,
        remedy=outcome.remedy,
        approval=_ticket(outcome),
        warning=outcome.warning,
        record=RECORD_LATE if outcome.late else "",
        energy=CallEnergyOut(charged=outcome.energy.amount, level=outcome.energy.level)
        if outcome.energy
        else None,
    )
    return CallAnswer(
        tool_name=entry.name if entry else name,
        success=success,
        result=plain_result(own) if success and own is not None else None,
        error=None if success or _ticket(outcome) else failure(outcome),
        mcp=details,
    )
