"""``mcp_approval_status``: how a held call stands, asked by the agent whose call it is.

It is our own tool: no grant is needed and no rule asked, since it tells an agent only of its own
calls; somebody else's id and one that never was give the same answer. It is listed for agents whose
calls could be held, to others it would only be one more name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mcpregistry.calls.approvals.approvals import Approvals
from mcpregistry.calls.approvals.held_call_status import describe_held_call
from mcpregistry.calls.call import Call, CallOutcome
from mcpregistry.calls.catalog import ToolOffer
from mcpregistry.domain.calls.outcome_texts import compose_headline
from mcpregistry.domain.lifecycle import TERMINAL, InvocationState
from mcpregistry.domain.policy.decision import RuleOutcome
from mcpregistry.domain.snapshot import Snapshot
from mcpregistry.domain.snapshot_specs import RUNS, AgentSpec, EndpointSpec, ServerSpec, ToolSpec
from mcpregistry.domain.text.canonical import encode_lossy_json, hash_parts
from mcpregistry.services.approvals.held_calls import HeldCallTicket

KIND = "builtin"
NAME = "mcp_approval_status"

_LISTING: Mapping[str, Any] = {
    "name": NAME,
    "title": "Status of a call that waits for approval",
    "description": (
        "Returns the status of a tool call that was answered with 'pending approval': who can approve it, how long it "
        "still waits, what was decided and why, and its result as soon as there is one. Pass the id from that answer."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "id": {
                "type": "string",
                "minLength": 1,
                "maxLength": 64,
                "description": "The id of the approval or of the call.",
            },
            "approval": {
                "type": "string",
                "minLength": 1,
                "maxLength": 64,
                "description": "The same id, under the name that the answer has. Use either 'approval' or 'id'.",
            },
        },
        "minProperties": 1,
        "additionalProperties": False,
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}
_SERVER = ServerSpec(
    id=-1,
    slug="slipsnisse",
    title="Slipsnisse",
    revision=0,
    transport="none",
    connect_mode="none",
    request_timeout=10.0,
    max_message_bytes=0,
    available=True,
)
_TOOL = ToolSpec(
    id=-1,
    server_id=-1,
    name=NAME,
    definition_hash=hash_parts(encode_lossy_json(_LISTING)),
    data=_LISTING,
    idempotent=True,
)
_OFFER = ToolOffer(KIND, _SERVER, _TOOL, own=True, aside=True)


class ApprovalStatus:
    """Both the source of the one tool and what serves it."""

    kind = KIND

    def __init__(self, approvals: Approvals) -> None:
        self._approvals = approvals

    def list_offers(
        self, snapshot: Snapshot, endpoint: EndpointSpec, agent: AgentSpec, now: float
    ) -> Iterable[ToolOffer]:
        """The tool itself, for agents with calls that could be held; never for runs, which sleep
        meanwhile."""
        return (
            (_OFFER,)
            if endpoint.slug != RUNS.slug and _can_be_held(snapshot, endpoint, agent)
            else ()
        )

    async def __call__(self, call: Call, *, on_sent: Callable[[], None]) -> dict[str, Any]:
        """Say how the call stands, or give its end; running it first if it is approved."""
        arguments = call.request.arguments
        held_id = str(arguments.get("approval") or arguments.get("id"))
        ticket = await self._approvals.requests.find(held_id, call.request.catalogue.agent.slug)
        if ticket is None:
            return _UNKNOWN
        if ticket.state not in TERMINAL:
            said = describe_held_call(ticket, ticket.state)
            return {
                "content": [{"type": "text", "text": said["message"]}],
                "structuredContent": said,
            }
        return _describe_end(ticket, await self._approvals.runner.run(ticket))


_UNKNOWN_TEXT = (
    "None of your held calls has this id. Pass the id from the answer 'pending approval'."
)
_UNKNOWN: dict[str, Any] = {
    "isError": True,
    "content": [{"type": "text", "text": _UNKNOWN_TEXT}],
    "structuredContent": {"status": "unknown", "message": _UNKNOWN_TEXT},
}


def _can_be_held(snapshot: Snapshot, endpoint: EndpointSpec, agent: AgentSpec) -> bool:
    """Whether any rule could ask a person about a call of this agent; one whose condition fails
    asks too."""
    return snapshot.default_outcome is RuleOutcome.ASK or any(
        (rule.outcome is RuleOutcome.ASK or rule.condition)
        and rule.agent_id in (None, agent.id)
        and rule.endpoint in (None, endpoint.slug)
        for rule in snapshot.rules
    )


def _describe_end(ticket: HeldCallTicket, outcome: CallOutcome) -> dict[str, Any]:
    """How it ended, and the tool's own result behind it."""
    done = outcome.state is InvocationState.SUCCEEDED
    words = (
        "The call ran. Its result follows."
        if outcome.result
        else f"{outcome.message} {outcome.remedy}".strip()
    )
    unsure = outcome.state in (InvocationState.UNKNOWN, InvocationState.NOT_SENT)
    begin = f"{compose_headline(outcome.state, outcome.error_code)}: " if unsure else ""
    if done:
        status = "done"
    elif outcome.result:
        status = "failed"
    else:
        status = "ended"
    said = {
        "status": status,
        "message": f"{begin}{words}",
        "state": outcome.state.value,
        "approval": ticket.id,
        "call": ticket.call_id,
        "url": ticket.url,
    }
    result = outcome.result or {}
    return {
        "content": [
            {"type": "text", "text": f"{begin}{words} (state: {outcome.state.value})"},
            *_list_content_parts(result),
        ],
        "structuredContent": said | ({"result": result} if result else {}),
    }


def _list_content_parts(result: dict[str, Any]) -> list[Any]:
    """What was answered, as content of a tool's result, whatever the kind of what was called."""
    for place, as_part in _PLACES.items():
        if isinstance(found := result.get(place), list):
            return [as_part(each) for each in found if isinstance(each, dict)]
    return []


_PLACES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "content": lambda part: part,
    "messages": lambda message: message.get("content"),
    "contents": lambda resource: {"type": "resource", "resource": resource},
}
